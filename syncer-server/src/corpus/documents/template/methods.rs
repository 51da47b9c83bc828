//! Python's methods of strings, lists and dictionaries.

use minijinja::value::{Kwargs, Rest, Tuple, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::operators::{check_length, widths};
use super::text::{charge, failed, string};

/// Calls a method that a value has in Python.
///
/// # Errors
/// The method does not exist, or rejects the arguments.
pub fn call(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    let found = match value.kind() {
        ValueKind::String => of_string(state, string(value), method, arguments)?,
        ValueKind::Map => of_dictionary(value, method, arguments)?,
        ValueKind::Seq | ValueKind::Iterable => of_list(value, method, arguments)?,
        _ => None,
    };
    match found {
        Some(found) => Ok(found),
        None => unknown_method_callback(state, value, method, arguments),
    }
}

fn of_dictionary(value: &Value, method: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
    if !matches!(method, "items" | "keys" | "values" | "copy") {
        return Ok(None);
    }
    let () = from_args(arguments)?;
    Ok(Some(match method {
        "items" => items(value)?,
        "keys" => value.try_iter()?.collect(),
        "copy" => value.clone(),
        _ => pairs(value).map(|(_, value)| value).collect(),
    }))
}

/// Returns pairs of keys and values as a list of tuples.
///
/// # Errors
/// `value` is no dictionary.
pub fn items(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Map => {
            Ok(pairs(value).map(|(key, value)| Value::from(Tuple::from([key, value]))).collect())
        }
        ValueKind::Undefined => Ok(Value::from(Vec::<Value>::new())),
        _ => Err(failed("items needs a dictionary")),
    }
}

fn pairs(value: &Value) -> impl Iterator<Item = (Value, Value)> {
    value.as_object().and_then(|object| object.try_iter_pairs()).into_iter().flatten()
}

fn of_list(value: &Value, method: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
    let count = |what: &Value| value.try_iter().map(|items| items.filter(|item| item == what).count());
    Ok(Some(match method {
        "count" => Value::from(count(from_args::<(&Value,)>(arguments)?.0)?),
        "index" => {
            let (what,): (&Value,) = from_args(arguments)?;
            let at = value.try_iter()?.position(|item| item == *what);
            Value::from(at.ok_or_else(|| failed("the list has no such element"))?)
        }
        "copy" => value.clone(),
        _ => return Ok(None),
    }))
}

fn of_string(
    state: &State<'_, '_>,
    text: &str,
    method: &str,
    arguments: &[Value],
) -> Result<Option<Value>, Error> {
    let chars = || from_args::<(Option<&str>,)>(arguments).map(|(chars,)| chars);
    Ok(Some(match method {
        "strip" => Value::from(strip(text, chars()?, [true, true])),
        "lstrip" => Value::from(strip(text, chars()?, [true, false])),
        "rstrip" => Value::from(strip(text, chars()?, [false, true])),
        "split" => split(text, arguments, false)?,
        "rsplit" => split(text, arguments, true)?,
        "splitlines" => {
            let (keep, options): (Option<bool>, Kwargs) = from_args(arguments)?;
            let keep = keep.or(options.get("keepends")?).unwrap_or(false);
            options.assert_all_used()?;
            lines(text, keep).map(Value::from).collect()
        }
        "join" => {
            let (items,): (&Value,) = from_args(arguments)?;
            join(state, text, items)?
        }
        "partition" | "rpartition" => {
            let (sep,): (&str,) = from_args(arguments)?;
            let found = if method == "partition" { text.split_once(sep) } else { text.rsplit_once(sep) };
            let parts = match (found, method) {
                (Some((before, after)), _) => [before, sep, after],
                (None, "partition") => [text, "", ""],
                (None, _) => ["", "", text],
            };
            Value::from(Tuple::from(parts.map(Value::from)))
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(arguments)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(arguments)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "ljust" | "rjust" | "center" | "zfill" => {
            let (width, fill): (usize, Option<char>) = from_args(arguments)?;
            Value::from(padded(state, text, width, fill.unwrap_or(' '), method)?)
        }
        "index" => {
            let (what,): (&str,) = from_args(arguments)?;
            let at = text.find(what).ok_or_else(|| failed("the string has no such character"))?;
            Value::from(text[..at].chars().count())
        }
        "title" => Value::from(titled(text)),
        "swapcase" => {
            let swap = |c: char| match c.is_lowercase() {
                true => c.to_uppercase().collect::<String>(),
                false => c.to_lowercase().collect(),
            };
            Value::from(text.chars().map(swap).collect::<String>())
        }
        "format" => {
            charge(state, widths(text))?;
            return Ok(None);
        }
        // The results of these methods differ between systems.
        "encode" | "translate" | "maketrans" | "expandtabs" => {
            return Err(Error::from(ErrorKind::UnknownMethod));
        }
        _ => return Ok(None),
    }))
}

/// Returns `text` with the first letter of each sequence of letters in upper case.
fn titled(text: &str) -> String {
    let mut is_inside = false;
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match is_inside {
            true => out.extend(c.to_lowercase()),
            false => out.extend(c.to_uppercase()),
        }
        is_inside = c.is_alphabetic();
    }
    out
}

