//! `simulate evidence`: plots of the evidence.
//!
//! Every plotted number comes from the folder: from a table in one of its pages, or from runs cached by `simulate run`.
//! A plot can therefore not contradict its page, and a test checks that.

mod baseline_comparison;
mod page;
mod plots;

use std::path::{Path, PathBuf};

use serde::Serialize;

use baseline_comparison::Comparison;

use super::{OutputArgs, Series, SeriesStyle, SimulateError, SimulationReport};

/// Files of runs cached by `simulate run`, in the folder of the evidence. If the text is that of the tables, the second
/// value names the file's line in the plot of the tables. Adjacent entries with the same name share a line.
const KEPT: [(&str, Option<&str>); 5] = [
    ("gap/tinyshakespeare.jsonl", Some("by document, at best")),
    ("gap/tinyshakespeare-1.5m.jsonl", Some("so too, 1,466 steps")),
    ("gap/tinyshakespeare-3m.jsonl", Some("so too, 1,466 steps")),
    ("gap/tinyshakespeare-6m.jsonl", Some("so too, 1,466 steps")),
    ("gap/sources-6m.jsonl", None),
];

/// Plot of the excess of the loss over that of data-parallel training in percent, over M.
const GAPS: &str = "learners-gap";

/// Settings of `simulate evidence`.
#[derive(clap::Args, Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct EvidenceArgs {
    /// Folder of the evidence: pages and cached runs
    #[arg(long, value_name = "FOLDER", default_value = "tests/evidence")]
    pub from: PathBuf,
    #[command(flatten)]
    #[serde(flatten)]
    pub output: OutputArgs,
}

/// Reads the evidence and plots it.
///
/// # Errors
/// - `Disk`: a page or a file of runs cannot be read.
/// - `Refused`: a page lacks a plotted table, or a line is not a run.
pub fn run(args: &EvidenceArgs) -> Result<SimulationReport, SimulateError> {
    let folder: &Path = &args.from;
    let comparisons = KEPT.iter().map(|(file, _)| Comparison::read(&folder.join(file)));
    let comparisons = comparisons.collect::<Result<Vec<_>, _>>()?;
    let mut plots = plots::draw(folder)?;
    // The plot of the gaps combines the tables with the cached runs.
    if let Some(plot) = plots.iter_mut().find(|plot| plot.name == GAPS) {
        let mut colour = 4;
        for ((_, name), comparison) in KEPT.iter().zip(&comparisons) {
            let Some(name) = name else { continue };
            let points = comparison.gaps("data-parallel");
            if let Some(series) = plot.series.last_mut().filter(|series| series.name == *name) {
                series.points.extend(points);
                continue;
            }
            plot.series.push(Series { name: (*name).to_owned(), colour, mark: SeriesStyle::Dot, points });
            colour += 1;
        }
    }
    plots.extend(comparisons.iter().flat_map(Comparison::plots));
    Ok(SimulationReport {
        title: "Excess loss of decoupled learners over each baseline, from the cached runs".into(),
        unit: "%",
        cases: comparisons.iter().flat_map(Comparison::cases).collect(),
        points: Vec::new(),
        notes: vec!["The pages of the folder say what each plot shows, and what it does not show.".into()],
        plots,
    })
}

#[cfg(test)]
mod tests;
