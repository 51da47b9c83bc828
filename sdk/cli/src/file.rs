//! TOML file of settings, whose keys are the flags of a program.

use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};

/// Reason why the file of settings cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("configuration file {}: {why}", .file.display())]
pub struct FileError {
    /// The file.
    pub file: PathBuf,
    /// Fault in the file, with its remedy.
    pub why: String,
}

/// Flag and id of the setting that names the file.
pub(crate) const CONFIG: &str = "config";

/// Returns the settings in `file` for the verb `verb` of `program`, as command-line words.
///
/// Settings in `given`, from the command line and the environment, override the file: they are omitted, and so are
/// settings that conflict with them. Keys of other verbs that read such a file are also omitted, so that one file
/// serves all verbs.
///
/// # Errors
/// A sentence about the file: it cannot be read, is not TOML, or has an unknown key or a value of the wrong type.
pub(crate) fn words(
    file: &Path,
    program: &Command,
    verb: &Command,
    given: &ArgMatches,
) -> Result<Vec<String>, String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{error}; check --{CONFIG}"))?;
    let table = table(&text)?;
    let mut words = Vec::new();
    for (key, value) in table {
        let Some(arg) = setting(verb, &key) else {
            let others = program.get_subcommands().filter(|verb| setting(verb, CONFIG).is_some());
            if key != CONFIG && others.into_iter().any(|verb| setting(verb, &key).is_some()) {
                continue;
            }
            let (line_prefix, suggestion) = (line_prefix(&text, &key), suggestion(verb, &key));
            let flags = format!("the keys are the flags of `{} --help`", verb.get_name());
            return Err(format!("{line_prefix}unknown key `{key}`{suggestion}: {flags}"));
        };
        if key == CONFIG {
            return Err(format!("unknown key `{key}`: a file cannot name another file"));
        }
        if is_hidden(verb, arg, given) {
            continue;
        }
        let value = with_home(value, std::env::home_dir().as_deref());
        let given = key_words(verb, &key, value).map_err(|why| line_prefix(&text, &key) + &why)?;
        words.extend(given.into_iter().flatten());
    }
    Ok(words)
}

/// Replaces a leading `~/` in the strings of `value` by the folder `home`. A shell does so for flags, but not for a
/// file of settings. No valid setting begins with a literal `~/`.
fn with_home(value: toml::Value, home: Option<&Path>) -> toml::Value {
    match (value, home) {
        (toml::Value::String(text), Some(home)) => match text.strip_prefix("~/") {
            Some(rest) => home.join(rest).to_string_lossy().into_owned().into(),
            None => text.into(),
        },
        (toml::Value::Array(values), home) => {
            values.into_iter().map(|value| with_home(value, home)).collect::<Vec<_>>().into()
        }
        (value, _) => value,
    }
}

/// Returns the command-line words that set `key` of `verb` to `value`, or `None` if `verb` has no such setting.
///
/// # Errors
/// A sentence: the value has a type that no setting takes.
pub(crate) fn key_words(
    verb: &Command,
    key: &str,
    value: toml::Value,
) -> Result<Option<Vec<String>>, String> {
    let Some(arg) = setting(verb, key) else { return Ok(None) };
    let values = match value {
        toml::Value::Array(values) => values,
        value => vec![value],
    };
    let mut words = Vec::new();
    for value in values {
        words.extend(word(arg, key, value)?);
    }
    Ok(Some(words))
}

/// Parses the table in `text`.
///
/// # Errors
/// A sentence with the line of the fault: `text` is not TOML.
pub(crate) fn table(text: &str) -> Result<toml::Table, String> {
    text.parse().map_err(|error: toml::de::Error| {
        let line =
            error.span().map(|span| 1 + text.get(..span.start).unwrap_or_default().matches('\n').count());
        let message = error.message().replace('\n', "; ");
        line.map_or_else(|| message.clone(), |line| format!("line {line}: {message}"))
    })
}

/// Returns the line number of `key` in `text` as the beginning of a sentence, or an empty text if the key is not
/// found at the start of a line.
pub(crate) fn line_prefix(text: &str, key: &str) -> String {
    let names = |line: &str| {
        line.split_once('=').is_some_and(|(name, _)| name.trim().trim_matches(['"', '\'']) == key)
    };
    text.lines().position(names).map_or_else(String::new, |at| format!("line {}: ", at + 1))
}

/// Returns the setting of `verb` with the name nearest to `key` as part of a sentence, or an empty text if none is
/// near.
pub(crate) fn suggestion(verb: &Command, key: &str) -> String {
    let names = verb.get_arguments().map(name).filter(|name| name != CONFIG);
    let nearest = names.map(|name| (distance(&name, key), name)).min();
    match nearest {
        Some((changes, name)) if changes <= 1 + name.chars().count() / 4 => {
            format!(", did you mean `{name}`?")
        }
        _ => String::new(),
    }
}

/// Returns the edit distance of `a` and `b`: the number of letters to insert, delete or replace.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, left) in a.chars().enumerate() {
        let mut before = i;
        row[0] = i + 1;
        for (j, right) in b.iter().enumerate() {
            let replaced = before + usize::from(left != *right);
            before = row[j + 1];
            row[j + 1] = replaced.min(before + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

/// Returns the setting of `verb` with the name `key`.
fn setting<'a>(verb: &'a Command, key: &str) -> Option<&'a Arg> {
    verb.get_arguments().find(|arg| name(arg) == key)
}

