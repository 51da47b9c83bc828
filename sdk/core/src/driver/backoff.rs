//! Randomised exponential backoff, also after lost devices and failed downloads.

use super::DriverConfig;
use crate::rng::Rng;

/// Duration of a connection that undoes one doubling, in milliseconds. If a syncer is killed every few seconds,
/// learners return at once each time. If it fails on each join, connections are shorter and undo nothing, so it is
/// not flooded.
const HEALTHY_MS: u64 = 500;

/// Time that doubles with each attempt, within bounds.
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
/// at the same time.
#[derive(Clone, Debug)]
pub(super) struct Backoff {
    waits: Doubling,
    ceiling_ms: u64,
    rng: Rng,
}

impl Backoff {
    /// Returns a backoff at its first wait. The same `seed` gives the same waits.
    pub(super) fn new(waits: Doubling, seed: u64) -> Self {
        Self { waits, ceiling_ms: waits.first_ms, rng: Rng::new(seed) }
    }

    /// Returns the wait before the next attempt, in milliseconds, at least 1. The previous connection was healthy for
    /// `healthy_ms`.
    pub(super) fn next_ms(&mut self, healthy_ms: u64) -> u64 {
        self.next_ms_within(healthy_ms, self.waits.longest_ms)
    }

    /// Returns the wait as [`Self::next_ms`] does, but at most `ms_max`, for a peer that is expected back soon.
    ///
    /// Let `first` and `longest` be the bounds of [`Doubling`], and let `c` start at `first`. With `c' = min(max(c /
    /// 2^(healthy_ms / 500), first), ms_max)`, the wait is uniform over `[c' / 2, c']`, and the next `c` is `2 c'`,
    /// at most `longest`. On average `n` learners thus make at most `n / (0.75 c')` attempts per unit of time.
    pub(super) fn next_ms_within(&mut self, healthy_ms: u64, ms_max: u64) -> u64 {
        let undone = (healthy_ms / HEALTHY_MS).min(63);
        let ceiling_ms = (self.ceiling_ms >> undone).max(self.waits.first_ms).min(ms_max);
        self.ceiling_ms = self.waits.after(ceiling_ms);
        (ceiling_ms - self.rng.next_u64() % (ceiling_ms / 2 + 1)).max(1)
    }

    /// Resets the waits to the first one after a successful attempt.
    pub(super) fn reset(&mut self) {
        self.ceiling_ms = self.waits.first_ms;
    }
}

/// Device losses without a merged update in between after which a learner gives up.
const LOSSES_MAX: u32 = 8;

/// Count of device losses. A device that is lost again and again is useless.
#[derive(Clone, Debug)]
pub(super) struct Losses {
    /// Losses since an update was last merged.
    count: u32,
    backoff: Backoff,
}

impl Losses {
    /// Returns a count of zero. `seed` is the seed of the random part of the waits.
    pub(super) fn new(waits: Doubling, seed: u64) -> Self {
        Self { count: 0, backoff: Backoff::new(waits, seed) }
    }

    /// Counts a loss and returns the wait before the next build, in milliseconds, or `None` if the learner should
    /// give up.
    pub(super) fn lose(&mut self) -> Option<u64> {
        let healthy_ms = if self.count == 0 { u64::MAX } else { 0 };
        self.count += 1;
        (self.count < LOSSES_MAX).then(|| self.backoff.next_ms(healthy_ms))
    }

    /// Resets the count, because a merged update shows that the device works.
    pub(super) fn merged(&mut self) {
        self.count = 0;
    }
}

/// Series of failed downloads while the member lacks parameters or data for training.
#[derive(Debug)]
pub(super) struct Stall {
    /// Start of the stall, in microseconds. `None` while no download fails.
    since_us: Option<u64>,
    /// Reason of the last failure.
    reason: String,
    /// Time limit for a stall, in milliseconds. `None` sets no limit.
    ms_max: Option<u64>,
    /// Value of `ms_max` once the member has trained.
    again_ms_max: Option<u64>,
}

impl Stall {
    pub(super) fn new(config: &DriverConfig) -> Self {
        let DriverConfig { contact_ms_max, reconnect_ms_max, .. } = *config;
        Self { since_us: None, reason: String::new(), ms_max: contact_ms_max, again_ms_max: reconnect_ms_max }
    }

    /// Begins or continues a stall: a download failed before any of its bytes arrived.
    pub(super) fn begin(&mut self, now_us: u64, reason: &str) {
        self.since_us.get_or_insert(now_us);
        reason.clone_into(&mut self.reason);
    }

    /// Ends a stall, because bytes of a download arrived. A lost connection does not end it, since downloads may keep
    /// failing on the next connection.
    pub(super) fn end(&mut self) {
        self.since_us = None;
    }

    /// Ends a stall, because the member made a training step. From now on, `again_ms_max` is the limit.
    pub(super) fn complete(&mut self) {
        self.end();
        self.ms_max = self.again_ms_max;
    }

    /// Returns the reason for failing downloads, if any fail.
    pub(super) fn reason(&self) -> Option<&str> {
        self.since_us.map(|_| &*self.reason)
    }

    /// Returns the length of a stall in milliseconds and its reason, if it exceeds the limit.
    pub(super) fn too_long(&self, now_us: u64) -> Option<(u64, String)> {
        let waited_ms = now_us.saturating_sub(self.since_us?) / 1_000;
        (waited_ms >= self.ms_max?).then(|| (waited_ms, self.reason.clone()))
    }

    /// Returns the time at which a stall exceeds the limit, in microseconds.
    pub(super) fn deadline(&self) -> Option<u64> {
        Some(self.since_us?.saturating_add(self.ms_max?.saturating_mul(1_000)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Waits;

    #[test]
    fn backoff_doubles_within_bounds_and_healthy_time_undoes_it() {
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
            backoff.reset();
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

    #[test]
    fn losses_give_up_unless_an_update_was_merged_in_between() {
        let mut losses = Losses::new(Waits::default().losses, 1);
        for _ in 0..3 {
            for ceiling_ms in [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000] {
                let wait_ms = losses.lose().unwrap();
                assert!((ceiling_ms / 2..=ceiling_ms).contains(&wait_ms), "{wait_ms} of {ceiling_ms}");
            }
            losses.merged();
        }
        for _ in 1..LOSSES_MAX {
            assert!(losses.lose().is_some());
        }
        assert_eq!(losses.lose(), None);
    }
}
