//! Layers of settings: flags override the environment, which overrides the file, which overrides defaults.

use std::ffi::OsString;
use std::num::{IntErrorKind, ParseFloatError, ParseIntError};
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command};

use crate::file::{self, CONFIG, FileError};
use crate::program::{Program, exit_help};

/// Prefix of all environment variables.
const PREFIX: &str = "ARCHIPELAGO_";

/// Reason why the settings cannot be used.
#[derive(Debug)]
pub enum CliError {
    /// A flag or an environment variable is invalid, or help was requested. The error has the text and the exit code.
    Usage(Box<clap::Error>),
    /// The file of settings is invalid. The sources are those without the file.
    File(FileError, Sources),
}

/// A parsed command line.
#[derive(Debug)]
pub struct ParsedCommand<P> {
    /// Settings of the program.
    pub cli: P,
    /// Sources of the settings.
    pub sources: Sources,
}

/// Source of each setting of the chosen verb.
#[derive(Debug)]
pub struct Sources(Box<ArgMatches>);

impl Sources {
    /// Returns true if no flag, environment variable or file set the verb's setting with this id.
    #[must_use]
    pub fn is_default(&self, id: &str) -> bool {
        let source = self.0.subcommand().and_then(|(_, verb)| verb.value_source(id));
        source.is_none_or(|source| source == ValueSource::DefaultValue)
    }

    /// Returns the words given for the verb's setting with this id, or its default; empty if it has no default.
    #[must_use]
    pub fn words(&self, id: &str) -> Vec<String> {
        let found = self.0.subcommand().and_then(|(_, verb)| verb.try_get_raw(id).ok().flatten());
        found.into_iter().flatten().map(|word| word.to_string_lossy().into_owned()).collect()
    }

    /// Returns true if the verb's switch with this id is on.
    #[must_use]
    pub fn is_on(&self, id: &str) -> bool {
        self.0.subcommand().is_some_and(|(_, verb)| verb.try_get_one(id).ok().flatten() == Some(&true))
    }
}

/// Returns the `clap` command of `P`. Each setting of each verb can also be set by an environment variable named
/// after its flag, if [`Program::has_twin`] allows it. If a flag is repeated, the last one is used. The help of each
/// verb ends with the exit codes.
#[must_use]
pub fn command<P: Program>() -> Command {
    let finish = |verb: Command| {
        let name = verb.get_name().to_owned();
        let has_twin = |arg: &Arg| P::has_twin(&name, arg.get_id().as_str());
        verb.mut_args(|arg| if has_twin(&arg) { with_variable(arg, is_empty) } else { arg })
            .after_help(exit_help(P::EXIT_CODES))
    };
    finish(P::command()).mut_subcommands(finish).args_override_self(true)
}

/// Adds the environment variable to `arg`; for example, `--sync-every` gets `ARCHIPELAGO_SYNC_EVERY`. An empty variable
/// counts as missing: tools such as Docker Compose cannot leave one out.
fn with_variable(arg: Arg, is_empty: impl Fn(&str) -> bool) -> Arg {
    let name = format!("{PREFIX}{}", file::name(&arg).to_uppercase().replace('-', "_"));
    if is_empty(&name) { arg } else { arg.env(name) }
}

fn is_empty(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| value.is_empty())
}