/// Returns true if `c` is whitespace in Python.
fn is_blank(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// Returns `text` without `chars`, or without blanks, at its ends.
pub fn strip<'a>(text: &'a str, chars: Option<&str>, [start, end]: [bool; 2]) -> &'a str {
    let is_cut = |c: char| chars.map_or(is_blank(c), |chars| chars.contains(c));
    let text = if start { text.trim_start_matches(is_cut) } else { text };
    if end { text.trim_end_matches(is_cut) } else { text }
}

/// `text.split(sep, maxsplit)`, or `rsplit`.
fn split(text: &str, arguments: &[Value], is_from_end: bool) -> Result<Value, Error> {
    let (given, options): (Rest<Value>, Kwargs) = from_args(arguments)?;
    let argument = |at: usize, key: &str| match given.get(at) {
        Some(value) => Ok(Some(value.clone())),
        None => options.get::<Option<Value>>(key),
    };
    let (sep, most) = (argument(0, "sep")?.filter(|sep| !sep.is_none()), argument(1, "maxsplit")?);
    options.assert_all_used()?;
    let most = most.and_then(|most| most.as_usize()).unwrap_or(usize::MAX).saturating_add(1);
    let parts: Vec<&str> = match (sep.as_ref().map(|sep| sep.as_str().unwrap_or_default()), is_from_end) {
        (Some(""), _) => return Err(failed("split needs a separator that is not empty")),
        (Some(sep), false) => text.splitn(most, sep).collect(),
        (Some(sep), true) => {
            let mut parts: Vec<&str> = text.rsplitn(most, sep).collect();
            parts.reverse();
            parts
        }
        (None, false) => {
            let mut rest = text.trim_start_matches(is_blank);
            let mut parts = Vec::new();
            while !rest.is_empty() && parts.len() + 1 < most {
                let (part, after) = rest.split_once(is_blank).unwrap_or((rest, ""));
                parts.push(part);
                rest = after.trim_start_matches(is_blank);
            }
            parts.extend((!rest.is_empty()).then_some(rest));
            parts
        }
        (None, true) => {
            let mut rest = text.trim_end_matches(is_blank);
            let mut parts = Vec::new();
            while !rest.is_empty() && parts.len() + 1 < most {
                let (before, part) = rest.rsplit_once(is_blank).unwrap_or(("", rest));
                parts.push(part);
                rest = before.trim_end_matches(is_blank);
            }
            parts.extend((!rest.is_empty()).then_some(rest));
            parts.reverse();
            parts
        }
    };
    Ok(parts.into_iter().map(Value::from).collect())
}

/// Returns the lines of `text`, split at every line end that Python knows.
pub fn lines(text: &str, keep_ends: bool) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let is_end =
            |c: char| matches!(c, '\n'..='\r' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}');
        let at = rest.find(is_end).unwrap_or(rest.len());
        let length = match rest[at..].chars().next() {
            Some('\r') if rest[at + 1..].starts_with('\n') => 2,
            Some(end) => end.len_utf8(),
            None => 0,
        };
        let line = &rest[..at + if keep_ends { length } else { 0 }];
        rest = &rest[at + length..];
        Some(line)
    })
}

/// `sep.join(items)`. All items must be strings.
fn join(state: &State<'_, '_>, sep: &str, items: &Value) -> Result<Value, Error> {
    super::operators::iterable(items)?;
    let mut out = String::new();
    for (item, index) in items.try_iter()?.zip(0_u64..) {
        let item = item.as_str().map(str::to_owned).ok_or_else(|| failed("join accepts only strings"))?;
        out.push_str(if index > 0 { sep } else { "" });
        out.push_str(&item);
        check_length(out.len())?;
        charge(state, sep.len() + item.len())?;
    }
    Ok(Value::from(out))
}

/// Returns `text` padded to `width` characters.
pub fn padded(
    state: &State<'_, '_>,
    text: &str,
    width: usize,
    fill: char,
    method: &str,
) -> Result<String, Error> {
    let missing = width.saturating_sub(text.chars().count());
    check_length(missing)?;
    charge(state, missing * fill.len_utf8() + text.len())?;
    let fills = |count: usize| fill.to_string().repeat(count);
    Ok(match method {
        "ljust" => format!("{text}{}", fills(missing)),
        "rjust" => format!("{}{text}", fills(missing)),
        "zfill" => {
            let digits = text.trim_start_matches(['+', '-']);
            let sign = &text[..text.len() - digits.len()];
            format!("{sign}{}{digits}", "0".repeat(missing))
        }
        _ => {
            // As in CPython, an odd blank goes to the left if the width is odd.
            let left = missing / 2 + (missing & width & 1);
            format!("{}{text}{}", fills(left), fills(missing - left))
        }
    })
}
