//! Rendering of conversations by a model's chat template, with the byte ranges of the assistant's words.
//!
//! Templates are written in Jinja2 and come with untrusted model folders. They can access only the conversation, and
//! limits bound their work. Their output is the same as in `transformers`.

mod filters;
mod methods;
mod operators;
mod source;
mod text;

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

use minijinja::machinery::{CompiledTemplate, TemplateConfig, eval, make_string_output};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, Value};

use super::conversation::Conversation;
use super::{Document, End, json};
use crate::llama::Chat;

/// Step limits of a template. A step is one instruction, or work on 64 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Fuel {
    /// Steps for one rendering.
    pub each: u64,
    /// Steps for all renderings together, beyond those that each rendering adds in proportion to its conversation.
    pub all: u64,
}

impl Default for Fuel {
    fn default() -> Self {
        Self { each: 2_000_000, all: 10_000_000 }
    }
}

/// Steps that each rendering adds to the limit for all renderings.
const FUEL_PER_RENDERING: u64 = 5_000;
/// Steps that each message of a rendering adds to the limit for all renderings.
const FUEL_PER_MESSAGE: u64 = 1_000;
/// Bytes of a rendered conversation that add one step to the limit for all renderings.
const BYTES_PER_FUEL: u64 = 2;

/// Levels of nested macro calls and loops.
const RECURSION_MAX: usize = 200;

/// Largest size of a rendered conversation in bytes.
const BYTES_MAX: usize = 16 << 20;

/// Largest number of messages in a conversation.
const MESSAGES_MAX: usize = 1_000;

/// Marks around the assistant's words while a template with `{% generation %}` renders. Unicode reserves these
/// characters for use inside programs, so no text has them.
const MARKS: [char; 2] = ['\u{fdd0}', '\u{fdd1}'];

/// Filter that puts [`MARKS`] around its input.
const FILTER: &str = "_archipelago_generation";

const NAME: &str = "chat";

/// Keys of a message's reasoning, in the order in which templates look for them.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// Conversation in the form that templates receive.
#[derive(Clone, Debug, Default)]
pub struct Dialogue {
    messages: Vec<Value>,
    is_target: Vec<bool>,
    options: Vec<(String, Value)>,
    bytes: u64,
}

impl Dialogue {
    /// Prepares `conversation` for templates. They can access its messages and, of the record's other keys, `tools`,
    /// `documents` and those in `chat_template_kwargs`.
    ///
    /// # Errors
    /// A sentence: a template cannot render it.
    pub fn new(conversation: &Conversation) -> Result<Self, String> {
        let Conversation { messages, is_target, others } = conversation;
        if messages.len() > MESSAGES_MAX {
            return Err(format!("it has {} messages, but at most {MESSAGES_MAX} are read", messages.len()));
        }
        let mut options = vec![
            ("tools".to_owned(), objects(others, "tools")?),
            ("documents".to_owned(), objects(others, "documents")?),
        ];
        match others.get("chat_template_kwargs") {
            None | Some(json::Value::Null) => {}
            Some(json::Value::Object(given)) => {
                options.extend(given.iter().map(|(key, value)| (key.clone(), value.into())));
            }
            Some(_) => return Err("\"chat_template_kwargs\" is not a JSON object".into()),
        }
        let messages: Vec<Value> = messages.iter().map(Value::from).collect();
        let mut bytes = 0;
        messages
            .iter()
            .chain(options.iter().map(|(_, value)| value))
            .try_for_each(|value| check(value, &mut bytes))?;
        let messages = messages.iter().map(message).collect();
        Ok(Self { messages, is_target: is_target.clone(), options, bytes })
    }

    /// Returns true if the conversation offers tools, even if the list is empty.
    pub fn has_tools(&self) -> bool {
        self.options.iter().any(|(key, value)| key == "tools" && !value.is_none())
    }

    /// Returns the number of messages, and the bytes of all texts in the conversation.
    pub fn size(&self) -> (u32, u32) {
        let count = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        (count(self.messages.len() as u64), count(self.bytes))
    }

