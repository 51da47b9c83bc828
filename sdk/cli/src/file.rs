//! A TOML file whose keys are the flags of a program.

use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};

/// Why the file of settings is of no use.
#[derive(Debug, thiserror::Error)]
#[error("configuration file {}: {why}", .file.display())]
pub struct FileError {
    /// The file.
    pub file: PathBuf,
    /// What is wrong in it, and what to do.
    pub why: String,
}

/// The flag, and the id, of the setting that names the file.
pub(crate) const CONFIG: &str = "config";

/// What `file` gives to the verb `verb` of `program`, as words of a command line.
///
/// Left out is what `given`, from the command line and the environment, has already or what cannot be used with that:
/// a higher layer hides both. Keys of other verbs that read such a file are left out too, so that one file serves all.
///
/// # Errors
/// What is wrong with the file: it cannot be read, is no TOML, or has a key or a kind of value that no flag takes.
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
            let (place, meant) = (place(&text, &key), meant(verb, &key));
            let flags = format!("the keys are the flags of `{} --help`", verb.get_name());
            return Err(format!("{place}unknown key `{key}`{meant}: {flags}"));
        };
        if key == CONFIG {
            return Err(format!("unknown key `{key}`: a file names no other file"));
        }
        if is_hidden(verb, arg, given) {
            continue;
        }
        let value = with_home(value, std::env::home_dir().as_deref());
        let given = key_words(verb, &key, value).map_err(|why| place(&text, &key) + &why)?;
        words.extend(given.into_iter().flatten());
    }
    Ok(words)
}

/// Replaces a leading `~/` in the strings of `value` by the folder `home`. A shell does so for flags, but not for a
/// file of settings. No other setting begins with `~/`.
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

/// The words that give `value` to the setting of `verb` that is called `key`; `None` if there is no such setting.
///
/// # Errors
/// A sentence: the value is of a kind that no setting takes.
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

/// The table in `text`.
///
/// # Errors
/// A sentence: it is no TOML, and where.
pub(crate) fn table(text: &str) -> Result<toml::Table, String> {
    text.parse().map_err(|error: toml::de::Error| {
        let line =
            error.span().map(|span| 1 + text.get(..span.start).unwrap_or_default().matches('\n').count());
        let said = error.message().replace('\n', "; ");
        line.map_or_else(|| said.clone(), |line| format!("line {line}: {said}"))
    })
}

/// The line of `key` in `text`, as the beginning of a sentence; nothing if it is not found, as where it is quoted.
pub(crate) fn place(text: &str, key: &str) -> String {
    let names = |line: &str| {
        line.split_once('=').is_some_and(|(name, _)| name.trim().trim_matches(['"', '\'']) == key)
    };
    text.lines().position(names).map_or_else(String::new, |at| format!("line {}: ", at + 1))
}

/// The setting of `verb` that was probably meant by `key`, as part of a sentence.
pub(crate) fn meant(verb: &Command, key: &str) -> String {
    let names = verb.get_arguments().map(name).filter(|name| name != CONFIG);
    let nearest = names.map(|name| (distance(&name, key), name)).min();
    match nearest {
        Some((changes, name)) if changes <= 1 + name.chars().count() / 4 => {
            format!(", did you mean `{name}`?")
        }
        _ => String::new(),
    }
}

/// Letters to be put in, left out or replaced to make `b` of `a`.
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

/// The setting of `verb` that is called `key`.
fn setting<'a>(verb: &'a Command, key: &str) -> Option<&'a Arg> {
    verb.get_arguments().find(|arg| name(arg) == key)
}

/// What a setting is called in files and in the environment: its flag, or what a value without a flag stands for.
pub(crate) fn name(arg: &Arg) -> String {
    arg.get_long().map_or_else(|| arg.get_id().as_str().replace('_', "-"), str::to_owned)
}

/// Whether a higher layer gave `arg`, or something that cannot be used with it.
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

/// The word that gives `value` to `arg`; none for a switch that stays off.
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

/// The TOML `text` with `key` given as `value`, as it would be on a command line: its line is replaced, or one is added
/// at the end. What stands there already, comments too, stays as it is.
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

/// The value that `key` has in the TOML `text`, as it would be on a command line.
#[must_use]
pub fn key_of(text: &str, key: &str) -> Option<String> {
    text.parse::<toml::Table>().ok()?.get(key).map(plain)
}

fn plain(value: &toml::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// `value` as TOML: a number or a truth value if it is one to the letter.
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
