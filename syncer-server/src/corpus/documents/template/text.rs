//! Conversion of template values to text and to JSON, as in Python.

use std::fmt::Write as _;

use minijinja::value::{ObjectRepr, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

/// Largest nesting depth of lists and dictionaries.
const DEPTH_MAX: usize = 200;

/// Bytes that one unit of fuel pays for, the same as in the engine's own operations.
const BYTES_PER_FUEL: usize = 64;

/// Returns an error with one sentence as its message.
pub fn failed(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, why.into())
}

/// Charges fuel for work on `bytes`.
///
/// # Errors
/// `OutOfFuel`.
pub fn charge(state: &State<'_, '_>, bytes: usize) -> Result<(), Error> {
    state.consume_fuel((bytes / BYTES_PER_FUEL) as u64 + 1)
}

/// Returns `value` as text, like Python's `str(value)`.
///
/// # Errors
/// `OutOfFuel`, or the text of the value would differ between runs.
pub fn text(state: &State<'_, '_>, value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(String::new()),
        ValueKind::String => Ok(string(value).to_owned()),
        _ => {
            let mut out = String::new();
            Writer { state, out: &mut out, json: None }.value(value, 0)?;
            Ok(out)
        }
    }
}

/// Returns the text of a string.
pub fn string(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Settings of `json.dumps`.
#[derive(Clone, Debug)]
pub struct Json {
    /// True if all characters outside ASCII are escaped.
    pub is_ascii: bool,
    /// Indentation of a line for each level; `None` writes everything on one line.
    pub indent: Option<String>,
    /// Text between items.
    pub between: String,
    /// Text between a key and its value.
    pub after_key: String,
    /// True if keys are sorted.
    pub is_sorted: bool,
}

/// Returns `value` as JSON, like Python's `json.dumps(value)`.
///
/// # Errors
/// `OutOfFuel`, or the value has no form in JSON.
pub fn json(state: &State<'_, '_>, value: &Value, json: &Json) -> Result<String, Error> {
    let mut out = String::new();
    Writer { state, out: &mut out, json: Some(json) }.value(value, 0)?;
    Ok(out)
}

/// Writer of nested values. Each value and each byte costs fuel.
struct Writer<'a> {
    state: &'a State<'a, 'a>,
    out: &'a mut String,
    json: Option<&'a Json>,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let before = self.out.len();
        match value.kind() {
            ValueKind::Undefined if self.json.is_some() => {
                return Err(failed("an undefined value is not JSON"));
            }
            ValueKind::Undefined => self.out.push_str("Undefined"),
            ValueKind::None => self.out.push_str(if self.json.is_some() { "null" } else { "None" }),
            ValueKind::Bool => self.out.push_str(match (self.json.is_some(), value.is_true()) {
                (true, true) => "true",
                (true, false) => "false",
                (false, true) => "True",
                (false, false) => "False",
            }),
            ValueKind::Number => self.out.push_str(&number(value, self.json.is_some())),
            ValueKind::String => match self.json {
                Some(json) => quote_json(string(value), json.is_ascii, self.out),
                None => quote(string(value), self.out),
            },
            ValueKind::Seq | ValueKind::Iterable => self.list(value, depth)?,
            ValueKind::Map => self.dictionary(value, depth)?,
            ValueKind::Invalid => {
                return Err(value.clone().try_iter().err().unwrap_or_else(|| failed("invalid")));
            }
            _ => return Err(failed("a function or a macro has no text")),
        }
        charge(self.state, self.out.len() - before)
    }

    fn list(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if self.json.is_none() && is_parts(value) {
            return Err(failed(
                "a message's content is a list of parts, which the template does not render as text",
            ));
        }
        let is_tuple = value.is_tuple() && self.json.is_none();
        let items = value.try_iter()?.map(|item| (None, item));
        let count = self.items(items, depth, if is_tuple { ['(', ')'] } else { ['[', ']'] })?;
        if is_tuple && count == 1 {
            self.out.insert(self.out.len() - 1, ',');
        }
        Ok(())
    }

    fn dictionary(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let object = value.as_object().filter(|object| object.repr() == ObjectRepr::Map);
        let pairs = object.and_then(|object| object.try_iter_pairs()).into_iter().flatten();
        if !self.json.is_some_and(|json| json.is_sorted) {
            return self.items(pairs.map(|(key, value)| (Some(key), value)), depth, ['{', '}']).map(drop);
        }
        let mut pairs: Vec<(Value, Value)> = pairs.collect();
        charge(self.state, pairs.len() * BYTES_PER_FUEL)?;
        pairs.sort_by(|a, b| a.0.cmp(&b.0));
        self.items(pairs.into_iter().map(|(key, value)| (Some(key), value)), depth, ['{', '}']).map(drop)
    }

    /// Writes items between brackets, and returns their number.
    fn items(
        &mut self,
        items: impl Iterator<Item = (Option<Value>, Value)>,
        depth: usize,
        brackets: [char; 2],
    ) -> Result<usize, Error> {
        if depth == DEPTH_MAX {
            return Err(failed(format!("values are nested more than {DEPTH_MAX} levels deep")));
        }
        self.out.push(brackets[0]);
        let mut count = 0;
        for (key, item) in items {
            if count > 0 {
                self.out.push_str(self.json.map_or(", ", |json| &json.between));
            }
            self.begin_line(depth + 1);
            if let Some(key) = key {
                self.key(&key)?;
                self.out.push_str(self.json.map_or(": ", |json| &json.after_key));
            }
            self.value(&item, depth + 1)?;
            count += 1;
        }
        if count > 0 {
            self.begin_line(depth);
        }
        self.out.push(brackets[1]);
        Ok(count)
    }

    fn begin_line(&mut self, depth: usize) {
        if let Some(indent) = self.json.and_then(|json| json.indent.as_ref()) {
            self.out.push('\n');
            (0..depth).for_each(|_| self.out.push_str(indent));
        }
    }

    /// Writes a key. JSON keys are always strings.
    fn key(&mut self, key: &Value) -> Result<(), Error> {
        match (key.kind(), self.json) {
            (ValueKind::String, _) | (_, None) => self.value(key, DEPTH_MAX),
            (ValueKind::None | ValueKind::Bool | ValueKind::Number, Some(_)) => {
                self.out.push('"');
                self.value(key, DEPTH_MAX)?;
                self.out.push('"');
                Ok(())
            }
            _ => Err(failed("JSON has no such keys")),
        }
    }
}

