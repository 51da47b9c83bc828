//! The command line, with a TOML file below flags and environment.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};

use super::{ServeConfig, classroom};
use crate::errors::{EXIT_CODES, ServerError};
use crate::simulate::SimulateArgs;

/// The syncer of one Archipelago run: it leads the learners' rounds, merges what they send and keeps the
/// model.
#[derive(Parser, Debug)]
#[command(name = "syncer-server", version, after_help = EXIT_CODES, args_override_self = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Verb {
    /// Start a run, or go on with the one in --dir
    #[command(after_help = EXIT_CODES)]
    Serve(Box<ServeConfig>),
    /// Write the newest snapshot as a Hugging Face folder
    #[command(after_help = EXIT_CODES)]
    Export(ExportArgs),
    /// Check settings, data and the run's folder, and start nothing
    #[command(after_help = EXIT_CODES)]
    Validate(Box<ServeConfig>),
    /// Say what works on this machine: cores, memory, address, data, disk
    #[command(after_help = EXIT_CODES)]
    Doctor(Box<ServeConfig>),
    /// Recompute the paper's tables and print them beside its figures
    #[command(after_help = EXIT_CODES)]
    Simulate(Box<SimulateArgs>),
}

/// Settings of `export`.
#[derive(clap::Args, Clone, Debug)]
pub struct ExportArgs {
    /// Folder of the run
    #[arg(long, env = "ARCHIPELAGO_DIR", value_name = "FOLDER", default_value = "runs/default")]
    pub dir: PathBuf,
    /// Folder to write, made if it is not there
    #[arg(long, env = "ARCHIPELAGO_OUT", value_name = "FOLDER")]
    pub out: PathBuf,
    /// One JSON line on standard output
    #[arg(long, env = "ARCHIPELAGO_JSON")]
    pub json: bool,
}

/// Why the command line cannot be used.
#[derive(Debug)]
pub enum CliError {
    /// A flag or variable is wrong, or help was asked for.
    Usage(clap::Error),
    /// The TOML file is wrong.
    File(ServerError),
}

/// Reads flags, environment and the TOML file that they may name.
///
/// The file's keys become flags, unless flag or variable is given: so each setting has one name, one
/// type and one check.
///
/// # Errors
/// - [`CliError::Usage`]: a flag or variable is unknown or malformed.
/// - [`CliError::File`]: the file cannot be read, or a key or value in it is wrong.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Cli, CliError> {
    let mut arguments: Vec<OsString> = arguments.into_iter().collect();
    let matches = Cli::command().try_get_matches_from(&arguments).map_err(CliError::Usage)?;
    let Some((verb, given)) = matches.subcommand() else {
        return read(&matches);
    };
    let file = given.try_get_one::<PathBuf>("config").ok().flatten().cloned();
    let Some(file) = file else { return read(&matches) };

    let command = Cli::command();
    let command = command.find_subcommand(verb).expect("clap matched it");
    let from_file = file_flags(&file, command, given).map_err(|why| wrong(&file, why))?;
    arguments.extend(from_file.into_iter().map(OsString::from));
    let matches = Cli::command().try_get_matches_from(&arguments);
    // Without the file's flags they were right, so what is wrong now is the file's.
    read(&matches.map_err(|error| wrong(&file, first_line(&error)))?)
}

/// The settings of `matches`, and what some of them imply of others.
fn read(matches: &ArgMatches) -> Result<Cli, CliError> {
    let mut cli = Cli::from_arg_matches(matches).map_err(CliError::Usage)?;
    let given = matches.subcommand().map(|(_, given)| given);
    let is_default = |id: &str| {
        given.is_some_and(|given| {
            given.value_source(id).is_none_or(|source| source == ValueSource::DefaultValue)
        })
    };
    if let Verb::Serve(config) | Verb::Validate(config) | Verb::Doctor(config) = &mut cli.verb {
        classroom::imply(config, is_default);
    }
    Ok(cli)
}

fn wrong(file: &Path, why: String) -> CliError {
    CliError::File(ServerError::ConfigFile { file: file.to_owned(), why })
}

fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

/// The file's settings as flags, without those that `given` has from flag or environment.
fn file_flags(file: &Path, command: &clap::Command, given: &ArgMatches) -> Result<Vec<String>, String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{error}; check --config"))?;
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| error.message().to_owned())?;
    let mut flags = Vec::new();
    for (key, value) in table {
        let known = command.get_arguments().find(|arg| arg.get_long() == Some(&key));
        let Some(arg) = known.filter(|_| key != "config") else {
            return Err(format!(
                "unknown key `{key}`: the keys are the flags of `{} --help`",
                command.get_name()
            ));
        };
        if given.value_source(arg.get_id().as_str()).is_some_and(|source| source != ValueSource::DefaultValue)
        {
            continue;
        }
        let values = match value {
            toml::Value::Array(values) => values,
            value => vec![value],
        };
        for value in values {
            flags.extend(flag(&key, value)?);
        }
    }
    Ok(flags)
}

