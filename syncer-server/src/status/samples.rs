//! Texts that the model wrote in the course of a run.

use serde::{Deserialize, Serialize};

/// Maximum number of texts kept.
pub const SAMPLES_MAX: usize = 32;

/// A text, with the state of the run that wrote it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextSample {
    /// Time that the run's syncers had been up, in seconds.
    pub time_s: f64,
    /// Tokens merged into the parameters that wrote it.
    pub tokens_merged: u64,
    /// Held-out loss of those parameters, in nats per token.
    #[serde(deserialize_with = "super::history::loss")]
    pub loss: f32,
    /// The text, prompt included.
    pub text: String,
}

/// The first text, the newest, and evenly spaced ones between them, so that they cover the whole run.
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
        // The previous text may have stayed only because it was the newest.
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
