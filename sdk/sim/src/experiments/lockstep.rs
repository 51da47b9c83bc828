//! `simulate lockstep`: the isolated cost of averaging parameters every H steps.

use std::collections::BTreeMap;

use archipelago_cli::{one_of, tokens, within};
use archipelago_core::diloco::MergeRule;
use archipelago_sim::lab::{LabError, Outcome, Recipe};
use serde::Serialize;

use super::findings::percent_above;
use super::text::Text;
use super::training::{LEARNERS_MAX, STEPS_MAX, TrainingArgs, seeds_from};
use super::{Case, CommonArgs, Report, pool, student};
use crate::experiments::SimulateError;

/// Settings of `simulate lockstep`.
#[derive(clap::Args, Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct LockstepArgs {
    /// M, the number of learners
    #[arg(long, value_name = "COUNT", default_value_t = 8)]
    pub learners: u32,
    /// Tokens of all learners together
    #[arg(long, value_name = "COUNT", default_value_t = 3_000_000, value_parser = tokens::<u64>)]
    pub tokens: u64,
    /// H, steps between two merges
    #[arg(long, value_name = "COUNTS", value_delimiter = ',', default_values_t = [1, 6, 12, 24, 48])]
    pub every: Vec<u32>,
    /// Merge rule for updates
    #[arg(
        long,
        value_name = "RULES",
        value_delimiter = ',',
        default_values = ["mean", "radial", "radial-all"],
        value_parser = one_of(&MergeRule::ALL, MergeRule::name)
    )]
    pub rules: Vec<MergeRule>,
    #[command(flatten)]
    #[serde(flatten)]
    pub training: TrainingArgs,
    #[command(flatten)]
    #[serde(flatten)]
    pub common: CommonArgs,
}

/// Steps between merges, and the merge rule; `None` is data-parallel training.
type Row = Option<(u32, MergeRule)>;

/// Trains all rows with each seed, and compares their losses with that of data-parallel training.
///
/// # Errors
/// - `Setting`, `Preset`: a setting is out of range.
/// - `Refused`: a run is impossible, its training failed, or the text is too short.
/// - `Disk`: a text cannot be read.
pub fn run(args: &LockstepArgs, progress: &mut dyn FnMut(&str)) -> Result<Report, SimulateError> {
    within("learners", args.learners.into(), 1.0..=LEARNERS_MAX)?;
    let least = args.training.step_tokens()? * u64::from(args.learners);
    within("tokens", args.tokens as f64, least as f64..=1e12)?;
    args.every.iter().try_for_each(|&every| within("every", every.into(), 1.0..=STEPS_MAX))?;
    let text = Text::read(&args.training)?;
    let rows = args.every.iter().flat_map(|&every| args.rules.iter().map(move |&rule| Some((every, rule))));
    let rows: Vec<Row> = std::iter::once(None).chain(rows).collect();
    let seeds = seeds_from(args.common.seed, args.training.seeds);
    let runs: Vec<(Row, u64)> = seeds.flat_map(|seed| rows.iter().map(move |&row| (row, seed))).collect();
    let (mut losses, mut done) = (BTreeMap::new(), 0);
    let work = |&(row, seed): &(Row, u64)| Some(train(args, row, seed, &text));
    pool::each(args.training.jobs()?, &runs, work, |index, result| {
        let (row, seed) = runs[index];
        let loss = result?.loss;
        done += 1;
        progress(&format!("{done} of {}: {}, seed {seed}: {loss:.4}", runs.len(), name(row)));
        losses.insert((index % rows.len(), seed), f64::from(loss));
        Ok::<(), SimulateError>(())
    })?;
    Ok(report(args, &text, &rows, &losses))
}

fn train(args: &LockstepArgs, row: Row, seed: u64, text: &Text) -> Result<Outcome, SimulateError> {
    let mut recipe = Recipe { seed, ..args.training.recipe(args.learners, args.tokens)? };
    let outcome = match row {
        None => recipe.train_alone(&text.corpus, args.tokens),
        Some((every, rule)) => {
            (recipe.exchange.sync_every, recipe.syncer.merge) = (every, rule);
            recipe.train_in_lockstep(&text.corpus, args.tokens)
        }
    };
    outcome.map_err(|error: LabError| SimulateError::refused(format!("{}: {error}", name(row))))
}

fn name(row: Row) -> String {
    match row {
        None => "data-parallel".into(),
        Some((every, rule)) => format!("{} every {every} steps", rule.name()),
    }
}

fn report(args: &LockstepArgs, text: &Text, rows: &[Row], losses: &BTreeMap<(usize, u64), f64>) -> Report {
    let of = |index: usize| losses.range((index, 0)..=(index, u64::MAX)).map(|(_, loss)| *loss);
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let case = |(index, row): (usize, &Row)| {
        let gaps: Vec<f64> = of(index).zip(of(0)).map(|(ours, base)| percent_above(ours, base)).collect();
        let note = format!("{:.4}; {}", mean(&of(index).collect::<Vec<_>>()), student::by_seed(&gaps));
        Case::new(name(*row), mean(&gaps), None).noted(note)
    };
    let base = mean(&of(0).collect::<Vec<_>>());
    Report {
        title: format!(
            "Loss of {} learners in lockstep above data-parallel training, {}",
            args.learners, text.name
        ),
        unit: "%",
        cases: rows.iter().enumerate().skip(1).map(case).collect(),
        points: Vec::new(),
        notes: vec![format!(
            "Data-parallel training of {} windows a step ends on {base:.4} nats per byte, by the part of the text to \
             choose by. Outer rate {}, momentum {}, which rises over a share of {}.",
            args.learners * args.training.batch,
            args.training.method.outer_lr,
            args.training.method.outer_momentum,
            args.training.method.momentum_warmup,
        )],
        plots: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use archipelago_cli::defaults;

    /// Goal: a single learner with a neutral outer step equals training alone, however often it merges.
    #[test]
    fn one_learner_that_merges_at_once_is_training_alone() {
        let few = "--learners 1 --tokens 4096 --batch 2 --every 1,4 --rules mean,radial-all --seeds 2";
        let plain = "--outer-lr 1 --outer-momentum 0";
        let args: LockstepArgs = defaults(&format!("{few} {plain}").split_whitespace().collect::<Vec<_>>());
        let mut lines = Vec::new();
        let report = run(&args, &mut |line| lines.push(line.to_owned())).unwrap();
        assert_eq!((lines.len(), report.cases.len()), (2 * 5, 4));
        for case in &report.cases {
            assert!(case.ours.abs() < 0.01, "{case:?}");
        }
    }

    /// Goal: the number of steps between merges affects the result.
    #[test]
    fn learners_that_go_apart_end_elsewhere() {
        let few = "--learners 2 --tokens 8192 --batch 2 --every 1,16 --rules mean --seeds 1";
        let plain = "--outer-lr 1 --outer-momentum 0";
        let args: LockstepArgs = defaults(&format!("{few} {plain}").split_whitespace().collect::<Vec<_>>());
        let cases = run(&args, &mut |_| {}).unwrap().cases;
        assert!((cases[0].ours - cases[1].ours).abs() > 0.1, "{cases:?}");
        let error = run(&LockstepArgs { every: vec![0], ..args }, &mut |_| {}).unwrap_err();
        assert!(error.to_string().contains("every"), "{error}");
    }
}
