//! Command line: commands, and the settings of each.

use std::ffi::OsString;
use std::path::PathBuf;

use archipelago_cli::process::GuardArgs;
use archipelago_cli::{CliError, DemoArgs, Program, Sources, tokens};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Parser, Subcommand};

use super::flags::run_flags;
use super::inspect::{DEFAULT_FOLDER, FolderArgs};
use super::invites::{BanArgs, InviteArgs, TokenArgs};
use super::stored::{self, SETTINGS_FILE, StoredSettings};
use super::{
    DropArgs, EventsArgs, OrderArgs, PaceArgs, RunFlags, RunsArgs, ServeConfig, SetArgs, SteerArgs,
    TableArgs, classroom,
};
use crate::errors::{Exit, ServerError};
use crate::export::Format;
use crate::gguf::TensorType;

/// The syncer of an Archipelago run: it leads the learners' rounds, merges their updates and stores the model.
#[derive(Parser, Debug)]
#[command(name = "syncer-server", version)]
pub struct Cli {
    /// Command to execute.
    #[command(subcommand)]
    pub verb: Verb,
}

impl Program for Cli {
    const EXIT_CODES: &[(u8, &str)] = Exit::TABLE;
    // For `serve`, the variable of `--dir` names the run's folder. For commands that show a run, it would select the
    // folder instead of the syncer.
    const WITHOUT_TWIN: &[(&str, &str)] = &[
        ("status", "dir"),
        ("history", "dir"),
        ("learners", "dir"),
        ("events", "dir"),
        ("events", "name"),
        ("export", "run"),
        ("sample", "run"),
        ("replay", "run"),
        ("fork", "run"),
        ("run", "order"),
        ("run", "name"),
        ("run", "runs"),
        ("set", "settings"),
        ("pace", "learner"),
        ("pace", "share"),
        ("drop", "learner"),
        ("drop", "time"),
    ];

    // Environment variables are meant for `serve`, not for a run that the user creates elsewhere. An address that is
    // set for other commands must not redirect a command from the run in the given folder to another run.
    fn has_twin(verb: &str, id: &str) -> bool {
        let is_steered = STEERING.contains(&verb) && id == "url";
        let is_excepted = Self::WITHOUT_TWIN.contains(&(verb, id)) || is_steered;
        // The syncer and the learners that a demo starts read the variables themselves.
        !(is_excepted || verb == "run" && RunFlags::has(id) || ["demo", "guard"].contains(&verb))
    }
}

/// Commands that steer one run.
const STEERING: [&str; 6] = ["pause", "resume", "finish", "set", "pace", "drop"];

/// Verbs of the program.
#[derive(Subcommand, Debug)]
pub enum Verb {
    /// Start a run, or continue the one in --dir
    Serve(Box<ServeConfig>),
    /// Train on this machine: start a syncer and learners, show the falling loss, and check the result
    Demo(Box<DemoSetup>),
    /// Run a program that ends with the process that started this one
    #[command(hide = true)]
    Guard(GuardArgs),
    /// List the runs of a server
    Runs(RunsArgs),
    /// Create, start, pause, resume, finish, archive or delete a run on a server of several runs
    Run(OrderArgs),
    /// Show the state of a run, from its syncer or its folder
    Status(TableArgs),
    /// Show the history of a run: losses, speed, participation and learners
    History(TableArgs),
    /// List all learners that ever took part in a run, with their contributions
    Learners(TableArgs),
    /// List the log of a run: joins, departures, refusals, admin commands and faults
    #[command(visible_alias = "log")]
    Events(EventsArgs),
    /// Pause a run: nothing is merged, and learners wait
    Pause(SteerArgs),
    /// Resume a paused run
    Resume(SteerArgs),
    /// Collect the last updates, then end a run; its pages and its model stay
    Finish(SteerArgs),
    /// Change settings of a live run
    Set(SetArgs),
    /// Limit one learner to a share of the time
    Pace(PaceArgs),
    /// Drop one learner for a given time
    Drop(DropArgs),
    /// Write the newest snapshot as a Hugging Face folder
    Export(ExportArgs),
    /// Copy a run's folder while the run continues
    Backup(BackupArgs),
    /// Continue a text with the model of the newest snapshot
    Sample(SampleArgs),
    /// Recompute every merge of a run from its tape, and compare the bits
    Replay(ReplayArgs),
    /// Start a new run from the state of another one after a given decision
    Fork(ForkArgs),
    /// Create, list or revoke personal invites to a run
    Invite(InviteArgs),
    /// Ban a learner's key, lift a ban, or list bans
    Ban(BanArgs),
    /// Replace the owner's token in a run's folder
    Token(TokenArgs),
    /// Check settings, data and the run's folder without starting
    Validate(Box<ServeConfig>),
    /// Check this machine: cores, memory, address, data, disk; for a run on several machines also bus, storage and
    /// clocks
    Doctor(Box<ServeConfig>),
}

