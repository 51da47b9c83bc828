//! `simulate failures`: loss after equal time while chips fail and return, by the number of learners.

use crate::lab::{Budget, Recipe};
use archipelago_cli::{range, within};
use archipelago_sim::scale::goodput::{Cluster, Constants, Stops};
use archipelago_sim::world::Fault;
use serde::Serialize;

use super::statistics::mean;
use super::training::{
    Experiment, Findings, Found, LEARNERS_MAX, STEPS_MAX, TrainingArgs, seeds_from, set_width, size,
};
use super::{Axis, Case, CommonArgs, Plot, Scale, Series, SeriesStyle, SimulationReport};
use crate::SimulateError;

/// Goodput of 1.2 million chips in the paper, in percent, by M.
const PAPER: [(u32, f64); 5] = [(1, 58.0), (2, 70.0), (4, 82.0), (8, 88.0), (16, 93.0)];
/// Number of chips in [`PAPER`].
const PAPER_CHIPS: u64 = 1_200_000;

const CALM: &str = "data-parallel, nothing fails";
const ELASTIC: &str = "data-parallel, elastic";
const RIGID: &str = "data-parallel, not elastic";

/// Settings of `simulate failures`.
#[derive(clap::Args, Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
#[command(mut_arg("batch", |arg| arg.default_value("32")), mut_arg("step_ms", |arg| arg.default_value("4000")))]
pub struct FailuresArgs {
    /// M, learners that share the chips and the batch; several values make several rows
    #[arg(long, value_name = "COUNT", value_delimiter = ',', default_values_t = [2, 4, 8, 16])]
    pub learners: Vec<u32>,
    /// N, total number of chips, each interrupted once a year
    #[arg(long, value_name = "COUNT", default_value_t = PAPER_CHIPS)]
    pub chips: u64,
    /// Length of each run, in steps of a run without failures
    #[arg(long, value_name = "COUNT", default_value_t = 1_500)]
    pub steps: u64,
    /// Width of the model (a multiple of 8), in place of that of --preset
    #[arg(long, value_name = "COUNT")]
    pub width: Option<u32>,
    #[command(flatten)]
    #[serde(flatten)]
    pub training: TrainingArgs,
    #[command(flatten)]
    #[serde(flatten)]
    pub common: CommonArgs,
}

/// Trains, and compares the losses after equal time.
///
/// # Errors
/// - `Setting`, `Preset`: a setting is out of range.
/// - `Refused`: the cluster is invalid, or training failed.
/// - `Disk`: the text cannot be read.
pub fn run(args: &FailuresArgs, progress: &mut dyn FnMut(&str)) -> Result<SimulationReport, SimulateError> {
    check(args)?;
    let mut found = Found::new();
    let mut shares: Vec<Vec<f64>> = Vec::new();
    // Failures are drawn separately for each seed.
    for seed in seeds_from(args.common.seed, args.training.seeds) {
        let (experiments, trained) = experiments(args, seed)?;
        shares.push(trained);
        let training = TrainingArgs { seeds: 1, ..args.training.clone() };
        for (name, outcome) in training.run(seed, experiments, progress)? {
            found.entry(name).or_insert_with(|| Findings(Vec::new())).0.extend(outcome.0);
        }
    }
    let goodput = |at: usize| 100.0 * mean(shares.iter().map(|shares| shares[at]));
    let mut cases = Vec::new();
    let rows = [(0, RIGID), (1, ELASTIC)].map(|(at, name)| (at, name.to_owned(), at as u32));
    let decoupled = (2..).zip(&args.learners).map(|(at, &learners)| (at, failing(learners), learners));
    for (at, name, learners) in rows.into_iter().chain(decoupled) {
        let paper = PAPER.iter().find(|(row, _)| *row == learners && args.chips == PAPER_CHIPS);
        let paper = paper.map(|(_, goodput)| *goodput);
        cases.push(Case::new(format!("goodput, {name}"), goodput(at), paper));
        cases.push(above(&format!("loss above nothing failing, {name}"), &found[&name], &found[CALM]));
        if learners > 1 {
            let own = &found[&calm(learners)];
            cases.push(above(&format!("loss above its own without failures, {name}"), &found[&name], own));
        }
    }
    Ok(SimulationReport {
        title: format!("{} chips that fail, {} steps of time", args.chips, args.steps),
        unit: "%",
        plots: vec![plot(args, &found)],
        points: vec![],
        cases,
        notes: vec![
            format!("{CALM}: {}.", found[CALM].words()),
            "Each run has the same time, and all learners together the batch of data-parallel training; a step \
             takes as long in each. Data-parallel training makes as many steps as its chips have time for, with a \
             schedule of that length; learners stand still when their chips do."
                .into(),
            format!(
                "The loss is that of Θ on held-out text, in nats per byte; the mean of {} seeds and their standard \
                 error. The paper gives text scores at 1.2 million chips, not losses: 70.1 where nothing fails, 69.7 \
                 elastic, 69.8 for M = 8.",
                args.training.seeds
            ),
        ],
    })
}

