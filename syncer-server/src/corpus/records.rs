//! Records of a text: JSON values, either in sequence or in one list. Values in sequence may have commas between them,
//! or record separators (RFC 7464) before them.

use serde::de::IgnoredAny;
use serde_json::{Deserializer, Value};

/// Maximum number of values to read for detecting the kind of a text.
const PROBED_MAX: usize = 4;

/// Denominator of the largest share of a text that may be outside of JSON values if the text is meant as JSON: a
/// heading, comments, or damaged values.
const STRAY_SHARE: usize = 10;

/// Record separator of JSON text sequences (RFC 7464).
const RECORD_SEPARATOR: char = '\u{1e}';

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
    /// JSON objects or strings in sequence, or one list of JSON values with text. A small part of the text may be no
    /// JSON; reading the records reports it.
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

/// Returns the kind of `text`. Prose and program code with JSON in them are text.
pub fn detect_kind(text: &str) -> TextKind {
    let by_beginning = match text.trim_start_matches(is_separator).as_bytes().first() {
        Some(b'[') => list_kind(text),
        Some(b'{') => objects_kind(text),
        Some(b'"') if is_lines_of_strings(text) => TextKind::Records { is_known: false },
        _ => TextKind::Text,
    };
    match by_beginning {
        TextKind::Text => mostly_records(text).unwrap_or(TextKind::Text),
        found => found,
    }
}

/// Returns true if `c` may stand between two values.
fn is_separator(c: char) -> bool {
    c.is_whitespace() || c == ',' || c == RECORD_SEPARATOR
}

/// Returns true if each line of `text` is a JSON string, and there are several.
fn is_lines_of_strings(text: &str) -> bool {
    let lines = || text.lines().map(|line| line.trim_matches(is_separator)).filter(|line| !line.is_empty());
    let is_string = |line: &str| line.starts_with('"') && serde_json::from_str::<IgnoredAny>(line).is_ok();
    lines().nth(1).is_some() && lines().all(is_string)
}

