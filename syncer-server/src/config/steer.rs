//! Settings of the commands that steer one run.

use std::path::PathBuf;

use archipelago_cli::{Span, secret};

use super::DEFAULT_FOLDER;

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
