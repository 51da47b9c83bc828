//! `simulate poison`: effect of hostile learners on the loss of the others, and their detection.

mod plan;
mod plots;

use archipelago_cli::{range, within};
use archipelago_core::diloco::syncer::SyncerConfig;
use archipelago_sim::lab::{Outcome, Part};
use serde::Serialize;

use super::findings::{Findings, mean};
use super::lines::Found;
use super::training::{LEARNERS_MAX, STEPS_MAX, TrainingArgs, size};
use super::{Case, CommonArgs, Report};
use crate::experiments::SimulateError;

use plan::{Arm, Attack, Cell, Plan};

/// Settings of `simulate poison`.
// The rate stays constant after its rise, since hostile tokens move the clock of its decay. Runs are small and use one
// seed, since there are many of them.
#[derive(clap::Args, Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
#[command(
    mut_arg("lr_min_ratio", |arg| arg.default_value("1")),
    mut_arg("seeds", |arg| arg.default_value("1")),
    mut_arg("context", |arg| arg.default_value("32")),
    mut_arg("batch", |arg| arg.default_value("4")),
    mut_arg("sync_every", |arg| arg.default_value("12")),
    mut_arg("fragments", |arg| arg.default_value("4"))
)]
pub struct PoisonArgs {
    /// Attacks of the hostile learners; by default all, one after the other
    #[arg(long, value_name = "ATTACKS", value_enum, value_delimiter = ',')]
    pub attacks: Vec<Attack>,
    /// Merge rules and defences
    #[arg(long, value_name = "ARMS", value_enum, value_delimiter = ',',
        default_values_t = [Arm::Mean, Arm::Rda, Arm::Bounds, Arm::Ours])]
    pub arms: Vec<Arm>,
    /// M, learners, honest and hostile together
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    pub learners: u32,
    /// Share of hostile learners among them, in percent (1 to 90)
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_values_t = [10, 20, 30, 40])]
    pub hostile: Vec<u32>,
    /// Steps of each learner if all are honest; fewer honest learners take more steps each
    #[arg(long, value_name = "COUNT", default_value_t = 300)]
    pub steps: u64,
    /// Width of the model (a multiple of 8), in place of that of --preset
    #[arg(long, value_name = "COUNT", default_value_t = 32)]
    pub width: u32,
    /// Cap on an update's length on each segment, as a multiple of the usual length, where bounds apply; 0 for no bound
    #[arg(long, value_name = "RATIO", default_value_t = SyncerConfig::default().norm_ratio_max)]
    pub norm_ratio_max: f64,
    /// Largest random deviation of a step's time, as a share of it (0 to 1)
    #[arg(long, value_name = "SHARE", default_value_t = 0.02)]
    pub step_jitter: f64,
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
pub fn run(args: &PoisonArgs, progress: &mut dyn FnMut(&str)) -> Result<Report, SimulateError> {
    check(args)?;
    let Plan { experiments, cells, .. } = Plan::new(args)?;
    let found = args.training.run(args.common.seed, experiments, progress)?;
    let nobody = found.get(&plan::clean(Arm::Ours, args.learners));
    let spread = nobody.map(cosines).unwrap_or_default();
    let mut notes = vec![format!(
        "Percent of held-out loss above that of the same honest learners alone, merged in the same way, after equal \
         tokens of honest learners; the mean of {} seeds.",
        args.training.seeds
    )];
    notes.extend(spread.iter().map(|(part, figures)| {
        let [p5, p50, p95] = figures;
        format!(
            "Cosines between updates of one merge, all honest, {}: {p5:.3} · {p50:.3} · {p95:.3} (5, 50, 95 %).",
            part.name()
        )
    }));
    let mut points: Vec<Case> = cells.iter().flat_map(|cell| points(cell, &found)).collect();
    points.extend(spread.iter().flat_map(|(part, figures)| {
        let case = move |(name, figure): (&str, &f64)| {
            Case::new(format!("cosine, {}, {name}", part.name()), *figure, None)
        };
        ["p5", "p50", "p95"].into_iter().zip(figures).map(case).collect::<Vec<Case>>()
    }));
    Ok(Report {
        title: format!("Held-out loss of {} learners, some of them hostile", args.learners),
        unit: "%",
        cases: cells.iter().map(|cell| case(cell, &found)).collect(),
        points,
        plots: plots::plots(&cells, &found),
        notes,
    })
}

fn check(args: &PoisonArgs) -> Result<(), SimulateError> {
    within("steps", args.steps as f64, 1.0..=STEPS_MAX)?;
    within("learners", args.learners.into(), 2.0..=LEARNERS_MAX / 2.0)?;
    for &percent in &args.hostile {
        let count = plan::hostile(args.learners, percent);
        let holds = (1..=90).contains(&percent) && (1..args.learners).contains(&count);
        range("hostile", percent.into(), holds, "1 to 90 percent that are at least one learner and not all")?;
    }
    size("width", args.width)?;
    within("norm-ratio-max", args.norm_ratio_max, 0.0..=1e3)?;
    Ok(within("step-jitter", args.step_jitter, 0.0..=1.0)?)
}