fn check(args: &FailuresArgs) -> Result<(), SimulateError> {
    args.training.recipe(1, 1)?;
    for &learners in &args.learners {
        within("learners", learners.into(), 2.0..=LEARNERS_MAX.min(args.training.batch.into()))?;
        let shares = args.training.batch.is_multiple_of(learners);
        range("learners", learners.into(), shares, "what divides --batch, which all of them share")?;
    }
    within("chips", args.chips as f64, 1.0..=1e8)?;
    within("steps", args.steps as f64, 1.0..=STEPS_MAX)?;
    args.width.map_or(Ok(()), |width| size("width", width))
}

fn failing(learners: u32) -> String {
    format!("M = {learners}")
}

fn calm(learners: u32) -> String {
    format!("M = {learners}, nothing fails")
}

fn above(case: &str, ours: &Findings, base: &Findings) -> Case {
    let (above, spread) = ours.above(base);
    let error = spread / (ours.0.len() as f64).sqrt();
    Case::new(case, above, None).noted(format!("± {error:.2}; {}", ours.words()))
}

/// Returns all experiments of one seed, and fractions of the time in which learners train: for one inelastic learner,
/// for one elastic learner, and for each number of learners.
fn experiments(args: &FailuresArgs, seed: u64) -> Result<(Vec<Experiment>, Vec<f64>), SimulateError> {
    let constants = Constants { step_s: args.training.step_ms as f64 / 1e3, ..Constants::default() };
    let seconds = args.steps as f64 * constants.step_s;
    let stops = |cluster: Cluster| {
        let cluster = Cluster { constants, ..cluster };
        cluster.stops(seed, seconds / 3_600.0).map_err(SimulateError::refused)
    };
    let share = |stops: &[Stops]| mean(stops.iter().map(|stops| stops.trained_s)) / seconds;
    let (mut all, mut shares) = (Vec::new(), Vec::new());
    let alone = |name: &str, share: f64| {
        let steps = ((share * args.steps as f64) as u64).max(1);
        let tokens = steps * args.training.step_tokens()?;
        let recipe = recipe(args, 1, tokens)?;
        Ok::<_, SimulateError>(Experiment { name: name.to_owned(), recipe, alone_tokens: Some(tokens) })
    };
    all.push(alone(CALM, 1.0)?);
    for (name, cluster) in [(RIGID, Cluster::rigid(args.chips)), (ELASTIC, Cluster::new(args.chips, 1))] {
        shares.push(share(&stops(cluster)?));
        all.push(alone(name, shares[shares.len() - 1])?);
    }
    for &learners in &args.learners {
        let stops = stops(Cluster::new(args.chips, learners))?;
        let share = share(&stops);
        shares.push(share);
        let tokens = args.steps * training(args, learners).step_tokens()? * u64::from(learners);
        let whole = recipe(args, learners, tokens)?;
        all.push(Experiment { name: calm(learners), recipe: whole, alone_tokens: None });
        let part = recipe(args, learners, (tokens as f64 * share) as u64)?;
        let recipe = Recipe { faults: faults(&stops), ..part };
        all.push(Experiment { name: failing(learners), recipe, alone_tokens: None });
    }
    Ok((all, shares))
}

