//! Flags, each with its twin in the environment.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use archipelago::engine::EngineKind;
use archipelago::model::Preset;
use clap::{Args, Parser, Subcommand};

use crate::{exit, parse_duration_ms};

/// Lends this machine to a run that trains one language model on many learners.
#[derive(Debug, Parser)]
#[command(name = "native-learner", version, after_help = exit::HELP)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Takes part in the run of a syncer until told to stop
    #[command(after_help = exit::HELP)]
    Join(JoinArgs),
    /// Measures how fast this machine trains
    #[command(after_help = exit::HELP)]
    Bench(BenchArgs),
    /// Looks at this machine, and at a syncer if one is named
    #[command(after_help = exit::HELP)]
    Doctor(DoctorArgs),
}

impl Verb {
    /// Whether output is for programs.
    pub(crate) fn json(&self) -> bool {
        match self {
            Self::Join(args) => args.json,
            Self::Bench(args) => args.json,
            Self::Doctor(args) => args.json,
        }
    }
}

/// What all verbs take.
#[derive(Debug, Default, Args)]
pub(crate) struct CommonArgs {
    /// TOML file with any of the settings of any verb, named like the flags
    #[arg(long, value_name = "FILE", env = "ARCHIPELAGO_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// What computes: auto (a GPU if there is one that the model fits), gpu or cpu [default: auto]
    #[arg(long, value_name = "KIND", env = "ARCHIPELAGO_ENGINE")]
    pub(crate) engine: Option<EngineKind>,
    /// Part of the name of the GPU, as doctor shows it [default: the best one]
    #[arg(long, value_name = "NAME", env = "ARCHIPELAGO_ADAPTER")]
    pub(crate) adapter: Option<String>,
    /// Let the GPU read weights as 16-bit floats; sums stay 32 bits wide
    #[arg(long, env = "ARCHIPELAGO_HALF_WEIGHTS")]
    pub(crate) half_weights: bool,
    /// Threads that the CPU engine computes with [default: all cores]
    #[arg(long, value_name = "COUNT", env = "ARCHIPELAGO_THREADS")]
    pub(crate) threads: Option<NonZeroUsize>,
}

/// A flag wins over its environment variable, that over the configuration file.
#[derive(Debug, Default, Args)]
pub(crate) struct JoinArgs {
    /// The syncer: ws://HOST:PORT, a link to its page, or HOST:PORT
    #[arg(env = "ARCHIPELAGO_SYNCER")]
    pub(crate) syncer: Option<String>,
    /// What the run's owner gave you to join, unless the link to it ends in #invite=…
    #[arg(long, value_name = "TOKEN", env = "ARCHIPELAGO_INVITE", hide_env_values = true)]
    pub(crate) invite: Option<String>,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    /// Share of the time to compute, above 0 and at most 1; it sleeps between steps [default: 1]
    #[arg(long, value_name = "SHARE", env = "ARCHIPELAGO_DUTY_CYCLE")]
    pub(crate) duty_cycle: Option<f64>,
    /// A name for people, at most 64 bytes [default: the name of this machine]
    #[arg(long, env = "ARCHIPELAGO_NAME")]
    pub(crate) name: Option<String>,
    /// The one file that holds this learner's identity; made if it is not there
    #[arg(long, value_name = "FILE", env = "ARCHIPELAGO_IDENTITY", conflicts_with = "identity_dir")]
    pub(crate) identity: Option<PathBuf>,
    /// Folder of identities, one for each learner of this machine [default: in the XDG state folder]
    #[arg(long, value_name = "FOLDER", env = "ARCHIPELAGO_IDENTITY_DIR")]
    pub(crate) identity_dir: Option<PathBuf>,
    /// Leave after this time: 90s, 5m, 2h [default: never]
    #[arg(long = "for", value_name = "DURATION", env = "ARCHIPELAGO_FOR", value_parser = parse_duration_ms)]
    pub(crate) for_ms: Option<u64>,
    /// How long to try to come back to a syncer that went away [default: for ever]
    #[arg(long, value_name = "DURATION", env = "ARCHIPELAGO_MAX_RECONNECT", value_parser = parse_duration_ms)]
    pub(crate) max_reconnect: Option<u64>,
    /// How long to try to reach the syncer the first time [default: 30s]
    #[arg(long, value_name = "DURATION", env = "ARCHIPELAGO_MAX_CONTACT", value_parser = parse_duration_ms)]
    pub(crate) max_contact: Option<u64>,
    /// Print one JSON object a line
    #[arg(long, env = "ARCHIPELAGO_JSON")]
    pub(crate) json: bool,
    /// Print errors only
    #[arg(long, short, env = "ARCHIPELAGO_QUIET", conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Print what becomes of every update too
    #[arg(long, short, env = "ARCHIPELAGO_VERBOSE")]
    pub(crate) verbose: bool,
}

#[derive(Debug, Default, Args)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    /// The model: tiny, small, medium or base [default: small]
    #[arg(long, value_name = "NAME", env = "ARCHIPELAGO_PRESET")]
    pub(crate) preset: Option<Preset>,
    /// How long to measure, after one step to warm up [default: 10]
    #[arg(long, value_name = "SECONDS", env = "ARCHIPELAGO_SECONDS")]
    pub(crate) seconds: Option<f64>,
    /// Time each kernel of the GPU too
    #[arg(long, env = "ARCHIPELAGO_PROFILE")]
    pub(crate) profile: bool,
    /// Print one JSON object, on the last line
    #[arg(long, env = "ARCHIPELAGO_JSON")]
    pub(crate) json: bool,
    /// Print how the kernels of matrix products were chosen too
    #[arg(long, short, env = "ARCHIPELAGO_VERBOSE")]
    pub(crate) verbose: bool,
}

#[derive(Debug, Default, Args)]
pub(crate) struct DoctorArgs {
    /// The syncer to try: ws://HOST:PORT, a link to its page, or HOST:PORT
    #[arg(env = "ARCHIPELAGO_SYNCER")]
    pub(crate) syncer: Option<String>,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    /// Print one JSON object
    #[arg(long, env = "ARCHIPELAGO_JSON")]
    pub(crate) json: bool,
}
