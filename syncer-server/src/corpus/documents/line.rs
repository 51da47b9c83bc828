//! Conversion of one JSON value to a document.

use std::borrow::Cow;

use super::conversation::{self, Conversation, text};
use super::json::{Map, Value};
use super::{Document, End};

/// Function that renders a conversation as a document, with the chat template of a model.
pub type Writer<'a> = dyn FnMut(&Conversation) -> Result<Document, String> + 'a;

/// Returns the document of a record. If there is a `column`, it is the text under this key. `write` renders
/// conversations, if the model has a chat template.
///
/// # Errors
/// A sentence with the fault of the record, and a remedy.
pub fn document(
    json: &str,
    column: Option<&str>,
    write: Option<&mut Writer<'_>>,
) -> Result<(Form, Document), String> {
    let mut object = match value(&mended(json))? {
        Value::Object(object) => object,
        Value::String(text) if !text.is_empty() => return Ok((Form::Text, targets("", &text))),
        Value::Array(list) if list.first().is_some_and(|message| message.get("role").is_some()) => {
            return Err("it is a list of messages: write it as {\"messages\": […]}".into());
        }
        _ => return Err("it is not a JSON object: each line is a {…}".into()),
    };
    // Tables have every column in every row, with null for a missing value.
    object.retain(|_, value| !value.is_null());
    if let Some(column) = column {
        return of_column(&object, column);
    }
    rename_dolly(&mut object);
    refuse_preferences(&object)?;
    if let Some((form, conversation)) = conversation::of(&object)? {
        return match write {
            Some(write) => write(&conversation).map(|document| (form, document)),
            None => Err(format!(
                "it is a conversation, with {}, but the model has no chat template: give --chat-template a file with \
                 one, or lines with \"prompt\" and \"completion\"",
                form.title()
            )),
        };
    }
    let has = |key: &str| object.contains_key(key);
    if !has("text") && !has("completion") {
        refuse_other_names(&object)?;
    }
    if (has("prompt") && has("completion")) || ((has("prompt") || has("completion")) && !has("text")) {
        let (prompt, completion) = (text(&object, "prompt")?, text(&object, "completion")?);
        return Ok((Form::Completion, targets(prompt, completion)));
    }
    if has("instruction") && has("output") {
        let alpaca = conversation::alpaca(&object)?;
        return match write {
            Some(write) => write(&alpaca.conversation).map(|document| (Form::AlpacaConversation, document)),
            None => alpaca.plain().map(|(prompt, output)| (Form::AlpacaCompletion, targets(&prompt, output))),
        };
    }
    if has("text") {
        return of_text(&object, "text");
    }
    Err(format!(
        "it has no \"text\", no \"prompt\" with a \"completion\", no \"instruction\" with an \"output\", and no \
         \"messages\"{}",
        keys(&object)
    ))
}

/// Returns the document of the text under `key`.
fn of_text(object: &Map, key: &str) -> Result<(Form, Document), String> {
    match text(object, key)? {
        "" => Err(format!("\"{key}\" is empty: leave the line out")),
        text => Ok((Form::Text, targets("", text))),
    }
}

/// Returns the document of the text under the key that the owner names.
fn of_column(object: &Map, column: &str) -> Result<(Form, Document), String> {
    match object.contains_key(column) {
        true => of_text(object, column),
        false => Err(format!("it has no \"{column}\", which --column names{}", keys(object))),
    }
}

/// Gives a record with the keys of the data set Dolly those of Alpaca, which mean the same.
fn rename_dolly(object: &mut Map) {
    let is_text = |object: &Map, key: &str| object.get(key).is_some_and(Value::is_string);
    if !is_text(object, "instruction") || !is_text(object, "response") || object.contains_key("output") {
        return;
    }
    for (key, name) in [("response", "output"), ("context", "input")] {
        if is_text(object, key) && !object.contains_key(name) {
            let value = object.shift_remove(key).unwrap_or_default();
            object.insert(name.to_owned(), value);
        }
    }
}

/// Keys that data sets have for a question, in order of precedence.
const QUESTIONS: [&str; 6] = ["instruction", "prompt", "question", "query", "problem", "input"];

/// Keys that data sets have for an answer, in order of precedence.
const REPLIES: [&str; 6] = ["output", "response", "answer", "reply", "solution", "target"];

/// Refuses tokens, and a question with its answer under other names than those that are read.
fn refuse_other_names(object: &Map) -> Result<(), String> {
    let find = |keys: &[&'static str]| {
        keys.iter().copied().find(|key| object.get(*key).is_some_and(Value::is_string))
    };
    let why = match (find(&QUESTIONS), find(&REPLIES)) {
        (Some("instruction"), Some("output")) => return Ok(()),
        (Some("prompt"), Some(reply)) => format!(
            "it has no \"completion\": rename \"{reply}\" to that if it follows the prompt directly; for a \
             question and its answer, rename \"prompt\" to \"instruction\"{}",
            if reply == "output" { String::new() } else { format!(" and \"{reply}\" to \"output\"") }
        ),
        (Some(question), Some(reply)) => {
            let names = [(question, "instruction"), (reply, "output")];
            let renames: Vec<_> = names
                .iter()
                .filter(|(key, name)| key != name)
                .map(|(key, name)| format!("\"{key}\" to \"{name}\""))
                .collect();
            format!("it has \"{question}\" and \"{reply}\": rename {}", renames.join(" and "))
        }
        _ if object.contains_key("input_ids") => {
            "it has \"input_ids\", which are tokens and not text: give the text that they were made from"
                .to_owned()
        }
        _ => return Ok(()),
    };
    Err(why)
}

