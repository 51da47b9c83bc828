//! Backoff: the wait before the next attempt.

use crate::rng::Rng;

/// Connection time that undoes one doubling, in milliseconds. If a syncer is killed every few seconds, learners return
/// at once each time. A syncer that fails on each join is not flooded, because a shorter connection undoes nothing.
const HEALTHY_MS: u64 = 500;

/// A time that doubles with each attempt, within bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doubling {
    /// First value in milliseconds, at least 1.
    pub first_ms: u64,
    /// Maximum in milliseconds, at least `first_ms`.
    pub longest_ms: u64,
}

impl Doubling {
    /// Returns the value after `ms`, in milliseconds.
    pub(super) fn after(self, ms: u64) -> u64 {
        ms.saturating_mul(2).min(self.longest_ms).max(self.first_ms)
    }
}

/// Doubling waits, each shortened at random by up to half, so that learners that lost the same syncer do not return
/// together.
#[derive(Clone, Debug)]
pub(super) struct Backoff {
    waits: Doubling,
    ceiling_ms: u64,
    rng: Rng,
}

impl Backoff {
    /// Returns a backoff; the same `seed` gives the same waits.
    pub(super) fn new(waits: Doubling, seed: u64) -> Self {
        Self { waits, ceiling_ms: waits.first_ms, rng: Rng::new(seed) }
    }

    /// Returns the wait before the next attempt, in milliseconds, at least 1. The previous connection lasted for
    /// `healthy_ms`.
    pub(super) fn next_ms(&mut self, healthy_ms: u64) -> u64 {
        self.next_ms_within(healthy_ms, self.waits.longest_ms)
    }

    /// Returns the wait as [`Self::next_ms`] does, but at most `ms_max`, for a peer that is expected back soon.
    ///
    /// Let `first` and `longest` be those of [`Doubling`], and let `c` double with each failure. With `c' = min(max(c /
    /// 2^(healthy_ms / 500), first), longest, ms_max)`, the wait is uniform over `[c' / 2, c']`, and the next `c` is `2
    /// c'`. Thus `n` learners make on average at most `n / (0.75 c')` attempts per second.
    pub(super) fn next_ms_within(&mut self, healthy_ms: u64, ms_max: u64) -> u64 {
        let undone = (healthy_ms / HEALTHY_MS).min(63);
        let ceiling_ms = (self.ceiling_ms >> undone).max(self.waits.first_ms).min(ms_max);
        self.ceiling_ms = self.waits.after(ceiling_ms);
        (ceiling_ms - self.rng.next_u64() % (ceiling_ms / 2 + 1)).max(1)
    }

    /// Resets the waits after a successful attempt.
    pub(super) fn ease(&mut self) {
        self.ceiling_ms = self.waits.first_ms;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Waits;

    #[test]
    fn doubles_within_bounds_and_half_seconds_of_health_or_success_undo_it() {
        for seed in 0..200 {
            let mut backoff = Backoff::new(Waits::default().backoff, seed);
            let mut expect = |healthy_ms, ms_max, ceiling_ms: u64| {
                let wait_ms = backoff.next_ms_within(healthy_ms, ms_max);
                assert!(
                    (ceiling_ms / 2..=ceiling_ms).contains(&wait_ms),
                    "seed {seed}: {wait_ms} of {ceiling_ms}"
                );
            };
            for ceiling_ms in [250, 500, 1_000, 2_000, 4_000, 8_000, 15_000, 15_000] {
                expect(499, u64::MAX, ceiling_ms);
            }
            expect(1_000, u64::MAX, 3_750);
            expect(499, u64::MAX, 7_500);
            expect(5_000, u64::MAX, 250);
            for ceiling_ms in [500, 1_000, 1_000, 1_000] {
                expect(0, 1_000, ceiling_ms);
            }
            expect(0, u64::MAX, 2_000);
            expect(u64::MAX, u64::MAX, 250);
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