/// Returns the settings of one of `learners` learners, which share the batch.
fn training(args: &FailuresArgs, learners: u32) -> TrainingArgs {
    TrainingArgs { batch: args.training.batch / learners, ..args.training.clone() }
}

/// Returns a recipe for the whole time, with a schedule for `tokens` tokens.
fn recipe(args: &FailuresArgs, learners: u32, tokens: u64) -> Result<Recipe, SimulateError> {
    let mut recipe = training(args, learners).recipe(learners, tokens)?;
    if let Some(width) = args.width {
        set_width(&mut recipe, width);
    }
    recipe.text_at_hand = true;
    recipe.budget = Budget::Ms(args.steps * args.training.step_ms);
    Ok(recipe)
}

/// Returns the faults that stop each machine while its chips are stopped.
fn faults(stops: &[Stops]) -> Vec<(u64, Fault)> {
    let ms = |seconds: f64| (seconds * 1e3) as u64;
    let mut faults: Vec<(u64, Fault)> = Vec::new();
    for (machine, stops) in (0..).zip(stops) {
        for &(from_s, until_s) in &stops.stopped_s {
            faults.push((ms(from_s), Fault::Freeze(machine)));
            faults.push((ms(until_s), Fault::Thaw(machine)));
        }
    }
    faults.sort_by_key(|(at_ms, _)| *at_ms);
    faults
}

fn plot(args: &FailuresArgs, found: &Found) -> Plot {
    let line = |(colour, name, of): (u8, &str, &dyn Fn(u32) -> String)| Series {
        name: name.to_owned(),
        colour,
        mark: SeriesStyle::Line,
        points: args.learners.iter().map(|&m| (f64::from(m), found[&of(m)].loss())).collect(),
    };
    let mut series =
        vec![line((0, "learners, while chips fail", &failing)), line((1, "learners, nothing fails", &calm))];
    series.extend(
        [(2, CALM), (3, ELASTIC), (4, RIGID)].map(|(at, name)| line((at, name, &|_| name.to_owned()))),
    );
    let axis = |label: &str, scale| Axis { label: label.into(), scale };
    Plot {
        name: "failures".into(),
        title: "Held-out loss after equal time, while chips come and go".into(),
        x: axis("M, learners", Scale::Log),
        y: axis("nats per byte", Scale::Linear),
        series,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use archipelago_cli::defaults;

    fn args(flags: &str) -> FailuresArgs {
        let small = "--learners 2,4 --steps 60 --width 8 --context 8 --batch 4 --sync-every 4 --fragments 2 --seeds 2";
        let flags: Vec<&str> = small.split_whitespace().chain(flags.split_whitespace()).collect();
        defaults(&flags)
    }

    /// Goal: more learners lose less time. Learners that stop train less, and stop exactly when their machines do.
    #[test]
    fn learners_stand_still_when_their_chips_do() {
        let args = args("");
        let report = run(&args, &mut |_| {}).unwrap();
        let goodput: Vec<f64> = report
            .cases
            .iter()
            .filter(|case| case.case.starts_with("goodput"))
            .map(|case| case.ours)
            .collect();
        assert!(goodput.is_sorted() && goodput.len() == 4 && goodput[3] < 95.0, "{report:#?}");
        assert_eq!(report.cases.len(), 4 + 4 + 2, "{report:#?}");
        let (experiments, shares) = experiments(&args, 1).unwrap();
        for (at, learners) in [(2, 2), (3, 4)] {
            let of =
                |name: String| &experiments.iter().find(|experiment| experiment.name == name).unwrap().recipe;
            let training = TrainingArgs { seeds: 1, ..args.training.clone() };
            let corpus = training.corpus().unwrap();
            let tokens = |recipe: &Recipe| recipe.train(&corpus).unwrap().spent.tokens as f64;
            let part = tokens(of(failing(learners))) / tokens(of(calm(learners)));
            assert!((part - shares[at]).abs() < 0.08, "M = {learners}: {part} beside {}", shares[at]);
        }
    }

    #[test]
    fn a_batch_is_shared_by_all() {
        let error = run(&args("--learners 8"), &mut |_| {}).unwrap_err();
        assert!(error.to_string().contains("--learners"), "{error}");
    }
}
