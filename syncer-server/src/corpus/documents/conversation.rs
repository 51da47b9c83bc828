//! Conversations in the forms of common data sets, before a chat template renders them.

use std::borrow::Cow;

use super::json::{Map, Value};
use super::line::Form;

/// Speaker names of the ShareGPT form, and their roles.
const SPEAKERS: [(&str, &str); 11] = [
    ("human", "user"),
    ("user", "user"),
    ("gpt", "assistant"),
    ("chatgpt", "assistant"),
    ("bing", "assistant"),
    ("bard", "assistant"),
    ("model", "assistant"),
    ("assistant", "assistant"),
    ("system", "system"),
    ("tool", "tool"),
    ("observation", "tool"),
];

/// Messages of one record, with their training flags.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    /// Messages in order: objects with a "role", and mostly with a "content", which is a string or a list of parts.
    pub messages: Vec<Value>,
    /// One flag per message. A message is trained on if it is the assistant's and its flag is true.
    pub is_target: Vec<bool>,
    /// Other keys of the record, which a chat template may read.
    pub others: Map,
}

/// Returns the conversation in `object`, without nulls, and its form. Returns `None` if `object` has no conversation.
///
/// # Errors
/// A sentence that describes the fault.
pub fn of(object: &Map) -> Result<Option<(Form, Conversation)>, String> {
    let mut empty = None;
    for key in ["messages", "conversations", "conversation"] {
        let Some(value) = object.get(key) else { continue };
        let value = decoded(value);
        let messages = match &*value {
            // In a table, this column may be empty because other rows use it.
            Value::Array(messages) if messages.is_empty() => {
                empty = Some(key);
                continue;
            }
            Value::Array(messages) => messages,
            _ if key == "conversation" => continue,
            Value::String(_) => {
                return Err(format!(
                    "\"{key}\" is a text that is no JSON list: write the list of messages itself"
                ));
            }
            _ => return Err(format!("\"{key}\" is not a list")),
        };
        let form = if key == "messages" { Form::Messages } else { Form::ShareGpt };
        let messages = with_system(object.get("system"), as_messages(messages)?)?;
        return conversation(messages, object, 0).map(|found| Some((form, found)));
    }
    match (object.get("prompt"), object.get("completion")) {
        (Some(Value::Array(prompt)), Some(Value::Array(completion))) => {
            let messages = as_messages(&[&prompt[..], completion].concat())?;
            conversation(messages, object, prompt.len()).map(|found| Some((Form::Trl, found)))
        }
        (Some(Value::Array(_)), Some(_)) => {
            Err("\"prompt\" is a list of messages but \"completion\" is not: write both as lists".into())
        }
        (Some(_), Some(Value::Array(_))) => {
            Err("\"completion\" is a list of messages but \"prompt\" is not: write both as lists".into())
        }
        (Some(Value::Array(_)), None) => {
            Err("it has a list of messages as \"prompt\", but no \"completion\"".into())
        }
        _ => match empty {
            Some(key) if !["text", "prompt", "instruction"].iter().any(|key| object.contains_key(*key)) => {
                Err(format!("\"{key}\" is empty: leave the line out"))
            }
            _ => Ok(None),
        },
    }
}

/// Returns the value in a text of JSON, as tables in CSV hold lists; a blank text is an empty list. Other values stay.
fn decoded(value: &Value) -> Cow<'_, Value> {
    match value {
        Value::String(text) if text.trim().is_empty() => Cow::Owned(Value::Array(Vec::new())),
        Value::String(text) => serde_json::from_str(text).map_or(Cow::Borrowed(value), Cow::Owned),
        _ => Cow::Borrowed(value),
    }
}

/// Returns `messages` as a checked conversation. The first `given` messages are not trained on.
fn conversation(mut messages: Vec<Value>, object: &Map, given: usize) -> Result<Conversation, String> {
    let mut is_target = Vec::with_capacity(messages.len());
    for (message, index) in messages.iter_mut().zip(0_usize..) {
        let weight = check(message).map_err(|why| format!("message {}: {why}", index + 1))?;
        is_target.push(weight && index >= given);
    }
    let said = || messages.iter().zip(&is_target).filter(|(message, _)| message["role"] == "assistant");
    if said().next().is_none() {
        let mut roles: Vec<&str> = messages.iter().filter_map(|message| message["role"].as_str()).collect();
        roles.sort_unstable();
        roles.dedup();
        let roles: Vec<String> = roles
            .iter()
            .take(4)
            .map(|role| format!("\"{}\"", role.chars().take(40).collect::<String>()))
            .collect();
        return Err(format!(
            "no message has the \"role\" \"assistant\", so there is nothing to learn; it has {}: call the role that \
             is learnt \"assistant\"",
            roles.join(", ")
        ));
    }
    if !said().any(|(_, &is_target)| is_target) {
        return Err("no message of the assistant's is marked for learning: leave the line out".into());
    }
    let forms = ["messages", "conversations", "conversation", "prompt", "completion"];
    let others = object.iter().filter(|(key, _)| !forms.contains(&key.as_str()));
    let mut others: Map = others.map(|(key, value)| (key.clone(), value.clone())).collect();
    refuse_media(&messages, &others)?;
    if let (Some(Value::Array(functions)), None) = (others.get("functions"), others.get("tools"))
        && !functions.is_empty()
    {
        let tools = functions.iter().cloned().map(tool).collect();
        others.insert("tools".into(), Value::Array(tools));
    }
    Ok(Conversation { messages, is_target, others })
}

