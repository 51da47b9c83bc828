//! Cached results of runs.

use archipelago_sim::lab::{Outcome, Sample};
use serde::{Deserialize, Serialize};

use super::key::Key;
use crate::experiments::kept::Keyed;

/// The result of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Made {
    #[serde(flatten)]
    pub(super) key: Key,
    /// The reason of its failure.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) failed: Option<String>,
    /// Validation loss of the last parameters and of the averaged ones.
    pub(super) validation: [Option<f32>; 2],
    /// Test loss of the same two.
    pub(super) test: [Option<f32>; 2],
    /// Mean steps of a learner.
    pub(super) steps: f64,
    /// Trained tokens and validation loss, on the way.
    pub(super) course: Vec<(u64, f32)>,
}

impl Made {
    pub(super) fn of(key: Key, outcome: &Outcome) -> Self {
        let Outcome { loss, ends, steps_per_learner: steps, samples, .. } = outcome;
        let course = samples.iter().map(|&Sample { tokens, loss, .. }| (tokens, loss)).collect();
        // JSON has no form for numbers that are not finite.
        let numbers = |losses: [Option<f32>; 2]| losses.map(|loss| loss.filter(|loss| loss.is_finite()));
        let validation = numbers([Some(*loss), ends.averaged]);
        let test = numbers([ends.test, ends.averaged_test]);
        Self { key, failed: None, validation, test, steps: *steps, course }
    }

    /// Creates the result of a diverged run, which is worse than any other.
    pub(super) fn failed(key: Key, why: String) -> Self {
        let nothing = [None, None];
        Self { key, failed: Some(why), validation: nothing, test: nothing, steps: 0.0, course: Vec::new() }
    }
}

impl Keyed for Made {
    type Key = Key;

    fn key(&self) -> &Key {
        &self.key
    }
}
