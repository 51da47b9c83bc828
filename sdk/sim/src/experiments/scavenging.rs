//! `simulate scavenging`: the value of temporary learners.

use archipelago_cli::within;
use archipelago_sim::paper::TrialError;
use archipelago_sim::paper::scavenging::{LockStep, Scavenging};
use serde::Serialize;

use super::{Axis, Case, CommonArgs, Mark, Plot, Report, Scale, Series};
use crate::experiments::SimulateError;

/// Extra learners of the paper's columns, in addition to its four; wall times of lockstep and of decoupled training,
/// relative to those without extra learners.
const PAPER: [(u32, f64, f64); 5] =
    [(0, 1.0, 1.0), (1, 1.07, 0.90), (2, 1.09, 0.83), (4, 1.02, 0.75), (12, 0.80, 0.62)];

/// Settings of `simulate scavenging`.
#[derive(clap::Args, Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ScavengingArgs {
    /// Learners that are present from the beginning
    #[arg(long, value_name = "COUNT", default_value_t = Scavenging::default().learners)]
    pub learners: u32,
    /// Learners that join when half of the tokens are processed; several values make several cases
    #[arg(long, value_name = "COUNT", value_delimiter = ',', default_values_t = PAPER.map(|row| row.0))]
    pub extra: Vec<u32>,
    /// Steps that each of the first learners takes if no others join
    #[arg(long, value_name = "COUNT", default_value_t = Scavenging::default().steps)]
    pub steps: u32,
    /// Time of a step (milliseconds)
    #[arg(long, value_name = "MS", default_value_t = Scavenging::default().step_ms)]
    pub step_ms: u64,
    /// Data-parallel: parameters and moments together (gigabytes); our own constant
    #[arg(long, value_name = "GB", default_value_t = LockStep::default().state_bytes / 1e9)]
    pub state_gb: f64,
    /// Data-parallel: rate of each learner's link (Gbit/s); our own constant
    #[arg(long, value_name = "GBIT/S", default_value_t = LockStep::default().link_bits_per_s / 1e9)]
    pub link_gbit_s: f64,
    /// Data-parallel: mean time between two changes of one temporary learner (seconds); our own constant
    #[arg(long, value_name = "SECONDS", default_value_t = LockStep::default().change_every_s)]
    pub change_every_s: f64,
    #[command(flatten)]
    #[serde(flatten)]
    pub common: CommonArgs,
}

/// Measures decoupled training on the real cores, and computes lockstep training.
///
/// # Errors
/// - `Setting`: a setting is out of range.
/// - `Broken`: the simulated run broke an invariant.
pub fn run(args: &ScavengingArgs, progress: &mut dyn FnMut(&str)) -> Result<Report, SimulateError> {
    within("learners", args.learners.into(), 1.0..=64.0)?;
    for &extra in &args.extra {
        within("extra", extra.into(), 0.0..=64.0)?;
    }
    within("steps", args.steps.into(), 20.0..=1e5)?;
    within("step-ms", args.step_ms as f64, 10.0..=60_000.0)?;
    within("state-gb", args.state_gb, 0.0..=1e6)?;
    within("link-gbit-s", args.link_gbit_s, 1e-6..=1e6)?;
    within("change-every-s", args.change_every_s, 1e-3..=1e9)?;
    progress(&format!("{} runs of the real cores in virtual time", args.extra.len() + 1));
    let scavenging = Scavenging { learners: args.learners, steps: args.steps, step_ms: args.step_ms };
    let walls = scavenging.relative_wall(args.common.seed, &args.extra).map_err(trial)?;
    let lock_step = LockStep {
        learners: args.learners.into(),
        state_bytes: args.state_gb * 1e9,
        link_bits_per_s: args.link_gbit_s * 1e9,
        change_every_s: args.change_every_s,
    };
    let published = |extra: u32| PAPER.into_iter().find(|row| args.learners == 4 && row.0 == extra);
    let mut cases = Vec::new();
    for (&extra, wall) in args.extra.iter().zip(&walls) {
        let case = Case::new(format!("decoupled, {extra} extra"), *wall, published(extra).map(|row| row.2));
        cases.push(case.noted("measured on the real cores"));
    }
    for &extra in &args.extra {
        let wall = lock_step.relative_wall(extra.into());
        let case =
            Case::new(format!("data-parallel, {extra} extra"), wall, published(extra).map(|row| row.1));
        cases.push(case.noted("a formula with constants of ours"));
    }
    Ok(Report {
        title: format!("Wall time when others join {} learners for half of the tokens", args.learners),
        unit: "of the time without",
        plots: vec![plot(args, &cases)],
        points: vec![],
        cases,
        notes: vec![
            "data-parallel: each change of who takes part stops all while 1/M of the state goes over a link."
                .into(),
        ],
    })
}

/// Converts the error of a trial: either the settings are at fault, or the program.
pub(super) fn trial(error: TrialError) -> SimulateError {
    match error {
        TrialError::Range { .. } | TrialError::Unfinished { .. } | TrialError::Syncer(_) => {
            SimulateError::refused(error)
        }
        TrialError::Broken(_) => SimulateError::Broken { what: error.to_string() },
    }
}

fn plot(args: &ScavengingArgs, cases: &[Case]) -> Plot {
    let axis = |label: &str, scale| Axis { label: label.into(), scale };
    let mut series = Vec::new();
    let ways = ["decoupled", "data-parallel"];
    for (colour, (way, cases)) in (0..).zip(ways.iter().zip(cases.chunks(args.extra.len().max(1)))) {
        let points = |of: fn(&Case) -> Option<f64>| {
            let points = (0..).zip(cases).filter_map(|(i, case)| Some((f64::from(i), of(case)?)));
            points.collect::<Vec<(f64, f64)>>()
        };
        let ours = points(|case| Some(case.ours));
        series.push(Series { name: (*way).into(), colour, mark: Mark::Line, points: ours });
        let papers = points(|case| case.paper);
        series.push(Series { name: format!("{way}, paper"), colour, mark: Mark::Hollow, points: papers });
    }
    let names = args.extra.iter().map(|extra| format!("+{extra}")).collect();
    Plot {
        name: "scavenging".into(),
        title: "Wall time with temporary learners".into(),
        x: axis("learners that join", Scale::Names(names)),
        y: axis("of the time without", Scale::Linear),
        series,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::Exit;
    use archipelago_cli::defaults;

    #[test]
    fn each_published_column_has_its_neighbour() {
        let parse = |flags: &[&str]| defaults::<ScavengingArgs>(&[&["--steps", "60"], flags].concat());
        let report = run(&parse(&[]), &mut |_| ()).unwrap();
        assert_eq!(report.cases.len(), 10);
        assert!(report.cases.iter().all(|case| case.paper.is_some()), "{report:#?}");
        let other = run(&parse(&["--learners", "2", "--extra", "1"]), &mut |_| ()).unwrap();
        assert!(other.cases.iter().all(|case| case.paper.is_none()), "{other:#?}");
        assert_eq!(run(&parse(&["--link-gbit-s", "0"]), &mut |_| ()).unwrap_err().exit(), Exit::Settings);
        assert_eq!(run(&parse(&["--extra", "1000"]), &mut |_| ()).unwrap_err().exit(), Exit::Settings);
    }
}
