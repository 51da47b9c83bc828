//! Command line: commands and the settings of each.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::rc::Rc;

use archipelago::run::{Address, BatchChoice, Folder, WeightCache, default_cache_folder};
use archipelago_cli::{Bytes, Program, Span, range, some_time};
use archipelago_core::model::Preset;
use archipelago_runtime::engine::EngineKind;
use archipelago_runtime::platform::trust_only;
use clap::{Args, Parser, Subcommand};

use crate::compute;
use crate::exit::{Exit, Failure};
use crate::keys::IdentityArgs;

/// Lends this machine to a run that trains one language model on many learners.
#[derive(Debug, Parser)]
#[command(name = "native-learner", version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

impl Program for Cli {
    const EXIT_CODES: &[(u8, &str)] = Exit::TABLE;
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Takes part in a syncer's run until stopped
    Join(JoinArgs),
    /// Measures how fast this machine trains
    Bench(BenchArgs),
    /// Checks this machine, and a syncer if one is named
    Doctor(DoctorArgs),
    /// Shows, exports or imports this machine's key for a syncer
    Identity(IdentityArgs),
}

impl Verb {
    /// Returns true if the command may use a GPU.
    pub(crate) fn may_take_gpu(&self) -> bool {
        let engine = match self {
            Self::Join(args) => args.compute.engine,
            Self::Bench(args) => args.compute.engine,
            // `doctor` lists all GPUs.
            Self::Doctor(_) => return true,
            Self::Identity(_) => return false,
        };
        matches!(engine, EngineKind::Auto | EngineKind::Gpu)
    }

    /// Returns true if the output is for programs.
    pub(crate) fn json(&self) -> bool {
        match self {
            Self::Join(args) => args.output.json,
            Self::Bench(args) => args.json,
            Self::Doctor(args) => args.json,
            Self::Identity(args) => args.json,
        }
    }
}

/// Settings of the training engine.
#[derive(Args, Clone, Debug, PartialEq)]
pub(crate) struct ComputeArgs {
    /// TOML file with settings of any verb, under the names of the flags
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Training engine: auto (a GPU if the model fits on one), gpu or cpu
    #[arg(long, value_name = "KIND", default_value_t)]
    pub(crate) engine: EngineKind,
    /// Part of the name of the GPU, as shown by doctor [default: the best GPU]
    #[arg(long, value_name = "NAME")]
    pub(crate) adapter: Option<String>,
    /// Let the GPU read weights as 16-bit floats; sums stay 32 bits wide
    #[arg(long)]
    pub(crate) half_weights: bool,
    /// Multiply only 32-bit floats, even if the GPU has matrix units for 16-bit floats
    #[arg(long)]
    pub(crate) whole_products: bool,
    /// Maximum GPU memory to use, in MiB [default: all that is available]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) gpu_memory: Option<u64>,
    /// Threads of the CPU engine [default: all cores]
    #[arg(long, value_name = "COUNT")]
    threads: Option<NonZeroUsize>,
}

impl ComputeArgs {
    /// Returns the number of threads of the CPU engine: the requested number, at most the number of cores, because more
    /// threads would only wait for each other.
    pub(crate) fn threads(&self) -> NonZeroUsize {
        self.threads.map_or_else(compute::cores, |threads| threads.min(compute::cores()))
    }

    /// Returns a warning if `--threads` exceeds the number of cores.
    pub(crate) fn excess(&self) -> Option<String> {
        let (asked, cores) = (self.threads?, compute::cores());
        (asked > cores)
            .then(|| format!("--threads {asked}: this process may use {cores} cores, so it takes {cores}"))
    }
}

/// Settings of trusted certificate authorities.
#[derive(Args, Clone, Debug, PartialEq)]
pub(crate) struct TrustArgs {
    /// Trust only the certificate authorities in this PEM file, for a syncer with a certificate that you made yourself
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
}

impl TrustArgs {
    /// Makes all connections of this program trust only these authorities, if any are given. It must be called once,
    /// before the first connection.
    ///
    /// # Errors
    /// `Usage`: the file cannot be read, or has no certificates.
    pub(crate) fn apply(&self) -> Result<(), Failure> {
        let Some(file) = &self.ca else { return Ok(()) };
        let wrong = |why: String| Failure::usage(format!("--ca {}: {why}", file.display()));
        let pem = std::fs::read(file).map_err(|error| wrong(error.to_string()))?;
        trust_only(&pem).map_err(|error| wrong(error.to_string()))
    }
}

