//! Measurements of the held-out loss, and generated texts, over the whole run.

use archipelago_core::wire::LearnerId;
use serde::{Deserialize, Deserializer, Serialize};

/// One measurement of the held-out loss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evaluation {
    /// Merged tokens of the measured parameters.
    pub tokens_merged: u64,
    /// Merged rounds of the measured parameters.
    pub rounds: u64,
    /// Mean held-out loss, in nats per token. It is not finite if the model diverged.
    #[serde(deserialize_with = "loss")]
    pub loss: f32,
    /// Total uptime of the run's syncers at the measurement, in seconds.
    pub time_s: f64,
    /// Learner that measured the loss; `None` if the syncer did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_by: Option<LearnerId>,
}

/// Measurements of a run: the first, the newest, and some between them. Recent measurements are denser.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct History {
    /// Measurements, oldest first.
    pub evaluations: Vec<Evaluation>,
    /// Newest text that the model generated.
    pub sample: String,
    /// Lowest finite loss so far, in nats per token.
    best: Option<f32>,
    /// Texts generated over the whole run.
    pub samples: Samples,
}

/// Reads a loss, where null stands for NaN: JSON has no numbers that are not finite, and null is written instead. So
/// the snapshot of a diverged run stays readable.
pub(super) fn loss<'de, D: Deserializer<'de>>(from: D) -> Result<f32, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f32::NAN))
}

/// Maximum number of measurements kept.
const HISTORY_MAX: usize = 512;

impl History {
    /// Adds a measurement. A full list first drops every second one, so that it always covers the whole run.
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

    /// Returns the merged tokens of the parameters that generated the newest text.
    #[must_use]
    pub fn written(&self) -> Option<u64> {
        self.samples.kept().last().map(|sample| sample.tokens_merged)
    }

    /// Returns the learner that measured the newest loss; `None` if the syncer did.
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

/// Maximum number of texts kept. The first and the newest stay.
pub const SAMPLES_MAX: usize = 32;

/// A generated text, with the state of the run at that time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextSample {
    /// Total uptime of the run's syncers when the text was generated, in seconds.
    pub time_s: f64,
    /// Merged tokens of the parameters that generated the text.
    pub tokens_merged: u64,
    /// Held-out loss of those parameters, in nats per token.
    #[serde(deserialize_with = "loss")]
    pub loss: f32,
    /// The text with its prompt.
    pub text: String,
}

/// Texts of a run: the first, the newest, and evenly spaced ones between them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Samples {
    every: u64,
    seen: u64,
    kept: Vec<TextSample>,
}

impl Default for Samples {
    fn default() -> Self {
        Self { every: 1, seen: 0, kept: Vec::new() }
    }
}

impl Samples {
    /// Adds the newest text.
    pub fn push(&mut self, sample: TextSample) {
        // The previous text may have been kept only because it was the newest.
        if self.seen > 0 && !(self.seen - 1).is_multiple_of(self.every) {
            self.kept.pop();
        }
        if self.kept.len() == SAMPLES_MAX {
            self.every *= 2;
            let mut index = 0;
            self.kept.retain(|_| {
                index += 1;
                index % 2 == 1
            });
        }
        self.kept.push(sample);
        self.seen += 1;
    }

    /// Returns the kept texts, oldest first.
    #[must_use]
    pub fn kept(&self) -> &[TextSample] {
        &self.kept
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

    #[test]
    fn stays_small_and_spreads_over_the_run() {
        let mut samples = Samples::default();
        for number in 0..1_000_u64 {
            let text = number.to_string();
            samples.push(TextSample { time_s: 0.0, tokens_merged: number, loss: 1.0, text });
            let kept: Vec<u64> = samples.kept().iter().map(|sample| sample.tokens_merged).collect();
            assert!(kept.len() <= SAMPLES_MAX && kept.is_sorted(), "{number}: {kept:?}");
            assert_eq!((kept[0], kept[kept.len() - 1]), (0, number));
            let gaps = kept.windows(2).rev().skip(1).map(|pair| pair[1] - pair[0]);
            assert!(gaps.clone().all(|gap| gap == samples.every), "{number}: {kept:?}");
        }
        assert!(samples.kept().len() > SAMPLES_MAX / 2);
    }
}
