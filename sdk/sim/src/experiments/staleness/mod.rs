//! `simulate staleness`: effect of old, long and differently sized updates on the loss, and of joiners' initial state.

mod plan;

use archipelago_cli::within;
use serde::Serialize;

use super::lines::{Found, Line};
use super::training::{STEPS_MAX, TrainingArgs, size};
use super::{Case, CommonArgs, Report};
use crate::experiments::SimulateError;

use plan::{CROWD, LEARNERS, ODD, Plan};

/// One comparison, each of eight learners.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// One learner is far away, with and without rules for old updates, compared with eight that are near.
    Far,
    /// One learner's link is cut while it trains on, with and without rules for long updates, compared with eight that
    /// are near.
    Away,
    /// Four learners join in the middle of the run: other rates or moments, compared with moments of zero.
    Joining,
    /// Learners of several batch sizes, and of each size alone, compared with those of the middle size.
    Batches,
    /// A round asks a sample of 32 learners, compared with rounds that ask all of them.
    Sampled,
}

/// Settings of `simulate staleness`.
#[derive(clap::Args, Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
#[command(mut_arg("context", |arg| arg.default_value("32")))]
pub struct StalenessArgs {
    /// Comparisons to make; by default all
    #[arg(long, value_name = "PARTS", value_enum, value_delimiter = ',')]
    pub parts: Vec<Part>,
    /// Steps of each learner; more if one is away for long
    #[arg(long, value_name = "COUNT", default_value_t = 600)]
    pub steps: u64,
    /// Round trips of the far learner, in grace windows
    #[arg(long, value_name = "WINDOWS", value_delimiter = ',', default_values_t = [0.5, 1.0, 2.0, 4.0, 16.0])]
    pub round_trips: Vec<f64>,
    /// Steps for which a learner is away
    #[arg(long, value_name = "STEPS", value_delimiter = ',', default_values_t = [24, 240, 1_000, 3_000])]
    pub away: Vec<u64>,
    /// Steps until its link is cut
    #[arg(long, value_name = "COUNT", default_value_t = 120)]
    pub away_from: u64,
    /// Smallest number of steps from its return to the end
    #[arg(long, value_name = "COUNT", default_value_t = 240)]
    pub rest: u64,
    /// Rule for long updates: steps beyond this many times H have no weight
    #[arg(long, value_name = "TURNS", default_value_t = 2.0)]
    pub turns_max: f64,
    /// Rule for old updates: the weight of an update halves with this many newer versions
    #[arg(long, value_name = "VERSIONS", default_value_t = 4.0)]
    pub half_life_turns: f64,
    /// Steps over which a joiner's learning rate rises
    #[arg(long, value_name = "COUNT", default_value_t = 96)]
    pub ramp_steps: u32,
    /// Batch sizes of the learners, in ascending order; a step of --batch windows takes --step-ms, others in proportion
    #[arg(long, value_name = "WINDOWS", value_delimiter = ',', default_values_t = [1, 8, 32])]
    pub batches: Vec<u32>,
    /// Sizes of the sample that a round asks
    #[arg(long, value_name = "COUNT", value_delimiter = ',', default_values_t = [16, 8, 4, 2])]
    pub cohorts: Vec<u32>,
    /// Width of the model (a multiple of 8), in place of that of --preset
    #[arg(long, value_name = "COUNT", default_value_t = 32)]
    pub width: u32,
    /// Largest random deviation of a step's time, as a share of it (0 to 1)
    #[arg(long, value_name = "SHARE", default_value_t = 0.02)]
    pub step_jitter: f64,
    /// Loss measurements during a run, in the part joining; they do not change the runs
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
pub fn run(args: &StalenessArgs, progress: &mut dyn FnMut(&str)) -> Result<Report, SimulateError> {
    check(args)?;
    let Plan { experiments, lines, grace_ms, .. } = Plan::new(args)?;
    let found = args.training.run(args.common.seed, experiments, progress)?;
    let near = lines.iter().filter_map(|line| found[&line.base].0.first()).map(|outcome| outcome.grace_ms);
    Ok(Report {
        title: format!("Held-out loss of {LEARNERS} learners above what stands beside it"),
        unit: "%",
        cases: lines.iter().map(|line| case(line, &found)).collect(),
        points: lines.iter().flat_map(|line| points(line, &found)).collect(),
        plots: vec![],
        notes: vec![
            format!(
                "The loss is that of Θ, in nats per byte, after equal tokens in all; the mean of {} seeds and its \
                 standard error.",
                args.training.seeds
            ),
            format!(
                "A grace window is γ · τ launches long, {grace_ms} ms; what is left of it beside near learners at the \
                 end of the first run was {} ms.",
                near.max().unwrap_or(0)
            ),
        ],
    })
}

fn check(args: &StalenessArgs) -> Result<(), SimulateError> {
    within("steps", args.steps as f64, 1.0..=STEPS_MAX)?;
    for (flag, steps) in [("away-from", args.away_from), ("rest", args.rest)] {
        within(flag, steps as f64, 1.0..=STEPS_MAX)?;
    }
    for &steps in &args.away {
        within("away", steps as f64, 1.0..=STEPS_MAX)?;
    }
    for &windows in &args.round_trips {
        within("round-trips", windows, 0.0..=1e3)?;
    }
    for (flag, turns) in [("turns-max", args.turns_max), ("half-life-turns", args.half_life_turns)] {
        within(flag, turns, 1e-3..=1e6)?;
    }
    within("ramp-steps", args.ramp_steps.into(), 1.0..=STEPS_MAX)?;
    for &cohort in &args.cohorts {
        within("cohorts", cohort.into(), 1.0..=CROWD.into())?;
    }
    for &batch in &args.batches {
        within("batches", batch.into(), 1.0..=512.0)?;
    }
    size("width", args.width)?;
    within("step-jitter", args.step_jitter, 0.0..=1.0)?;
    Ok(within("samples", args.samples.into(), 0.0..=1e3)?)
}

/// Returns a row: the gap, its standard error, the gap of each seed, both losses, the odd learner's share of merged
/// tokens, and the refused updates of all seeds.
fn case(line: &Line, found: &Found) -> Case {
    let (ours, base) = (&found[&line.ours], &found[&line.base]);
    let error = ours.above(base).1 / (ours.0.len() as f64).sqrt();
    let gaps: Vec<String> = ours.gaps(base).iter().map(|gap| format!("{gap:+.2}")).collect();
    line.case(found).noted(format!(
        "± {error:.2} ({}); {:.4} beside {:.4}; share {:.1} %, {} refused",
        gaps.join(" · "),
        ours.loss(),
        base.loss(),
        100.0 * ours.share(ODD),
        ours.0.iter().map(|outcome| outcome.refused).sum::<u64>(),
    ))
}

/// Returns the odd learner's share of merged tokens in percent, and the gaps on the way, if measured.
fn points(line: &Line, found: &Found) -> Vec<Case> {
    let (ours, base) = (&found[&line.ours], &found[&line.base]);
    let mut points = vec![Case::new(format!("{}, share", line.case), 100.0 * ours.share(ODD), None)];
    let on_the_way = ours.course().into_iter().zip(ours.course_above(base));
    points.extend(
        on_the_way.map(|((tokens, _), gap)| {
            Case::new(format!("{} after {tokens:.0} tokens", line.case), gap, None)
        }),
    );
    points
}

#[cfg(test)]
mod tests {
    use super::*;
    use archipelago_cli::defaults;

