//! Cached results of runs.

use serde::{Deserialize, Serialize};

use crate::lab::{AttackStats, Cosines, Sample, TrainingResult};

/// The key of a run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RunKey {
    /// Digest of the text.
    pub text: String,
    /// Digest of all settings except the name of the GPU.
    pub settings: String,
    pub seed: u64,
}

/// Part of a text on which a loss is measured.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TextSplit {
    /// Part by which settings are chosen
    Validation,
    /// Part that is not used for choosing
    Test,
}

/// The result of one run. Fields beyond the first ones are omitted at their defaults.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    #[serde(flatten)]
    pub key: RunKey,
    /// The varied and chosen settings, for human readers of the file and for plots.
    pub cell: String,
    /// Reason why the run failed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub failed: Option<String>,
    /// Validation loss.
    pub validation: Option<f32>,
    /// Test loss.
    pub test: Option<f32>,
    /// Mean steps of a learner, including those of the last rounds.
    pub steps: f64,
    /// Virtual time until all tokens were trained, in milliseconds; 0 for a single trainer.
    pub virtual_ms: u64,
    /// Tokens trained, including those of the last rounds.
    pub tokens: u64,
    /// Merged tokens among them.
    pub tokens_merged: u64,
    /// Whether the seed is fresh: no setting was chosen with it.
    #[serde(skip_serializing_if = "is_default", default)]
    pub is_fresh: bool,
    /// Validation and test loss of the averaged parameters.
    #[serde(skip_serializing_if = "is_default", default)]
    pub averaged: [Option<f32>; 2],
    /// Trained tokens and validation loss at each sample during the run.
    #[serde(skip_serializing_if = "is_default", default)]
    pub course: Vec<(u64, f32)>,
    /// Merged tokens of the last learner.
    #[serde(skip_serializing_if = "is_default", default)]
    pub last_merged: u64,
    /// Refused updates.
    #[serde(skip_serializing_if = "is_default", default)]
    pub refused: u64,
    /// The reason why honest learners could not continue, if hostile ones caused that; the loss is infinite.
    #[serde(skip_serializing_if = "is_default", default)]
    pub broken: Option<String>,
    /// Treatment of hostile and honest learners, if there were hostile ones.
    #[serde(skip_serializing_if = "is_default", default)]
    pub attack_stats: Option<AttackStats>,
    /// Cosines between honest updates, if requested.
    #[serde(skip_serializing_if = "is_default", default)]
    pub cosines: Vec<Cosines>,
}

impl RunRecord {
    /// Creates the record of a failed run, which is worse than any other.
    pub fn failed(key: RunKey, cell: String, why: Option<String>) -> Self {
        Self {
            key,
            cell,
            failed: why,
            validation: None,
            test: None,
            steps: 0.0,
            virtual_ms: 0,
            tokens: 0,
            tokens_merged: 0,
            is_fresh: false,
            averaged: [None, None],
            course: Vec::new(),
            last_merged: 0,
            refused: 0,
            broken: None,
            attack_stats: None,
            cosines: Vec::new(),
        }
    }

    /// Creates the record of an outcome of learners that may have been attacked.
    pub fn of(key: RunKey, cell: String, outcome: &TrainingResult, is_attacked: bool) -> Self {
        // JSON has no form for numbers that are not finite.
        let number = |loss: Option<f32>| loss.filter(|loss| loss.is_finite());
        let ends = &outcome.ends;
        Self {
            validation: number(Some(outcome.loss)),
            test: number(ends.test),
            steps: outcome.steps_per_learner,
            virtual_ms: outcome.virtual_ms,
            tokens: outcome.tokens,
            tokens_merged: outcome.tokens_merged,
            averaged: [number(ends.averaged), number(ends.averaged_test)],
            course: outcome.samples.iter().map(|&Sample { tokens, loss, .. }| (tokens, loss)).collect(),
            last_merged: outcome.merged_by.last().copied().unwrap_or(0),
            refused: outcome.refused,
            broken: outcome.broken.clone(),
            attack_stats: is_attacked.then_some(outcome.attack_stats),
            cosines: outcome.cosines.clone(),
            ..Self::failed(key, cell, None)
        }
    }

    /// Returns the loss on `part` of the last parameters, or of the averaged ones, in nats per byte.
    pub fn loss(&self, part: TextSplit, is_averaged: bool) -> Option<f64> {
        let last = [self.validation, self.test];
        let losses = if is_averaged { self.averaged } else { last };
        losses[part as usize].map(f64::from).or_else(|| self.broken.as_ref().map(|_| f64::INFINITY))
    }

    /// Returns the last learner's share of the merged tokens, 0 to 1.
    pub fn last_share(&self) -> f64 {
        self.last_merged as f64 / self.tokens_merged.max(1) as f64
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