impl Cell {
    /// Returns the excess of the loss over that of honest learners alone, in percent.
    fn gap(&self, found: &Found) -> f64 {
        found[&self.ours].above(&found[&self.base]).0
    }

    fn case(&self) -> String {
        let what = self.attack.map_or("nobody hostile, above ours".into(), Attack::name);
        format!("{what}, {} %, {}", self.percent, self.arm.name())
    }
}

/// Returns a row: the gap of each seed, both losses, the time of detection, the hostile share of merges, and the cost
/// for honest learners.
fn case(cell: &Cell, found: &Found) -> Case {
    let (ours, base) = (&found[&cell.ours], &found[&cell.base]);
    let gaps: Vec<String> = ours.gaps(base).iter().map(|gap| format!("{gap:+.2}")).collect();
    let noticed = ours.0.iter().map(|outcome| match outcome.noticed.after_rounds {
        Some(rounds) => rounds.to_string(),
        None => "never".into(),
    });
    let broken = ours.0.iter().filter_map(|outcome| outcome.broken.as_ref());
    let broken: String = broken.map(|why| format!("; broke off: {why}")).collect();
    let mut note = format!(
        "({}); {:.4} beside {:.4}; honest refused {:.2} %, closed {}, suspected {}",
        gaps.join(" · "),
        ours.loss(),
        base.loss(),
        refused_share(ours),
        sum(ours, |outcome| outcome.noticed.honest.closed),
        sum(ours, |outcome| outcome.noticed.honest.suspected),
    );
    if cell.attack.is_some() {
        let noticed: Vec<String> = noticed.collect();
        note.push_str(&format!(
            "; noticed after rounds: {}; hostile in merges {:.1} %, refused {}, closed {}, \
             suspected {}{broken}",
            noticed.join(" · "),
            hostile_share(ours),
            sum(ours, |outcome| outcome.noticed.hostile.refused),
            sum(ours, |outcome| outcome.noticed.hostile.closed),
            sum(ours, |outcome| outcome.noticed.hostile.suspected),
        ));
    }
    Case::new(cell.case(), cell.gap(found), None).noted(note)
}

/// Returns further figures of a cell: rounds until the first detection, if all seeds have one; refused updates of
/// honest learners; and the hostile share of merges, in percent.
fn points(cell: &Cell, found: &Found) -> Vec<Case> {
    let ours = &found[&cell.ours];
    let of = |what: &str, figure: f64| Case::new(format!("{}, {what}", cell.case()), figure, None);
    let mut points = vec![of("honest refused", refused_share(ours))];
    if cell.attack.is_none() {
        points.push(of("loss", ours.loss()));
        return points;
    }
    points.push(of("hostile in merges", hostile_share(ours)));
    points.push(of("broken off", ours.0.iter().filter(|outcome| outcome.broken.is_some()).count() as f64));
    let rounds: Option<Vec<u64>> = ours.0.iter().map(|outcome| outcome.noticed.after_rounds).collect();
    points.extend(
        rounds.map(|rounds| of("noticed after rounds", mean(rounds.iter().map(|&rounds| rounds as f64)))),
    );
    points
}

/// Returns the refused share of honest learners' settled updates (refused or merged), in percent.
fn refused_share(findings: &Findings) -> f64 {
    let refused = sum(findings, |outcome| outcome.noticed.honest.refused);
    let merged = sum(findings, |outcome| outcome.noticed.honest.merged);
    100.0 * refused as f64 / (refused + merged).max(1) as f64
}

fn hostile_share(findings: &Findings) -> f64 {
    100.0 * mean(findings.0.iter().map(|outcome| outcome.noticed.hostile_share()))
}

fn sum(findings: &Findings, of: fn(&Outcome) -> u64) -> u64 {
    findings.0.iter().map(of).sum()
}

/// Returns the distribution of cosines between honest updates, as a mean over seeds: the 5th, 50th and 95th percentile.
fn cosines(findings: &Findings) -> Vec<(Part, [f64; 3])> {
    let of = |part: Part| {
        let found = findings.0.iter().flat_map(|outcome| &outcome.cosines);
        let found: Vec<[f32; 3]> =
            found.filter(|cosines| cosines.part == part).map(|c| [c.p5, c.p50, c.p95]).collect();
        let at = |i: usize| mean(found.iter().map(|figures| figures[i].into()));
        (!found.is_empty()).then(|| (part, [at(0), at(1), at(2)]))
    };
    Part::ALL.into_iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests;