    fn report(flags: &str) -> Report {
        let small = "--steps 64 --width 8 --context 8 --batch 1 --sync-every 4 --fragments 2 --seeds 1 --samples 3 \
                     --away-from 12 --rest 24 --away 24 --round-trips 3 --ramp-steps 12 --batches 1,2,4 --cohorts 4";
        let flags: Vec<&str> = small.split_whitespace().chain(flags.split_whitespace()).collect();
        run(&defaults(&flags), &mut |_| {}).unwrap()
    }

    /// Each part finds its lines, and each rule affects the loss.
    #[test]
    fn every_part_has_its_lines() {
        let report = report("");
        let count = |part: &str| report.cases.iter().filter(|case| case.case.starts_with(part)).count();
        let counts = ["far", "away", "joining", "batches", "sampled"].map(count);
        assert_eq!((counts, report.cases.len()), ([3, 4, 2, 4, 1], 14), "{report:#?}");
        for case in &report.cases {
            assert!(case.ours.is_finite() && case.ours != 0.0, "{case:#?}");
            let same = report.cases.iter().filter(|other| other.ours == case.ours).count();
            assert_eq!(same, 1, "{case:#?} of {report:#?}");
        }
        let on_the_way = report.points.iter().filter(|point| point.case.contains(" after ")).count();
        assert_eq!((report.points.len(), on_the_way), (14 + 2 * 3, 2 * 3), "{:#?}", report.points);
    }

    /// A learner that was away delivers its progress, and the progress is counted once.
    #[test]
    fn who_is_away_keeps_its_share() {
        let report = report("--parts away");
        for share in &report.points {
            assert!((10.0..14.0).contains(&share.ours), "{report:#?}");
        }
    }
}
