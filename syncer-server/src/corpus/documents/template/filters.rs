//! Filters, tests and functions of Jinja2 that replace those of the engine if these differ or cost no fuel.

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, State, Value, filters};

use super::methods::{items, lines, padded, strip};
use super::operators::{self, check_length};
use super::text::{self, Json, charge, failed, string, text};

/// Filters that the engine has and Jinja2 lacks.
const OTHERS: [&str; 7] = ["split", "lines", "bool", "chain", "zip", "pprint", "urlencode"];

/// Longest indentation and separator of JSON, in bytes.
const INDENT_MAX: usize = 64;

type Engine<'a, 'b> = State<'a, 'b>;

/// Adds the filters, tests and functions to `environment`.
pub fn add_to(environment: &mut Environment<'_>) {
    // The operator `%` uses this filter too, with arguments that are already checked.
    environment.add_filter("engine_format", filters::format);
    environment.add_filter("format", |state: &mut Engine<'_, '_>, format: Value, given: Rest<Value>| {
        let format = Value::from(text(state, &format)?);
        operators::formatted(state, &[&[format][..], &given].concat())
    });
    OTHERS.iter().for_each(|name| environment.remove_filter(name));
    environment.remove_global("debug");
    add_strings(environment);
    add_lists(environment);
    add_tests(environment);
    environment.add_filter("tojson", tojson);
    environment.add_function("raise_exception", |why: String| -> Result<String, Error> { Err(failed(why)) });
}

fn add_strings(environment: &mut Environment<'_>) {
    environment.add_filter("string", |state: &Engine<'_, '_>, value: &Value| text(state, value));
    environment.add_filter("upper", |state: &Engine<'_, '_>, value: &Value| {
        text(state, value).map(|t| t.to_uppercase())
    });
    environment.add_filter("lower", |state: &Engine<'_, '_>, value: &Value| {
        text(state, value).map(|t| t.to_lowercase())
    });
    environment.add_filter("title", |state: &Engine<'_, '_>, value: &Value| {
        text(state, value).map(|text| filters::title(text.into()))
    });
    environment.add_filter("capitalize", |state: &Engine<'_, '_>, value: &Value| {
        let text = text(state, value)?;
        let mut chars = text.chars();
        let first: String = chars.next().map(|c| c.to_uppercase().collect()).unwrap_or_default();
        Ok::<_, Error>(first + &chars.as_str().to_lowercase())
    });
    environment.add_filter("trim", |state: &Engine<'_, '_>, value: &Value, chars: Option<String>| {
        text(state, value).map(|text| strip(&text, chars.as_deref(), [true, true]).to_owned())
    });
    environment.add_filter("replace", replace);
    environment.add_filter("indent", indent);
    environment.add_filter("center", |state: &Engine<'_, '_>, value: &Value, width: Option<usize>| {
        padded(state, &text(state, value)?, width.unwrap_or(80), ' ', "center")
    });
    for name in ["escape", "e"] {
        environment.add_filter(name, |state: &Engine<'_, '_>, value: &Value| {
            let text = text(state, value)?;
            charge(state, text.len() * 5)?;
            let parts = [('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('\'', "&#39;"), ('"', "&#34;")];
            Ok::<_, Error>(parts.iter().fold(text, |text, (c, name)| text.replace(*c, name)))
        });
    }
}

fn add_lists(environment: &mut Environment<'_>) {
    for name in ["length", "count"] {
        environment.add_filter(name, |value: &Value| match value.kind() {
            ValueKind::Undefined => Ok(0),
            _ => filters::length(value),
        });
    }
    environment.add_filter("items", items);
    environment.add_filter("list", |state: &Engine<'_, '_>, value: Value| {
        operators::iterable(&value)?;
        filters::list(state, value)
    });
    environment.add_filter("join", join);
    environment.add_filter("sum", sum);
}

fn add_tests(environment: &mut Environment<'_>) {
    let has_items = |value: &Value| {
        use ValueKind::{Iterable, Map, Seq, String, Undefined};
        matches!(value.kind(), Iterable | Map | Seq | String | Undefined)
    };
    environment.add_test("sequence", has_items);
    environment.add_test("iterable", has_items);
    environment
        .add_test("number", |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool));
    environment.add_test("in", |state: &Engine<'_, '_>, item: &Value, container: &Value| {
        operators::is_in(state, item, container)
    });
    environment.add_test("callable", |value: &Value| value.kind() == ValueKind::Plain);
}

fn replace(
    state: &Engine<'_, '_>,
    value: &Value,
    old: String,
    new: String,
    count: Option<usize>,
) -> Result<String, Error> {
    let text = text(state, value)?;
    let found = if old.is_empty() { text.chars().count() + 1 } else { text.matches(&old).count() };
    let found = found.min(count.unwrap_or(usize::MAX));
    let bytes = text.len().saturating_add(found.saturating_mul(new.len()));
    check_length(bytes)?;
    charge(state, bytes)?;
    Ok(text.replacen(&old, &new, found))
}

