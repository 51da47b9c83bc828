//! Settings of the commands that inspect a run.

use std::path::PathBuf;

/// Source of a run's state.
#[derive(clap::Args, Clone, Debug)]
pub struct PlaceArgs {
    /// Address of the syncer, as http://HOST:PORT or https://HOST
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:7700", conflicts_with = "dir")]
    pub url: String,
    /// Trust only the certificate authorities in this PEM file, for a syncer with a certificate that you made yourself
    #[arg(long, value_name = "FILE", conflicts_with = "dir")]
    pub ca: Option<PathBuf>,
    /// Folder of the run, to read its state without asking a syncer
    #[arg(long, value_name = "FOLDER")]
    pub dir: Option<PathBuf>,
}

/// Settings of `status`, `history` and `learners`.
#[derive(clap::Args, Clone, Debug)]
pub struct TableArgs {
    #[allow(missing_docs, reason = "clap would take the words for help")]
    #[command(flatten)]
    pub place: PlaceArgs,
    /// JSON on standard output, with the field names of the syncer's routes: one object, or one per line
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// Comma-separated values on standard output, with a line of headings
    #[arg(long)]
    pub csv: bool,
}

/// Settings of `events`.
#[derive(clap::Args, Clone, Debug)]
pub struct EventsArgs {
    #[allow(missing_docs, reason = "clap would take the words for help")]
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Show only events of learners whose name contains this text
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub name: String,
    /// Newest events to show, 1 to 1000
    #[arg(long, value_name = "COUNT", default_value_t = 50)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1_000))]
    pub limit: u16,
    /// JSON lines on standard output, newest first
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// Comma-separated values on standard output, with a line of headings, newest first
    #[arg(long)]
    pub csv: bool,
}
