//! Ranges of windows, as they are leased, returned and leased again.

use serde::{Deserialize, Serialize};

use crate::wire::{LeaseGrant, LeaseId};

/// Consecutive windows of one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Piece {
    pub(super) epoch: u32,
    pub(super) shard: u32,
    pub(super) start: u32,
    pub(super) windows: u32,
}

impl Piece {
    /// Returns the range as a lease with this number.
    pub(super) fn grant(self, lease: LeaseId) -> LeaseGrant {
        let Self { epoch, shard, start, windows } = self;
        LeaseGrant { lease, epoch, shard, start, windows }
    }

    /// Returns a range of one window of `shard`.
    #[cfg(test)]
    pub(super) fn of_shard(shard: u32) -> Self {
        Self { epoch: 0, shard, start: 0, windows: 1 }
    }

    /// Returns the index after the last window.
    fn end(&self) -> u64 {
        u64::from(self.start) + u64::from(self.windows)
    }

    /// Returns true if the range contains all of `part`.
    pub(super) fn holds(&self, part: &Self) -> bool {
        (self.epoch, self.shard) == (part.epoch, part.shard)
            && self.start <= part.start
            && part.end() <= self.end()
    }

    /// Returns the ranges before and after `part`, which lies inside; either may be empty.
    pub(super) fn without(&self, part: &Self) -> [Self; 2] {
        let before = Self { windows: part.start - self.start, ..*self };
        let start = part.start + part.windows;
        [before, Self { start, windows: self.start + self.windows - start, ..*self }]
    }
}