/// Reads the command line, the environment, and the TOML file that `--config` may name.
///
/// The file's keys become flags, unless a higher layer has set the same setting or one that conflicts with it. Each
/// setting thus has one name, one type and one check for all sources.
///
/// # Errors
/// - [`CliError::Usage`]: a flag or an environment variable is unknown or malformed, or help was requested.
/// - [`CliError::File`]: the file cannot be read, or a key or a value in it is invalid.
pub fn parse<P: Program>(
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<ParsedCommand<P>, CliError> {
    parse_over(arguments, |_| None)
}

/// Parses like [`parse`], with one more file of settings below all other layers. `below` returns its path, depending
/// on the settings of the other layers, or `None`.
///
/// # Errors
/// Those of [`parse`].
pub fn parse_over<P: Program>(
    arguments: impl IntoIterator<Item = OsString>,
    below: impl FnOnce(&ParsedCommand<P>) -> Option<PathBuf>,
) -> Result<ParsedCommand<P>, CliError> {
    let mut arguments = with_negatives(arguments);
    let command = command::<P>();
    let usage = |error| CliError::Usage(Box::new(in_range(error)));
    let mut matches = command.clone().try_get_matches_from(&arguments).map_err(usage)?;
    let named = matches.subcommand().and_then(|(_, verb)| verb.try_get_one::<PathBuf>(CONFIG).ok().flatten());
    if let Some(file) = named.cloned() {
        matches = over(&command, &mut arguments, matches, &file)?;
    }
    let read = |matches: ArgMatches| {
        let cli = P::from_arg_matches(&matches).map_err(usage)?;
        Ok(ParsedCommand { cli, sources: Sources(Box::new(matches)) })
    };
    let given = read(matches)?;
    match below(&given) {
        None => Ok(given),
        Some(file) => read(over(&command, &mut arguments, *given.sources.0, &file)?),
    }
}

/// Joins a negative number with the flag before it, as in `--lr=-1`. Otherwise `clap` would reject it as an unknown
/// flag before the setting's own check, which names the valid range.
fn with_negatives(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let is_negative = |word: &str| {
        word.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit() || c == '.'))
    };
    let mut words: Vec<OsString> = Vec::new();
    let mut are_flags_over = false;
    for word in arguments {
        let is_flag = |word: &&mut OsString| {
            let text = word.to_string_lossy();
            text.len() > 2 && text.starts_with("--") && !text.contains('=')
        };
        match words.last_mut().filter(is_flag) {
            Some(flag) if !are_flags_over && word.to_str().is_some_and(is_negative) => {
                flag.push("=");
                flag.push(word);
            }
            _ => {
                are_flags_over |= word == "--";
                words.push(word);
            }
        }
    }
    words
}

/// Replaces an error about a malformed number by a clearer one. Returns any other error unchanged.
fn in_range(error: clap::Error) -> clap::Error {
    match number_fault(&error) {
        Some(why) => clap::Error::raw(ErrorKind::ValueValidation, why + "\n"),
        None => error,
    }
}

/// Returns an explanation with the permitted values if `error` is about a malformed number.
fn number_fault(error: &clap::Error) -> Option<String> {
    let source = std::error::Error::source(error)?;
    let context = |kind| error.get(kind).map(ToString::to_string);
    let (arg, value) = (context(ContextKind::InvalidArg)?, context(ContextKind::InvalidValue)?);
    let flag = arg.split(' ').next().unwrap_or_default();
    if source.is::<ParseFloatError>() {
        return Some(format!("{flag} {value:?} is not a number: give one such as 0.5"));
    }
    let is_negative = value.parse::<f64>().is_ok_and(|value| value < 0.0);
    Some(match source.downcast_ref::<ParseIntError>()?.kind() {
        IntErrorKind::Zero => format!("{flag} {value} is out of range: give a whole number of 1 or more"),
        IntErrorKind::PosOverflow => format!("{flag} {value} is out of range: give a smaller whole number"),
        _ if is_negative => {
            format!("{flag} {value} is out of range: give a whole number that is not negative")
        }
        _ => format!("{flag} {value:?} is not a whole number: give one such as 4"),
    })
}

/// Parses `arguments`, already parsed as `found`, again with the settings in `file`, which are inserted into them.
fn over(
    command: &Command,
    arguments: &mut Vec<OsString>,
    found: ArgMatches,
    file: &Path,
) -> Result<ArgMatches, CliError> {
    let Some((name, given)) = found.subcommand() else { return Ok(found) };
    let verb = command.find_subcommand(name).expect("clap matched it");
    let wrong =
        |why| CliError::File(FileError { file: file.to_owned(), why }, Sources(Box::new(found.clone())));
    let words = file::words(file, command, verb, given).map_err(wrong)?;
    // The words are inserted directly after the verb: after a bare `--` they would not be flags.
    let verb_at = (1..arguments.len()).find(|at| arguments[*at] == *name);
    let behind = verb_at.map_or(arguments.len(), |at| at + 1);
    arguments.splice(behind..behind, words.into_iter().map(OsString::from));
    // There was no error without the file's settings, so the error is in the file.
    command.clone().try_get_matches_from(&*arguments).map_err(|error| wrong(sentence(&error)))
}