/// Settings of `join`.
#[derive(Args, Clone, Debug, PartialEq)]
pub(crate) struct JoinArgs {
    /// The syncer: ws://HOST:PORT, a link to its page, or HOST:PORT
    syncer: Option<String>,
    /// Invite from the run's owner, unless the link to the run ends in #invite=…
    #[arg(long, value_name = "TOKEN", hide_env_values = true)]
    invite: Option<String>,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
    #[command(flatten)]
    pub(crate) compute: ComputeArgs,
    /// Duty cycle: fraction of the time spent training, above 0 and at most 1; the learner rests between steps
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    pub(crate) duty_cycle: f64,
    /// Windows of text in one step: auto (as many as the run sets, fewer if a step would take longer than 2 s), or a
    /// number
    #[arg(long, value_name = "COUNT", default_value_t)]
    pub(crate) batch: BatchChoice,
    /// Display name, at most 64 bytes [default: the name of this machine]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// File that holds this learner's identity; created if missing
    #[arg(long, value_name = "FILE", conflicts_with = "identity_dir")]
    pub(crate) identity: Option<PathBuf>,
    /// Folder of identities, one for each learner of this machine [default: in the XDG state folder]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) identity_dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
    /// Leave after this time: 90s, 5m, 2h [default: never]
    #[arg(long = "for", value_name = "DURATION", value_parser = some_time)]
    pub(crate) run_max: Option<Span>,
    /// How long to try to reconnect to a lost syncer [default: for ever]
    #[arg(long = "max-reconnect", value_name = "DURATION", value_parser = some_time)]
    pub(crate) reconnect_max: Option<Span>,
    /// How long to try to reach the syncer the first time
    #[arg(long = "max-contact", value_name = "DURATION", default_value = "30s", value_parser = some_time)]
    pub(crate) contact_max: Span,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

impl JoinArgs {
    /// Returns the address of the syncer to join, with the invite if one was given.
    ///
    /// # Errors
    /// `Usage`: no syncer is named, or the address or the invite is malformed.
    pub(crate) fn address(&self) -> Result<Address, Failure> {
        let syncer = self.syncer.as_deref().ok_or_else(|| {
            Failure::usage("no syncer named: give its address, such as ws://127.0.0.1:7700")
        })?;
        let address: Address = syncer.parse().map_err(Failure::usage)?;
        match &self.invite {
            Some(invite) => address.with_invite(invite).map_err(Failure::usage),
            None => Ok(address),
        }
    }
}

/// Output format and verbosity.
#[derive(Args, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutputArgs {
    /// Print one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
    /// Print errors and milestones only: joined, lost, back, done
    #[arg(long, short, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Also print the outcome of each update
    #[arg(long, short)]
    pub(crate) verbose: bool,
}

/// Settings of `bench`.
#[derive(Args, Clone, Debug, PartialEq)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    pub(crate) compute: ComputeArgs,
    /// The model: tiny, small, medium, base, llama-135m or llama-360m
    #[arg(long, value_name = "NAME", default_value = "small")]
    pub(crate) preset: Preset,
    /// How long to measure, after one step to warm up
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    seconds: f64,
    /// Also time each kernel of the GPU
    #[arg(long)]
    pub(crate) profile: bool,
    /// Print one JSON object, on the last line
    #[arg(long)]
    pub(crate) json: bool,
    /// Also print how the kernels for matrix products were chosen
    #[arg(long, short)]
    pub(crate) verbose: bool,
}

impl BenchArgs {
    /// Returns the duration of the measurement in seconds, above 0 and below one million.
    ///
    /// # Errors
    /// `Usage`: the duration is out of range.
    pub(crate) fn seconds(&self) -> Result<f64, Failure> {
        let holds = self.seconds > 0.0 && self.seconds < 1e6;
        range("seconds", self.seconds, holds, "a number above 0 and below 1000000")
            .map_err(Failure::usage)?;
        Ok(self.seconds)
    }
}