fn flag(key: &str, value: toml::Value) -> Result<Option<String>, String> {
    match value {
        toml::Value::Boolean(set) => Ok(set.then(|| format!("--{key}"))),
        toml::Value::String(text) => Ok(Some(format!("--{key}={text}"))),
        toml::Value::Integer(number) => Ok(Some(format!("--{key}={number}"))),
        toml::Value::Float(number) => Ok(Some(format!("--{key}={number}"))),
        other => Err(format!("`{key}` is a {}: give a number, a text or true", other.type_str())),
    }
}

#[cfg(test)]
mod tests {
    use std::iter;

    use super::*;

    fn serve(arguments: &[&str]) -> Result<ServeConfig, CliError> {
        let arguments = ["syncer-server", "serve"].iter().chain(arguments).map(OsString::from);
        match parse(arguments)?.verb {
            Verb::Serve(config) => Ok(*config),
            verb => panic!("{verb:?}"),
        }
    }

    fn with_file(text: &str, arguments: &[&str]) -> Result<ServeConfig, CliError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        serve(&[&["--config", file.path().to_str().unwrap()], arguments].concat())
    }

    #[test]
    fn flags_beat_the_file_which_beats_defaults() {
        let text = "sync-every = 7\nseed = 3\nno-eval = true\nallow-origin = ['https://a', 'https://b']";
        let config = with_file(text, &["--seed", "4"]).unwrap();
        assert_eq!((config.method.sync_every, config.seed, config.no_eval), (7, 4, true));
        assert_eq!(config.allow_origin, ["https://a", "https://b"]);
        assert_eq!(config.method.block, ServeConfig::default().method.block);
    }

    #[test]
    fn a_classroom_implies_what_is_given_nowhere() {
        let check = |config: ServeConfig, listen: &str, preset: &str, invite: Option<&str>| {
            assert_eq!(
                (&*config.listen, &*config.preset, config.invite.as_deref()),
                (listen, preset, invite)
            );
        };
        let plain = ServeConfig::default();
        check(serve(&[]).unwrap(), &plain.listen, &plain.preset, None);
        check(serve(&["--classroom"]).unwrap(), "0.0.0.0:7700", "tiny", Some("short"));
        check(with_file("classroom = true", &[]).unwrap(), "0.0.0.0:7700", "tiny", Some("short"));
        // Even what is the default, if it is asked for.
        let asked = ["--classroom", "--listen", &plain.listen, "--preset=small", "--invite=open-sesame"];
        check(serve(&asked).unwrap(), &plain.listen, "small", Some("open-sesame"));
        check(
            with_file("preset = 'medium'", &["--classroom"]).unwrap(),
            "0.0.0.0:7700",
            "medium",
            Some("short"),
        );
    }

    #[test]
    fn says_what_is_wrong_in_the_file() {
        let check = |text: &str, part: &str| match with_file(text, &[]) {
            Err(CliError::File(error)) => assert!(error.to_string().contains(part), "{error}"),
            other => panic!("{text}: {other:?}"),
        };
        check("no-such-key = 1", "unknown key `no-such-key`");
        check("config = 'x'", "unknown key `config`");
        check("sync-every = 'often'", "--sync-every");
        check("seed = { a = 1 }", "`seed` is a table");
        check("seed = ", "");
        check("vocab = 300\ntokenizer = 'x'", "cannot be used with");
    }

    /// Every flag has its twin in the environment.
    #[test]
    fn every_flag_has_a_variable() {
        let command = Cli::command();
        let verbs = command.get_subcommands().flat_map(|verb| iter::once(verb).chain(verb.get_subcommands()));
        for verb in verbs {
            for arg in verb.get_arguments().filter(|arg| !matches!(arg.get_id().as_str(), "help" | "version"))
            {
                let long = arg.get_long().expect("every setting has a long flag");
                let variable = format!("ARCHIPELAGO_{}", long.to_uppercase().replace('-', "_"));
                assert_eq!(arg.get_env().and_then(|name| name.to_str()), Some(variable.as_str()), "--{long}");
            }
        }
        command.debug_assert();
    }
}
