//! Settings of a run: one struct, filled from flags, environment, file and defaults, in that order.

mod alerts;
mod change;
mod classroom;
mod cli;
mod cluster;
mod data;
mod effective;
mod flags;
mod folder;
mod glance;
mod guests;
mod kept;
mod lora;
mod name;
mod run;
mod runs;
mod steer;

use std::num::NonZeroU32;
use std::path::PathBuf;

use archipelago_cli::{Bytes, ExpertArgs, MethodArgs, Span, link, secret, some_time, some_tokens, tokens};
use serde::Serialize;

pub use alerts::AlertArgs;
pub use change::{CHANGEABLE, Changed, changed, given};
pub use cli::{BackupArgs, Cli, ExportArgs, ForkArgs, ReplayArgs, SampleArgs, Verb, moved, parse};
pub use cluster::{ClusterArgs, Role, Within};
pub(crate) use cluster::{Part, Place};
pub use data::{BuiltIn, DataSource};
pub use flags::{OF_THE_SERVER, RunFlags};
use folder::DEFAULT_FOLDER;
pub use folder::FolderArgs;
pub use glance::{EventsArgs, PlaceArgs, TableArgs};
pub use guests::{BanArgs, BanOrder, InviteArgs, InviteOrder, TokenArgs, TokenOrder};
pub(crate) use kept::settled;
pub use kept::{Kept, PATHS, SETTINGS_FILE, hides_names, is_kept};
pub use lora::LoraArgs;
pub use name::RunName;
pub use run::{
    INVITE_AUTO, INVITE_PERSONAL, INVITE_SHORT, admin_token, base, check_context, invite, licence, preset,
    run_spec, syncer_config,
};
pub use runs::{OrderArgs, RunOrder, RunsArgs};
pub use steer::{DropArgs, PaceArgs, SetArgs, SteerArgs};