/// Refuses messages with a placeholder for an image, a video or a sound that the record has.
fn refuse_media(messages: &[Value], others: &Map) -> Result<(), String> {
    for key in ["image", "images", "videos", "audios"] {
        let placeholder = format!("<{}>", key.trim_end_matches('s'));
        let has_placeholder = |message: &Value| {
            let content = &message["content"];
            content.as_str().is_some_and(|text| text.contains(&placeholder))
        };
        let is_list_empty = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
        if others.get(key).is_some_and(|value| !is_list_empty(value)) && messages.iter().any(has_placeholder)
        {
            return Err(format!(
                "it has {placeholder} with \"{key}\", but only text is learnt: leave the line out"
            ));
        }
    }
    Ok(())
}

/// Returns a function, or a call of one, in the form of a tool or its call.
fn tool(function: Value) -> Value {
    if function.get("function").is_some() {
        return function;
    }
    let pairs = [("type", "function".into()), ("function", function)];
    Value::Object(pairs.map(|(key, value)| (key.to_owned(), value)).into_iter().collect())
}

/// Converts a message of OpenAI's older interface: a `function_call` is a call of a tool, and the role `function` is
/// the role `tool`.
fn convert_function(object: &mut Map) {
    if object.get("role").is_some_and(|role| role == "function") {
        object.insert("role".into(), "tool".into());
    }
    let has_calls = object.get("tool_calls").is_some_and(|calls| !calls.is_null());
    if !has_calls && object.get("function_call").is_some_and(|call| call.as_object().is_some()) {
        let call = object.shift_remove("function_call").unwrap_or_default();
        object.insert("tool_calls".into(), Value::Array(vec![tool(call)]));
    }
}

/// Checks that a message has a role and a content, and removes its nulls and its weight. Returns true if the message
/// may be trained on.
fn check(message: &mut Value) -> Result<bool, String> {
    let object = message.as_object_mut().ok_or("it is not a JSON object")?;
    text(object, "role")?;
    convert_function(object);
    let has_calls = object.get("tool_calls").and_then(Value::as_array).is_some_and(|calls| !calls.is_empty());
    match object.get_mut("content") {
        Some(Value::Array(parts)) => parts.iter_mut().try_for_each(check_part)?,
        // Templates distinguish a null content from a missing one.
        None | Some(Value::Null) if has_calls => {}
        Some(Value::Null) => {
            return Err("\"content\" is null: give the text of the message, or leave the message out".into());
        }
        _ => drop(text(object, "content")?),
    }
    object.retain(|key, value| key == "content" || !value.is_null());
    weight(object)
}

/// Checks a part of a message's content, which must be text. The types of OpenAI's newer interface become `text`.
fn check_part(part: &mut Value) -> Result<(), String> {
    let is_newer = |kind: &Value| *kind == "input_text" || *kind == "output_text";
    if let Some(kind) =
        part.as_object_mut().and_then(|part| part.get_mut("type")).filter(|kind| is_newer(kind))
    {
        *kind = "text".into();
    }
    match (part.get("type").and_then(Value::as_str), part.get("text").and_then(Value::as_str)) {
        (Some("text"), Some(_)) => Ok(()),
        (Some("text"), None) => {
            Err("a part of its \"content\" has the type \"text\", but no \"text\"".into())
        }
        (Some(kind), _) => Err(format!(
            "its \"content\" has a part of the type \"{}\", but only text is learnt: leave the message out",
            kind.chars().take(40).collect::<String>()
        )),
        (None, _) => {
            Err("a part of its \"content\" has no \"type\": write {\"type\": \"text\", \"text\": \"…\"}"
                .into())
        }
    }
}

/// Removes the weight of a message. Returns true if it is 1, the default; a message of weight 0 is not trained on.
fn weight(object: &mut Map) -> Result<bool, String> {
    let is_assistant = object.get("role").is_some_and(|role| role == "assistant");
    for key in ["weight", "train", "loss"] {
        let is_target = match object.shift_remove(key) {
            None => continue,
            // A number may be a measured loss.
            Some(Value::Number(_)) if key == "loss" => continue,
            Some(Value::Bool(is_target)) => is_target,
            Some(Value::Number(number)) if number.as_f64() == Some(0.0) => false,
            Some(Value::Number(number)) if number.as_f64() == Some(1.0) => true,
            Some(other) => {
                let other: String = other.to_string().chars().take(40).collect();
                return Err(format!("its \"{key}\" is {other}: give 1 to learn it, or 0 not to"));
            }
        };
        if is_target && !is_assistant && key != "weight" {
            return Err(format!(
                "its \"{key}\" is true, but only the assistant's messages are learnt: leave it out"
            ));
        }
        return Ok(is_target);
    }
    Ok(true)
}