/// Settings of `demo`.
#[derive(clap::Args, Clone, Debug)]
pub struct DemoSetup {
    #[allow(missing_docs, reason = "clap would take the words for help")]
    #[command(flatten)]
    pub run: DemoArgs,
    /// The program native-learner [default: the one in the folder of this program]
    #[arg(long, value_name = "FILE")]
    pub learner: Option<PathBuf>,
    /// Folder in which each demo creates a folder of its own
    #[arg(long, value_name = "FOLDER", default_value = "runs")]
    pub runs: PathBuf,
    /// Folder of pages to serve instead of the embedded ones
    #[arg(long, value_name = "FOLDER")]
    pub pages: Option<PathBuf>,
    /// Seconds spent on building before this program started
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0, hide = true)]
    pub build_s: f64,
    /// Command that builds the pages during the run
    #[arg(long, value_name = "COMMAND", num_args = 1.., allow_hyphen_values = true, requires = "pages", hide = true)]
    pub page_builder: Vec<OsString>,
}

/// Settings of `export`.
#[derive(clap::Args, Clone, Debug)]
pub struct ExportArgs {
    /// The run.
    #[command(flatten)]
    pub folder: FolderArgs,
    /// Folder to write; created if missing
    #[arg(long, value_name = "FOLDER")]
    pub out: PathBuf,
    /// Replace files in --out that have names of exported files, even if another program wrote them
    #[arg(long)]
    pub overwrite: bool,
    /// Kind of the exported files
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    pub format: ExportFormat,
    /// Type of each parameter
    #[arg(long, value_name = "TYPE", value_enum, default_value_t)]
    pub dtype: TensorType,
    /// For a run of adapters, write the whole model with the adapters added to its weights, as --format gguf always
    /// does; without it, the folder holds only the adapters, for PEFT
    #[arg(long)]
    pub merged: bool,
    /// Licence of the model for its card README.md, such as apache-2.0 or cc-by-4.0
    #[arg(long, value_name = "NAME")]
    pub licence: Option<String>,
    /// Name of the initial model for PEFT and the card: user/model on the hub, or a folder; by default the name on the
    /// hub that its folder holds, or else the folder
    #[arg(long, value_name = "MODEL")]
    pub base: Option<String>,
    /// Folder for a TensorBoard event file; created if missing
    #[arg(long, value_name = "FOLDER")]
    pub tensorboard: Option<PathBuf>,
    /// Replace names of learners by numbers in report.html, and leave out their devices; always on if the run was
    /// served with --hide-names
    #[arg(long)]
    pub hide_names: bool,
    /// Print one JSON line
    #[arg(long)]
    pub json: bool,
}

impl ExportArgs {
    /// Returns the kind of the exported files, and the type of the parameters in them.
    ///
    /// # Errors
    /// `Config`: the files of `--format` cannot hold the type of `--dtype`.
    pub fn format(&self) -> Result<Format, ServerError> {
        let why = "--dtype q8_0 is for --format gguf: choose f32, f16 or bf16";
        match self.format {
            ExportFormat::Gguf => Ok(Format::Gguf(self.dtype)),
            ExportFormat::Transformers => self
                .dtype
                .precision()
                .map(Format::Transformers)
                .ok_or_else(|| ServerError::Config { why: why.to_owned() }),
        }
    }
}

