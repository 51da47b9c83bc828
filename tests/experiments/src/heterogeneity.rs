//! `simulate heterogeneity`: learners of different speed, with and without quorum and grace.

use std::num::NonZeroU32;

use crate::lab::Budget;
use archipelago_cli::within;
use archipelago_sim::world::{MachineSpec, Rng};
use serde::Serialize;

use super::statistics::mean;
use super::training::{Experiment, Findings, Found, LEARNERS_MAX, STEPS_MAX, TrainingArgs};
use super::{Axis, Case, CommonArgs, Plot, Scale, Series, SeriesStyle, SimulationReport};
use crate::SimulateError;

/// Goodput in table 5 of the paper in percent, by setting.
const PAPER_GOODPUT: [f64; 3] = [84.0, 100.0, 100.0];

/// Maximum of `--variation`, 1/√3: above it, the shortest of uniformly drawn steps would have a negative duration.
const VARIATION_MAX: f64 = 0.577;

/// Settings of `simulate heterogeneity`.
#[derive(clap::Args, Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct HeterogeneityArgs {
    /// M, learners; the second half of them are slow
    #[arg(long, value_name = "COUNT", default_value_t = 8)]
    pub learners: u32,
    /// Factor by which a slow learner's step takes longer
    #[arg(long, value_name = "SHARE", default_value_t = 0.18)]
    pub speed_gap: f64,
    /// Standard deviation of the time of each step, drawn from a uniform distribution (0 to 0.577)
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    pub variation: f64,
    /// Mean steps per learner
    #[arg(long, value_name = "COUNT", default_value_t = 750)]
    pub steps: u64,
    #[command(flatten)]
    #[serde(flatten)]
    pub training: TrainingArgs,
    #[command(flatten)]
    #[serde(flatten)]
    pub common: CommonArgs,
}

/// Trains, and measures the share of the learners' time spent on training.
///
/// # Errors
/// - `Setting`, `Preset`: a setting is out of range.
/// - `Refused`: training failed.
/// - `Disk`: the text cannot be read.
pub fn run(
    args: &HeterogeneityArgs,
    progress: &mut dyn FnMut(&str),
) -> Result<SimulationReport, SimulateError> {
    within("learners", args.learners.into(), 2.0..=LEARNERS_MAX)?;
    within("speed-gap", args.speed_gap, 0.0..=10.0)?;
    within("variation", args.variation, 0.0..=VARIATION_MAX)?;
    within("steps", args.steps as f64, 1.0..=STEPS_MAX)?;
    let machines = machines(args)?;
    let barrier = Barrier::new(args, &machines);
    let budget = TimeAndTokens::new(args, &machines)?;
    let m = args.learners;
    let gamma = args.training.recipe(1, 1)?.syncer.quorum.grace_ratio;
    let settings = [("K = M, a barrier", m, gamma), ("K = 1", 1, 0.0), ("K = 1 + grace", 1, gamma)];
    let experiments = experiments(args, &settings, &machines, &barrier, &budget)?;
    let found = args.training.run(args.common.seed, experiments, progress)?;
    let of = |name: &str, what: &str| &found[&format!("{name}, {what}")];
    let published = (args.learners, args.speed_gap, args.variation) == (8, 0.18, 0.1);
    let mut cases = Vec::new();
    for ((name, quorum, _), paper) in settings.into_iter().zip(PAPER_GOODPUT) {
        let goodput =
            if quorum == m { barrier.goodput } else { budget.busy(of(name, "equal time"), &machines) };
        cases.push(Case::new(format!("goodput, {name}"), 100.0 * goodput, Some(paper).filter(|_| published)));
    }
    for what in ["equal time", "equal tokens"] {
        for (name, ..) in settings {
            let ours = of(name, what);
            let (above, spread) = ours.above(&found["data-parallel"]);
            let note = format!("± {spread:.1}; loss {}", ours.words());
            let case = format!("loss above data-parallel, {name}, {what}");
            cases.push(Case::new(case, above, None).noted(note));
        }
    }
    Ok(SimulationReport {
        title: format!("{m} learners, half of them {:.0} % slower", 100.0 * args.speed_gap),
        unit: "%",
        plots: vec![plot(&settings.map(|(name, ..)| name), &found)],
        points: vec![],
        cases,
        notes: vec![
            format!(
                "K = M is lock-step training: each step takes as long as its slowest learner, {} ms in the mean.",
                barrier.step_ms
            ),
            format!(
                "data-parallel: one trainer with the batches of all, on the tokens of equal tokens: {}.",
                found["data-parallel"].words()
            ),
            "The paper gives text scores, not losses: 54.4 for K = M, 51.4 for K = 1, 55.3 for K = 1 + grace.".into(),
            format!(
                "The loss is that of Θ on held-out text, in nats per byte; the mean of {} seeds and their deviation.",
                args.training.seeds
            ),
        ],
    })
}