/// Returns [`TextKind::Records`] if nearly all of `text` is several JSON objects or lists with text. The rest may be a
/// heading, comments, a prefix of each line, or damaged values.
fn mostly_records(text: &str) -> Option<TextKind> {
    let (mut rest, mut stray, mut first, mut count) = (text, 0, None, 0);
    loop {
        rest = rest.trim_start_matches(is_separator);
        if rest.is_empty() {
            break;
        }
        let value =
            rest.starts_with(['{', '[']).then(|| length(rest)).flatten().map(|length| &rest[..length]);
        // A list or an object without a string has no text.
        let passed = match value.filter(|json| json.contains('"')) {
            Some(json) => {
                first = first.or(Some(json));
                count += 1;
                json.len()
            }
            None => {
                let next = rest.char_indices().skip(1).find(|(_, c)| matches!(c, '{' | '[' | '\n'));
                let passed = next.map_or(rest.len(), |(at, _)| at);
                stray += rest[..passed].trim_end().len();
                passed
            }
        };
        if stray > text.len() / STRAY_SHARE {
            return None;
        }
        rest = &rest[passed..];
    }
    let first = first.and_then(|json| values(json.trim_start_matches('[')).next()?.ok());
    let is_known = first.is_some_and(|value| has_known(&value));
    (count > 1 || is_known).then_some(TextKind::Records { is_known })
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
    let text = text.trim_start_matches(is_separator);
    length(text).map(|length| text[length..].trim_matches(is_separator))
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

/// Returns the values in sequence at the start of `text`. The iterator ends after an error.
fn values(text: &str) -> impl Iterator<Item = Result<Value, serde_json::Error>> {
    let mut rest = text.trim_start_matches(is_separator);
    std::iter::from_fn(move || {
        let mut values = Deserializer::from_str(rest).into_iter();
        let value = values.next()?;
        rest = match value.is_ok() {
            true => rest[values.byte_offset()..].trim_start_matches(is_separator),
            false => "",
        };
        Some(value)
    })
}

/// Returns the records of `text` in order. If the text is a list, the records are its values. Otherwise a record takes
/// one line, or several if it is indented.
///
/// # Errors
/// An error has the number of a line, and a sentence with the fault and a remedy. The iterator ends with the error. A
/// line that is not JSON by itself is returned unchanged, so that its reader can report the fault.
pub fn records(text: &str) -> Records<'_> {
    let is_one = || rest_after_list(text).is_none_or(|rest| !rest.starts_with('['));
    let is_list = text.trim_start_matches(is_separator).starts_with('[')
        && list_kind(text) != TextKind::Text
        && is_one();
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
        self.skip(char::is_whitespace);
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
        self.skip(char::is_whitespace);
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
        self.skip(is_separator);
        let rest = &self.text[self.at..];
        if rest.is_empty() {
            return None;
        }
        let line = rest.split('\n').next().unwrap_or_default().trim_end_matches(is_separator);
        let is_begun = serde_json::from_str::<IgnoredAny>(line).is_err_and(|error| error.is_eof());
        let length = is_begun.then(|| length(rest)).flatten().unwrap_or(line.len());
        let record = Record { line: self.lines.number(self.text, self.at), json: &rest[..length] };
        self.at += length;
        Some(Ok(record))
    }

    fn skip(&mut self, is_skipped: impl Fn(char) -> bool) {
        let rest = &self.text[self.at..];
        self.at = self.text.len() - rest.trim_start_matches(is_skipped).len();
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
        assert_eq!(
            found("{\"a\": 1},\r\n{\n},\n \"b\" ,\n,{}"),
            [(1, "{\"a\": 1}"), (2, "{\n}"), (4, "\"b\""), (5, "{}")]
        );
        assert_eq!(found("\u{1e}{\"a\": 1}\n\u{1e}{\n}\n"), [(1, "{\"a\": 1}"), (2, "{\n}")]);
        // A short list before other values is a damaged line, not the list of the records.
        assert_eq!(found("[1]\n{\"text\": \"a\"}\n"), [(1, "[1]"), (2, "{\"text\": \"a\"}")]);
        assert_eq!(found("\u{1e}[\"a\", \"b\"]"), [(1, "\"a\""), (1, "\"b\"")]);
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

    /// Goal: separators, headings, comments and single damaged lines do not turn documents into plain text.
    #[test]
    fn nearly_json_is_records() {
        let (known, other) = (TextKind::Records { is_known: true }, TextKind::Records { is_known: false });
        let lines = "{\"text\": \"the lamp is lit\"}\n".repeat(20);
        let kind = |text: &str| detect_kind(text);
        assert_eq!(kind(&lines.replace('\n', ",\n")), known);
        assert_eq!(kind(&lines.replace('{', "\u{1e}{")), known);
        for heading in ["// exported", "# lamps", "Data of run 7:", "```json", "const lamps = [", "{broken"] {
            assert_eq!(kind(&format!("{heading}\n{lines}")), known, "{heading}");
            assert_eq!(kind(&format!("{heading}\n{}", lines.replace("text", "q"))), other, "{heading}");
        }
        assert_eq!(kind(&format!("// one\n[{}]", lines.trim_end().replace('\n', ",\n"))), known);
        assert_eq!(kind(&lines.replace('{', "- {")), known);
        assert_eq!(kind(&format!("{{\"text\": \"a\"}}\n{{\"text\": \n{lines}")), known);
        assert_eq!(kind("\"the lamp\"\n\n\"is lit\"\n"), other);
        assert_eq!(kind("\"the lamp\",\n\"is lit\""), other);
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
            "\"Who keeps the lamp?\"\n\"I do,\" said he.\n",
            "\"Who keeps the lamp?\"",
            concat!(
                "// settings\n{\"name\": \"a lamp of the harbour, with a keeper who is awake at night ",
                "and sleeps by day in the house below it\"}\n"
            ),
            "The answer is\n{\"text\": \"a\"}\n{\"text\": \"b\"}\n{\"text\": \"c\"}\n",
            "[1, 2]\n[3, 4]\n[5, 6]\n",
            "the keeper",
            "",
        ];
        for text in texts {
            assert_eq!(detect_kind(text), TextKind::Text, "{text}");
        }
    }
}
