//! Settings of the commands for a server of several runs.

use std::path::PathBuf;

use archipelago_cli::secret;

use super::{RunFlags, RunName};

/// Settings of `runs`.
#[derive(clap::Args, Clone, Debug)]
pub struct RunsArgs {
    /// Address of the syncer, as http://HOST:PORT or https://HOST
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:7700")]
    pub url: String,
    /// Trust only the certificate authorities in this PEM file, for example for a self-signed certificate
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Print one JSON object, as /v1/runs returns it
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// Print comma-separated values with a line of heads
    #[arg(long)]
    pub csv: bool,
}

/// Settings of `run`.
#[derive(clap::Args, Clone, Debug)]
pub struct OrderArgs {
    /// Action
    #[arg(value_name = "ORDER", value_enum)]
    pub order: RunOrder,
    /// The run's name: 1 to 32 of a to z, 0 to 9 and -
    #[arg(value_name = "RUN")]
    pub name: RunName,
    /// For create: TOML file with the run's settings, whose keys are flags of `serve`; flags below override it
    #[arg(long, value_name = "FILE")]
    pub settings: Option<PathBuf>,
    /// Address of the syncer, as http://HOST:PORT or https://HOST
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:7700")]
    pub url: String,
    /// Trust only the certificate authorities in this PEM file, for example for a self-signed certificate
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Folder of the runs, whose admin.token authorises the request
    #[arg(long, value_name = "FOLDER", default_value = "runs")]
    pub runs: PathBuf,
    /// The owner's token, instead of the one in the folder
    #[arg(long, value_name = "TOKEN", hide_env_values = true, value_parser = secret)]
    pub token: Option<String>,
    /// Delete without asking
    #[arg(long)]
    pub yes: bool,
    #[allow(missing_docs, reason = "clap would take the words for help")]
    #[command(flatten)]
    pub flags: RunFlags,
}

/// Actions on a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum RunOrder {
    /// Create a run and start it
    Create,
    /// Serve a run that is archived, that failed, or whose folder was put there by hand
    Start,
    /// Pause a run: nothing is merged, and learners wait
    Pause,
    /// Resume a paused run
    Resume,
    /// Collect the learners' last progress, then end the run; its pages stay
    Finish,
    /// Stop serving a run, and keep its folder
    Archive,
    /// Stop a run and remove its folder
    Delete,
}

impl RunOrder {
    /// Returns the path of the order below the run's path.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Create | Self::Delete => "",
            Self::Start => "start",
            Self::Pause => "admin/pause",
            Self::Resume => "admin/resume",
            Self::Finish => "admin/finish",
            Self::Archive => "archive",
        }
    }
}
