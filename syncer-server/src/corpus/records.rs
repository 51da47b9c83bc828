//! Records of a text: JSON values, either in sequence or in one list.

use serde::de::IgnoredAny;
use serde_json::{Deserializer, Value};

/// Maximum number of values to read for detecting the kind of a text.
const PROBED_MAX: usize = 4;

/// Keys of documents, in all supported forms.
pub const KNOWN: [&str; 10] = [
    "text",
    "messages",
    "conversations",
    "conversation",
    "prompt",
    "completion",
    "instruction",
    "output",
    "chosen",
    "rejected",
];

/// A JSON value in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Number of the line where the value begins, from 1.
    pub line: u64,
    /// The value as JSON text.
    pub json: &'a str,
}

/// Kind of a text, according to its first values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextKind {
    /// Not JSON.
    Text,
    /// JSON objects in sequence, or one list of JSON values with text.
    Records {
        /// True if the first value has one of the keys [`KNOWN`].
        is_known: bool,
    },
    /// A single JSON object without any of the keys [`KNOWN`].
    Object {
        /// Python expression for the path from the object to a list or table of objects in it, such as `['data']`.
        holds: Option<String>,
    },
}

/// Returns the kind of `text`, according to its beginning. Prose and program code that begin with a bracket are text.
pub fn detect_kind(text: &str) -> TextKind {
    match text.trim_start().as_bytes().first() {
        Some(b'[') => list_kind(text),
        Some(b'{') => objects_kind(text),
        _ => TextKind::Text,
    }
}

fn list_kind(text: &str) -> TextKind {
    let inside = &text[text.find('[').map_or(0, |at| at + 1)..];
    let Some(Ok(first)) = values(inside).next() else { return TextKind::Text };
    // Numbers are not text.
    let has_text = |value: &Value| value.is_string() || value.is_object();
    let holds_text = has_text(&first) || first.as_array().is_some_and(|list| list.iter().any(has_text));
    let is_list = match rest_after_list(text) {
        Some(rest) => rest.is_empty() || is_lists(text),
        // The value is damaged or truncated.
        None => first.is_object(),
    };
    match holds_text && is_list {
        true => TextKind::Records { is_known: has_known(&first) },
        false => TextKind::Text,
    }
}

/// Returns the text after the list at the start of `text`, without blanks at its ends; `None` if the list does not end.
fn rest_after_list(text: &str) -> Option<&str> {
    let text = text.trim_start();
    length(text).map(|length| text[length..].trim())
}

/// Returns true if `text` is several lists, one after the other.
fn is_lists(text: &str) -> bool {
    let mut found = values(text).take(PROBED_MAX).peekable();
    found.peek().is_some() && found.all(|value| value.is_ok_and(|value| value.is_array()))
}

fn objects_kind(text: &str) -> TextKind {
    let mut found = values(text).take(PROBED_MAX);
    let Some(Ok(first)) = found.next() else { return TextKind::Text };
    let rest: Vec<_> = found.collect();
    if !rest.iter().all(|value| value.as_ref().is_ok_and(Value::is_object)) {
        return TextKind::Text;
    }
    match rest.is_empty() && !has_known(&first) {
        true => TextKind::Object { holds: holds(&first) },
        false => TextKind::Records { is_known: has_known(&first) },
    }
}

fn has_known(value: &Value) -> bool {
    KNOWN.iter().any(|key| value.get(key).is_some())
}

/// Returns the Python expression for the path from `object` to a list or table of objects in it.
fn holds(object: &Value) -> Option<String> {
    let is_list =
        |value: &Value| value.as_array().is_some_and(|list| list.first().is_some_and(Value::is_object));
    let is_table = |value: &Value| {
        value.as_object().is_some_and(|table| table.len() > 1 && table.values().all(has_known))
    };
    if is_table(object) {
        return Some(".values()".to_owned());
    }
    // A file with all parts of a data set is read for its training part.
    let object = object.as_object()?;
    let train = object.get_key_value("train").into_iter();
    train.chain(object).find_map(|(key, value)| match () {
        () if is_list(value) => Some(format!("['{key}']")),
        () if is_table(value) => Some(format!("['{key}'].values()")),
        () => None,
    })
}