/// Returns true if `value` is a message content that consists of parts.
fn is_parts(value: &Value) -> bool {
    let first = value.get_item_by_index(0).unwrap_or_default();
    first.kind() == ValueKind::Map && first.get_attr("type").is_ok_and(|kind| kind.as_str() == Some("text"))
}

/// Returns a number as Python writes it.
fn number(value: &Value, is_json: bool) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    let number = f64::try_from(value.clone()).unwrap_or(f64::NAN);
    match (number.is_nan(), number.is_infinite(), is_json) {
        (true, _, true) => "NaN".into(),
        (true, _, false) => "nan".into(),
        (_, true, true) => if number > 0.0 { "Infinity" } else { "-Infinity" }.into(),
        (_, true, false) => if number > 0.0 { "inf" } else { "-inf" }.into(),
        _ => finite(number),
    }
}

/// Returns the shortest digits that are read back as `number`, with an exponent below 1e-4 and from 1e16.
fn finite(number: f64) -> String {
    let digits = format!("{number:?}");
    match digits.split_once('e') {
        Some((mantissa, exponent)) => {
            let exponent: i32 = exponent.parse().unwrap_or_default();
            format!("{}e{exponent:+03}", mantissa.strip_suffix(".0").unwrap_or(mantissa))
        }
        None => digits,
    }
}

/// Writes `text` like Python's `repr(text)`.
fn quote(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            _ if c == quote => {
                out.push('\\');
                out.push(c);
            }
            ' '..='~' => out.push(c),
            _ if is_printable(c) => out.push(c),
            _ => {
                let _ = match u32::from(c) {
                    code @ ..=0xff => write!(out, "\\x{code:02x}"),
                    code @ ..=0xffff => write!(out, "\\u{code:04x}"),
                    code => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
}

/// Returns true if `repr` of Python leaves `c`, a character outside ASCII, unescaped. Rust escapes the same characters,
/// and in addition combining marks at the start of a text.
fn is_printable(c: char) -> bool {
    if c.is_control() {
        return false;
    }
    let mut bytes = [b'a'; 5];
    let length = 1 + c.encode_utf8(&mut bytes[1..]).len();
    !str::from_utf8(&bytes[..length]).unwrap_or_default().escape_debug().skip(1).eq(c.escape_unicode())
}

/// Writes `text` as a string of JSON.
fn quote_json(text: &str, is_ascii: bool, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\0'..=' ' if c != ' ' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            _ if is_ascii && !c.is_ascii() => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            _ => out.push(c),
        }
    }
    out.push('"');
}