/// Kinds of exported files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ExportFormat {
    /// A Hugging Face folder: for transformers, or for PEFT
    #[default]
    Transformers,
    /// One file for llama.cpp, model.gguf, with vocabulary and chat template
    Gguf,
}

/// Settings of `backup`.
#[derive(clap::Args, Clone, Debug)]
pub struct BackupArgs {
    /// Folder of the run
    #[arg(long, value_name = "FOLDER", default_value = DEFAULT_FOLDER)]
    pub dir: PathBuf,
    /// Folder for the copy, which must not exist
    #[arg(value_name = "TO")]
    pub to: PathBuf,
    /// Print one JSON line
    #[arg(long)]
    pub json: bool,
}

/// Settings of `replay`.
#[derive(clap::Args, Clone, Debug)]
pub struct ReplayArgs {
    /// The run.
    #[command(flatten)]
    pub folder: FolderArgs,
    /// Stop after this decision; by default the last one
    #[arg(long, value_name = "NUMBER", default_value_t = u64::MAX, hide_default_value = true)]
    pub until: u64,
    /// List each merge: round, fragment, learners, tokens, norm and, if measured, the loss
    #[arg(long)]
    pub merges: bool,
    /// Measure the held-out loss along the way, and find the merge that raised it most
    #[arg(long)]
    pub losses: bool,
    /// Approximate number of measurements in each pass over the tape
    #[arg(long, value_name = "COUNT", default_value_t = 100, requires = "losses")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub points: u32,
    /// Write a page with curves of loss, learners and norms over merges
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// Write the model after the last replayed decision, as `export` does
    #[arg(long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
    /// Replace files in --out that have names of exported files, even if another program wrote them
    #[arg(long, requires = "out")]
    pub overwrite: bool,
    /// Print JSON lines
    #[arg(long)]
    pub json: bool,
}

/// Settings of `fork`.
#[derive(clap::Args, Clone, Debug)]
pub struct ForkArgs {
    /// The run.
    #[command(flatten)]
    pub folder: FolderArgs,
    /// Last decision of the new run's history; by default the newest
    #[arg(long, value_name = "NUMBER", default_value_t = u64::MAX, hide_default_value = true)]
    pub at: u64,
    /// Folder of the new run; created if missing
    #[arg(long, value_name = "FOLDER")]
    pub to: PathBuf,
    /// Print one JSON line
    #[arg(long)]
    pub json: bool,
}

/// Settings of `sample`.
#[derive(clap::Args, Clone, Debug)]
pub struct SampleArgs {
    /// The run.
    #[command(flatten)]
    pub folder: FolderArgs,
    /// Text to continue
    #[arg(long, value_name = "TEXT", default_value = "The ")]
    pub prompt: String,
    /// Ask this question through the run's chat template, and print only the answer
    #[arg(long, value_name = "TEXT", conflicts_with = "prompt")]
    pub chat: Option<String>,
    /// System message before --chat
    #[arg(long, value_name = "TEXT", requires = "chat")]
    pub system: Option<String>,
    /// Maximum number of tokens; the text ends earlier at a token that ends a text or a turn
    #[arg(long, value_name = "COUNT", default_value_t = 200, value_parser = sample_tokens)]
    pub tokens: u32,
    /// Sampling temperature: 0 always takes the likeliest token, 1 samples from the model's distribution
    #[arg(long, value_name = "NUMBER", default_value_t = 0.8)]
    pub temperature: f32,
    /// Seed of the sampling; the same seed gives the same text
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
    /// For a run on builtin:pictures, write the picture in the text to this file as an SVG; the file must not exist
    #[arg(long, value_name = "FILE")]
    pub picture: Option<PathBuf>,
    /// Print one JSON line once the whole text is written
    #[arg(long)]
    pub json: bool,
}

/// Largest number of tokens that `sample` writes.
const SAMPLE_TOKENS: u32 = 1_000_000;