fn values(text: &str) -> impl Iterator<Item = Result<Value, serde_json::Error>> {
    Deserializer::from_str(text).into_iter()
}

/// Returns the records of `text` in order. If the text is a list, the records are its values. Otherwise a record takes
/// one line, or several if it is indented.
///
/// # Errors
/// An error has the number of a line, and a sentence with the fault and a remedy. The iterator ends with the error. A
/// line that is not JSON by itself is returned unchanged, so that its reader can report the fault.
pub fn records(text: &str) -> Records<'_> {
    let is_one = || rest_after_list(text).is_none_or(|rest| !rest.starts_with('['));
    let is_list = text.trim_start().starts_with('[') && detect_kind(text) != TextKind::Text && is_one();
    let at = if is_list { text.find('[').map_or(0, |at| at + 1) } else { 0 };
    Records { text, at, lines: LineCounter::default(), is_list, is_over: false }
}

/// Records of a text, one at a time.
#[derive(Debug)]
pub struct Records<'a> {
    text: &'a str,
    at: usize,
    lines: LineCounter,
    is_list: bool,
    is_over: bool,
}

/// Counter of line numbers, for ascending positions.
#[derive(Debug, Default)]
struct LineCounter {
    at: usize,
    passed: u64,
}

impl LineCounter {
    /// Returns the number of the line that contains byte `at`, from 1. `at` must not be less than in the call before.
    fn number(&mut self, text: &str, at: usize) -> u64 {
        self.passed += text.as_bytes()[self.at..at].iter().filter(|&&byte| byte == b'\n').count() as u64;
        self.at = at;
        self.passed + 1
    }
}

impl<'a> Records<'a> {
    fn in_list(&mut self) -> Option<Result<Record<'a>, (u64, String)>> {
        self.skip_blanks();
        let rest = &self.text[self.at..];
        if rest.starts_with(']') {
            return None;
        }
        let Some(length) = length(rest) else {
            let line = self.lines.number(self.text, self.at);
            self.is_over = true;
            return Some(Err((
                line,
                "the list that begins before is not valid JSON from here on: correct it".to_owned(),
            )));
        };
        let record = Record { line: self.lines.number(self.text, self.at), json: &rest[..length] };
        self.at += length;
        self.skip_blanks();
        match self.text.as_bytes().get(self.at) {
            Some(b',') => self.at += 1,
            Some(b']') => {}
            _ => {
                self.is_over = true;
                let line = self.lines.number(self.text, self.at.min(self.text.len()));
                let why =
                    "the list that begins before has no \",\" or \"]\" here; it may be cut off: correct it";
                return Some(Err((line, why.to_owned())));
            }
        }
        Some(Ok(record))
    }

    fn in_lines(&mut self) -> Option<Result<Record<'a>, (u64, String)>> {
        self.skip_blanks();
        let rest = &self.text[self.at..];
        if rest.is_empty() {
            return None;
        }
        let line = rest.split('\n').next().unwrap_or_default();
        let is_begun = serde_json::from_str::<IgnoredAny>(line).is_err_and(|error| error.is_eof());
        let length = is_begun.then(|| length(rest)).flatten().unwrap_or(line.len());
        let record = Record { line: self.lines.number(self.text, self.at), json: rest[..length].trim_end() };
        self.at += length;
        Some(Ok(record))
    }

    fn skip_blanks(&mut self) {
        let rest = &self.text[self.at..];
        self.at = self.text.len() - rest.trim_start().len();
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, (u64, String)>;

    fn next(&mut self) -> Option<Self::Item> {
        match (self.is_over, self.is_list) {
            (true, _) => None,
            (false, true) => self.in_list(),
            (false, false) => self.in_lines(),
        }
    }
}