/// Returns a document of `prompt`, which is masked, and `completion`, which is the target.
fn targets(prompt: &str, completion: &str) -> Document {
    let whole = prompt.len()..prompt.len() + completion.len();
    Document { text: format!("{prompt}{completion}"), targets: vec![whole], end: End::Target }
}

/// Keys of records with an answer.
const ANSWERS: [&str; 5] = ["completion", "messages", "conversations", "conversation", "output"];

/// Refuses preference data, which pairs chosen with rejected answers and is no training text.
fn refuse_preferences(object: &Map) -> Result<(), String> {
    if object.contains_key("chosen") || object.contains_key("rejected") {
        return Err(
            "it has \"chosen\" and \"rejected\" answers, but runs learn from texts, not from preferences: keep only \
             the chosen answer, as \"completion\", or its messages as \"messages\""
                .into(),
        );
    }
    // The label of a text may mean anything; that of an answer is a preference.
    let is_answer = ANSWERS.iter().any(|key| object.contains_key(*key));
    let is_false = |key: &&&str| object.get(**key) == Some(&Value::Bool(false));
    match ["label", "kto_tag"].iter().find(is_false).filter(|_| is_answer) {
        Some(key) => {
            Err(format!("its \"{key}\" is false, which marks a rejected answer: leave the line out"))
        }
        None => Ok(()),
    }
}

/// Returns the list of keys in `object`, as the end of a sentence.
fn keys(object: &Map) -> String {
    const SHOWN: usize = 8;
    let mut keys: Vec<String> = object
        .keys()
        .take(SHOWN)
        .map(|key| format!("\"{}\"", key.chars().take(40).collect::<String>()))
        .collect();
    if keys.is_empty() {
        return String::new();
    }
    if object.len() > SHOWN {
        keys.push("…".into());
    }
    format!("; it has {}: name the one that is learnt with --column", keys.join(", "))
}

/// Returns `json` with lone halves of surrogate pairs replaced. Python accepts them, but UTF-8 text cannot hold them.
fn mended(json: &str) -> Cow<'_, str> {
    let halves = json.contains("\\u").then(|| paired(json)).flatten();
    halves.map_or(Cow::Borrowed(json), Cow::Owned)
}

fn value(json: &str) -> Result<Value, String> {
    serde_json::from_str(json).map_err(|error| {
        // The line number in `error` is always 1, so it is left out. The caller adds the line number in the file.
        let error = error.to_string();
        let why = error.split(" at line").next().unwrap_or_default();
        format!("it is not valid JSON ({why}, near character {}): correct it or leave it out", column(&error))
    })
}

/// Returns `json` with U+FFFD in place of each lone half of a surrogate pair; `None` if `json` has no lone half.
fn paired(json: &str) -> Option<String> {
    let unit = |at: usize| {
        let escape = json.get(at..at + 6)?.strip_prefix("\\u")?;
        u16::from_str_radix(escape, 16).ok()
    };
    let (mut out, mut rest, mut at) = (String::new(), 0, 0);
    while let Some(found) = json[at..].find('\\') {
        at += found;
        let (is_high, is_low) = match unit(at) {
            Some(unit) => ((0xd800..0xdc00).contains(&unit), (0xdc00..0xe000).contains(&unit)),
            // An escape of two characters; the second may be a backslash itself.
            None => {
                at += 1 + json[at + 1..].chars().next().map_or(0, char::len_utf8);
                continue;
            }
        };
        let is_pair = is_high && unit(at + 6).is_some_and(|low| (0xdc00..0xe000).contains(&low));
        if (is_high || is_low) && !is_pair {
            out.push_str(&json[rest..at]);
            out.push_str("\\ufffd");
            rest = at + 6;
        }
        at += if is_pair { 12 } else { 6 };
    }
    (rest > 0).then(|| out + &json[rest..])
}

/// Returns the column in an error message of the JSON parser.
fn column(error: &str) -> &str {
    error.rsplit("column ").next().unwrap_or_default()
}

/// Forms of a document, as reports name them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// `messages`.
    Messages,
    /// `conversations`.
    ShareGpt,
    /// Lists of messages as `prompt` and `completion`.
    Trl,
    /// Strings as `prompt` and `completion`.
    Completion,
    /// `instruction`, `input` and `output`, as a conversation.
    AlpacaConversation,
    /// `instruction`, `input` and `output`, as a prompt and a completion.
    AlpacaCompletion,
    /// `text`.
    Text,
}

impl Form {
    /// Describes documents of this form.
    pub fn title(self) -> &'static str {
        match self {
            Self::Messages => "\"messages\"",
            Self::ShareGpt => "\"conversations\"",
            Self::Trl => "lists of messages as \"prompt\" and \"completion\"",
            Self::Completion => "\"prompt\" and \"completion\"",
            Self::AlpacaConversation => "\"instruction\" and \"output\" as conversations",
            Self::AlpacaCompletion => {
                "\"instruction\" and \"output\" with Alpaca's prompt, since the model has no chat template"
            }
            Self::Text => "\"text\"",
        }
    }
}
