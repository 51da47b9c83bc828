//! How long nothing has been heard on a connection, and when that is too long.

use std::ops::RangeInclusive;

/// First and longest patience with a peer that says nothing, in microseconds. It doubles with each connection given up,
/// since a run that is held, or slow, is silent too.
pub(super) const PATIENCE_US: RangeInclusive<u64> = 60_000_000..=960_000_000;
/// Time between two looks counts for no more than this, in microseconds: a step that takes longer, or a machine that
/// sleeps, keeps what came from being seen.
const LOOK_US_MAX: u64 = 5_000_000;

/// The silence of one peer.
#[derive(Debug)]
pub(super) struct Silence {
    heard_us: u64,
    looked_us: u64,
    silent_us: u64,
}

impl Silence {
    /// None yet.
    pub(super) fn new(now_us: u64) -> Self {
        Self { heard_us: now_us, looked_us: now_us, silent_us: 0 }
    }

    /// Something came.
    pub(super) fn end(&mut self, now_us: u64) {
        *self = Self::new(now_us);
    }

    /// How much of it counts, in microseconds; to be called often.
    pub(super) fn look(&mut self, now_us: u64) -> u64 {
        let since_us = now_us - std::mem::replace(&mut self.looked_us, now_us);
        self.silent_us += since_us.min(LOOK_US_MAX);
        self.silent_us
    }

    /// Does not count what was up to now.
    pub(super) fn forgive(&mut self, now_us: u64) {
        (self.looked_us, self.silent_us) = (now_us, 0);
    }

    /// How long it lasts by the clock, in microseconds.
    pub(super) fn lasts_us(&self, now_us: u64) -> u64 {
        now_us - self.heard_us
    }
}