    /// Returns the conversation with each list of parts replaced by the text of the parts; `None` if it has no such
    /// list.
    fn flattened(&self) -> Option<Self> {
        let has_parts = |message: &Value| content(message).kind() == ValueKind::Seq;
        if !self.messages.iter().any(has_parts) {
            return None;
        }
        let flat = |message: &Value| {
            let text = |part: Value| part.get_attr("text").unwrap_or_default().as_str().map(str::to_owned);
            let flat = |(key, value): (String, Value)| match key == "content"
                && value.kind() == ValueKind::Seq
            {
                true => {
                    (key, value.try_iter().into_iter().flatten().filter_map(text).collect::<String>().into())
                }
                false => (key, value),
            };
            Value::from_pairs(pairs(message).map(flat))
        };
        Some(Self { messages: self.messages.iter().map(flat).collect(), ..self.clone() })
    }
}

fn content(message: &Value) -> Value {
    message.get_attr("content").unwrap_or_default()
}

fn pairs(object: &Value) -> impl Iterator<Item = (String, Value)> {
    let pairs = object.as_object().and_then(|object| object.try_iter_pairs()).into_iter().flatten();
    pairs.map(|(key, value)| (text::string(&key).to_owned(), value))
}

/// Returns the list of objects at `key`, or null if the key is missing. The list may be a JSON string, as in many
/// tables. Other values are errors, as in `transformers`.
fn objects(others: &json::Map, key: &str) -> Result<Value, String> {
    let parsed = match others.get(key).and_then(json::Value::as_str) {
        Some(text) => {
            serde_json::from_str(text).map_err(|_| format!("\"{key}\" is a string that is not JSON"))?
        }
        None => others.get(key).cloned().unwrap_or_default(),
    };
    match &parsed {
        json::Value::Null => Ok(Value::from(())),
        json::Value::Array(all) if all.iter().all(|one| one.as_object().is_some()) => {
            Ok(Value::from(&parsed))
        }
        _ => Err(format!("\"{key}\" is not a list of JSON objects: give [{{…}}, …] or leave it out")),
    }
}

/// Checks that templates can render all of `value` exactly, and counts its bytes.
fn check(value: &Value, bytes: &mut u64) -> Result<(), String> {
    match value.kind() {
        ValueKind::String => {
            let text = text::string(value);
            *bytes += text.len() as u64;
            if let Some(mark) = text.chars().find(|c| MARKS.contains(c)) {
                return Err(format!(
                    "a message has the character U+{:X}, which is not valid in a text: remove it",
                    u32::from(mark)
                ));
            }
            Ok(())
        }
        ValueKind::Number if !value.is_integer() => {
            let number = f64::try_from(value.clone()).unwrap_or_default();
            // From this size on, the number may have been written as an integer, and its exact value is lost.
            match number.abs() >= u64::MAX as f64 && number.fract() == 0.0 {
                true => Err("a number in it is too large to be read exactly: write it as a string".into()),
                false => Ok(()),
            }
        }
        ValueKind::Seq => value.try_iter().into_iter().flatten().try_for_each(|item| check(&item, bytes)),
        ValueKind::Map => pairs(value).try_for_each(|(key, value)| {
            *bytes += key.len() as u64;
            check(&value, bytes)
        }),
        _ => Ok(()),
    }
}

/// Returns a message as `transformers` passes it to a template: without nulls, and with its reasoning under all names.
fn message(message: &Value) -> Value {
    let mut pairs: Vec<(String, Value)> = pairs(message).filter(|(_, value)| !value.is_none()).collect();
    let find = |key: &str| pairs.iter().find(|(other, _)| other == key).map(|(_, value)| value.clone());
    if let Some(reasoning) = REASONING.iter().find_map(|key| find(key)) {
        if find("thinking").is_none() {
            pairs.insert(0, ("thinking".into(), reasoning.clone()));
        }
        pairs.retain(|(key, _)| key != "reasoning_content");
        pairs.push(("reasoning_content".into(), reasoning));
    }
    Value::from_pairs(pairs)
}

/// Chat template with its environment.
pub struct Template {
    environment: Environment<'static>,
    source: String,
    /// Texts of special tokens, by their names in templates.
    tokens: Vec<(String, Value)>,
    /// True if the template marks the assistant's words itself, with `{% generation %}`.
    has_marks: bool,
    fuel: Fuel,
}

