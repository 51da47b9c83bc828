//! Settings of the commands that inspect or steer a run: its syncer or its folder, and the form of the output.

use std::path::{Path, PathBuf};

use archipelago_cli::{Span, secret};

/// Source of a run's views: its syncer or its folder.
#[derive(clap::Args, Clone, Debug)]
pub struct PlaceArgs {
    /// Address of the syncer: http://HOST:PORT, https://HOST, or a link to its page
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:7700", conflicts_with = "dir")]
    pub url: String,
    /// Trust only the certificate authorities in this PEM file, for example for a self-signed certificate
    #[arg(long, value_name = "FILE", conflicts_with = "dir")]
    pub ca: Option<PathBuf>,
    /// Read the run's folder instead of asking its syncer
    #[arg(long, value_name = "FOLDER")]
    pub dir: Option<PathBuf>,
}

/// Settings of `status`, `history` and `learners`.
#[derive(clap::Args, Clone, Debug)]
pub struct TableArgs {
    #[allow(missing_docs, reason = "clap would take the words for help")]
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Print JSON with the field names of the HTTP routes: one object, or one per line
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// Print comma-separated values with a header line
    #[arg(long)]
    pub csv: bool,
}

/// Settings of `events`.
#[derive(clap::Args, Clone, Debug)]
pub struct EventsArgs {
    #[allow(missing_docs, reason = "clap would take the words for help")]
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Show only events about learners whose name contains this text
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub name: String,
    /// Number of newest events to show, 1 to 1000
    #[arg(long, value_name = "COUNT", default_value_t = 50)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1_000))]
    pub limit: u16,
    /// Print one JSON object per event, newest first
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// Print comma-separated values with a header line, newest first
    #[arg(long)]
    pub csv: bool,
}

/// Default folder of a run.
pub(super) const DEFAULT_FOLDER: &str = "runs/default";

/// Folder of a run, given as a positional argument or with `--dir`.
#[derive(clap::Args, Clone, Debug)]
pub struct FolderArgs {
    /// Folder of the run, instead of --dir
    #[arg(value_name = "FOLDER")]
    run: Option<PathBuf>,
    /// Folder of the run
    #[arg(long, value_name = "FOLDER", default_value = DEFAULT_FOLDER)]
    dir: PathBuf,
}

impl FolderArgs {
    /// Returns the path of the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.run.as_ref().unwrap_or(&self.dir)
    }
}

impl From<PathBuf> for FolderArgs {
    fn from(dir: PathBuf) -> Self {
        Self { run: None, dir }
    }
}

/// Run to control, and its owner's token.
#[derive(clap::Args, Clone, Debug)]
pub struct SteerArgs {
    /// Folder of the run, with its admin.token and the address of its server
    #[arg(long, value_name = "FOLDER", default_value = DEFAULT_FOLDER)]
    pub dir: PathBuf,
    /// Address of the run, as http://HOST:PORT or, on a server of several, http://HOST:PORT/runs/NAME [default:
    /// the address of the server in the folder]
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// Trust only the certificate authorities in this PEM file, for example for a self-signed certificate
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// The owner's token, instead of the one in the folder
    #[arg(long, value_name = "TOKEN", hide_env_values = true, value_parser = secret)]
    pub token: Option<String>,
}

/// Settings of `set`.
#[derive(clap::Args, Clone, Debug)]
pub struct SetArgs {
    /// Settings of `serve` that may change during the run, such as min-quorum=2 or stop-at-tokens=10M
    #[arg(value_name = "KEY=VALUE", required = true, value_parser = assignment)]
    pub settings: Vec<(String, String)>,
    #[allow(missing_docs, reason = "clap would take the words for help")]
    #[command(flatten)]
    pub run: SteerArgs,
}

/// Settings of `pace`.
#[derive(clap::Args, Clone, Debug)]
pub struct PaceArgs {
    /// Number of the learner, as `learners` lists it
    #[arg(value_name = "LEARNER")]
    pub learner: u32,
    /// Share of the time in which the learner trains, 0.001 to 1; 1 removes the limit
    #[arg(value_name = "SHARE", allow_negative_numbers = true)]
    pub share: f64,
    #[allow(missing_docs, reason = "clap would take the words for help")]
    #[command(flatten)]
    pub run: SteerArgs,
}

/// Settings of `drop`.
#[derive(clap::Args, Clone, Debug)]
pub struct DropArgs {
    /// Number of the learner, as `learners` lists it
    #[arg(value_name = "LEARNER")]
    pub learner: u32,
    /// Time for which the learner is dropped (e.g. 20s, 5m); 0 lets it return
    #[arg(value_name = "TIME", allow_negative_numbers = true)]
    pub time: Span,
    #[allow(missing_docs, reason = "clap would take the words for help")]
    #[command(flatten)]
    pub run: SteerArgs,
}

/// Parses `KEY=VALUE`.
fn assignment(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("give KEY=VALUE, such as min-quorum=2")?;
    Ok((key.trim().trim_start_matches('-').to_owned(), value.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::super::{Verb, parse};
    use super::*;

    #[test]
    fn the_folder_of_a_run_stands_by_itself_or_after_its_flag() {
        let folder = |arguments: &[&str]| {
            let arguments = ["syncer-server", "replay"].iter().chain(arguments).map(OsString::from);
            match parse(arguments).unwrap().verb {
                Verb::Replay(args) => args.folder.path().to_owned(),
                verb => panic!("{verb:?}"),
            }
        };
        assert_eq!(folder(&[]), Path::new(DEFAULT_FOLDER));
        assert_eq!(folder(&["--json", "here"]), Path::new("here"));
        assert_eq!(folder(&["--dir", "there", "--json"]), Path::new("there"));
    }
}