/// Parses the number of tokens for `sample`.
fn sample_tokens(text: &str) -> Result<u32, String> {
    let count: u32 = tokens(text).map_err(|error| error.to_string())?;
    let fits = (1..=SAMPLE_TOKENS).contains(&count);
    fits.then_some(count).ok_or_else(|| format!("give 1 to {SAMPLE_TOKENS} tokens"))
}

/// Parses flags, environment variables, the TOML file that they may name, and the settings stored in the run's folder.
/// Then applies the defaults that some settings imply for others.
///
/// # Errors
/// Those of [`archipelago_cli::parse`].
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Cli, CliError> {
    let mut contradiction = None;
    let mut given = archipelago_cli::parse_over::<Cli>(arguments, |given| {
        let (Verb::Serve(config) | Verb::Validate(config) | Verb::Doctor(config)) = &given.cli.verb else {
            return None;
        };
        let file = config.server.dir.join(SETTINGS_FILE);
        contradiction = stored::contradiction(&given.sources, &config.server.dir);
        (config.server.runs.is_none() && file.is_file()).then_some(file)
    })?;
    if let Verb::Serve(config) | Verb::Validate(config) | Verb::Doctor(config) = &mut given.cli.verb {
        let mut kept = StoredSettings::of(&given.sources, &config.server.dir, contradiction);
        classroom::imply(config, &given.sources);
        if config.server.classroom {
            kept.imply("preset", &config.identity.preset);
            config.data.iter().for_each(|data| kept.imply("data", &data.to_string()));
            config.invite.iter().for_each(|invite| kept.imply("invite", invite));
        }
        config.kept = config.server.runs.is_none().then_some(kept);
        if config.server.runs.is_some() {
            check_beside_runs(&given.sources)?;
        }
    }
    Ok(given.cli)
}

/// Refuses settings of a run together with `--runs`: each run has its own in its folder.
fn check_beside_runs(sources: &Sources) -> Result<(), CliError> {
    let foreign = run_flags().find(|flag| !sources.is_default(flag.get_id().as_str()));
    match foreign.as_ref().and_then(clap::Arg::get_long) {
        None => Ok(()),
        Some(name) => {
            let why = format!(
                "--{name} is a setting of a run: write it into settings.toml in the run's folder below --runs\n"
            );
            Err(CliError::Usage(Box::new(clap::Error::raw(ErrorKind::ArgumentConflict, why))))
        }
    }
}