/// Returns `messages`, with those of the ShareGPT form converted to roles and contents.
fn as_messages(messages: &[Value]) -> Result<Vec<Value>, String> {
    messages.iter().zip(1_u32..).map(|(message, number)| as_message(message, number)).collect()
}

fn as_message(message: &Value, number: u32) -> Result<Value, String> {
    let Some(object) = message.as_object() else {
        return Err(format!("message {number} is not a JSON object"));
    };
    let (Some(from), None) = (object.get("from"), object.get("role")) else { return Ok(message.clone()) };
    let from = from.as_str().ok_or_else(|| format!("message {number}: \"from\" is not a text"))?;
    let Some((_, role)) = SPEAKERS.iter().find(|(name, _)| *name == from) else {
        let from: String = from.chars().take(40).collect();
        return Err(format!(
            "message {number}: \"from\" is \"{from}\", not human, gpt, system or tool: write the conversation as \
             \"messages\" with \"role\" and \"content\""
        ));
    };
    let value = object.get("value").ok_or_else(|| format!("message {number}: it has no \"value\""))?;
    if !value.is_string() {
        return Err(format!("message {number}: \"value\" is not a text"));
    }
    let mut message = object.clone();
    message.shift_remove("from");
    message.shift_remove("value");
    message.insert("role".into(), (*role).into());
    message.insert("content".into(), value.clone());
    Ok(Value::Object(message))
}

fn message(role: &str, content: &str) -> Value {
    let pairs = [("role", role), ("content", content)];
    Value::Object(pairs.into_iter().map(|(key, text)| (key.to_owned(), text.into())).collect())
}

/// Returns `messages`, with the record's own system message in front unless the messages begin with one.
fn with_system(system: Option<&Value>, mut messages: Vec<Value>) -> Result<Vec<Value>, String> {
    let Some(system) = system else { return Ok(messages) };
    let system = system.as_str().ok_or("\"system\" is not a text")?;
    if !system.is_empty() && messages.first().is_none_or(|first| first["role"] != "system") {
        messages.insert(0, message("system", system));
    }
    Ok(messages)
}

/// A record of the Alpaca form: an instruction with its answer.
pub struct Alpaca<'a> {
    /// The instruction and the answer as a conversation.
    pub conversation: Conversation,
    instruction: &'a str,
    input: &'a str,
    output: &'a str,
}

/// Returns the Alpaca record in `object`.
///
/// # Errors
/// A sentence that describes the fault.
pub fn alpaca(object: &Map) -> Result<Alpaca<'_>, String> {
    let (instruction, output) = (text(object, "instruction")?, text(object, "output")?);
    let input = if object.contains_key("input") { text(object, "input")? } else { "" };
    let mut messages = Vec::new();
    for turn in object.get("history").and_then(Value::as_array).into_iter().flatten() {
        let (Some(asked), Some(answered)) = (turn[0].as_str(), turn[1].as_str()) else {
            return Err("\"history\" is not a list of pairs of texts".into());
        };
        messages.push(message("user", asked));
        messages.push(message("assistant", answered));
    }
    let asked = if input.is_empty() { instruction.to_owned() } else { format!("{instruction}\n\n{input}") };
    messages.push(message("user", &asked));
    messages.push(message("assistant", output));
    let messages = with_system(object.get("system"), messages)?;
    let is_target = vec![true; messages.len()];
    let conversation = Conversation { messages, is_target, ..Conversation::default() };
    Ok(Alpaca { conversation, instruction, input, output })
}

impl<'a> Alpaca<'a> {
    /// Returns the instruction as Alpaca's own prompt, and the answer.
    ///
    /// # Errors
    /// A sentence: only a chat template can render this instruction.
    pub fn plain(&self) -> Result<(String, &'a str), String> {
        let Self { instruction, input, output, conversation } = self;
        if conversation.messages.len() > 2 {
            return Err(
                "it has a \"system\" or a \"history\" with its \"instruction\", but the model has no chat template: \
                 give --chat-template a file with one"
                    .into(),
            );
        }
        let begins = match input.is_empty() {
            true => "Below is an instruction that describes a task. Write a response that appropriately completes the \
                     request.\n\n"
                .to_owned(),
            false => "Below is an instruction that describes a task, paired with an input that provides further \
                      context. Write a response that appropriately completes the request.\n\n"
                .to_owned(),
        };
        let input = if input.is_empty() { String::new() } else { format!("### Input:\n{input}\n\n") };
        Ok((format!("{begins}### Instruction:\n{instruction}\n\n{input}### Response:\n"), output))
    }
}

/// Returns the text at `key`.
///
/// # Errors
/// A sentence: the key is missing or has no text.
pub fn text<'a>(object: &'a Map, key: &str) -> Result<&'a str, String> {
    match object.get(key) {
        None => Err(format!("it has no \"{key}\"")),
        Some(Value::Array(_)) => {
            Err(format!("\"{key}\" is a list, not a text: write one line for each text"))
        }
        Some(value) => value.as_str().ok_or_else(|| format!("\"{key}\" is not a text")),
    }
}