/// Returns the length in bytes of the JSON value at the start of `text`, if there is a value.
fn length(text: &str) -> Option<usize> {
    let mut values = Deserializer::from_str(text).into_iter::<IgnoredAny>();
    values.next()?.ok()?;
    Some(values.byte_offset())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(u64, &str)> {
        records(text).map(|record| record.map(|it| (it.line, it.json)).unwrap()).collect()
    }

    #[test]
    fn records_are_lines_or_values_of_a_list() {
        assert_eq!(found("{\"a\": 1}\r\n\n {\"b\": 2}"), [(1, "{\"a\": 1}"), (3, "{\"b\": 2}")]);
        assert_eq!(found("{\n \"a\": 1\n}\n{\n}\n"), [(1, "{\n \"a\": 1\n}"), (4, "{\n}")]);
        let list = "\n[\n  {\"text\": \"]\"},\n  {\"text\":\n \"b\"}\n]\n";
        assert_eq!(found(list), [(3, "{\"text\": \"]\"}"), (4, "{\"text\":\n \"b\"}")]);
        assert_eq!(found(r#"["one", "two"]"#), [(1, "\"one\""), (1, "\"two\"")]);
        // Damaged lines are returned unchanged; their reader reports them.
        assert_eq!(found("{\"a\": 1}\n{\"a\n{}"), [(1, "{\"a\": 1}"), (2, "{\"a"), (3, "{}")]);
        // Lists in lines are not documents; their reader reports them.
        assert_eq!(found("[{\"a\": 1}]\n[{}]\n"), [(1, "[{\"a\": 1}]"), (2, "[{}]")]);
        assert_eq!(found(""), []);
    }

    #[test]
    fn damaged_list_is_reported_with_its_line() {
        let error = |text: &str| records(text).find_map(Result::err).unwrap();
        let (line, why) = error("[\n{\"text\": \"a\"},\n{\"text\": \"b\"");
        assert!(line == 3 && why.contains("not valid JSON from here on"), "{line} {why}");
        let (line, why) = error("[\n{\"text\": \"a\"}\n\n{\"text\": \"b\"}]");
        assert!(line == 4 && why.contains("has no \",\" or \"]\" here"), "{line} {why}");
    }

    #[test]
    fn kind_is_detected_from_the_beginning() {
        let known = TextKind::Records { is_known: true };
        let other = TextKind::Records { is_known: false };
        assert_eq!(detect_kind("{\"text\": \"a\"}\n{\"text\": \"b\"}\n"), known);
        assert_eq!(detect_kind("{\"messages\": []}"), known);
        assert_eq!(detect_kind("[\n {\"instruction\": \"a\"},\n"), known, "a list that was cut off");
        assert_eq!(detect_kind("{\"q\": 1}\n{\"q\": 2}"), other);
        assert_eq!(detect_kind("[{\"q\": 1}]"), other);
        assert_eq!(detect_kind("[\"a\", \"b\"]"), other);
        assert_eq!(detect_kind("[[{\"role\": \"user\"}]]"), other);
        assert_eq!(detect_kind("[{\"role\": \"user\"}]\n[{\"role\": \"user\"}]\n"), other);
        assert_eq!(
            detect_kind("{\"name\": \"lamp\", \"keywords\": [\"a\"]}"),
            TextKind::Object { holds: None }
        );
        assert_eq!(
            detect_kind("{\"data\": [{\"q\": 1}]}"),
            TextKind::Object { holds: Some("['data']".into()) }
        );
        let table = "{\"1\": {\"text\": \"a\"}, \"2\": {\"text\": \"b\"}}";
        assert_eq!(detect_kind(table), TextKind::Object { holds: Some(".values()".into()) });
        let below = detect_kind(&format!("{{\"x\": {table}}}"));
        assert_eq!(below, TextKind::Object { holds: Some("['x'].values()".into()) });
    }

    /// Goal: poems, code and prose with JSON in them are text.
    #[test]
    fn ordinary_text_is_no_json() {
        let texts = [
            "[Verse 1]\nThe lamp is lit\n",
            "[1] Smith, 1999\n[2] Jones\n",
            "[1]\n[2]\n",
            "[1, 2, 3]",
            "[]",
            "{}\nis an empty object\n",
            "{ int a = 1; }\n",
            "{\n  // settings\n  \"a\": 1\n}\nand more",
            "{\"a\": 1}\nsaid he\n",
            "{\"messages\": []}\n{\"messages\": []}\nsaid he\n",
            "[{\"q\": 1}] is a list\n",
            "[{\"text\": 1}] is a list\n",
            "[\"a\" is a letter\n",
            "\"Hope\" is the thing with feathers\n",
            "the keeper",
            "",
        ];
        for text in texts {
            assert_eq!(detect_kind(text), TextKind::Text, "{text}");
        }
    }
}
