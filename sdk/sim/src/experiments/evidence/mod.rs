//! `simulate evidence`: plots of the evidence.
//!
//! Every plotted number comes from the folder: from a table in one of its pages, or from runs cached by `simulate gap`.
//! A plot can therefore not contradict its page, and a test checks that.

mod page;
mod picture;
mod pictures;

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::gap::Course;
use super::{Mark, OutputArgs, Report, Series, SimulateError};

/// Files of runs cached by `simulate gap`, in the folder. A file of the tables' text also has the name of its line in
/// their plot; adjacent entries with the same name share a line.
const KEPT: [(&str, Option<&str>); 5] = [
    ("gap/tinyshakespeare.jsonl", Some("by document, at best")),
    ("gap/tinyshakespeare-1.5m.jsonl", Some("so too, 1,466 steps")),
    ("gap/tinyshakespeare-3m.jsonl", Some("so too, 1,466 steps")),
    ("gap/tinyshakespeare-6m.jsonl", Some("so too, 1,466 steps")),
    ("gap/sources-6m.jsonl", None),
];

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
pub fn run(args: &EvidenceArgs) -> Result<Report, SimulateError> {
    let folder: &Path = &args.from;
    let courses = KEPT.iter().map(|(file, _)| Course::read(&folder.join(file)));
    let courses = courses.collect::<Result<Vec<_>, _>>()?;
    let drawn = pictures::all().into_iter().map(|picture| picture.draw(folder));
    let mut plots = drawn.collect::<Result<Vec<_>, _>>()?;
    // The plot of the gaps combines the tables with the cached runs.
    if let Some(plot) = plots.iter_mut().find(|plot| plot.name == pictures::GAPS) {
        let mut colour = 4;
        for ((_, name), course) in KEPT.iter().zip(&courses) {
            let Some(name) = name else { continue };
            let points = course.gaps("data-parallel");
            if let Some(series) = plot.series.last_mut().filter(|series| series.name == *name) {
                series.points.extend(points);
                continue;
            }
            plot.series.push(Series { name: (*name).to_owned(), colour, mark: Mark::Dot, points });
            colour += 1;
        }
    }
    plots.extend(courses.iter().flat_map(Course::plots));
    Ok(Report {
        title: "Loss of learners together above what stands beside it, of the runs that were kept".into(),
        unit: "%",
        cases: courses.iter().flat_map(Course::cases).collect(),
        points: Vec::new(),
        notes: vec!["The pages of the folder say what each plot shows, and what it does not show.".into()],
        plots,
    })
}

#[cfg(test)]
mod tests;