fn indent(
    state: &Engine<'_, '_>,
    value: &Value,
    width: Option<Value>,
    given: Rest<bool>,
    options: Kwargs,
) -> Result<String, Error> {
    let text = text(state, value)?;
    let width = match width {
        None => options.get::<Option<Value>>("width")?,
        some => some,
    };
    let indent = match width {
        None => " ".repeat(4),
        Some(width) => match width.as_usize() {
            Some(width) => padded(state, "", width, ' ', "ljust")?,
            None => string(&width).to_owned(),
        },
    };
    let flag = |at: usize, key: &str| match given.get(at) {
        Some(flag) => Ok(*flag),
        None => options.get::<Option<bool>>(key).map(Option::unwrap_or_default),
    };
    let (first, blank) = (flag(0, "first")?, flag(1, "blank")?);
    options.assert_all_used()?;
    let mut out = String::new();
    // A line end at the end of the text begins one more, empty line.
    for (line, index) in lines(&format!("{text}\n"), false).zip(0_u64..) {
        let is_indented = if index == 0 { first } else { blank || !line.is_empty() };
        out.push_str(if index > 0 { "\n" } else { "" });
        out.push_str(if is_indented { &indent } else { "" });
        out.push_str(line);
        check_length(out.len())?;
        charge(state, indent.len() + line.len())?;
    }
    Ok(out)
}

fn join(
    state: &mut Engine<'_, '_>,
    value: Value,
    between: Option<String>,
    attribute: Option<Value>,
    options: Kwargs,
) -> Result<String, Error> {
    let between = between.or(options.get("d")?).unwrap_or_default();
    let attribute = attribute.or(options.get("attribute")?);
    options.assert_all_used()?;
    let values = mapped(state, value, attribute)?;
    let mut out = String::new();
    for (item, index) in values.try_iter()?.zip(0_u64..) {
        out.push_str(if index > 0 { &between } else { "" });
        out.push_str(&text(state, &item)?);
        check_length(out.len())?;
        charge(state, between.len() + 1)?;
    }
    Ok(out)
}

/// Returns the items of `value`, or the `attribute` of each item, if given.
fn mapped(state: &mut Engine<'_, '_>, value: Value, attribute: Option<Value>) -> Result<Value, Error> {
    operators::iterable(&value)?;
    let Some(attribute) = attribute else { return Ok(value) };
    let by = Value::from(Kwargs::from_iter([("attribute", attribute)]));
    state.apply_filter("map", &[value, by])
}

fn sum(
    state: &mut Engine<'_, '_>,
    value: Value,
    attribute: Option<Value>,
    start: Option<Value>,
    options: Kwargs,
) -> Result<Value, Error> {
    let attribute = attribute.or(options.get("attribute")?);
    let start = start.or(options.get("start")?).unwrap_or_else(|| Value::from(0));
    options.assert_all_used()?;
    let values = mapped(state, value, attribute)?;
    values.try_iter()?.try_fold(start, |sum, item| operators::add(state, &sum, &item))
}

/// `json.dumps`, with the defaults of `transformers`.
fn tojson(
    state: &Engine<'_, '_>,
    value: &Value,
    given: Rest<Value>,
    options: Kwargs,
) -> Result<String, Error> {
    let option = |at: usize, key: &str| match given.get(at) {
        Some(value) => Ok(Some(value.clone())),
        None => options.get::<Option<Value>>(key),
    };
    let flag = |value: Option<Value>| value.is_some_and(|value| value.is_true());
    let (is_ascii, indent) = (flag(option(0, "ensure_ascii")?), option(1, "indent")?);
    let (separators, is_sorted) = (option(2, "separators")?, flag(option(3, "sort_keys")?));
    if given.len() > 4 {
        return Err(failed("tojson takes ensure_ascii, indent, separators and sort_keys"));
    }
    options.assert_all_used()?;
    let indent = match indent.filter(|indent| !indent.is_none()) {
        None => None,
        Some(indent) => Some(match (indent.as_str(), indent.as_i64()) {
            (Some(text), _) => text.to_owned(),
            (None, Some(width)) => " ".repeat(usize::try_from(width).unwrap_or_default().min(INDENT_MAX + 1)),
            (None, None) => return Err(failed("tojson takes a number or a string as indent")),
        }),
    };
    if indent.as_ref().is_some_and(|indent| indent.len() > INDENT_MAX) {
        return Err(failed(format!("tojson indents by at most {INDENT_MAX} characters")));
    }
    let default = (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned());
    let (between, after_key) = match separators.filter(|separators| !separators.is_none()) {
        None => default,
        Some(separators) => match &separators.try_iter()?.collect::<Vec<_>>()[..] {
            [between, after_key] if string(between).len().max(string(after_key).len()) <= INDENT_MAX => {
                (string(between).to_owned(), string(after_key).to_owned())
            }
            _ => return Err(failed("tojson takes two short strings as separators")),
        },
    };
    text::json(state, value, &Json { is_ascii, indent, between, after_key, is_sorted })
}