/// Returns the replacement of a command that no longer exists, if `error` is about one.
#[must_use]
pub fn moved(error: &clap::Error) -> Option<&'static str> {
    let asked = error.get(ContextKind::InvalidSubcommand);
    let simulate = ContextValue::String("simulate".to_owned());
    (error.kind() == ErrorKind::InvalidSubcommand && asked == Some(&simulate)).then_some(
        "the paper's tables have a program of their own: use `simulate goodput` or, from the sources, `cargo run \
         --release --bin simulate -- goodput`",
    )
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

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
    fn only_the_file_of_settings_has_no_heading() {
        let command = <ServeConfig as clap::Args>::augment_args(clap::Command::new("serve"));
        let nameless = command.get_arguments().filter(|arg| arg.get_help_heading().is_none());
        assert_eq!(nameless.map(|arg| arg.get_id().as_str()).collect::<Vec<_>>(), ["config"]);
    }

    #[test]
    fn flags_beat_the_file_which_beats_defaults() {
        let text = "sync-every = 7\nseed = 3\nno-eval = true\nallow-origin = ['https://a', 'https://b']";
        let config = with_file(text, &["--seed", "4"]).unwrap();
        assert_eq!((config.identity.exchange.sync_every, config.identity.seed, config.no_eval), (7, 4, true));
        assert_eq!(config.server.allow_origin, ["https://a", "https://b"]);
        assert_eq!(config.identity.exchange.block, ServeConfig::default().identity.exchange.block);
        let config = with_file("tokenizer = 'x'", &["--vocab", "300"]).unwrap();
        assert_eq!(
            (config.identity.vocab, config.tokenizer),
            (Some(300), None),
            "a flag hides what it excludes"
        );
    }

    /// Checks the service configuration that `docs/deploy.md` names.
    #[test]
    fn the_file_for_a_service_is_read() {
        let config = with_file(include_str!("../../deploy/syncer.toml"), &[]).unwrap();
        assert_eq!((&*config.server.listen, config.identity.preset.as_str()), ("127.0.0.1:7700", "medium"));
        assert_eq!(config.server.dir, PathBuf::from("/var/lib/archipelago/run"));
    }

    #[test]
    fn counts_of_tokens_are_read_as_people_write_them() {
        let read = |config: Result<ServeConfig, CliError>| {
            let config = config.unwrap();
            (
                config.identity.total_tokens,
                config.live.stop_at_tokens,
                config.identity.context.map(NonZeroU32::get),
                config.identity.vocab,
            )
        };
        let found = (Some(10_000_000), 1_500_000_000, Some(1_000), Some(2_000));
        let flags = ["--total-tokens=1e7", "--stop-at-tokens", "1.5B", "--context", "1k", "--vocab=2k"];
        assert_eq!(read(serve(&flags)), found);
        let file = "total-tokens = '10M'\nstop-at-tokens = 1.5e9\ncontext = 1_000\nvocab = '2_000'";
        assert_eq!(read(with_file(file, &[])), found);
        let Err(CliError::Usage(error)) = serve(&["--stop-at-tokens", "-1M"]) else { panic!("it is taken") };
        assert!(error.to_string().contains("write e.g. 5000, 10_000, 20k, 10M"), "{error}");
        assert_eq!(
            serve(&["--lr", "-1"]).unwrap().identity.lr,
            Some(-1.0),
            "its range is checked with the others"
        );
    }

    #[test]
    fn a_classroom_implies_what_is_given_nowhere() {
        let check = |config: ServeConfig, listen: &str, preset: &str, invite: Option<&str>| {
            assert_eq!(
                (&*config.server.listen, &*config.identity.preset, config.invite.as_deref()),
                (listen, preset, invite)
            );
        };
        let plain = ServeConfig::default();
        check(serve(&[]).unwrap(), &plain.server.listen, &plain.identity.preset, None);
        check(serve(&["--classroom"]).unwrap(), "0.0.0.0:7700", "tiny", Some("short"));
        check(with_file("classroom = true", &[]).unwrap(), "0.0.0.0:7700", "tiny", Some("short"));
        // Explicit settings win even if they equal the defaults.
        let asked =
            ["--classroom", "--listen", &plain.server.listen, "--preset=small", "--invite=open-sesame"];
        check(serve(&asked).unwrap(), &plain.server.listen, "small", Some("open-sesame"));
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
            Err(CliError::File(error, _)) => assert!(error.to_string().contains(part), "{error}"),
            other => panic!("{text}: {other:?}"),
        };
        check("sinc-every = 1", "unknown key `sinc-every`");
        check("out = 'x'", "unknown key `out`");
        check("merge = 'median'", "'--merge <RULE>': give one of radial, radial-all, flat, mean");
        check("vocab = 300\ntokenizer = 'x'", "cannot be used with");
    }

    /// Checks that every setting has a flag, since its key and its variable are named after it. Required arguments are
    /// not settings, and a positional folder stands for `--dir`.
    #[test]
    fn every_setting_has_a_flag() {
        let mut command = archipelago_cli::command::<Cli>();
        command.build();
        for verb in command.get_subcommands().filter(|verb| verb.get_name() != "help") {
            let mut settings =
                verb.get_arguments().filter(|arg| !arg.is_required_set() && arg.get_id() != "run");
            let nameless = settings.find(|arg| arg.get_long().is_none());
            assert!(nameless.is_none(), "{}: {nameless:?}", verb.get_name());
        }
    }

    #[test]
    fn says_where_simulate_went() {
        let verb = |verb: &str| match parse(["syncer-server", verb].map(OsString::from)) {
            Err(CliError::Usage(error)) => moved(&error),
            other => panic!("{other:?}"),
        };
        assert!(verb("simulate").unwrap().contains("simulate goodput"));
        assert_eq!(verb("simulated"), None);
    }
}
