//! The paper's tables, recomputed and compared with its figures.
//!
//! Each table has a file named like its subcommand: its settings as flags, and `run`, which turns settings into a
//! [`SimulationReport`]. [`lab`] really trains small models in a world, and is pure.

#![forbid(unsafe_code)]

mod bandwidth;
mod engine;
mod error;
mod evidence;
mod failures;

mod fleet;
mod goodput;
mod heterogeneity;
pub mod lab;
mod plan;
mod pool;
mod regions;
mod report;
mod scavenging;
mod statistics;
mod text;
mod training;
mod trial;

use std::fs;
use std::path::{Path, PathBuf};

use archipelago_cli::Program;
use clap::Parser;
use serde::Serialize;
use serde_json::Value;

pub use archipelago_cli::plot::{Axis, Plot, Scale, Series, SeriesStyle};
pub use error::{Exit, SimulateError};
pub use report::{Case, SimulationReport};

/// Recomputes the tables of the paper on Decoupled DiLoCo, and prints them next to its figures.
#[derive(Parser, Debug)]
#[command(name = "simulate", version)]
pub struct Cli {
    /// Table to compute.
    #[command(subcommand)]
    subject: Subject,
}

impl Program for Cli {
    const EXIT_CODES: &[(u8, &str)] = Exit::TABLE;
}

/// Tables that can be computed.
#[derive(clap::Subcommand, Clone, Debug)]
enum Subject {
    /// Share of the time that a machine of up to 2.4 million chips trains while chips come and go
    Goodput(goodput::GoodputArgs),
    /// Link rates that training across data centres needs
    Bandwidth(bandwidth::BandwidthArgs),
    /// Value of temporary learners: wall time when others join for half of the tokens
    Scavenging(scavenging::ScavengingArgs),
    /// Learners all over the world: the slowdown by slow links
    Regions(regions::RegionsArgs),
    /// Goodput and loss with learners of different speeds, with and without quorum and grace
    Heterogeneity(heterogeneity::HeterogeneityArgs),
    /// Loss over any settings of a run, from a plan; further settings are chosen for each row
    Run(Box<plan::PlanArgs>),
    /// Loss after equal time while chips come and go, against the number of learners
    Failures(failures::FailuresArgs),
    /// A run of real processes compared with the simulator's prediction
    Fleet(fleet::FleetArgs),
    /// Plots of the evidence: of cached runs, and of figures in the tables of its pages
    Evidence(evidence::EvidenceArgs),
}

/// Settings of every table with random draws.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub struct CommonArgs {
    /// Seed of all random draws
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Output")]
    pub seed: u64,
    /// Form and place of the output.
    #[command(flatten)]
    #[serde(flatten)]
    pub output: OutputArgs,
}

/// Settings of every table.
#[derive(clap::Args, Clone, Debug, Serialize)]
pub struct OutputArgs {
    /// Print one JSON line on standard output instead of the table: a list of {"case", "ours", "paper"}
    #[arg(long, help_heading = "Output")]
    #[serde(skip)]
    pub json: bool,
    /// Folder for plots as SVG, created if missing; by default none are written
    #[arg(long, value_name = "FOLDER", help_heading = "Output")]
    #[serde(skip)]
    pub plots: Option<PathBuf>,
    /// TOML file with any of the settings of any table, named like the flags
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    #[serde(skip)]
    pub config: Option<PathBuf>,
}

/// Simulates, writes the requested plots, and returns the text for standard output. `progress` gets an occasional line.
///
/// # Errors
/// - `Setting`, `Preset`: a setting is out of range.
/// - `Disk`: a plot cannot be written.
/// - Those of the subject.
pub fn run(cli: &Cli, progress: &mut dyn FnMut(&str)) -> Result<String, SimulateError> {
    match &cli.subject {
        Subject::Goodput(args) => answer(&goodput::run(args, progress)?, args, &args.common.output),
        Subject::Bandwidth(args) => answer(&bandwidth::run(args, progress)?, args, &args.output),
        Subject::Scavenging(args) => answer(&scavenging::run(args, progress)?, args, &args.common.output),
        Subject::Regions(args) => answer(&regions::run(args, progress)?, args, &args.common.output),
        Subject::Heterogeneity(args) => {
            answer(&heterogeneity::run(args, progress)?, args, &args.common.output)
        }
        Subject::Run(args) => answer(&plan::run(args, progress)?, args, &args.common.output),
        Subject::Failures(args) => answer(&failures::run(args, progress)?, args, &args.common.output),
        Subject::Fleet(args) => answer(&fleet::run(args, progress)?, args, &args.output),
        Subject::Evidence(args) => answer(&evidence::run(args)?, args, &args.output),
    }
}

fn answer(
    report: &SimulationReport,
    args: &impl Serialize,
    output: &OutputArgs,
) -> Result<String, SimulateError> {
    let mut written = Vec::new();
    if let Some(folder) = &output.plots {
        for plot in &report.plots {
            written.push(write(folder, plot)?);
        }
    }
    if output.json {
        return Ok(report.json());
    }
    let mut text = report.text(&constants(args));
    for path in written {
        text.push_str(&format!("\nplot: {}", path.display()));
    }
    Ok(text)
}

fn write(folder: &Path, plot: &Plot) -> Result<PathBuf, SimulateError> {
    let disk = |path: &Path| {
        let path = path.to_owned();
        move |source| SimulateError::Disk { what: "write", path, source }
    };
    fs::create_dir_all(folder).map_err(disk(folder))?;
    let path = folder.join(format!("{}.svg", plot.name));
    fs::write(&path, plot.svg()).map_err(disk(&path))?;
    Ok(path)
}

/// Returns the effective settings, by the names of their flags, without those that have no value.
fn constants(args: &impl Serialize) -> Vec<(String, String)> {
    let settings = serde_json::to_value(args).expect("plain data");
    let settings = settings.as_object().expect("settings have names");
    // Lists have the form that their flags accept.
    let written = |value: &Value| value.to_string().replace(['"', '[', ']'], "");
    let given = settings.iter().filter(|(_, value)| !value.is_null() && **value != "");
    given.map(|(flag, value)| (flag.clone(), written(value))).collect()
}

#[cfg(test)]
mod tests;