/// Returns the name of a setting in files and in the environment: its flag, or the id of an argument without a flag.
pub(crate) fn name(arg: &Arg) -> String {
    arg.get_long().map_or_else(|| arg.get_id().as_str().replace('_', "-"), str::to_owned)
}

/// Returns true if a higher layer has set `arg` or a setting that conflicts with it.
fn is_hidden(verb: &Command, arg: &Arg, given: &ArgMatches) -> bool {
    let is_given = |arg: &Arg| {
        given.value_source(arg.get_id().as_str()).is_some_and(|source| source != ValueSource::DefaultValue)
    };
    let excludes = |one: &Arg, other: &Arg| {
        verb.get_arg_conflicts_with(one).iter().any(|conflict| conflict.get_id() == other.get_id())
    };
    let excluded = |other: &&Arg| excludes(arg, other) || excludes(other, arg);
    is_given(arg) || verb.get_arguments().filter(excluded).any(is_given)
}

/// Returns the command-line word that sets `arg` to `value`, or `None` for a switch that stays off.
fn word(arg: &Arg, key: &str, value: toml::Value) -> Result<Option<String>, String> {
    let flag = match arg.get_long() {
        Some(long) => format!("--{long}="),
        None => String::new(),
    };
    match value {
        toml::Value::Boolean(set) if !arg.get_action().takes_values() => Ok(set.then(|| format!("--{key}"))),
        toml::Value::Boolean(set) => Ok(Some(format!("{flag}{set}"))),
        toml::Value::String(text) => Ok(Some(format!("{flag}{text}"))),
        toml::Value::Integer(number) => Ok(Some(format!("{flag}{number}"))),
        toml::Value::Float(number) => Ok(Some(format!("{flag}{number}"))),
        other => Err(format!("`{key}` is a {}: give a number, a text or true", other.type_str())),
    }
}

/// Sets `key` to `value` in the TOML `text`. `value` is written as on a command line. The line of the key is
/// replaced, or a line is appended. All other lines, including comments, are unchanged.
#[must_use]
pub fn with_key(text: &str, key: &str, value: &str) -> String {
    let found = text.parse::<toml::Table>().ok().and_then(|mut table| table.remove(key));
    if found.is_some_and(|found| plain(&found) == value) {
        return text.to_owned();
    }
    let line = format!("{key} = {}", literal(value));
    let mut lines: Vec<&str> = text.lines().collect();
    let names = |line: &&str| line.split_once('=').is_some_and(|(name, _)| name.trim() == key);
    match lines.iter().position(names) {
        Some(at) => lines[at] = &line,
        None => lines.push(&line),
    }
    lines.join("\n") + "\n"
}

/// Returns the value of `key` in the TOML `text`, written as on a command line.
#[must_use]
pub fn key_of(text: &str, key: &str) -> Option<String> {
    text.parse::<toml::Table>().ok()?.get(key).map(plain)
}

fn plain(value: &toml::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Returns `value` as TOML: a number or boolean if it is written like one, otherwise a string.
fn literal(value: &str) -> String {
    let is_number = value.parse::<i64>().is_ok_and(|number| number.to_string() == value)
        || value.contains('.') && value.parse::<f64>().is_ok_and(|number| number.to_string() == value);
    match is_number || ["true", "false"].contains(&value) {
        true => value.to_owned(),
        false => toml::Value::from(value).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_may_begin_with_the_home_folder() {
        let read =
            |text: &str| with_home(text.parse::<toml::Table>().unwrap()["a"].clone(), Some("/h".as_ref()));
        assert_eq!(read("a = '~/models/x'"), "/h/models/x".into());
        assert_eq!(
            read("a = ['~/x', 'b', 3]"),
            vec!["/h/x".into(), "b".into(), toml::Value::Integer(3)].into()
        );
        for plain in ["~", "~me/x", "a~/x", "/x"] {
            assert_eq!(read(&format!("a = '{plain}'")), plain.into());
        }
        assert_eq!(with_home("~/x".into(), None), "~/x".into());
    }

    #[test]
    fn a_key_is_changed_and_the_rest_stays() {
        let text = "# mine\npreset = \"tiny\" # small\nseed = 4\n";
        assert_eq!(with_key(text, "seed", "4"), text);
        assert_eq!(with_key(text, "seed", "5"), "# mine\npreset = \"tiny\" # small\nseed = 5\n");
        assert_eq!(with_key("", "invite", "0123"), "invite = \"0123\"\n");
        assert_eq!(with_key("seed = 4", "data", "a \"b\""), "seed = 4\ndata = 'a \"b\"'\n");
        for (key, value) in [("grace-ratio", "0.8"), ("seed", "4"), ("no-eval", "true"), ("keep", "1GiB")] {
            assert_eq!(key_of(&with_key(text, key, value), key).as_deref(), Some(value));
        }
        assert_eq!(key_of(text, "block"), None);
    }
}