/// Returns the settings `A` for these flags. All others have their defaults; environment variables are ignored.
///
/// # Panics
/// If a flag is unknown, or its value is invalid.
#[must_use]
pub fn defaults<A: Args>(flags: &[&str]) -> A {
    let command = A::augment_args(Command::new("settings").no_binary_name(true));
    let settings = command.try_get_matches_from(flags).and_then(|found| A::from_arg_matches(&found));
    settings.unwrap_or_else(|error| panic!("{error}"))
}

/// Returns the names of the settings that `A` declares, in that order: their keys in a file, and their flags without
/// the hyphens.
#[must_use]
pub fn keys<A: Args>() -> Vec<String> {
    A::augment_args(Command::new("settings")).get_arguments().map(file::name).collect()
}

/// Returns the settings `A` from the keys of the TOML `text`. All others have their defaults; environment variables
/// are ignored.
///
/// # Errors
/// A sentence: `text` is not TOML, has a key that is not in `A` or is in `foreign`, or has an invalid value.
pub fn from_toml<A: Args>(text: &str, foreign: &[String]) -> Result<A, String> {
    let command = A::augment_args(Command::new("settings").no_binary_name(true));
    let mut words = Vec::new();
    for (key, value) in file::table(text)? {
        if foreign.contains(&key) || key == CONFIG {
            return Err(format!("the key `{key}` does not belong here"));
        }
        let line_prefix = || file::line_prefix(text, &key);
        let given = file::key_words(&command, &key, value).map_err(|why| line_prefix() + &why)?;
        words.extend(given.ok_or_else(|| {
            format!("{}unknown key `{key}`{}", line_prefix(), file::suggestion(&command, &key))
        })?);
    }
    let found = command.try_get_matches_from(words).map_err(|error| sentence(&error))?;
    A::from_arg_matches(&found).map_err(|error| sentence(&error))
}

