//! Flag, then environment, then file, then default.

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use archipelago::run::Address;
use serde::Deserialize;

use crate::cli::JoinArgs;
use crate::{DurationError, parse_duration_ms};

/// How long to try to reach the syncer the first time, unless told otherwise.
const CONTACT_MS_MAX: u64 = 30_000;

/// How to take part.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct JoinConfig {
    pub(crate) address: Address,
    /// All cores if there is none.
    pub(crate) threads: Option<NonZeroUsize>,
    pub(crate) duty_cycle: f64,
    /// The machine's name if there is none.
    pub(crate) name: Option<String>,
    pub(crate) identity: Option<PathBuf>,
    pub(crate) identity_dir: Option<PathBuf>,
    pub(crate) run_ms_max: Option<u64>,
    pub(crate) reconnect_ms_max: Option<u64>,
    pub(crate) contact_ms_max: u64,
    pub(crate) output: Output,
}

/// How much to print, and for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Output {
    pub(crate) json: bool,
    pub(crate) quiet: bool,
    pub(crate) verbose: bool,
}

/// The configuration file: the flags under the same names.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct FileConfig {
    syncer: Option<String>,
    threads: Option<NonZeroUsize>,
    duty_cycle: Option<f64>,
    name: Option<String>,
    identity: Option<PathBuf>,
    identity_dir: Option<PathBuf>,
    r#for: Option<String>,
    max_reconnect: Option<String>,
    max_contact: Option<String>,
    json: bool,
    quiet: bool,
    verbose: bool,
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("cannot read {}: {error}", path.display())]
    Read { path: PathBuf, error: std::io::Error },
    #[error("{} is no configuration: {error}", path.display())]
    Parse { path: PathBuf, error: Box<toml::de::Error> },
    #[error("{} has {key} = {error}", path.display())]
    Duration { path: PathBuf, key: &'static str, error: DurationError },
    #[error("no syncer named: give its address, such as ws://127.0.0.1:7700")]
    NoSyncer,
    #[error(transparent)]
    Address(#[from] archipelago::run::AddressError),
}

impl JoinConfig {
    /// Puts flags and environment, already one in `args`, over the file and that over the defaults.
    pub(crate) fn new(args: JoinArgs) -> Result<Self, ConfigError> {
        let file = args.config.as_deref().map_or_else(|| Ok(FileConfig::default()), read)?;
        let duration = |key, text: &Option<String>| match text {
            None => Ok(None),
            Some(text) => parse_duration_ms(text).map(Some).map_err(|error| {
                let path = args.config.clone().unwrap_or_default();
                ConfigError::Duration { path, key, error }
            }),
        };
        let (run_ms_max, reconnect_ms_max, contact_ms_max) = (
            args.for_ms.or(duration("for", &file.r#for)?),
            args.max_reconnect.or(duration("max-reconnect", &file.max_reconnect)?),
            args.max_contact.or(duration("max-contact", &file.max_contact)?).unwrap_or(CONTACT_MS_MAX),
        );
        // One of the two ways to name an identity on a higher level hides both on the lower.
        let (identity, identity_dir) = match (args.identity, args.identity_dir) {
            (None, None) => (file.identity, file.identity_dir),
            given => given,
        };
        Ok(Self {
            address: args.syncer.or(file.syncer).ok_or(ConfigError::NoSyncer)?.parse()?,
            threads: args.threads.or(file.threads),
            duty_cycle: args.duty_cycle.or(file.duty_cycle).unwrap_or(1.0),
            name: args.name.or(file.name),
            identity,
            identity_dir,
            run_ms_max,
            reconnect_ms_max,
            contact_ms_max,
            output: Output {
                json: args.json || file.json,
                quiet: args.quiet || (file.quiet && !args.verbose),
                verbose: args.verbose || (file.verbose && !args.quiet),
            },
        })
    }
}

fn read(path: &Path) -> Result<FileConfig, ConfigError> {
    let text =
        fs::read_to_string(path).map_err(|error| ConfigError::Read { path: path.to_owned(), error })?;
    toml::from_str(&text)
        .map_err(|error| ConfigError::Parse { path: path.to_owned(), error: Box::new(error) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_file(text: &str, args: JoinArgs) -> Result<JoinConfig, ConfigError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("learner.toml");
        fs::write(&path, text).unwrap();
        JoinConfig::new(JoinArgs { config: Some(path), ..args })
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        let file =
            "syncer = 'a:1'\nthreads = 3\nduty-cycle = 0.5\nfor = '2m'\nidentity = 'f'\nverbose = true";
        let config = with_file(file, JoinArgs::default()).unwrap();
        assert_eq!(config.address, "ws://a:1".parse().unwrap());
        assert_eq!((config.threads, config.duty_cycle), (NonZeroUsize::new(3), 0.5));
        assert_eq!((config.run_ms_max, config.reconnect_ms_max), (Some(120_000), None));
        assert_eq!(config.contact_ms_max, 30_000);
        assert!(config.output.verbose && config.identity.is_some());

        let flags = JoinArgs {
            syncer: Some("b:2".to_owned()),
            threads: NonZeroUsize::new(1),
            for_ms: Some(5),
            identity_dir: Some("d".into()),
            quiet: true,
            ..JoinArgs::default()
        };
        let config = with_file(file, flags).unwrap();
        assert_eq!(config.address, "ws://b:2".parse().unwrap());
        assert_eq!((config.threads, config.duty_cycle), (NonZeroUsize::new(1), 0.5));
        assert_eq!(config.run_ms_max, Some(5));
        assert_eq!((config.identity, config.identity_dir), (None, Some("d".into())));
        assert!(config.output.quiet && !config.output.verbose);
    }

    #[test]
    fn a_wrong_file_is_an_error() {
        for (text, part) in [
            ("tread = 3", "tread"),
            ("threads = 0", "threads"),
            ("syncer = 'a:1'\nfor = 'soon'", "soon"),
            ("syncer = 'a'", "port"),
            ("", "no syncer"),
        ] {
            let error = with_file(text, JoinArgs::default()).expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        let missing = JoinArgs { config: Some("not/there.toml".into()), ..JoinArgs::default() };
        assert!(matches!(JoinConfig::new(missing), Err(ConfigError::Read { .. })));
    }
}