/// Settings of `serve`, `validate` and `doctor`. Each flag is also a key of the TOML file, and an
/// environment variable `ARCHIPELAGO_` + its name in capitals.
#[derive(Clone, Debug, clap::Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ServeConfig {
    /// TOML file whose keys are these flags
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// UTF-8 text file, or folder of them; .jsonl for lines of JSON with text, with prompt and completion, or with
    /// messages, of which the answers are learnt; or builtin:austen, a volume of a novel in the public domain, or
    /// builtin:pictures, captions and small pictures; by default builtin:grammar, sentences made up by rules, and
    /// builtin:austen for a class
    #[arg(long, value_name = "PATH|builtin:NAME", value_parser = DataSource::parser(), help_heading = "Data")]
    pub data: Option<DataSource>,
    /// Size of the text that is made by the built-in grammar, or of captions and pictures
    #[arg(long, value_name = "BYTES", default_value = "4MiB", help_heading = "Data")]
    pub corpus_bytes: Bytes,
    /// Train byte-level BPE with this many tokens on the data; without it a token is a byte
    #[arg(long, value_name = "TOKENS", value_parser = tokens::<u32>, help_heading = "Data")]
    #[arg(conflicts_with_all = ["tokenizer", "init"])]
    pub vocab: Option<u32>,
    /// Use this tokenizer.json of Hugging Face's tokenizers
    #[arg(long, value_name = "FILE", help_heading = "Data", conflicts_with = "init")]
    pub tokenizer: Option<PathBuf>,
    /// Jinja template by which conversations in .jsonl files are written; by default that of the folder of --init
    #[arg(long, value_name = "FILE", help_heading = "Data")]
    pub chat_template: Option<PathBuf>,
    /// Share of the text, at its end, that is kept for measuring the loss (above 0, below 1); of .jsonl files, of the
    /// documents, drawn by the seed
    #[arg(long, value_name = "SHARE", default_value_t = 0.05, help_heading = "Data")]
    pub held_out: f64,

    /// Model preset: tiny (0.1 M), small (0.8 M), medium (11 M), base (124 M), or the shape of SmolLM2: llama-135m and
    /// llama-360m
    #[arg(long, value_name = "NAME", default_value = "small", help_heading = "Training")]
    pub preset: String,
    /// Begin with the model and the tokenizer of this Hugging Face folder of a Llama or a Mixtral; of the preset, batch
    /// and rates are taken
    #[arg(long, value_name = "FOLDER", help_heading = "Training")]
    pub init: Option<PathBuf>,
    /// Train a model of your own, not the built-in decoder: named vectors and matrices with the values to begin with, a
    /// safetensors file; learners bring the program, and of the preset, window, batch and rates are taken
    #[arg(long, value_name = "FILE", help_heading = "Training", conflicts_with = "init")]
    pub params: Option<PathBuf>,
    /// What the model of --params is, for the learners that know it by this name
    #[arg(long, value_name = "NAME", help_heading = "Training")]
    pub architecture: Option<String>,
    /// Settings of that architecture, in a form of its own; learners are told them, and nobody else reads them
    #[arg(long, value_name = "TEXT", help_heading = "Training", requires = "architecture")]
    pub architecture_settings: Option<String>,
    #[allow(missing_docs, reason = "clap would take the words for help")]
    #[command(flatten)]
    #[serde(flatten)]
    pub experts: ExpertArgs,
    #[allow(missing_docs, reason = "clap would take the words for help")]
    #[command(flatten)]
    #[serde(flatten)]
    pub lora: LoraArgs,
    /// Length of a training window; by default the preset's, or what the model of --init was made for
    #[arg(long, value_name = "TOKENS", value_parser = some_tokens, help_heading = "Training")]
    pub context: Option<NonZeroU32>,
    /// Seed of the initial parameters, of the order of the data and of the built-in corpus
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Training")]
    pub seed: u64,
    /// Windows in one step of one learner; by default the preset's
    #[arg(long, value_name = "WINDOWS", help_heading = "Training")]
    pub batch: Option<NonZeroU32>,
    /// Highest inner learning rate; by default the preset's
    #[arg(long, value_name = "RATE", help_heading = "Training")]
    pub lr: Option<f32>,
    /// Lowest inner learning rate over the highest, from --total-tokens on (0 to 1); by default the preset's
    #[arg(long, value_name = "SHARE", help_heading = "Training")]
    pub lr_min_ratio: Option<f32>,
    /// Merged tokens at which the learning rate has come down (e.g. 10M, 1.5B); by default the preset's
    #[arg(long, value_name = "TOKENS", value_parser = tokens::<u64>, help_heading = "Training")]
    pub total_tokens: Option<u64>,
    /// Finish the run at this many merged tokens (e.g. 10M, 1.5B); 0 is never
    #[arg(long, value_name = "TOKENS", default_value_t = 0, value_parser = tokens::<u64>, help_heading = "Training")]
    pub stop_at_tokens: u64,

    #[allow(missing_docs, reason = "clap would take the words for help")]
    #[command(flatten)]
    #[serde(flatten)]
    pub method: MethodArgs,
    /// K, updates without which nothing is merged (fewer if fewer learners are alive)
    #[arg(long, value_name = "COUNT", default_value = "1", help_heading = "Exchange")]
    pub min_quorum: NonZeroU32,

    /// Learners at once
    #[arg(long, value_name = "COUNT", default_value_t = 2_048, help_heading = "Learners")]
    pub learners_max: u32,
    /// Live learners before the first round
    #[arg(long, value_name = "COUNT", default_value_t = 1, help_heading = "Learners")]
    pub learners_start: u32,
    /// Learners invited to one round; of more, a rotating sample, which makes training slower
    #[arg(long, value_name = "COUNT", default_value_t = 256, help_heading = "Learners")]
    pub cohort_max: u32,

    /// For a class: prints a code to point phones at, and unless told otherwise listens on 0.0.0.0:7700, trains the
    /// preset tiny and asks for an invite
    #[arg(long, help_heading = "Server")]
    pub classroom: bool,
    /// Link under which others reach this server, as https://host/ behind a proxy with TLS; by default this machine's
    /// addresses
    #[arg(long, value_name = "URL", help_heading = "Server")]
    pub public_url: Option<String>,
    /// Certificate of this server, PEM: it then answers to https alone. The chain, its own first; read again when it
    /// changes
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    pub tls_cert: Option<PathBuf>,
    /// Private key of the certificate, PEM; read again when it changes
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    pub tls_key: Option<PathBuf>,
    /// Folder of the run: snapshots, tokenizer, admin token; a run already there goes on
    #[arg(long, value_name = "FOLDER", default_value = DEFAULT_FOLDER, help_heading = "Server")]
    pub dir: PathBuf,
    /// Serve every run in this folder, each from a folder of its own with a settings.toml whose keys are these flags;
    /// the flags for data, training and learners are the runs' then
    #[arg(long, value_name = "FOLDER", help_heading = "Server", conflicts_with = "dir")]
    pub runs: Option<PathBuf>,
    /// Serve the pages that `cargo xtask web` leaves in this folder instead of those inside the program; until they
    /// are there, browsers wait
    #[arg(long, value_name = "FOLDER", help_heading = "Server")]
    pub pages: Option<PathBuf>,
    /// Address to listen on; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7700", help_heading = "Server")]
    pub listen: String,
    /// Licence of the model, for its card in /v1/export.zip, as apache-2.0 or cc-by-4.0
    #[arg(long, value_name = "NAME", help_heading = "Server")]
    pub licence: Option<String>,
    /// Web origin allowed beside the server's own, as https://host or https://host:port; may be given several times
    #[arg(long, value_name = "ORIGIN", value_delimiter = ',', help_heading = "Server")]
    pub allow_origin: Vec<String>,
    /// Name that this server is called by, as lab.example.org, beside its addresses, --public-url and names of the
    /// local network; others are refused. May be given several times
    #[arg(long, value_name = "NAME", value_delimiter = ',', help_heading = "Server")]
    pub allow_host: Vec<String>,
    /// Address of a proxy before this server, or a network of them as 172.16.0.0/12: whom it names in Forwarded or
    /// X-Forwarded-For counts as the one who comes. May be given several times
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', help_heading = "Server")]
    pub trusted_proxy: Vec<String>,
    /// Connections at once, of learners and of everybody else; fewer if the system allows fewer
    #[arg(long, value_name = "COUNT", default_value_t = 8192, help_heading = "Server")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub connections_max: u32,
    /// Connections at once from one address, or from one network of IPv6 addresses; those of this machine itself, and
    /// of a --trusted-proxy, are not counted
    #[arg(long, value_name = "COUNT", default_value_t = 256, help_heading = "Server")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub connections_per_address: u32,
    /// Token of the admin routes, 16 characters or more; by default one is made and kept in the run's folder
    #[arg(long, value_name = "TOKEN", hide_env_values = true, help_heading = "Server", value_parser = secret)]
    #[serde(skip)]
    pub admin_token: Option<String>,
    /// Tell nobody the learners' names and devices: pages show numbers in their place, and no board of names
    #[arg(long, help_heading = "Server")]
    pub hide_names: bool,
    /// What learners must show to join, 8 to 64 letters, digits, - and _; auto makes one and keeps it in the run's
    /// folder, short one that is easy to type; with personal only those come who have one of `invite create`
    #[arg(long, value_name = "TOKEN|auto|short|personal", hide_env_values = true, help_heading = "Server")]
    #[arg(value_parser = link)]
    #[serde(skip)]
    pub invite: Option<String>,
    /// Time between two snapshots (e.g. 30s, 5m)
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = some_time, help_heading = "Server")]
    pub snapshot_every: Span,
    /// Updates kept on the disk beyond those needed to go on, to replay the run (e.g. 1GiB, 0)
    #[arg(long, value_name = "SIZE", default_value = "1GiB", help_heading = "Server")]
    pub keep: Bytes,
    /// Shortest time between two measurements of the held-out loss
    #[arg(long, value_name = "TIME", default_value = "5s", help_heading = "Server")]
    pub eval_every: Span,
    /// Learner that is trusted to measure the held-out loss of a model of your own, as the syncer cannot: the
    /// fingerprint of its key or, in a run where nobody would take it, its name
    #[arg(long, value_name = "NAME|KEY", help_heading = "Server", conflicts_with = "no_eval")]
    pub evaluator: Option<String>,
    /// Do not measure the held-out loss
    #[arg(long, help_heading = "Server")]
    pub no_eval: bool,
    /// Do not undo merges that made the held-out loss worse, nor send away whose updates did
    #[arg(long, help_heading = "Server")]
    pub no_undo: bool,
    /// Share of one core's time at most in which single updates are tried on the text that they were trained on, 0 to
    /// 1, to suspect whose do not show that they were; 0 tries none
    #[arg(long, value_name = "SHARE", default_value_t = 0.1, help_heading = "Server")]
    pub checks: f64,
    /// Exit with 0 once the run is complete; without it the pages, the figures and the model of a complete run go on
    /// being served
    #[arg(long, help_heading = "Server")]
    pub exit_when_finished: bool,
    #[allow(missing_docs, reason = "clap would take the words for help")]
    // For `cargo xtask bench tape`: a new run has no tape and cannot be resumed.
    #[arg(long, hide = true, help_heading = "Server")]
    #[serde(skip)]
    pub without_tape_for_benchmarks: bool,

    #[allow(missing_docs, reason = "clap would take the words for help")]
    #[command(flatten)]
    #[serde(flatten)]
    pub alerts: AlertArgs,
    #[allow(missing_docs, reason = "clap would take the words for help")]
    #[command(flatten)]
    #[serde(flatten)]
    pub cluster: ClusterArgs,
    #[allow(missing_docs, reason = "clap would take the words for help")]
    // Settings to store in the run's folder.
    #[arg(skip)]
    #[serde(skip)]
    pub kept: Option<Kept>,

    /// JSON lines on standard output: the address first, the final status last
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    /// Log warnings and errors only (RUST_LOG goes further)
    #[arg(long, short, help_heading = "Output")]
    pub quiet: bool,
}

impl ServeConfig {
    /// Returns the URL scheme of the server.
    #[must_use]
    pub fn scheme(&self) -> &'static str {
        if self.tls_cert.is_some() { "https" } else { "http" }
    }
}

impl Default for ServeConfig {
    fn default() -> Self {
        archipelago_cli::defaults(&[])
    }
}