/// Returns the error as one sentence. The text of `clap` itself has usage and hints on further lines, for interactive
/// use.
fn sentence(error: &clap::Error) -> String {
    let context = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
    let (arg, value) = (context(ContextKind::InvalidArg), context(ContextKind::InvalidValue));
    let source = std::error::Error::source(error).map(ToString::to_string);
    if let Some(why) = number_fault(error) {
        return why;
    }
    match error.kind() {
        ErrorKind::ArgumentConflict => {
            format!("the argument '{arg}' cannot be used with '{}'", context(ContextKind::PriorArg))
        }
        ErrorKind::InvalidValue => {
            format!("invalid value '{value}' for '{arg}': give one of {}", context(ContextKind::ValidValue))
        }
        ErrorKind::ValueValidation => {
            format!("invalid value '{value}' for '{arg}': {}", source.unwrap_or_default())
        }
        kind => match arg.is_empty() {
            true => kind.to_string(),
            false => format!("{kind}: '{arg}'"),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::iter;
    use std::num::NonZeroU64;

    use clap::{Parser, Subcommand};

    use super::*;

    #[derive(Parser, Debug)]
    #[command(name = "toy")]
    struct TestCli {
        #[command(subcommand)]
        verb: Verb,
    }

    #[derive(Subcommand, Debug)]
    enum Verb {
        Go(Go),
        Stop(Stop),
    }

    #[derive(Args, Clone, Debug, PartialEq)]
    struct Go {
        place: Option<String>,
        #[arg(long)]
        config: Option<PathBuf>,
        #[arg(long = "speed", default_value_t = 3)]
        speed_kmh: u32,
        #[arg(long, default_value_t = NonZeroU64::MIN)]
        laps: NonZeroU64,
        #[arg(long, default_value_t = 0.0)]
        slope: f32,
        #[arg(long, conflicts_with = "loud")]
        quiet: bool,
        #[arg(long)]
        loud: bool,
        #[arg(long, value_delimiter = ',')]
        with: Vec<String>,
    }

    #[derive(Args, Debug)]
    struct Stop {
        #[arg(long)]
        config: Option<PathBuf>,
        #[arg(long)]
        at_once: bool,
    }

    impl Program for TestCli {
        const EXIT_CODES: &[(u8, &str)] = &[(0, "done"), (12, "lost")];
        const WITHOUT_TWIN: &[(&str, &str)] = &[("stop", "at_once")];
    }

    fn parse_words(words: &[&str]) -> Result<ParsedCommand<TestCli>, CliError> {
        parse(iter::once("toy").chain(words.iter().copied()).map(OsString::from))
    }

    fn with_file(text: &str, words: &[&str]) -> Result<ParsedCommand<TestCli>, CliError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        parse_words(&[&["go", "--config", file.path().to_str().unwrap()], words].concat())
    }

    fn go(text: &str, words: &[&str]) -> Go {
        match with_file(text, words).unwrap().cli.verb {
            Verb::Go(go) => Go { config: None, ..go },
            verb => panic!("{verb:?}"),
        }
    }

    #[test]
    fn every_setting_has_a_variable() {
        let command = command::<TestCli>();
        let variable = |id: &str| {
            let go = command.find_subcommand("go").unwrap();
            let arg = go.get_arguments().find(|arg| arg.get_id() == id).unwrap();
            arg.get_env().unwrap().to_str().unwrap().to_owned()
        };
        assert_eq!(variable("speed_kmh"), "ARCHIPELAGO_SPEED");
        assert_eq!(variable("place"), "ARCHIPELAGO_PLACE");
        assert_eq!(variable("quiet"), "ARCHIPELAGO_QUIET");
        let stop = command.find_subcommand("stop").unwrap();
        let at_once = stop.get_arguments().find(|arg| arg.get_id() == "at_once").unwrap();
        assert_eq!(at_once.get_env(), None, "it has none on purpose");
        let invite = |is_set: bool| with_variable(Arg::new("invite").long("invite"), move |_| !is_set);
        assert!(invite(true).get_env().is_some() && invite(false).get_env().is_none());
    }

    #[test]
    fn help_lists_the_exit_codes() {
        let mut command = command::<TestCli>();
        let expected = "Exit codes:\n    0  done\n   12  lost";
        assert!(command.render_help().to_string().contains(expected));
        let stop = command.find_subcommand_mut("stop").unwrap();
        assert!(stop.render_help().to_string().contains(expected));
    }

    #[test]
    fn flags_beat_the_file_which_beats_defaults() {
        let file = "place = 'here'\nspeed = 5\nloud = true\nquiet = false\nwith = ['a', 'b']\nat-once = true";
        let read = go(file, &[]);
        assert_eq!((read.place.as_deref(), read.speed_kmh), (Some("here"), 5));
        assert_eq!((read.loud, read.quiet, read.with), (true, false, vec!["a".to_owned(), "b".to_owned()]));

        let read = go(file, &["--speed", "7", "--with=c", "--", "there"]);
        assert_eq!((read.place.as_deref(), read.speed_kmh), (Some("there"), 7));
        assert_eq!(read.with, ["c"]);
        assert_eq!(go("", &[]), defaults(&[]));
    }

    #[test]
    fn higher_layer_hides_conflicting_settings() {
        for (file, flag) in [("loud = true", "--quiet"), ("quiet = true", "--loud")] {
            let read = go(file, &[flag]);
            assert_eq!((read.quiet, read.loud), (flag == "--quiet", flag == "--loud"), "{file}");
        }
    }

    #[test]
    fn file_below_is_overridden_by_all_layers() {
        let (config, kept) =
            (tempfile::NamedTempFile::new().unwrap(), tempfile::NamedTempFile::new().unwrap());
        std::fs::write(config.path(), "speed = 5\nloud = true").unwrap();
        std::fs::write(kept.path(), "speed = 9\nquiet = true\nwith = ['a']").unwrap();
        let words = ["toy", "go", "--config", config.path().to_str().unwrap()].map(OsString::from);
        let given = parse_over::<TestCli>(words, |given| {
            assert!(!given.sources.is_default("speed_kmh") && given.sources.is_default("with"));
            Some(kept.path().to_owned())
        });
        let given = given.unwrap();
        assert_eq!(
            (given.sources.words("speed_kmh"), given.sources.words("with")),
            (vec!["5".into()], vec!["a".into()])
        );
        let Verb::Go(go) = given.cli.verb else { panic!("{:?}", given.cli.verb) };
        assert_eq!((go.speed_kmh, go.loud, go.quiet, go.with), (5, true, false, vec!["a".to_owned()]));
    }

    #[test]
    fn negative_number_reaches_the_check_of_its_setting() {
        let context = |words: &[&str]| match parse_words(words) {
            Err(CliError::Usage(error)) => error.to_string(),
            other => panic!("{words:?}: {other:?}"),
        };
        let check = |words: &[&str], part: &str| {
            let error = context(words);
            assert!(error.contains(part), "{words:?}: {error}");
        };
        check(&["go", "--speed", "-1"], "-1 is not in 0..");
        check(&["go", "--speed=-1e9"], "--speed -1e9 is out of range");
        check(&["go", "--laps", "-7"], "--laps -7 is out of range: give a whole number that is not negative");
        check(&["go", "--quiet", "-7"], "'--quiet'");
        let kept = |words: &[&str]| {
            let words = with_negatives(words.iter().map(OsString::from));
            words.iter().map(|word| word.to_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(kept(&["--for", "-5m", "-q", "-.5"]), ["--for=-5m", "-q", "-.5"]);
        assert_eq!(kept(&["--a=1", "-5", "--", "--b", "-5"]), ["--a=1", "-5", "--", "--b", "-5"]);
        match with_file("laps = -7", &[]) {
            Err(CliError::File(error, _)) => {
                assert!(error.to_string().contains("--laps -7 is out"), "{error}")
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn sources_distinguish_given_settings_from_defaults() {
        let given = with_file("speed = 3", &["--loud"]).unwrap().sources;
        assert!(!given.is_default("speed_kmh") && !given.is_default("loud"));
        assert!(given.is_default("quiet") && given.is_default("place"));
        assert_eq!(keys::<Go>(), ["place", "config", "speed", "laps", "slope", "quiet", "loud", "with"]);
    }

    #[test]
    fn says_what_is_wrong_in_the_file() {
        let check = |text: &str, part: &str| match with_file(text, &[]) {
            Err(CliError::File(error, _)) => {
                let error = error.to_string();
                assert!(error.contains(part) && !error.contains('\n'), "{text}: {error}");
            }
            other => panic!("{text}: {other:?}"),
        };
        check(
            "no-such-key = 1",
            ": line 1: unknown key `no-such-key`: the keys are the flags of `go --help`",
        );
        check("loud = true\n# fast\nsped = 3", ": line 3: unknown key `sped`, did you mean `speed`?");
        check("loud = true\nspeed = {", ": line 2: ");
        check("loud = true\nspeed = { a = 1 }", ": line 2: `speed` is a table");
        check("config = 'x'", "unknown key `config`");
        check("speed = 'high'", "--speed \"high\" is not a whole number: give one such as 4");
        check("speed = true", "--speed \"true\" is not a whole number");
        check("speed = ''", "--speed \"\" is not a whole number");
        check("speed = 5.5", "--speed \"5.5\" is not a whole number");
        check("laps = 0", "--laps 0 is out of range: give a whole number of 1 or more");
        check("laps = '99999999999999999999'", "--laps 99999999999999999999 is out of range: give a smaller");
        check("slope = '1,5'", "--slope \"1,5\" is not a number: give one such as 0.5");
        check("loud = 3", "'--loud'");
        check("speed = { a = 1 }", "`speed` is a table");
        check("speed = ", "");
        check("loud = true\nquiet = true", "'--loud' cannot be used with '--quiet'");
        match parse_words(&["go", "--config", "not/there.toml"]) {
            Err(CliError::File(error, _)) => assert!(error.to_string().contains("not/there.toml"), "{error}"),
            other => panic!("{other:?}"),
        }
    }
}
