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
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| error.message().to_owned())?;
    let mut words = Vec::new();
    for (key, value) in table {
        let Some(arg) = setting(verb, &key) else {
            let others = program.get_subcommands().filter(|verb| setting(verb, CONFIG).is_some());
            if key != CONFIG && others.into_iter().any(|verb| setting(verb, &key).is_some()) {
                continue;
            }
            return Err(format!(
                "unknown key `{key}`: the keys are the flags of `{} --help`",
                verb.get_name()
            ));
        };
        if key == CONFIG {
            return Err(format!("unknown key `{key}`: a file names no other file"));
        }
        if is_hidden(verb, arg, given) {
            continue;
        }
        words.extend(key_words(verb, &key, value)?.into_iter().flatten());
    }
    Ok(words)
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