/// Settings of `doctor`.
#[derive(Args, Clone, Debug, PartialEq)]
pub(crate) struct DoctorArgs {
    /// The syncer to try: ws://HOST:PORT, a link to its page, or HOST:PORT
    syncer: Option<String>,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
    #[command(flatten)]
    pub(crate) compute: ComputeArgs,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

impl DoctorArgs {
    /// Returns the address of the syncer to check, if one is named.
    ///
    /// # Errors
    /// `Usage`: the address is malformed.
    pub(crate) fn address(&self) -> Result<Option<Address>, Failure> {
        self.syncer.as_deref().map(str::parse).transpose().map_err(Failure::usage)
    }
}

/// Settings of the cache of frozen weights.
#[derive(Args, Clone, Debug, PartialEq)]
pub(crate) struct CacheArgs {
    /// Folder that caches the frozen weights of adapter (LoRA) runs; learners of this machine may share it [default:
    /// archipelago/frozen in the XDG cache folder]
    #[arg(long, value_name = "FOLDER")]
    cache_dir: Option<PathBuf>,
    /// Largest size of that folder, as 500MB or 8GiB: the oldest files are deleted first; 0 turns the cache off
    #[arg(long, value_name = "SIZE", default_value = "4GiB")]
    cache_max: Bytes,
}

impl CacheArgs {
    /// Returns the cache; `None` if it is switched off or there is no home folder.
    pub(crate) fn weight_cache(&self) -> Option<Rc<dyn WeightCache>> {
        let folder =
            self.cache_dir.clone().or_else(|| default_cache_folder(|name| std::env::var(name).ok()))?;
        (self.cache_max.0 > 0).then(|| Rc::new(Folder::new(folder, self.cache_max.0)) as Rc<dyn WeightCache>)
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::fs;
    use std::num::NonZeroU32;

    use archipelago_cli::{CliError, parse};

    use super::*;

    /// Parses a command `line` with a settings file that contains `text`. Returns the command, or the error as text.
    fn verb(text: &str, line: &[&str]) -> Result<Verb, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("learner.toml");
        fs::write(&path, text).unwrap();
        let line = [&["native-learner"], line, &["--config", path.to_str().unwrap()]].concat();
        match parse::<Cli>(line.into_iter().map(OsString::from)) {
            Ok(given) => Ok(given.cli.verb),
            Err(CliError::Usage(error)) => Err(error.to_string()),
            Err(CliError::File(error, _)) => Err(error.to_string()),
        }
    }

    fn join(text: &str, flags: &[&str]) -> Result<(JoinArgs, Address), String> {
        match verb(text, &[&["join"], flags].concat())? {
            Verb::Join(args) => {
                let address = args.address().map_err(|failure| failure.message)?;
                Ok((args, address))
            }
            other => panic!("{other:?}"),
        }
    }

