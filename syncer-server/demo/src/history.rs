//! Trained tokens over time, for speeds.

use crate::status::Status;

/// Samples of each learner's trained tokens during a run.
#[derive(Default)]
pub struct History {
    samples: Vec<Sample>,
}

struct Sample {
    /// Seconds since the run began.
    at: f64,
    tokens: Vec<(String, u64)>,
}

impl History {
    /// Records `status` as of `at` seconds.
    pub fn push(&mut self, at: f64, status: &Status) {
        let tokens =
            status.learners.iter().map(|learner| (learner.name.clone(), learner.tokens_trained)).collect();
        self.samples.push(Sample { at, tokens });
    }

    /// Returns the tokens per second between two times, over the learners whose name passes `counts`.
    pub fn tokens_per_s(&self, from: f64, to: f64, counts: impl Fn(&str) -> bool) -> f64 {
        let (Some(first), Some(last)) = (self.at(from), self.at(to)) else { return 0.0 };
        let seconds = last.at - first.at;
        let sum = |sample: &Sample| {
            sample.tokens.iter().filter(|(name, _)| counts(name)).map(|(_, tokens)| *tokens).sum::<u64>()
        };
        if seconds > 0.0 { sum(last).saturating_sub(sum(first)) as f64 / seconds } else { 0.0 }
    }

    /// Returns the last sample not after `seconds`, or the first of all.
    fn at(&self, seconds: f64) -> Option<&Sample> {
        let after = self.samples.partition_point(|sample| sample.at <= seconds);
        self.samples.get(after.saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Learner;

    #[test]
    fn speeds_are_those_of_the_window_and_the_names() {
        let mut history = History::default();
        for at in 0..=10 {
            // b trains twice as fast, and stops at 5.
            let learners = [("a", 100 * at), ("b", 200 * at.min(5))].map(|(name, tokens_trained)| Learner {
                name: name.to_owned(),
                tokens_trained,
                ..Learner::default()
            });
            history.push(at as f64, &Status { learners: learners.into(), ..Status::default() });
        }
        assert_eq!(history.tokens_per_s(0.0, 5.0, |_| true), 300.0);
        assert_eq!(history.tokens_per_s(5.0, 10.0, |_| true), 100.0);
        assert_eq!(history.tokens_per_s(0.0, 10.0, |name| name == "b"), 100.0);
        assert_eq!(history.tokens_per_s(-5.0, 10.0, |name| name == "a"), 100.0);
        assert_eq!(History::default().tokens_per_s(0.0, 1.0, |_| true), 0.0);
    }
}
