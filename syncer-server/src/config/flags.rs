//! Flags of `serve` that configure a run. `run create` accepts the same flags.

use std::any::TypeId;
use std::path::PathBuf;

use archipelago_cli::{keys, with_key};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};

use super::{DataSource, InitialFiles, ServeConfig, ServerSettings, StartSettings};

/// Returns the flags of `serve` that configure a run: all but those of the server and of a single start.
pub fn run_flags() -> impl Iterator<Item = Arg> {
    let others = [keys::<ServerSettings>(), keys::<StartSettings>()].concat();
    let command = ServeConfig::augment_args(Command::new("serve"));
    let all: Vec<Arg> = command.get_arguments().cloned().collect();
    all.into_iter().filter(move |flag| !is_among(flag, &others))
}

/// Returns the flags whose values are stored in a run's folder.
pub fn stored_flags() -> impl Iterator<Item = Arg> {
    let initial = keys::<InitialFiles>();
    run_flags().filter(move |flag| !is_among(flag, &initial))
}

/// Returns true if `keys` contains the key of `flag`.
pub fn is_among(flag: &Arg, keys: &[String]) -> bool {
    keys.iter().any(|key| flag.get_long() == Some(key))
}

/// Returns true if the values of `flag` are names of files and folders.
pub fn is_path(flag: &Arg) -> bool {
    holds::<PathBuf>(flag) || holds::<DataSource>(flag)
}

/// Returns the absolute path of `value`, or `None` if `value` is not a path. Settings are stored as absolute paths,
/// because later starts may have another working directory.
pub fn absolute_path(flag: &Arg, value: &str) -> Option<String> {
    let is_built_in = holds::<DataSource>(flag) && DataSource::is_built_in(value);
    let path = (is_path(flag) && !is_built_in).then(|| std::path::absolute(value).ok()).flatten();
    path.map(|path| path.to_string_lossy().into_owned())
}

fn holds<T: 'static>(flag: &Arg) -> bool {
    flag.get_value_parser().type_id() == TypeId::of::<T>()
}

/// Settings of a run given as flags, with their values.
#[derive(Clone, Debug, Default)]
pub struct RunFlags(Vec<(String, String)>);

impl RunFlags {
    /// Returns true if the setting with this id in `serve` is one of these flags.
    pub(super) fn has(id: &str) -> bool {
        run_flags().any(|arg| arg.get_id() == id)
    }

    /// Returns the key of the first given flag.
    #[must_use]
    pub fn first(&self) -> Option<&str> {
        self.0.first().map(|(key, _)| &**key)
    }

    /// Returns the settings of the TOML `text`, overridden by these flags.
    #[must_use]
    pub fn over(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, (key, value)| with_key(&text, key, value))
    }
}

impl Args for RunFlags {
    fn augment_args(command: Command) -> Command {
        command.args(run_flags())
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for RunFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = run_flags().filter_map(|arg| {
            let (id, key) = (arg.get_id().as_str(), arg.get_long()?);
            let is_given = matches.value_source(id) == Some(ValueSource::CommandLine);
            let mut words = matches.try_get_raw(id).ok().flatten().filter(|_| is_given)?;
            Some((key.to_owned(), words.next_back()?.to_string_lossy().into_owned()))
        });
        Ok(Self(given.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use archipelago_cli::CliError;

    use super::super::{Cli, Verb, parse};
    use super::*;

    #[test]
    fn a_run_is_made_with_the_flags_of_serve_that_are_its_own() {
        let create = |arguments: &[&str]| {
            let arguments = ["syncer-server", "run", "create", "poems"].iter().chain(arguments);
            match parse(arguments.map(OsString::from))?.verb {
                Verb::Run(args) => Ok(args.flags),
                verb => panic!("{verb:?}"),
            }
        };
        let flags =
            create(&["--preset", "tiny", "--no-eval", "--seed=7", "--data", "builtin:austen"]).unwrap();
        let text = flags.over("# mine\nseed = 3\nbatch = 4\n");
        assert!(text.starts_with("# mine\nseed = 7\nbatch = 4\n"), "{text}");
        let read: ServeConfig = archipelago_cli::from_toml(&text, &keys::<ServerSettings>()).unwrap();
        assert_eq!((&*read.identity.preset, read.no_eval, read.identity.seed), ("tiny", true, 7));
        assert_eq!(read.data.unwrap().to_string(), "builtin:austen");
        assert_eq!(create(&[]).unwrap().over("seed = 3"), "seed = 3", "only the server knows the defaults");
        for foreign in ["--listen=127.0.0.1:1", "--classroom", "--admin-token=secret-of-the-owner"] {
            assert!(matches!(create(&[foreign]), Err(CliError::Usage(_))), "{foreign}");
        }
        assert!(matches!(create(&["--seed", "many"]), Err(CliError::Usage(_))));
        let command = archipelago_cli::command::<Cli>();
        let run = command.find_subcommand("run").unwrap();
        let with_twin =
            run.get_arguments().filter(|arg| arg.get_env().is_some()).map(|arg| arg.get_id().as_str());
        assert_eq!(with_twin.collect::<Vec<_>>(), ["settings", "url", "ca", "token", "yes"]);
    }
}
