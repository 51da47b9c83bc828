//! Flag, then environment, then file, then default.

use std::fmt::Display;
use std::fs;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use archipelago::engine::EngineKind;
use archipelago::model::Preset;
use archipelago::run::Address;
use serde::Deserialize;

use crate::cli::{BenchArgs, CommonArgs, DoctorArgs, JoinArgs};
use crate::{machine, parse_duration_ms};

/// How long to try to reach the syncer the first time, unless told otherwise.
const CONTACT_MS_MAX: u64 = 30_000;
/// How long to measure, unless told otherwise.
const BENCH_SECONDS: f64 = 10.0;

/// How to take part.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct JoinConfig {
    pub(crate) address: Address,
    pub(crate) compute: ComputeConfig,
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

/// What to measure.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BenchConfig {
    pub(crate) compute: ComputeConfig,
    pub(crate) preset: Preset,
    pub(crate) seconds: f64,
    pub(crate) profile: bool,
    pub(crate) json: bool,
    pub(crate) verbose: bool,
}

/// What to look at.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DoctorConfig {
    pub(crate) address: Option<Address>,
    pub(crate) compute: ComputeConfig,
    pub(crate) json: bool,
}

/// What to compute with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ComputeConfig {
    pub(crate) kind: EngineKind,
    /// Part of the name of a GPU.
    pub(crate) adapter: Option<String>,
    /// On a GPU, weights as 16-bit floats.
    pub(crate) half_weights: bool,
    /// Of the CPU engine.
    pub(crate) threads: NonZeroUsize,
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
    invite: Option<String>,
    engine: Option<String>,
    adapter: Option<String>,
    half_weights: bool,
    threads: Option<NonZeroUsize>,
    preset: Option<String>,
    seconds: Option<f64>,
    profile: bool,
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
    #[error("{} has {key} = {value:?}: {why}", path.display())]
    Value { path: PathBuf, key: &'static str, value: String, why: String },
    #[error("seconds is {seconds}: give a number above 0")]
    Seconds { seconds: f64 },
    #[error("no syncer named: give its address, such as ws://127.0.0.1:7700")]
    NoSyncer,
    #[error(transparent)]
    Address(#[from] archipelago::run::AddressError),
}

impl JoinConfig {
    /// Puts flags and environment, already one in `args`, over the file and that over the defaults.
    pub(crate) fn new(args: JoinArgs) -> Result<Self, ConfigError> {
        let file = File::read(&args.common)?;
        let duration = |key, text: &Option<String>| file.parse(key, text, parse_duration_ms);
        let (run_ms_max, reconnect_ms_max, contact_ms_max) = (
            args.for_ms.or(duration("for", &file.config.r#for)?),
            args.max_reconnect.or(duration("max-reconnect", &file.config.max_reconnect)?),
            args.max_contact.or(duration("max-contact", &file.config.max_contact)?).unwrap_or(CONTACT_MS_MAX),
        );
        let compute = ComputeConfig::new(args.common, &file)?;
        let file = file.config;
        // One of the two ways to name an identity on a higher level hides both on the lower.
        let (identity, identity_dir) = match (args.identity, args.identity_dir) {
            (None, None) => (file.identity, file.identity_dir),
            given => given,
        };
        let address: Address = args.syncer.or(file.syncer).ok_or(ConfigError::NoSyncer)?.parse()?;
        let address = match args.invite.or(file.invite) {
            Some(invite) => address.with_invite(&invite)?,
            None => address,
        };
        Ok(Self {
            address,
            compute,
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

impl BenchConfig {
    /// As [`JoinConfig::new`].
    pub(crate) fn new(args: BenchArgs) -> Result<Self, ConfigError> {
        let file = File::read(&args.common)?;
        let preset = args.preset.or(file.parse("preset", &file.config.preset, str::parse)?);
        let seconds = args.seconds.or(file.config.seconds).unwrap_or(BENCH_SECONDS);
        if !(seconds > 0.0 && seconds < 1e6) {
            return Err(ConfigError::Seconds { seconds });
        }
        Ok(Self {
            preset: preset.unwrap_or(Preset::Small),
            seconds,
            profile: args.profile || file.config.profile,
            json: args.json || file.config.json,
            verbose: args.verbose || file.config.verbose,
            compute: ComputeConfig::new(args.common, &file)?,
        })
    }
}

impl DoctorConfig {
    /// As [`JoinConfig::new`].
    pub(crate) fn new(args: DoctorArgs) -> Result<Self, ConfigError> {
        let file = File::read(&args.common)?;
        let syncer = args.syncer.as_ref().or(file.config.syncer.as_ref());
        Ok(Self {
            address: syncer.map(|syncer| syncer.parse()).transpose()?,
            json: args.json || file.config.json,
            compute: ComputeConfig::new(args.common, &file)?,
        })
    }
}

impl ComputeConfig {
    fn new(args: CommonArgs, file: &File) -> Result<Self, ConfigError> {
        let kind = args.engine.or(file.parse("engine", &file.config.engine, str::parse)?);
        Ok(Self {
            kind: kind.unwrap_or_default(),
            adapter: args.adapter.or_else(|| file.config.adapter.clone()),
            half_weights: args.half_weights || file.config.half_weights,
            threads: args.threads.or(file.config.threads).unwrap_or_else(machine::cores),
        })
    }
}

/// A configuration file that was read, or none.
#[derive(Default)]
struct File {
    path: PathBuf,
    config: FileConfig,
}

impl File {
    fn read(args: &CommonArgs) -> Result<Self, ConfigError> {
        let Some(path) = args.config.clone() else { return Ok(Self::default()) };
        match fs::read_to_string(&path) {
            Ok(text) => match toml::from_str(&text) {
                Ok(config) => Ok(Self { path, config }),
                Err(error) => Err(ConfigError::Parse { path, error: Box::new(error) }),
            },
            Err(error) => Err(ConfigError::Read { path, error }),
        }
    }

    /// The value of `key`, whose `text` is not typed in the file.
    fn parse<T, E: Display>(
        &self,
        key: &'static str,
        text: &Option<String>,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(value) = text else { return Ok(None) };
        parse(value).map(Some).map_err(|why| ConfigError::Value {
            path: self.path.clone(),
            key,
            value: value.clone(),
            why: why.to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Verb};

    /// The verb of the command `line` with a file that holds `text`, and the folder of that.
    fn verb(text: &str, line: &[&str]) -> (Verb, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("learner.toml");
        fs::write(&path, text).unwrap();
        let line = [&["native-learner"], line, &["--config", path.to_str().unwrap()]].concat();
        (Cli::try_parse_from(line).unwrap().verb, folder)
    }

    fn join(text: &str, flags: &[&str]) -> Result<JoinConfig, ConfigError> {
        match verb(text, &[&["join"], flags].concat()) {
            (Verb::Join(args), _folder) => JoinConfig::new(args),
            other => panic!("{other:?}"),
        }
    }

    fn bench(text: &str, flags: &[&str]) -> Result<BenchConfig, ConfigError> {
        match verb(text, &[&["bench"], flags].concat()) {
            (Verb::Bench(args), _folder) => BenchConfig::new(args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        let file =
            "syncer = 'a:1'\nthreads = 3\nduty-cycle = 0.5\nfor = '2m'\nidentity = 'f'\nverbose = true";
        let config = join(file, &[]).unwrap();
        assert_eq!(config.address, "ws://a:1".parse().unwrap());
        assert_eq!((config.compute.threads.get(), config.duty_cycle), (3, 0.5));
        assert_eq!((config.run_ms_max, config.reconnect_ms_max), (Some(120_000), None));
        assert_eq!(config.contact_ms_max, 30_000);
        assert!(config.output.verbose && config.identity.is_some());

        let flags = ["b:2", "--threads", "1", "--for", "5ms", "--identity-dir", "d", "--quiet"];
        let config = join(file, &flags).unwrap();
        assert_eq!(config.address, "ws://b:2".parse().unwrap());
        assert_eq!((config.compute.threads.get(), config.duty_cycle), (1, 0.5));
        assert_eq!(config.run_ms_max, Some(5));
        assert_eq!((config.identity, config.identity_dir), (None, Some("d".into())));
        assert!(config.output.quiet && !config.output.verbose);
    }

    #[test]
    fn an_invite_comes_by_link_flag_or_file() {
        let invite = |text, flags: &[&str]| {
            join(text, flags).unwrap().address.invite().map(|invite| invite.expose().to_owned())
        };
        assert_eq!(invite("", &["a:1"]), None);
        assert_eq!(invite("", &["http://a:1/#invite=one"]).as_deref(), Some("one"));
        assert_eq!(invite("invite = 'two'", &["http://a:1/#invite=one"]).as_deref(), Some("two"));
        assert_eq!(invite("invite = 'two'", &["a:1", "--invite", "three"]).as_deref(), Some("three"));
        let error = join("", &["a:1", "--invite", "no invite"]).unwrap_err();
        assert!(error.to_string().contains("copy the whole link"), "{error}");
    }

    #[test]
    fn every_verb_takes_an_engine() {
        let file = "engine = 'gpu'\nadapter = 'arc'\nhalf-weights = true\npreset = 'tiny'\nseconds = 2\nsyncer = 'a:1'";
        let gpu = ComputeConfig {
            kind: EngineKind::Gpu,
            adapter: Some("arc".to_owned()),
            half_weights: true,
            threads: machine::cores(),
        };
        assert_eq!(join(file, &[]).unwrap().compute, gpu);
        let config = bench(file, &[]).unwrap();
        assert_eq!((&config.compute, config.preset, config.seconds), (&gpu, Preset::Tiny, 2.0));
        let (Verb::Doctor(args), _folder) = verb(file, &["doctor"]) else { panic!("no doctor") };
        let config = DoctorConfig::new(args).unwrap();
        assert_eq!((config.compute, config.address.is_some()), (gpu, true));

        let flags = ["--engine", "cpu", "--adapter", "apple", "--preset", "base", "--seconds", "1"];
        let config = bench(file, &flags).unwrap();
        assert_eq!(
            (config.compute.kind, config.compute.adapter.as_deref()),
            (EngineKind::Cpu, Some("apple"))
        );
        assert_eq!((config.preset, config.seconds), (Preset::Base, 1.0));
        let config = bench("", &[]).unwrap();
        assert_eq!((config.compute.kind, config.compute.adapter), (EngineKind::Auto, None));
        assert!(!config.compute.half_weights && bench("", &["--half-weights"]).unwrap().compute.half_weights);
        assert_eq!((config.preset, config.seconds), (Preset::Small, 10.0));
    }

    #[test]
    fn a_wrong_file_is_an_error() {
        for (text, part) in [
            ("tread = 3", "tread"),
            ("threads = 0", "threads"),
            ("syncer = 'a:1'\nfor = 'soon'", "soon"),
            ("syncer = 'a:1'\nengine = 'tpu'", "choose auto, gpu or cpu"),
            ("syncer = 'a'", "port"),
            ("", "no syncer"),
        ] {
            let error = join(text, &[]).expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        for (text, part) in [("preset = 'huge'", "no preset \"huge\""), ("seconds = 0", "above 0")] {
            let error = bench(text, &[]).expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        let common = CommonArgs { config: Some("not/there.toml".into()), ..CommonArgs::default() };
        let missing = JoinArgs { common, ..JoinArgs::default() };
        assert!(matches!(JoinConfig::new(missing), Err(ConfigError::Read { .. })));
    }
}
