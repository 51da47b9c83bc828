//! Conversations as a model's chat template writes them, and which parts of that the assistant says.
//!
//! Templates are in Jinja's language and come with folders, from strangers: they see the conversation and nothing else,
//! and what they may compute is limited. The settings are those with which `transformers` runs them.

use std::ops::Range;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, Error, ErrorKind, Value};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde_json::Value as Json;

use super::conversation::Conversation;
use super::{Document, End};
use crate::llama::Chat;

/// Steps that a template may take for one conversation.
const FUEL: u64 = 10_000_000;

/// Bytes of one conversation as it is written, at most.
const BYTES_MAX: usize = 16 << 20;

/// Messages of a conversation at most.
const MESSAGES_MAX: usize = 1_000;

/// What stands around the assistant's words while a template with marks of its own writes: characters that are for use
/// inside of programs, and no text.
const MARKS: [char; 2] = ['\u{fdd0}', '\u{fdd1}'];

/// The filter that puts [`MARKS`] around what it is given.
const FILTER: &str = "_archipelago_generation";

const NAME: &str = "chat";

/// A chat template, ready to write.
pub struct Template {
    environment: Environment<'static>,
    /// Texts of tokens, by the names that templates know them by.
    tokens: Vec<(String, Value)>,
    /// Whether it says itself what the assistant generates.
    has_marks: bool,
}

impl Template {
    /// The template of `chat`.
    ///
    /// # Errors
    /// What is wrong with it, or that there is none, and what to do.
    pub fn new(chat: &Chat) -> Result<Self, String> {
        let source = chat.template.as_deref().ok_or(
            "it is a conversation, and the model has no chat template: give --chat-template a file with one, or lines \
             with \"prompt\" and \"completion\"",
        )?;
        let (source, has_marks) = with_filters(source);
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.expect("the usual delimiters"));
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(unknown_method_callback);
        environment.add_filter(FILTER, |text: String| format!("{}{text}{}", MARKS[0], MARKS[1]));
        environment.add_filter("tojson", |value: Value| {
            serde_json::to_string(&value)
                .map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))
        });
        environment.add_function("raise_exception", |why: String| -> Result<String, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, why))
        });
        environment
            .add_template_owned(NAME, source)
            .map_err(|error| format!("the chat template cannot be used: {}", told(&error)))?;
        let tokens = chat.tokens.iter().map(|(key, text)| (key.clone(), Value::from(text.as_str())));
        Ok(Self { environment, tokens: tokens.collect(), has_marks })
    }

    /// Writes `conversation` as one document, of which the assistant's turns are learnt.
    ///
    /// # Errors
    /// Why it cannot be written, and what to do.
    pub fn document(&self, conversation: &Conversation) -> Result<Document, String> {
        let messages = &conversation.messages[..];
        if messages.len() > MESSAGES_MAX {
            return Err(format!("it has {} messages, at most {MESSAGES_MAX} are read", messages.len()));
        }
        let marked = |message: &Json| message["content"].as_str().is_some_and(|text| text.contains(MARKS));
        if messages.iter().any(marked) {
            let [a, b] = MARKS.map(u32::from);
            return Err(format!(
                "a message has the character U+{a:X} or U+{b:X}, which no text has: remove it"
            ));
        }
        let (text, learnt) = match self.has_marks {
            true => {
                let (text, spans) = unmarked(&self.write(messages, false)?)?;
                (text, weighted(spans, conversation)?)
            }
            false => self.turns(conversation)?,
        };
        match learnt.iter().any(|span| !span.is_empty()) {
            true => Ok(Document { text, learnt, end: End::Given }),
            false => Err("the chat template writes nothing that the assistant says".into()),
        }
    }

    /// `messages` as text, up to the moment in which the assistant is to speak with `add_generation_prompt`.
    ///
    /// # Errors
    /// Why they cannot be written, and what to do.
    pub fn text(&self, messages: &[Json], add_generation_prompt: bool) -> Result<String, String> {
        self.write(messages, add_generation_prompt).map(|text| text.replace(MARKS, ""))
    }

    /// What each of the assistant's turns adds to what was written up to the moment in which it is to speak.
    fn turns(&self, conversation: &Conversation) -> Result<(String, Vec<Range<usize>>), String> {
        let messages = &conversation.messages[..];
        let text = self.write(messages, false)?;
        let mut learnt = Vec::new();
        for (index, message) in messages.iter().enumerate() {
            if message["role"] != "assistant" || !conversation.is_learnt[index] {
                continue;
            }
            let before = self.write(&messages[..index], true)?;
            let with = self.write(&messages[..=index], false)?;
            if !(with.starts_with(&before) && text.starts_with(&with)) {
                return Err(format!(
                    "the chat template writes the turns up to message {} otherwise than in the whole conversation, so \
                     that it cannot be told what the assistant says: give --chat-template a file that has it between \
                     {{% generation %}} and {{% endgeneration %}}",
                    index + 1
                ));
            }
            learnt.push(before.len()..with.len());
        }
        Ok((text, learnt))
    }

    fn write(&self, messages: &[Json], add_generation_prompt: bool) -> Result<String, String> {
        let tokens = self.tokens.iter().map(|(key, text)| (key.as_str(), text.clone()));
        let own = [
            ("messages", Value::from(Serde(messages))),
            ("add_generation_prompt", add_generation_prompt.into()),
        ];
        let values = Value::from_pairs(tokens.chain(own));
        let template = self.environment.get_template(NAME).expect("it was added");
        let text = template
            .render(values)
            .map_err(|error| format!("the chat template does not take it: {}", told(&error)))?;
        match text.len() <= BYTES_MAX {
            true => Ok(text),
            false => Err(format!("it is written as {} bytes, at most {BYTES_MAX} are read", text.len())),
        }
    }
}