/// Returns the machines. The step time is uniformly distributed, with the standard deviation of `--variation`.
fn machines(args: &HeterogeneityArgs) -> Result<Vec<MachineSpec>, SimulateError> {
    let machine = args.training.recipe(1, 1)?.machines[0];
    let slow_ms = (machine.step_ms as f64 * (1.0 + args.speed_gap)).round() as u64;
    let jitter = args.variation * 3_f64.sqrt();
    let slow = |i| i >= args.learners / 2;
    let machine =
        |i| MachineSpec { step_ms: if slow(i) { slow_ms } else { machine.step_ms }, jitter, ..machine };
    Ok((0..args.learners).map(machine).collect())
}

/// Lockstep training on the same machines.
struct Barrier {
    /// Share of the learners' time without waiting.
    goodput: f64,
    /// Mean time of a step, in milliseconds.
    step_ms: u64,
}

impl Barrier {
    /// Draws the step times of a whole run, as the simulator does.
    fn new(args: &HeterogeneityArgs, machines: &[MachineSpec]) -> Self {
        let mut rngs: Vec<Rng> =
            (0..).map(|i| Rng::stream(args.common.seed, i)).take(machines.len()).collect();
        let (mut busy, mut wall) = (0.0, 0.0);
        for _ in 0..args.steps.max(1_000) {
            let mut slowest: f64 = 0.0;
            for (machine, rng) in machines.iter().zip(&mut rngs) {
                let step_ms = machine.step_ms as f64 * (1.0 + machine.jitter * (2.0 * rng.unit() - 1.0));
                busy += step_ms / machines.len() as f64;
                slowest = slowest.max(step_ms);
            }
            wall += slowest;
        }
        let steps = args.steps.max(1_000) as f64;
        Self { goodput: busy / wall, step_ms: (wall / steps).round() as u64 }
    }
}

/// Budget of an experiment, in time and in tokens.
struct TimeAndTokens {
    /// Time, in milliseconds.
    ms: u64,
    /// Tokens that the learners train in that time without any waiting.
    tokens: u64,
    step_tokens: u64,
}

impl TimeAndTokens {
    fn new(args: &HeterogeneityArgs, machines: &[MachineSpec]) -> Result<Self, SimulateError> {
        let step_tokens = args.training.step_tokens()?;
        let step_ms = mean(machines.iter().map(|machine| machine.step_ms as f64));
        let ms = (args.steps as f64 * step_ms) as u64;
        let tokens = machines.iter().map(|machine| ms / machine.step_ms * step_tokens).sum();
        Ok(Self { ms, tokens, step_tokens })
    }

    /// Returns the share of the learners' time spent on steps.
    fn busy(&self, found: &Findings, machines: &[MachineSpec]) -> f64 {
        let possible: f64 = machines.iter().map(|machine| self.ms as f64 / machine.step_ms as f64).sum();
        mean(found.0.iter().map(|outcome| outcome.spent.tokens as f64 / self.step_tokens as f64 / possible))
    }
}

