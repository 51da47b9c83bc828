//! The runs of a table: those for choosing settings, and those with the chosen settings.

use std::sync::Arc;

use archipelago_core::rng::key;
use archipelago_sim::lab::{Corpus, LabError, Outcome, Recipe, Trainers};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::keep::Made;
use super::key::{Key, Which};
use super::{GapArgs, Runs};
use crate::experiments::findings::is_edge;
use crate::experiments::side::Side;
use crate::experiments::text::{Text, hex};
use crate::experiments::training::seeds_from;
use crate::experiments::{SimulateError, sitting};

/// Random stream that separates the seeds of test runs from those for choosing.
const TOLD: u64 = 0x701d;

/// One run.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) key: Key,
    recipe: Recipe,
    tokens: u64,
}

impl sitting::Run for Run {
    type Made = Made;

    fn key(&self) -> &Key {
        &self.key
    }

    fn words(&self) -> String {
        let Key { side, learners, lr, warmup, seed, .. } = &self.key;
        format!("{side:?} of {learners}, rate {lr}, warm-up {warmup}, seed {seed}")
    }

    fn make(&self, corpus: &Corpus) -> Result<Outcome, LabError> {
        self.key.side.train(&self.recipe, corpus, self.tokens)
    }

    fn made(&self, outcome: Result<&Outcome, String>) -> Made {
        match outcome {
            Ok(outcome) => Made::of(self.key.clone(), outcome),
            Err(why) => Made::failed(self.key.clone(), why),
        }
    }
}

/// All runs of a table.
pub(super) struct Plan<'a> {
    args: &'a GapArgs,
    text: String,
    settings: String,
    trainers: Option<Arc<dyn Trainers>>,
}

impl<'a> Plan<'a> {
    /// Creates the plan of `args` on `text`, whose runs train with `trainers`.
    pub(super) fn new(args: &'a GapArgs, text: &Text, trainers: Option<Arc<dyn Trainers>>) -> Self {
        Self { args, text: text.digest.clone(), settings: settings(args), trainers }
    }

    /// Returns the runs for choosing settings.
    ///
    /// # Errors
    /// `Setting`, `Preset`: a setting is out of range.
    pub(super) fn choosing(&self) -> Result<Vec<Run>, SimulateError> {
        let mut runs = Vec::new();
        for &learners in &self.args.learners {
            for (lr, warmup) in self.grid() {
                for seed in self.choosing_seeds() {
                    for side in Side::ALL {
                        runs.push(self.run(self.key(side, learners, (lr, warmup), seed, false))?);
                    }
                }
            }
        }
        Ok(runs)
    }

    /// Returns the test runs of the settings chosen by the `kept` runs, once each.
    ///
    /// # Errors
    /// `Setting`, `Preset`: a setting is out of range.
    pub(super) fn telling(&self, kept: &Runs) -> Result<Vec<Run>, SimulateError> {
        let mut keys = Vec::new();
        for &learners in &self.args.learners {
            for side in Side::ALL {
                for which in [Which::Last, Which::Averaged] {
                    keys.extend(
                        self.chosen(kept, side, learners, which).map(|best| self.told(side, learners, best)),
                    );
                }
            }
        }
        let mut keys: Vec<Key> = keys.into_iter().flatten().collect();
        keys.sort();
        keys.dedup();
        // Finish one seed before the next.
        keys.sort_by_key(|key| (key.learners, key.seed));
        keys.into_iter().map(|key| self.run(key)).collect()
    }

    /// Returns the settings with the smallest validation loss. `None` before all of its runs are cached, or if no
    /// choice has a loss with each seed.
    pub(super) fn chosen(&self, kept: &Runs, side: Side, learners: u32, which: Which) -> Option<(f32, f64)> {
        let mut best: Option<(f64, (f32, f64))> = None;
        for at in self.grid() {
            let mut sum = 0.0;
            for seed in self.choosing_seeds() {
                let made = kept.get(&self.key(side, learners, at, seed, false))?;
                sum += made.validation[which as usize].map_or(f64::INFINITY, f64::from);
            }
            if sum.is_finite() && best.is_none_or(|(least, _)| sum < least) {
                best = Some((sum, at));
            }
        }
        best.map(|(_, at)| at)
    }

