//! How long to wait before the next attempt.

use crate::rng::Rng;

/// What held for so long was no failure: the waits begin anew, in milliseconds. Short enough that one who crashes every
/// few minutes, or is restarted often, is found again at once; long enough that one who fails as soon as it is
/// joined is not stormed.
const HEALTHY_MS: u64 = 5_000;

/// A time that doubles from attempt to attempt, within bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doubling {
    /// The first, in milliseconds, at least 1.
    pub first_ms: u64,
    /// The longest, in milliseconds, at least `first_ms`.
    pub longest_ms: u64,
}

impl Doubling {
    /// What follows `ms`, in milliseconds.
    pub(super) fn after(self, ms: u64) -> u64 {
        ms.saturating_mul(2).min(self.longest_ms).max(self.first_ms)
    }
}

/// Waits that double, each shortened by chance by up to half, so that learners that lost one syncer together do not
/// come back together.
#[derive(Clone, Debug)]
pub(super) struct Backoff {
    waits: Doubling,
    ceiling_ms: u64,
    rng: Rng,
}

impl Backoff {
    /// The same `seed` gives the same waits.
    pub(super) fn new(waits: Doubling, seed: u64) -> Self {
        Self { waits, ceiling_ms: waits.first_ms, rng: Rng::new(seed) }
    }

    /// The wait before the next attempt, in milliseconds, at least 1; what went before held for `healthy_ms`.
    pub(super) fn next_ms(&mut self, healthy_ms: u64) -> u64 {
        if healthy_ms >= HEALTHY_MS {
            self.ease();
        }
        let ceiling_ms = self.ceiling_ms;
        self.ceiling_ms = self.waits.after(ceiling_ms);
        (ceiling_ms - self.rng.next_u64() % (ceiling_ms / 2 + 1)).max(1)
    }

    /// What was attempted came about: the waits begin anew.
    pub(super) fn ease(&mut self) {
        self.ceiling_ms = self.waits.first_ms;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::Waits;

    #[test]
    fn doubles_within_bounds_and_starts_anew_after_seconds_of_health_or_success() {
        for seed in 0..200 {
            let mut backoff = Backoff::new(Waits::default().backoff, seed);
            for ceiling_ms in [250, 500, 1_000, 2_000, 4_000, 8_000, 15_000, 15_000] {
                let wait_ms = backoff.next_ms(4_999);
                assert!(
                    (ceiling_ms / 2..=ceiling_ms).contains(&wait_ms),
                    "seed {seed}: {wait_ms} of {ceiling_ms}"
                );
            }
            assert!(backoff.next_ms(5_000) <= 250, "seed {seed}");
            assert!(backoff.next_ms(0) >= 250, "seed {seed}");
            backoff.ease();
            assert!(backoff.next_ms(0) <= 250, "seed {seed}");
        }
    }

    #[test]
    fn two_learners_wait_differently() {
        let waits = |seed| {
            let mut backoff = Backoff::new(Waits::default().backoff, seed);
            [(); 6].map(|()| backoff.next_ms(0))
        };
        assert_eq!(waits(1), waits(1));
        assert_ne!(waits(1), waits(2));
    }
}