impl Template {
    /// Reads the template `source` of `chat`. `fuel` limits its steps.
    ///
    /// # Errors
    /// A sentence: it is too large to be compiled.
    pub fn new(source: &str, chat: &Chat, fuel: Fuel) -> Result<Self, String> {
        let (source, has_marks) = source::with_filters(&source::normalized(source), FILTER)?;
        let mut environment = Environment::new();
        environment.set_fuel(Some(fuel.each));
        environment.set_recursion_limit(RECURSION_MAX);
        environment.set_unknown_method_callback(methods::call);
        environment.set_formatter(|out, state, value| {
            let text = text::text(state, value)?;
            out.write_str(&text).map_err(|_| text::failed("it cannot be rendered"))
        });
        filters::add_to(&mut environment);
        operators::add_to(&mut environment);
        environment.add_filter(FILTER, |state: &State<'_, '_>, text: String| match state.lookup(FILTER) {
            Some(_) => format!("{}{text}{}", MARKS[0], MARKS[1]),
            None => text,
        });
        let tokens = chat.tokens.iter().map(|(key, text)| (key.clone(), Value::from(text.as_str())));
        Ok(Self { environment, source, tokens: tokens.collect(), has_marks, fuel })
    }

    /// Compiles the template.
    ///
    /// # Errors
    /// A sentence that describes the fault.
    pub fn compile(&self) -> Result<Compiled<'_>, String> {
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        let syntax_config = syntax.map_err(|error| error.to_string())?;
        let config = TemplateConfig { syntax_config, default_auto_escape: Arc::new(|_| AutoEscape::None) };
        let mut code = CompiledTemplate::new(NAME, &self.source, &config)
            .map_err(|error| format!("the chat template cannot be used: {}", one_line(&error)))?;
        operators::put_into(&mut code);
        Ok(Compiled { template: self, code, fuel: Cell::default(), is_flat: Cell::default() })
    }
}

/// Compiled template.
pub struct Compiled<'a> {
    template: &'a Template,
    code: CompiledTemplate<'a>,
    /// Steps taken, and steps that the renderings so far have added to the limit.
    fuel: Cell<(u64, u64)>,
    /// True once a conversation could be rendered only with the text of its parts in place of the list of parts.
    is_flat: Cell<bool>,
}