/// An error of a template in one line.
fn told(error: &Error) -> String {
    let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    match error.line() {
        Some(line) => format!("{detail} (line {line} of the template)"),
        None => detail,
    }
}

/// `source` with the blocks `{% generation %}` as filters, which mean the same to whatever is inside and around them;
/// and whether there are any.
fn with_filters(source: &str) -> (String, bool) {
    let (mut out, mut rest, mut found) = (String::with_capacity(source.len()), source, false);
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}") else { break };
        let (open, close) = (start + 2, start + length);
        let signs = |c: char| c == '-' || c == '+' || c.is_whitespace();
        let (tag, word) = (&rest[open..close], rest[open..close].trim_matches(signs));
        let block = match word {
            "generation" => format!("filter {FILTER}"),
            "endgeneration" => "endfilter".to_owned(),
            _ => word.to_owned(),
        };
        found |= word == "generation";
        out.push_str(&rest[..open]);
        match block == word {
            true => out.push_str(tag),
            false => out.push_str(&tag.replacen(word, &block, 1)),
        }
        out.push_str("%}");
        rest = &rest[close + 2..];
    }
    out.push_str(rest);
    (out, found)
}

/// Those of `spans`, one for each message of the assistant's, whose message is learnt.
///
/// # Errors
/// Some messages are not learnt, and it cannot be told which spans are theirs.
fn weighted(spans: Vec<Range<usize>>, conversation: &Conversation) -> Result<Vec<Range<usize>>, String> {
    let messages = conversation.messages.iter().zip(&conversation.is_learnt);
    let said: Vec<bool> = messages
        .filter(|(message, _)| message["role"] == "assistant")
        .map(|(_, &is_learnt)| is_learnt)
        .collect();
    match (said.iter().all(|&is_learnt| is_learnt), spans.len() == said.len()) {
        (true, _) => Ok(spans),
        (false, true) => Ok(spans
            .into_iter()
            .zip(said)
            .filter_map(|(span, is_learnt)| is_learnt.then_some(span))
            .collect()),
        (false, false) => Err(format!(
            "some of its messages are not to be learnt, and the chat template has {} parts between {{% generation %}} \
             and {{% endgeneration %}} for {} messages of the assistant's: leave the weights out, or give \
             --chat-template a file with one part for each",
            spans.len(),
            said.len()
        )),
    }
}

/// A text without its marks, and what stood between them.
fn unmarked(marked: &str) -> Result<(String, Vec<Range<usize>>), String> {
    let (mut text, mut learnt, mut begun) = (String::with_capacity(marked.len()), Vec::new(), None);
    for part in marked.split_inclusive(MARKS) {
        let plain = part.trim_end_matches(MARKS);
        text.push_str(plain);
        let mark = part[plain.len()..].chars().next();
        match (mark, begun) {
            (None, _) => {}
            (Some(mark), None) if mark == MARKS[0] => begun = Some(text.len()),
            (Some(mark), Some(start)) if mark == MARKS[1] => {
                learnt.push(start..text.len());
                begun = None;
            }
            _ => return Err("the chat template has a {% generation %} inside of another".into()),
        }
    }
    Ok((text, learnt))
}