    /// Returns true if all runs for choosing settings are cached, and each choice failed with some seed.
    pub(super) fn is_hopeless(&self, kept: &Runs, side: Side, learners: u32) -> bool {
        let is_kept = |at, seed| kept.get(&self.key(side, learners, at, seed, false)).is_some();
        let all = self.grid().into_iter().all(|at| self.choosing_seeds().all(|seed| is_kept(at, seed)));
        all && self.chosen(kept, side, learners, Which::Last).is_none()
    }

    /// Returns the keys of the test runs with settings `at`.
    pub(super) fn told(&self, side: Side, learners: u32, at: (f32, f64)) -> Vec<Key> {
        let seeds =
            (0..self.args.training.seeds).map(|i| key(&[TOLD, self.args.common.seed, i.into()]) >> 32);
        seeds.map(|seed| self.key(side, learners, at, seed, true)).collect()
    }

    /// Returns true if a rate is the lowest or the highest of the choices.
    pub(super) fn is_at_an_edge(&self, lr: f32) -> bool {
        let rates: Vec<f64> = self.grid().into_iter().map(|(lr, _)| lr.into()).collect();
        is_edge(&rates, lr.into())
    }

    fn grid(&self) -> Vec<(f32, f64)> {
        let GapArgs { lr_factors, warmup_factors, training, .. } = self.args;
        let rates = lr_factors.iter().map(|factor| (f64::from(training.lr) * factor) as f32);
        rates.flat_map(|lr| warmup_factors.iter().map(move |factor| (lr, training.warmup * factor))).collect()
    }

    fn choosing_seeds(&self) -> impl Iterator<Item = u64> {
        seeds_from(self.args.common.seed, self.args.choosing_seeds)
    }

    fn key(&self, side: Side, learners: u32, (lr, warmup): (f32, f64), seed: u64, is_told: bool) -> Key {
        let (text, settings) = (self.text.clone(), self.settings.clone());
        Key { text, settings, side, learners, lr: lr.to_string(), warmup: warmup.to_string(), seed, is_told }
    }

    fn run(&self, key: Key) -> Result<Run, SimulateError> {
        let (lr, warmup) =
            (key.lr.parse().expect("written by us"), key.warmup.parse().expect("written by us"));
        let training = super::TrainingArgs { lr, warmup, ..self.args.training.clone() };
        let mut recipe = training.recipe(key.learners, self.args.tokens)?;
        (recipe.seed, recipe.trainers) = (key.seed, self.trainers.clone());
        (recipe.average, recipe.samples, recipe.is_told) =
            (self.args.average, self.args.samples, key.is_told);
        recipe.lookahead = key.side.lookahead();
        Ok(Run { key, recipe, tokens: self.args.tokens })
    }
}

/// Returns the digest of all settings that affect a run and have no field in its key.
fn settings(args: &GapArgs) -> String {
    let mut settings = serde_json::to_value(args).expect("plain data");
    let named = settings.as_object_mut().expect("settings have names");
    let others = [
        "learners",
        "lr-factors",
        "warmup-factors",
        "choosing-seeds",
        "lr",
        "warmup",
        "seeds",
        "seed",
        "data",
        "text",
    ];
    named.retain(|name, value| !others.contains(&name.as_str()) && *value != Value::Null);
    hex(&Sha256::digest(settings.to_string())[..4])
}

#[cfg(test)]
mod tests {
    use super::*;
    use archipelago_cli::defaults;

    fn settings_of(flags: &str) -> String {
        settings(&defaults::<GapArgs>(&flags.split_whitespace().collect::<Vec<_>>()))
    }

    /// Goal: runs cached before the engine could be chosen stay valid, and no run is taken for one of another engine or
    /// model.
    #[test]
    fn runs_are_told_apart_by_engine_and_model() {
        let kept = "--learners 8 --lr-factors 0.5,1,2,4 --warmup-factors 1 --tokens 5996544 --seeds 5";
        let with = |flags: &str| settings_of(&format!("{kept} {flags}"));
        // The digest in the lines of `tests/evidence/gap/tinyshakespeare-6m.jsonl`.
        assert_eq!(with(""), "788f2996");
        assert_eq!(with("--engine cpu --adapter name --jobs 2 --learners 2"), "788f2996");
        let others = ["", "--engine gpu", "--preset medium", "--preset medium --engine gpu"];
        let mut found = others.map(with).to_vec();
        found.sort();
        found.dedup();
        assert_eq!(found.len(), others.len());
    }
}
