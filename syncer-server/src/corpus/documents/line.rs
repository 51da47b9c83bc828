//! One line of JSON as a document.

use serde_json::{Map, Value};

use super::{Document, End};

/// The document on a line; `conversation` writes one from its messages.
///
/// # Errors
/// What is wrong with the line, and what to do.
pub fn document(
    line: &str,
    conversation: &mut dyn FnMut(&[Value]) -> Result<Document, String>,
) -> Result<Document, String> {
    let value: Value = serde_json::from_str(line).map_err(|error| {
        // Its line is always the first, and what is told names the file's.
        let error = error.to_string();
        let why = error.split(" at line").next().unwrap_or_default();
        format!("it is no JSON ({why}, near character {}): mend it or leave it out", column(&error))
    })?;
    let object = value.as_object().ok_or("it is no JSON object: each line is a {…}")?;
    if let Some(messages) = object.get("messages") {
        let messages = messages.as_array().ok_or("\"messages\" is no list")?;
        check(messages)?;
        return conversation(messages);
    }
    if object.contains_key("prompt") || object.contains_key("completion") {
        let (prompt, completion) = (text(object, "prompt")?, text(object, "completion")?);
        let whole = prompt.len()..prompt.len() + completion.len();
        return Ok(Document { text: format!("{prompt}{completion}"), learnt: vec![whole], end: End::Learnt });
    }
    if object.contains_key("text") {
        let text = text(object, "text")?;
        if text.is_empty() {
            return Err("\"text\" is empty: leave the line out".into());
        }
        let whole = 0..text.len();
        return Ok(Document { text: text.to_owned(), learnt: vec![whole], end: End::Learnt });
    }
    Err("it has no \"text\", no \"prompt\" with a \"completion\", and no \"messages\"".into())
}

fn text<'a>(object: &'a Map<String, Value>, key: &str) -> Result<&'a str, String> {
    match object.get(key) {
        None => Err(format!("it has no \"{key}\"")),
        Some(value) => value.as_str().ok_or_else(|| format!("\"{key}\" is no text")),
    }
}

/// That each message says who speaks and what.
fn check(messages: &[Value]) -> Result<(), String> {
    for (message, number) in messages.iter().zip(1_u32..) {
        let object = message.as_object().ok_or_else(|| format!("message {number} is no JSON object"))?;
        let said = text(object, "role").and_then(|_| match object.get("content") {
            Some(Value::Null) => {
                Err("\"content\" is null: give the text that is said, or leave the message out".into())
            }
            Some(Value::Array(_)) => {
                Err("\"content\" is a list of parts: give their text as one string".into())
            }
            _ => text(object, "content"),
        });
        said.map_err(|why| format!("message {number}: {why}"))?;
    }
    match messages.iter().any(|message| message["role"] == "assistant") {
        true => Ok(()),
        false => Err("no message is the assistant's, so that nothing in it is to be learnt".into()),
    }
}

/// Where on its line `error` of JSON is.
fn column(error: &str) -> &str {
    error.rsplit("column ").next().unwrap_or_default()
}