impl Compiled<'_> {
    /// Returns `dialogue` as one document, with the assistant's turns as targets.
    ///
    /// # Errors
    /// A sentence with the reason why it cannot be rendered, and a remedy.
    pub fn document(&self, dialogue: &Dialogue) -> Result<Document, String> {
        let flattened = dialogue.flattened();
        let (text, targets) = match (&flattened, self.is_flat.get()) {
            (None, _) => self.written(dialogue)?,
            (Some(flattened), true) => self.written(flattened)?,
            (Some(flattened), false) => match self.written(dialogue) {
                Ok(written) => written,
                Err(_) => {
                    let written = self.written(flattened)?;
                    self.is_flat.set(true);
                    written
                }
            },
        };
        match targets.iter().any(|span| !span.is_empty()) {
            true => Ok(Document { text, targets, end: End::Masked }),
            false => Err("the chat template does not render the assistant's messages".into()),
        }
    }

    /// Returns `dialogue` as a document without targets.
    ///
    /// # Errors
    /// A sentence with the reason why it cannot be rendered, and a remedy.
    pub fn text(&self, dialogue: &Dialogue, add_generation_prompt: bool) -> Result<Document, String> {
        let text = self.write(dialogue, dialogue.messages.len(), add_generation_prompt, false)?;
        Ok(Document { text, targets: Vec::new(), end: End::Masked })
    }

    fn written(&self, dialogue: &Dialogue) -> Result<(String, Vec<Range<usize>>), String> {
        let text = self.write(dialogue, dialogue.messages.len(), false, false)?;
        let targets = match self.template.has_marks {
            true => self.marked(dialogue, &text)?,
            false => self.turns(dialogue, &text)?,
        };
        Ok((text, targets))
    }

    /// Returns the ranges of `text` that the template's own marks enclose.
    fn marked(&self, dialogue: &Dialogue, text: &str) -> Result<Vec<Range<usize>>, String> {
        let (unmarked, spans) = unmarked(&self.write(dialogue, dialogue.messages.len(), false, true)?)?;
        if unmarked != text {
            return Err(
                "the chat template changes the text inside {% generation %} afterwards: put {% generation %} around \
                 the final text"
                    .into(),
            );
        }
        if dialogue.is_target.iter().all(|&is_target| is_target) {
            return Ok(spans);
        }
        let flags: Vec<bool> = assistant_messages(dialogue).map(|index| dialogue.is_target[index]).collect();
        if flags.len() != spans.len() {
            return Err(format!(
                "some of its messages are marked as not to be learnt, but the chat template has {} parts between {{% \
                 generation %}} and {{% endgeneration %}} for {} messages of the assistant's: leave the weights out, \
                 or give --chat-template a file with one part for each",
                spans.len(),
                flags.len()
            ));
        }
        Ok(spans.into_iter().zip(flags).filter_map(|(span, is_target)| is_target.then_some(span)).collect())
    }

    /// Returns the range of each of the assistant's turns that is a target: the text that the turn adds to the
    /// rendered prompt before it.
    fn turns(&self, dialogue: &Dialogue, text: &str) -> Result<Vec<Range<usize>>, String> {
        let mut targets = Vec::new();
        for index in assistant_messages(dialogue).filter(|&index| dialogue.is_target[index]) {
            let before = self.write(dialogue, index, true, false);
            let before = match index {
                0 => before.map_err(|why| format!("its first message is the assistant's, and {why}"))?,
                _ => before?,
            };
            let with = self.write(dialogue, index + 1, false, false)?;
            let (end, message) = (self.end_token(), &dialogue.messages[index]);
            let found = span(text, &before, &with, message);
            // Some templates write the end-of-text token at the end of the whole text only, not after each turn.
            let found = found.or_else(|| span(text, &before, with.strip_suffix(end)?, message));
            targets.push(found.ok_or_else(|| {
                format!(
                    "the chat template renders the turns up to message {} differently than in the whole conversation, \
                     so the assistant's text cannot be found: give --chat-template a file that has it between {{% \
                     generation %}} and {{% endgeneration %}}",
                    index + 1
                )
            })?);
        }
        Ok(targets)
    }

    /// Returns the text of the end-of-text token.
    fn end_token(&self) -> &str {
        let token = self.template.tokens.iter().find(|(key, _)| key == "eos_token");
        token.map(|(_, text)| text::string(text)).unwrap_or_default()
    }

    /// Renders the first `count` messages.
    fn write(
        &self,
        dialogue: &Dialogue,
        count: usize,
        add_generation_prompt: bool,
        is_marked: bool,
    ) -> Result<String, String> {
        let tokens = self.template.tokens.iter().chain(&dialogue.options).cloned();
        let messages: Value = dialogue.messages[..count].iter().cloned().collect();
        let own = [("messages", messages), ("add_generation_prompt", add_generation_prompt.into())];
        let marks = is_marked.then(|| (FILTER, Value::from(true)));
        let own = own.into_iter().chain(marks).map(|(key, value)| (key.to_owned(), value));
        let root = Value::from_pairs(tokens.chain(own));

        let (Template { environment, .. }, code) = (self.template, &self.code);
        let mut text = String::with_capacity(code.buffer_size_hint);
        let mut out = make_string_output(&mut text);
        let done = eval(environment, &code.instructions, root, &code.blocks, &mut out, AutoEscape::None);
        drop(out);
        let (_, state) = done.map_err(|error| self.refusal(&error))?;
        let fuel = state.fuel_levels().map_or(self.template.fuel.each, |(taken, _)| taken);
        drop(state);
        self.pay(fuel, count as u64, dialogue.bytes)?;
        match text.len() <= BYTES_MAX {
            true => Ok(text),
            false => Err(format!("it is rendered as {} bytes, but at most {BYTES_MAX} are read", text.len())),
        }
    }

    /// Returns a sentence about `error`, which the template caused while it rendered.
    fn refusal(&self, error: &Error) -> String {
        let is_date = error.detail().is_some_and(|detail| detail.starts_with("strftime_now "));
        match error.kind() {
            ErrorKind::OutOfFuel => format!(
                "the chat template takes more than {} steps for it: give --chat-template a simpler file, or leave the \
                 line out",
                self.template.fuel.each
            ),
            ErrorKind::UnknownFunction if is_date => {
                "the chat template asks for today's date with strftime_now, which is not available since a run \
                 renders the same text every day: give --chat-template a copy with a fixed date in its place"
                    .into()
            }
            ErrorKind::UnknownFunction
            | ErrorKind::UnknownFilter
            | ErrorKind::UnknownTest
            | ErrorKind::UnknownMethod => {
                format!("the chat template cannot be used: {}: give --chat-template a copy without it", one_line(error))
            }
            _ => format!("the chat template rejects it: {}", one_line(error)),
        }
    }

    /// Adds the `fuel` steps of a rendering to those taken, and checks the limit for all renderings.
    fn pay(&self, fuel: u64, messages: u64, bytes: u64) -> Result<(), String> {
        let (taken, paid) = self.fuel.get();
        let paid = paid + FUEL_PER_RENDERING + FUEL_PER_MESSAGE * messages + bytes / BYTES_PER_FUEL;
        self.fuel.set((taken + fuel, paid));
        match taken + fuel <= self.template.fuel.all + paid {
            true => Ok(()),
            false => Err(format!(
                "the chat template has taken {} steps for the conversations up to this one, at most {} are allowed: \
                 give --chat-template a simpler file",
                taken + fuel,
                self.template.fuel.all + paid
            )),
        }
    }
}

