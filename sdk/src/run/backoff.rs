//! How long to wait before the next attempt.

use std::ops::RangeInclusive;

use crate::rng::Rng;

/// First and longest wait for a syncer, in milliseconds.
const WAITS_MS: RangeInclusive<u64> = 250..=15_000;
/// After so long without trouble the waits begin anew, in milliseconds.
const HEALTHY_MS: u64 = 60_000;

/// Waits that double, by default from 0.25 s to 15 s, each shortened by chance by up to half, so that
/// learners that lost one syncer together do not come back together.
#[derive(Clone, Debug)]
pub struct Backoff {
    waits_ms: RangeInclusive<u64>,
    ceiling_ms: u64,
    rng: Rng,
}

impl Backoff {
    /// The same `seed` gives the same waits.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::within(WAITS_MS, seed)
    }

    /// The first and the longest wait, in milliseconds, before they are shortened.
    pub(super) fn within(waits_ms: RangeInclusive<u64>, seed: u64) -> Self {
        Self { ceiling_ms: *waits_ms.start(), waits_ms, rng: Rng::new(seed) }
    }

    /// The wait before the next attempt, in milliseconds; what went before held for `healthy_ms`.
    pub fn next_ms(&mut self, healthy_ms: u64) -> u64 {
        if healthy_ms >= HEALTHY_MS {
            self.ceiling_ms = *self.waits_ms.start();
        }
        let ceiling_ms = self.ceiling_ms;
        self.ceiling_ms = (2 * ceiling_ms).min(*self.waits_ms.end());
        ceiling_ms - self.rng.next_u64() % (ceiling_ms / 2 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_within_bounds_and_starts_anew_after_a_healthy_minute() {
        for seed in 0..200 {
            let mut backoff = Backoff::new(seed);
            for ceiling_ms in [250, 500, 1_000, 2_000, 4_000, 8_000, 15_000, 15_000] {
                let wait_ms = backoff.next_ms(59_999);
                assert!(
                    (ceiling_ms / 2..=ceiling_ms).contains(&wait_ms),
                    "seed {seed}: {wait_ms} of {ceiling_ms}"
                );
            }
            assert!(backoff.next_ms(60_000) <= 250, "seed {seed}");
            assert!(backoff.next_ms(0) >= 250, "seed {seed}");
        }
    }

    #[test]
    fn two_learners_wait_differently() {
        let waits = |seed| {
            let mut backoff = Backoff::new(seed);
            [(); 6].map(|()| backoff.next_ms(0))
        };
        assert_eq!(waits(1), waits(1));
        assert_ne!(waits(1), waits(2));
    }
}