    fn bench(text: &str, flags: &[&str]) -> Result<(BenchArgs, f64), String> {
        match verb(text, &[&["bench"], flags].concat())? {
            Verb::Bench(args) => {
                let seconds = args.seconds().map_err(|failure| failure.message)?;
                Ok((args, seconds))
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_defaults() {
        let file =
            "syncer = 'a:1'\nthreads = 3\nduty-cycle = 0.5\nfor = '2min'\nidentity = 'f'\nverbose = true";
        let (args, address) = join(file, &[]).unwrap();
        assert_eq!(address, "ws://a:1".parse().unwrap());
        assert_eq!((args.compute.threads.map(NonZeroUsize::get), args.duty_cycle), (Some(3), 0.5));
        assert_eq!((args.run_max.map(Span::ms), args.reconnect_max), (Some(120_000), None));
        assert_eq!(args.contact_max.ms(), 30_000);
        assert!(args.output.verbose && args.identity.is_some());

        let flags = ["b:2", "--threads", "1", "--for", "5ms", "--identity-dir", "d", "--quiet"];
        let (args, address) = join(file, &flags).unwrap();
        assert_eq!(address, "ws://b:2".parse().unwrap());
        assert_eq!((args.compute.threads().get(), args.duty_cycle), (1, 0.5));
        assert!(args.compute.excess().is_none());
        assert_eq!(args.run_max.map(Span::ms), Some(5));
        assert_eq!((args.identity, args.identity_dir), (None, Some("d".into())));
        assert!(args.output.quiet && !args.output.verbose);
    }

    #[test]
    fn an_invite_comes_by_link_flag_or_file() {
        let invite = |text, flags: &[&str]| {
            let (_, address) = join(text, flags).unwrap();
            address.invite().map(|invite| invite.expose().to_owned())
        };
        assert_eq!(invite("", &["a:1"]), None);
        assert_eq!(invite("", &["http://a:1/#invite=one"]).as_deref(), Some("one"));
        assert_eq!(invite("invite = 'two'", &["http://a:1/#invite=one"]).as_deref(), Some("two"));
        assert_eq!(invite("invite = 'two'", &["a:1", "--invite", "three"]).as_deref(), Some("three"));
        let error = join("", &["a:1", "--invite", "no invite"]).unwrap_err();
        assert!(error.contains("copy it whole"), "{error}");
    }

    #[test]
    fn a_batch_is_chosen_or_given() {
        let batch = |text, flags: &[&str]| {
            let found = join(text, &[&["a:1"], flags].concat());
            found.map(|(args, _)| args.batch.windows().map(NonZeroU32::get))
        };
        assert_eq!(batch("", &[]), Ok(None));
        assert_eq!(batch("batch = 2", &[]), Ok(Some(2)));
        assert_eq!(batch("batch = 2", &["--batch", "4096"]), Ok(Some(4_096)));
        assert_eq!(batch("batch = 2", &["--batch", "auto"]), Ok(None));
        for wrong in ["0", "4097", "few"] {
            let error = batch("", &["--batch", wrong]).unwrap_err();
            assert!(error.contains("1 to 4096 windows"), "{error}");
        }
        assert!(batch("batch = 0", &[]).unwrap_err().contains("batch"));
    }

    #[test]
    fn every_verb_takes_an_engine() {
        let file = "engine = 'gpu'\nadapter = 'arc'\nhalf-weights = true\ngpu-memory = 2000\n\
                    preset = 'tiny'\nseconds = 2\nsyncer = 'a:1'";
        let check = |args: &ComputeArgs| {
            assert_eq!((args.engine, args.adapter.as_deref()), (EngineKind::Gpu, Some("arc")));
            assert!(args.half_weights && args.threads() == compute::cores());
            assert_eq!(args.gpu_memory, Some(2_000));
        };
        check(&join(file, &[]).unwrap().0.compute);
        let (args, seconds) = bench(file, &[]).unwrap();
        check(&args.compute);
        assert_eq!((args.preset, seconds), (Preset::Tiny, 2.0));
        let Verb::Doctor(args) = verb(file, &["doctor"]).unwrap() else { panic!("no doctor") };
        check(&args.compute);
        assert!(args.address().unwrap().is_some());

        let flags = ["--engine", "cpu", "--adapter", "apple", "--preset", "base", "--seconds", "1"];
        let (args, seconds) = bench(file, &flags).unwrap();
        let ComputeArgs { engine, adapter, .. } = args.compute;
        assert_eq!((engine, adapter.as_deref()), (EngineKind::Cpu, Some("apple")));
        assert_eq!((args.preset, seconds), (Preset::Base, 1.0));
        let (args, seconds) = bench("", &[]).unwrap();
        assert_eq!((args.compute.engine, args.compute.adapter), (EngineKind::Auto, None));
        assert_eq!((args.compute.half_weights, args.preset, seconds), (false, Preset::Small, 10.0));
    }

    #[test]
    fn a_wrong_file_is_an_error() {
        for (text, part) in [
            ("tread = 3", "unknown key `tread`"),
            ("threads = 0", "threads"),
            ("gpu-memory = 0", "gpu-memory"),
            ("syncer = 'a:1'\nfor = 'soon'", "soon"),
            ("syncer = 'a:1'\nfor = '0s'", "is too short"),
            ("syncer = 'a:1'\nengine = 'tpu'", "choose auto, gpu or cpu"),
            ("syncer = 'a'", "port"),
            ("", "no syncer"),
        ] {
            let error = join(text, &[]).expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
        for (text, part) in [("preset = 'huge'", "no preset \"huge\""), ("seconds = 0", "above 0")] {
            let error = bench(text, &[]).expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn the_command_line_holds_together() {
        archipelago_cli::command::<Cli>().debug_assert();
    }

    #[test]
    fn a_cache_of_no_bytes_is_none() {
        let args = |cache_max| CacheArgs { cache_dir: Some("cache".into()), cache_max: Bytes(cache_max) };
        assert!(args(0).weight_cache().is_none());
        let weight_cache = args(1 << 20).weight_cache().unwrap();
        assert!(weight_cache.has_room(1 << 20) && !weight_cache.has_room(1 + (1 << 20)));
    }
}
