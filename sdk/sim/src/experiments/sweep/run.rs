//! One run of a sweep, and its result.

use std::sync::Arc;

use archipelago_sim::lab::{Corpus, LabError, Outcome, Recipe, Trainers};
use serde::{Deserialize, Serialize};

use super::cell::CellArgs;
use super::grid;
use crate::experiments::kept::Keyed;
use crate::experiments::side::Side;
use crate::experiments::{SimulateError, sitting};

/// The key of a run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Key {
    /// Digest of the text.
    pub(super) text: String,
    /// Digest of all settings except the name of the GPU.
    pub(super) settings: String,
    pub(super) seed: u64,
}

impl Key {
    /// Creates the key of the run of `cell` with this seed, on the text with digest `text`.
    pub(super) fn new(text: &str, cell: &CellArgs, seed: u64) -> Self {
        Self { text: text.to_owned(), settings: cell.digest(), seed }
    }
}

/// The result of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Made {
    #[serde(flatten)]
    pub(super) key: Key,
    /// The varied and chosen settings, for human readers of the file.
    pub(super) cell: String,
    /// The reason of its failure.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) failed: Option<String>,
    /// Validation loss.
    pub(super) validation: Option<f32>,
    /// Test loss.
    pub(super) test: Option<f32>,
    /// Mean steps of a learner, including those of the last rounds.
    pub(super) steps: f64,
    /// Virtual time until all tokens were trained, in milliseconds; 0 in training alone.
    pub(super) virtual_ms: u64,
    /// Tokens trained, including those of the last rounds, and the merged ones among them.
    pub(super) tokens: u64,
    pub(super) tokens_merged: u64,
}

impl Keyed for Made {
    type Key = Key;

    fn key(&self) -> &Key {
        &self.key
    }
}

/// One run.
pub(super) struct Run {
    key: Key,
    words: String,
    side: Side,
    recipe: Recipe,
    tokens: u64,
}

impl Run {
    /// Creates the run of `cell`; its table describes it by `settings`.
    ///
    /// # Errors
    /// `Setting`, `Preset`: a setting is out of range.
    pub(super) fn new(
        text: &str,
        settings: &[(String, String)],
        cell: &CellArgs,
        seed: u64,
        trainers: Option<Arc<dyn Trainers>>,
    ) -> Result<Self, SimulateError> {
        let recipe = Recipe { seed, trainers, faults: cell.faults(), ..cell.recipe()? };
        let (key, words) = (Key::new(text, cell, seed), grid::words(settings));
        Ok(Self { key, words, side: cell.side, recipe, tokens: cell.tokens()? })
    }
}

impl sitting::Run for Run {
    type Made = Made;

    fn key(&self) -> &Key {
        &self.key
    }

    fn words(&self) -> String {
        format!("{}, seed {}", self.words, self.key.seed)
    }

    fn make(&self, corpus: &Corpus) -> Result<Outcome, LabError> {
        self.side.train(&self.recipe, corpus, self.tokens)
    }

    fn made(&self, outcome: Result<&Outcome, String>) -> Made {
        let (key, cell) = (self.key.clone(), self.words.clone());
        let none = Made {
            key,
            cell,
            failed: None,
            validation: None,
            test: None,
            steps: 0.0,
            virtual_ms: 0,
            tokens: 0,
            tokens_merged: 0,
        };
        match outcome {
            Err(why) => Made { failed: Some(why), ..none },
            Ok(outcome)
                if self.recipe.faults.last().is_some_and(|(at_ms, _)| outcome.virtual_ms > *at_ms) =>
            {
                Made { failed: Some("it took longer than learners were killed".into()), ..none }
            }
            Ok(outcome) => Made {
                validation: Some(outcome.loss),
                // JSON has no form for numbers that are not finite.
                test: outcome.ends.test.filter(|loss| loss.is_finite()),
                steps: outcome.steps_per_learner,
                virtual_ms: outcome.virtual_ms,
                tokens: outcome.tokens,
                tokens_merged: outcome.tokens_merged,
                ..none
            },
        }
    }
}
