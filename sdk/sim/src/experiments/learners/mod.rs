//! `simulate learners`: effect of the number of learners, and of each part of the method, on the loss.

mod course;
mod plan;

use archipelago_cli::{tokens, within};
use serde::Serialize;

use super::training::{LEARNERS_MAX, STEPS_MAX, TrainingArgs};
use super::{CommonArgs, Report};
use crate::experiments::SimulateError;

use plan::Plan;

/// One comparison.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Each number of learners with the same steps for each, compared with data-parallel training.
    Steps,
    /// Each number of learners with the same total tokens, compared with data-parallel training.
    Tokens,
    /// Radial-directional averaging compared with the plain mean, for M = 8 and 16.
    Merge,
    /// Codes of 4, 2 and 1 bits compared with 32, for M = 4.
    Codes,
    /// Without and with the grace window, for M = 8 equal learners.
    Grace,
    /// Fragments compared with the whole model at once, at equal time over thin links, for M = 4.
    Fragments,
}

/// Settings of `simulate learners`.
#[derive(clap::Args, Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct LearnersArgs {
    /// M, the numbers of learners
    #[arg(
        long,
        value_name = "COUNTS",
        value_delimiter = ',',
        default_values_t = [1, 2, 4, 8, 16]
    )]
    pub learners: Vec<u32>,
    /// Comparisons to make; by default all
    #[arg(long, value_name = "PARTS", value_enum, value_delimiter = ',')]
    pub parts: Vec<Part>,
    /// Steps of each learner, for comparisons at equal steps
    #[arg(long, value_name = "COUNT", default_value_t = 732)]
    pub steps: u64,
    /// Tokens of all learners together, for comparisons at equal tokens
    #[arg(long, value_name = "COUNT", default_value_t = 3_000_000, value_parser = tokens::<u64>)]
    pub tokens: u64,
    /// Thin link of each learner, each way (kbit/s)
    #[arg(long, value_name = "KBIT", default_value_t = 250)]
    pub link_kbit: u64,
    /// Largest random deviation of a step's time, as a share of it (0 to 1)
    #[arg(long, value_name = "SHARE", default_value_t = 0.02)]
    pub step_jitter: f64,
    /// Loss measurements during a run, in the parts steps and tokens; they do not change the runs
    #[arg(long, value_name = "COUNT", default_value_t = 12)]
    pub samples: u32,
    #[command(flatten)]
    #[serde(flatten)]
    pub training: TrainingArgs,
    #[command(flatten)]
    #[serde(flatten)]
    pub common: CommonArgs,
}

/// Trains, and compares the losses.
///
/// # Errors
/// - `Setting`, `Preset`: a setting is out of range.
/// - `Refused`: training failed.
/// - `Disk`: the text cannot be read.
pub fn run(args: &LearnersArgs, progress: &mut dyn FnMut(&str)) -> Result<Report, SimulateError> {
    within("steps", args.steps as f64, 1.0..=STEPS_MAX)?;
    within("link-kbit", args.link_kbit as f64, 1.0..=1e9)?;
    within("step-jitter", args.step_jitter, 0.0..=1.0)?;
    within("samples", args.samples.into(), 0.0..=1e3)?;
    for &learners in &args.learners {
        within("learners", learners.into(), 1.0..=LEARNERS_MAX)?;
    }
    let Plan { experiments, lines, courses, .. } = Plan::new(args)?;
    let found = args.training.run(args.common.seed, experiments, progress)?;
    let cases = lines.iter().map(|line| {
        let (ours, base) = (&found[&line.ours], &found[&line.base]);
        let (_, spread) = ours.above(base);
        let words = format!("± {spread:.2}; {}, beside {}", ours.words(), base.words());
        line.case(&found).noted(words)
    });
    Ok(Report {
        title: "Held-out loss above what stands beside it".into(),
        unit: "%",
        cases: cases.collect(),
        points: courses.iter().flat_map(|course| course.points(&found)).collect(),
        plots: course::plots(&courses, &found),
        notes: notes(args, courses.iter().filter_map(|course| course.words(&found)).collect()),
    })
}

/// Returns the notes below the table, including the measured courses.
fn notes(args: &LearnersArgs, courses: Vec<String>) -> Vec<String> {
    let mut notes = vec![
        format!(
            "The loss is that of Θ, in nats per byte; the mean of {} seeds and their deviation.",
            args.training.seeds
        ),
        "data-parallel: one trainer with the batches of all M, as many steps, the same text and schedule. Its inner \
         rate follows its tokens; that of decoupled learners those that are merged, which are some steps behind."
            .into(),
        "The paper's figures for codes are rises of its validation loss; all else it gives as text scores."
            .into(),
    ];
    if !courses.is_empty() {
        notes.push("On the way, what Θ does not hold yet is not counted; the last rounds collect it.".into());
    }
    notes.extend(courses);
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use archipelago_cli::defaults;

    pub(super) fn args(flags: &[&str]) -> LearnersArgs {
        defaults(flags)
    }

    /// One learner equals itself at full steps; each part finds its lines, and each run is executed once.
    #[test]
    fn every_part_has_its_lines() {
        let flags = "--learners 1,2 --steps 8 --tokens 2048 --batch 1 --seeds 1 --samples 2";
        let args = args(&flags.split(' ').collect::<Vec<&str>>());
        let mut lines = Vec::new();
        let report = run(&args, &mut |line| lines.push(line.to_owned())).unwrap();
        assert_eq!(report.cases.len(), 2 + 2 + 2 + 4 + 1 + 1);
        assert_eq!(report.plots.len(), 4);
        assert_eq!(report.points.len(), 4 * 2);
        assert!(report.points.iter().all(|point| point.ours.is_finite()), "{report:#?}");
        assert!(report.notes.iter().any(|note| note.contains("after 4 · 8 steps")), "{:#?}", report.notes);
        let mut names: Vec<&str> = lines.iter().filter_map(|line| line.split(": ").nth(1)).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "{lines:#?}");

        let without = LearnersArgs { samples: 0, parts: vec![Part::Steps], ..args };
        let without = run(&without, &mut |_| {}).unwrap();
        assert_eq!((without.points.len(), without.plots.len()), (0, 1));
        assert_eq!(without.cases, report.cases[..2], "looking changes nothing");
    }
}