/// Returns the experiments of each setting (name, K and γ), one with equal time and one with equal tokens, and that of
/// data-parallel training.
fn experiments(
    args: &HeterogeneityArgs,
    settings: &[(&str, u32, f64)],
    machines: &[MachineSpec],
    barrier: &Barrier,
    budget: &TimeAndTokens,
) -> Result<Vec<Experiment>, SimulateError> {
    let (m, link) = (args.learners, machines[0].link);
    let even = vec![
        MachineSpec { step_ms: barrier.step_ms, jitter: 0.0, link, ..MachineSpec::default() };
        m as usize
    ];
    let mut experiments = Vec::new();
    for &(name, quorum, grace) in settings {
        let waits = quorum == m;
        let in_time = if waits { (budget.tokens as f64 * barrier.goodput) as u64 } else { budget.tokens };
        for (what, tokens, end) in [
            ("equal time", in_time, Budget::Ms(budget.ms)),
            ("equal tokens", budget.tokens, Budget::Tokens(budget.tokens)),
        ] {
            let mut recipe = args.training.recipe(m, tokens)?;
            recipe.machines = if waits { even.clone() } else { machines.to_vec() };
            recipe.budget = end;
            recipe.syncer.quorum.updates_min = NonZeroU32::new(quorum).unwrap_or(NonZeroU32::MIN);
            recipe.syncer.quorum.grace_ratio = grace;
            experiments.push(Experiment { name: format!("{name}, {what}"), recipe, alone_tokens: None });
        }
    }
    let (name, recipe) = ("data-parallel".into(), args.training.recipe(m, budget.tokens)?);
    experiments.push(Experiment { name, recipe, alone_tokens: Some(budget.tokens) });
    Ok(experiments)
}

fn plot(names: &[&str], found: &Found) -> Plot {
    let series = |(colour, what): (u8, &str)| Series {
        name: what.into(),
        colour,
        mark: SeriesStyle::Bar,
        points: (0..)
            .zip(names)
            .map(|(i, name)| (f64::from(i), found[&format!("{name}, {what}")].loss()))
            .collect(),
    };
    Plot {
        name: "heterogeneity".into(),
        title: "Held-out loss with learners of different speed".into(),
        x: Axis { label: "".into(), scale: Scale::Names(names.iter().map(ToString::to_string).collect()) },
        y: Axis { label: "nats per byte".into(), scale: Scale::Linear },
        series: [(0, "equal time"), (1, "equal tokens")].map(series).to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use archipelago_cli::defaults;

    fn args(flags: &[&str]) -> HeterogeneityArgs {
        defaults(flags)
    }

    /// Goal: lockstep training has the paper's goodput of 84 %.
    #[test]
    fn a_barrier_keeps_the_papers_share() {
        let args = args(&[]);
        let barrier = Barrier::new(&args, &machines(&args).unwrap());
        assert!((barrier.goodput - 0.84).abs() < 0.03, "{}", barrier.goodput);
        let even = HeterogeneityArgs { speed_gap: 0.0, variation: 0.0, ..args };
        assert_eq!(Barrier::new(&even, &machines(&even).unwrap()).goodput, 1.0);
    }

    /// Goal: without lockstep, learners hardly wait, and the number of parallel runs does not affect the report.
    #[test]
    fn learners_do_not_wait_without_a_barrier() {
        let report = |jobs: &str| {
            let flags = ["--learners", "2", "--steps", "40", "--batch", "2", "--seeds", "1", "--jobs", jobs];
            run(&args(&flags), &mut |_| {}).unwrap()
        };
        let one = report("1");
        let goodput: Vec<f64> = one.cases[..3].iter().map(|case| case.ours).collect();
        assert!(goodput[0] < 95.0 && goodput[1] > 90.0 && goodput[2] > 90.0, "{goodput:?}");
        assert_eq!(one, report("3"));
    }
}
