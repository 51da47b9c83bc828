//! `simulate scavenging`: the value of temporary learners, the paper's table of scavenged compute.
//!
//! Four learners train from the beginning; others join when half of the tokens are processed, and stay. Figures are
//! wall times to the same number of tokens, relative to the four alone.

use archipelago_cli::within;
use archipelago_sim::world::{MachineSpec, World};
use serde::Serialize;

use super::trial::{TrialError, merged_at_ms};
use super::{Axis, Case, CommonArgs, Plot, Scale, Series, SeriesStyle, SimulationReport};
use crate::SimulateError;

/// Tokens in a step of a toy.
const STEP_TOKENS: u64 = 32;

/// The paper's columns: number of extra learners in addition to four, and wall times of lockstep and of decoupled
/// training, relative to those without extra learners.
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
pub fn run(args: &ScavengingArgs, progress: &mut dyn FnMut(&str)) -> Result<SimulationReport, SimulateError> {
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
    let walls = scavenging.relative_wall(args.common.seed, &args.extra)?;
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
    Ok(SimulationReport {
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
        series.push(Series { name: (*way).into(), colour, mark: SeriesStyle::Line, points: ours });
        let papers = points(|case| case.paper);
        series.push(Series {
            name: format!("{way}, paper"),
            colour,
            mark: SeriesStyle::Hollow,
            points: papers,
        });
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

/// Decoupled training, measured on the real cores in virtual time.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Scavenging {
    /// Learners from the beginning, 1 to 64.
    learners: u32,
    /// Steps of each of them without extra learners, 20 to 100,000.
    steps: u32,
    /// Time of a step, in milliseconds, 10 to 60,000.
    step_ms: u64,
}

impl Default for Scavenging {
    fn default() -> Self {
        Self { learners: 4, steps: 1_800, step_ms: 1_000 }
    }
}

impl Scavenging {
    /// Returns the wall times with each number of `extra` learners, relative to the time without any.
    ///
    /// # Errors
    /// Each variant of [`TrialError`] except `Syncer`.
    fn relative_wall(&self, seed: u64, extra: &[u32]) -> Result<Vec<f64>, TrialError> {
        let tokens = u64::from(self.learners) * u64::from(self.steps) * STEP_TOKENS;
        let ms_max = 4 * u64::from(self.steps) * self.step_ms;
        let mut alone = self.world(seed, 0, 0);
        let half_ms = merged_at_ms(&mut alone, tokens / 2, self.step_ms, ms_max)?;
        let alone_ms = merged_at_ms(&mut alone, tokens, self.step_ms, ms_max)?;
        let wall = |&extra: &u32| {
            let mut world = self.world(seed, extra, half_ms);
            let ms = merged_at_ms(&mut world, tokens, self.step_ms, ms_max)?;
            Ok(ms as f64 / alone_ms as f64)
        };
        extra.iter().map(wall).collect()
    }

    fn world(&self, seed: u64, extra: u32, starts_ms: u64) -> World {
        let machine = MachineSpec { step_ms: self.step_ms, ..MachineSpec::default() };
        let mut machines = vec![machine; self.learners as usize];
        machines.extend(vec![MachineSpec { starts_ms, ..machine }; extra as usize]);
        World::of_toys(seed, machines)
    }
}

/// Data-parallel training with temporary learners: a formula with our own constants.
///
/// The state of the optimiser is spread over all learners. Each change of membership stops all of them while 1/M of the
/// state goes over one link, since all links work at once. Temporary learners change often.
#[derive(Clone, Copy, Debug, PartialEq)]
struct LockStep {
    /// Learners from the beginning, above 0.
    learners: f64,
    /// Bytes of parameters and moments together. 60 GB, our own choice: 5 billion parameters of 12 bytes.
    state_bytes: f64,
    /// Rate of each learner's link, in bit/s. 10⁹, our own choice.
    link_bits_per_s: f64,
    /// Mean time between two changes of one temporary learner, in seconds. 230, our own choice.
    change_every_s: f64,
}

impl Default for LockStep {
    fn default() -> Self {
        Self { learners: 4.0, state_bytes: 60e9, link_bits_per_s: 1e9, change_every_s: 230.0 }
    }
}

impl LockStep {
    /// Returns the wall time with `extra` learners for half of the tokens, relative to the time without any.
    ///
    /// With x = extra/M, and L the seconds that the whole state takes over one link: ½ + ½/(1+x) · (1 + extra ·
    /// L/((1+x)·M) / change_every).
    #[must_use]
    fn relative_wall(&self, extra: f64) -> f64 {
        let all = self.learners + extra;
        let load_s = 8.0 * self.state_bytes / self.link_bits_per_s / all;
        let stopped = extra * load_s / self.change_every_s;
        0.5 + 0.5 * self.learners / all * (1.0 + stopped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Exit;
    use archipelago_cli::defaults;

    const EXTRA: [u32; 4] = [1, 2, 4, 12];

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

    #[test]
    fn decoupled_learners_use_all_that_comes() {
        let scavenging = Scavenging { steps: 1_200, ..Scavenging::default() };
        let walls = scavenging.relative_wall(1, &EXTRA).unwrap();
        for (ours, paper) in walls.iter().zip([0.90, 0.83, 0.75, 0.62]) {
            assert!((ours / paper - 1.0).abs() < 0.03, "{walls:?}");
        }
        assert_eq!(scavenging.relative_wall(1, &[0]).unwrap(), [1.0]);
    }

    #[test]
    fn lock_step_pays_for_it() {
        let model = LockStep::default();
        assert_eq!(model.relative_wall(0.0), 1.0);
        for (extra, paper) in EXTRA.into_iter().zip([1.07, 1.09, 1.02, 0.80]) {
            let ours = model.relative_wall(extra.into());
            assert!((ours / paper - 1.0).abs() < 0.03, "{extra}: {ours} beside {paper}");
        }
        let free = LockStep { link_bits_per_s: f64::INFINITY, ..model };
        assert_eq!(
            free.relative_wall(4.0),
            0.75,
            "without changes half of the tokens take half of their time"
        );
    }
}