/// Returns the indices of the assistant's messages.
fn assistant_messages(dialogue: &Dialogue) -> impl Iterator<Item = usize> {
    let is_assistant =
        |message: &Value| message.get_attr("role").unwrap_or_default().as_str() == Some("assistant");
    dialogue
        .messages
        .iter()
        .enumerate()
        .filter(move |(_, message)| is_assistant(message))
        .map(|(index, _)| index)
}

/// Returns the range in `text` of the turn that extends the text `before` to the text `with`.
///
/// Templates of reasoning models shorten a turn once others follow it: they leave out its beginning, before the answer
/// of `message`.
fn span(text: &str, before: &str, with: &str, message: &Value) -> Option<Range<usize>> {
    let is_begin = |before: &str| text.starts_with(before) && with.starts_with(before);
    // Blanks that a template writes only after the prompt are not part of the turn.
    let before = [before, before.trim_end()].into_iter().find(|before| is_begin(before))?;
    let (turn, rest) = (&with[before.len()..], &text[before.len()..]);
    if rest.starts_with(turn) {
        return Some(before.len()..with.len());
    }
    let content = content(message);
    let answer = content.as_str()?.rsplit("</think>").next()?.trim();
    let last = turn.rfind(answer).filter(|_| !answer.is_empty())?;
    let starts = turn.char_indices().map(|(start, _)| start).take_while(|&start| start <= last);
    let start = starts.into_iter().find(|&start| rest.starts_with(&turn[start..]))?;
    Some(before.len()..before.len() + turn.len() - start)
}

/// Formats an error of a template as one line.
fn one_line(error: &Error) -> String {
    let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    let detail = detail.split_whitespace().collect::<Vec<_>>().join(" ");
    match error.line() {
        Some(line) => format!("{detail} (line {line} of the template)"),
        None => detail,
    }
}

/// Returns a text without its marks, and the ranges that they enclosed.
fn unmarked(marked: &str) -> Result<(String, Vec<Range<usize>>), String> {
    let (mut text, mut targets, mut begun) = (String::with_capacity(marked.len()), Vec::new(), None);
    for part in marked.split_inclusive(MARKS) {
        let plain = part.trim_end_matches(MARKS);
        text.push_str(plain);
        let mark = part[plain.len()..].chars().next();
        match (mark, begun) {
            (None, _) => {}
            (Some(mark), None) if mark == MARKS[0] => begun = Some(text.len()),
            (Some(mark), Some(start)) if mark == MARKS[1] => {
                targets.push(start..text.len());
                begun = None;
            }
            _ => return Err("the chat template has a {% generation %} inside another".into()),
        }
    }
    Ok((text, targets))
}

#[cfg(test)]
mod tests;
