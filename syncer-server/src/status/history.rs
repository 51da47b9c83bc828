//! Measurements of the held-out loss and texts of the model, over the whole run.

use archipelago_core::wire::LearnerId;
use serde::{Deserialize, Deserializer, Serialize};

use super::samples::{Samples, TextSample};

/// One measurement of the held-out loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evaluation {
    /// Tokens merged into the parameters measured.
    pub tokens_merged: u64,
    /// Rounds merged into them.
    pub rounds: u64,
    /// Mean loss in nats per token; not finite if the model diverged.
    #[serde(deserialize_with = "loss")]
    pub loss: f32,
    /// Time that the run's syncers had been up, in seconds.
    pub time_s: f64,
    /// The learner that measured it, if this program did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_by: Option<LearnerId>,
}

/// The measurements of a run: the first, the newest, and as many between them as fit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct History {
    /// Oldest first.
    pub evaluations: Vec<Evaluation>,
    /// Text that the newest parameters wrote.
    pub sample: String,
    /// The lowest finite loss so far, in nats per token.
    best: Option<f32>,
    /// Texts of the whole run.
    pub samples: Samples,
}

/// Reads a loss; null becomes NaN. JSON cannot represent numbers that are not finite and writes null for them. The
/// snapshot of a diverged run thus stays readable.
pub(super) fn loss<'de, D: Deserializer<'de>>(from: D) -> Result<f32, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f32::NAN))
}

/// Maximum number of measurements kept.
const HISTORY_MAX: usize = 512;

impl History {
    /// Adds a measurement. A full list drops every second one, so that the whole run stays covered.
    pub fn push(&mut self, evaluation: Evaluation, sample: Option<String>) {
        if self.evaluations.len() >= HISTORY_MAX {
            let mut index = 0;
            self.evaluations.retain(|_| {
                index += 1;
                index % 2 == 1
            });
        }
        if evaluation.loss.is_finite() {
            self.best = Some(self.best.map_or(evaluation.loss, |best| best.min(evaluation.loss)));
        }
        self.evaluations.push(evaluation);
        let Some(text) = sample else { return };
        self.sample.clone_from(&text);
        let Evaluation { time_s, tokens_merged, loss, .. } = evaluation;
        self.samples.push(TextSample { time_s, tokens_merged, loss, text });
    }

    /// Returns the first loss, in nats per token.
    #[must_use]
    pub fn first(&self) -> Option<f32> {
        self.evaluations.first().map(|evaluation| evaluation.loss)
    }

    /// Returns the lowest finite loss so far, in nats per token.
    #[must_use]
    pub fn best(&self) -> Option<f32> {
        self.best
    }

    /// Returns the tokens merged into the parameters that wrote the newest text.
    #[must_use]
    pub fn written(&self) -> Option<u64> {
        self.samples.kept().last().map(|sample| sample.tokens_merged)
    }

    /// Returns the learner that measured the newest loss, if this program did not.
    #[must_use]
    pub fn measured_by(&self) -> Option<LearnerId> {
        self.evaluations.last().and_then(|evaluation| evaluation.measured_by)
    }

    /// Returns the newest loss, in nats per token.
    #[must_use]
    pub fn last(&self) -> Option<f32> {
        self.evaluations.last().map(|evaluation| evaluation.loss)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_keeps_the_whole_run_in_view() {
        let mut history = History::default();
        for rounds in 0..3_000 {
            let evaluation = Evaluation { rounds, loss: rounds as f32, ..Evaluation::default() };
            history.push(evaluation, None);
        }
        assert!(history.evaluations.len() <= HISTORY_MAX);
        assert_eq!((history.first(), history.last()), (Some(0.0), Some(2_999.0)));
        assert_eq!(history.best(), Some(0.0));
        let evaluation = Evaluation { rounds: 3_000, loss: f32::NAN, ..Evaluation::default() };
        history.push(evaluation, None);
        assert_eq!(history.best(), Some(0.0));
        assert!(history.evaluations.is_sorted_by_key(|evaluation| evaluation.rounds));
    }
}
