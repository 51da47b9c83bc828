//! Windows in a row, as they are leased, come back and are leased again.

use serde::{Deserialize, Serialize};

use crate::wire::{LeaseGrant, LeaseId};

/// Windows of one shard, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Piece {
    pub(super) epoch: u32,
    pub(super) shard: u32,
    pub(super) start: u32,
    pub(super) windows: u32,
}

impl Piece {
    /// It as a lease of this number.
    pub(super) fn grant(self, lease: LeaseId) -> LeaseGrant {
        let Self { epoch, shard, start, windows } = self;
        LeaseGrant { lease, epoch, shard, start, windows }
    }

    /// A window of `shard`.
    #[cfg(test)]
    pub(super) fn of_shard(shard: u32) -> Self {
        Self { epoch: 0, shard, start: 0, windows: 1 }
    }

    /// The window after its last one.
    fn end(&self) -> u64 {
        u64::from(self.start) + u64::from(self.windows)
    }

    /// Whether all of `part` is in it.
    pub(super) fn holds(&self, part: &Self) -> bool {
        (self.epoch, self.shard) == (part.epoch, part.shard)
            && self.start <= part.start
            && part.end() <= self.end()
    }

    /// What is left of it before and after `part`, which it holds; either may have no window.
    pub(super) fn without(&self, part: &Self) -> [Self; 2] {
        let before = Self { windows: part.start - self.start, ..*self };
        let start = part.start + part.windows;
        [before, Self { start, windows: self.start + self.windows - start, ..*self }]
    }
}
