//! Rates over a sliding window.

use std::collections::{BTreeMap, VecDeque};

use archipelago_core::diloco::syncer::Syncer;
use archipelago_core::diloco::{LearnerId, Millis};

/// Length of the window, in milliseconds.
pub const RATE_WINDOW_MS: u64 = 10_000;

/// Tokens per second over a sliding window.
#[derive(Debug, Default)]
pub struct Rate {
    samples: VecDeque<(Millis, u64)>,
}

impl Rate {
    /// Records the count at `now`.
    pub fn sample(&mut self, now: Millis, count: u64) {
        self.samples.push_back((now, count));
        // One sample at or before the window's start stays as the baseline.
        while self.samples.get(1).is_some_and(|(at, _)| now.since(*at) >= RATE_WINDOW_MS) {
            self.samples.pop_front();
        }
    }

    /// Returns the growth per second; 0 before two samples.
    #[must_use]
    pub fn per_s(&self) -> f64 {
        match (self.samples.front(), self.samples.back()) {
            (Some((from, before)), Some((to, after))) if to > from => {
                after.saturating_sub(*before) as f64 * 1e3 / to.since(*from) as f64
            }
            _ => 0.0,
        }
    }
}

/// Tokens per second of each connected learner; departed learners are forgotten.
#[derive(Debug, Default)]
pub struct Speeds {
    rates: BTreeMap<LearnerId, Rate>,
}

impl Speeds {
    /// Records the tokens of all learners up to `now`.
    pub fn sample(&mut self, now: Millis, syncer: &Syncer) {
        let mut before = std::mem::take(&mut self.rates);
        for learner in syncer.present() {
            let mut rate = before.remove(&learner.learner).unwrap_or_default();
            rate.sample(now, learner.tokens_trained);
            self.rates.insert(learner.learner, rate);
        }
    }

    /// Returns the tokens per second of `learner`, 0 if it is away.
    #[must_use]
    pub fn of(&self, learner: LearnerId) -> f64 {
        self.rates.get(&learner).map_or(0.0, Rate::per_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_slides() {
        let mut rate = Rate::default();
        assert_eq!(rate.per_s(), 0.0);
        for second in 0..=20 {
            // 100 tokens a second, then 300 a second from second 10 on.
            let count = if second <= 10 { second * 100 } else { 1_000 + (second - 10) * 300 };
            rate.sample(Millis(second * 1_000), count);
        }
        assert_eq!(rate.per_s(), 300.0);
        assert!(rate.samples.len() <= 12);
    }
}
