//! Pool of training windows. Each window is leased once in an epoch, unless its lease is lost.

use serde::{Deserialize, Serialize};

use super::lease_index::{Held, Holdings};
use super::window_range::Piece;
use crate::wire::{LearnerId, LeaseGrant, LeaseId, Millis};

/// State of all windows: free, leased or done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeasePool {
    /// Windows in each shard.
    windows: Vec<u32>,
    epoch: u32,
    /// First window of each shard that was not leased in this epoch yet.
    cursors: Vec<u32>,
    /// Returned windows, oldest first; granted before new ones.
    returned: Vec<Piece>,
    held: Holdings,
    next: u64,
    /// Windows that were granted a second time because their lease was lost.
    regranted_windows: u64,
}

/// A lease that ended before all its windows were done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Returned {
    /// The learner that held it.
    pub learner: LearnerId,
    /// The lease.
    pub lease: LeaseId,
    /// Windows not reported as done.
    pub windows: u32,
}

/// Reasons for which no lease can be granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// No shard holds a single window.
    #[error("the data holds no window of the context's length: give more text or a shorter context")]
    NoWindows,
    /// The grant does not follow the previous ones.
    #[error("lease {lease} does not follow on those before it")]
    OutOfTurn {
        /// The lease.
        lease: LeaseId,
    },
}

impl LeasePool {
    /// Creates a pool over shards of `windows` windows each.
    ///
    /// # Errors
    /// [`LeaseError::NoWindows`]: all shards are empty.
    pub fn new(windows: Vec<u32>) -> Result<Self, LeaseError> {
        if windows.iter().all(|&count| count == 0) {
            return Err(LeaseError::NoWindows);
        }
        let cursors = vec![0; windows.len()];
        Ok(Self {
            windows,
            epoch: 0,
            cursors,
            returned: Vec::new(),
            held: Holdings::default(),
            next: 0,
            regranted_windows: 0,
        })
    }

    /// Grants `learner` up to `windows` windows of one shard until `expires`.
    ///
    /// Returned windows are granted first, if `least` of them are in a row. Otherwise the learner stays on its shard
    /// and saves a download, or gets the shard with the fewest leases.
    pub fn grant(&mut self, learner: LearnerId, windows: u32, least: u32, expires: Millis) -> LeaseGrant {
        let windows = windows.max(1);
        let piece = match self.returned.iter().find(|piece| piece.windows >= least) {
            Some(first) => Piece { windows: first.windows.min(windows), ..*first },
            None => self.fresh(learner, windows),
        };
        let grant = piece.grant(LeaseId(self.next));
        self.place(learner, grant, Some(expires)).expect("the piece is the next one");
        grant
    }

    /// Applies a grant from a tape, with unknown expiry.
    ///
    /// # Errors
    /// [`LeaseError::OutOfTurn`]: this pool would not grant it next. The pool is unchanged.
    pub(crate) fn regrant(&mut self, learner: LearnerId, grant: LeaseGrant) -> Result<(), LeaseError> {
        self.place(learner, grant, None)
    }

    fn place(
        &mut self,
        learner: LearnerId,
        grant: LeaseGrant,
        expires: Option<Millis>,
    ) -> Result<(), LeaseError> {
        let LeaseGrant { lease, epoch, shard, start, windows } = grant;
        let out_of_turn = LeaseError::OutOfTurn { lease };
        if lease.0 < self.next || windows == 0 {
            return Err(out_of_turn);
        }
        let piece = Piece { epoch, shard, start, windows };
        if let Some(at) = self.returned.iter().position(|returned| returned.holds(&piece)) {
            let rest = self.returned[at].without(&piece);
            self.returned.splice(at..=at, rest.into_iter().filter(|rest| rest.windows > 0));
            self.regranted_windows += u64::from(windows);
        } else {
            let is_over = self.cursors == self.windows;
            let cursor = if is_over { 0 } else { *self.cursors.get(shard as usize).ok_or(out_of_turn)? };
            let end = self.windows.get(shard as usize).copied().unwrap_or(0);
            let is_next = (epoch, start) == (self.epoch + u32::from(is_over), cursor);
            if !is_next || windows > end - cursor {
                return Err(out_of_turn);
            }
            if is_over {
                self.epoch = epoch;
                self.cursors.fill(0);
            }
            self.cursors[shard as usize] += windows;
        }
        self.next = lease.0 + 1;
        self.held.insert(lease, Held { learner, piece, done: 0, expires });
        Ok(())
    }

    /// Records that `done` windows of `lease` are trained, and extends the lease until `expires`. Returns true if
    /// more windows are done than before. A lease that `learner` does not hold (any more) is unchanged.
    pub fn progress(&mut self, learner: LearnerId, lease: LeaseId, done: u32, expires: Millis) -> bool {
        let Some(held) = self.held.get(lease).filter(|held| held.learner == learner) else { return false };
        let (before, windows) = (held.done, held.piece.windows);
        let done = before.max(done.min(windows));
        if done == windows {
            self.held.remove(lease);
        } else {
            self.held.progress(lease, done, expires);
        }
        done > before
    }

    /// Extends the leases that `learner` has not begun until `expires`: they wait for their turn. Only
    /// [`Self::progress`] extends a lease that was begun.
    pub fn extend(&mut self, learner: LearnerId, expires: Millis) {
        let untouched = self.held.of(learner).filter(|(_, held)| held.done == 0).map(|(lease, _)| lease);
        for lease in untouched.collect::<Vec<_>>() {
            self.held.allow(lease, Some(expires));
        }
    }

    /// Takes back the leases that expired at `now`. Leases from before a restart are extended until `fresh` first.
    pub(crate) fn expire(&mut self, now: Millis, fresh: Millis) -> Vec<Returned> {
        self.held.allow_undated(fresh);
        let expired = self.held.expired(now);
        self.take_back(expired)
    }

    /// Takes back all leases of `learner`.
    pub fn release(&mut self, learner: LearnerId) -> Vec<Returned> {
        let held = self.leases(learner);
        self.take_back(held)
    }

    /// Prepares the pool after a restart. New leases are numbered from `first` on, unless the numbers are further
    /// already, since learners may name leases that the snapshot does not know. All known leases get their full time
    /// again.
    pub fn reopen(&mut self, first: LeaseId) {
        self.next = self.next.max(first.0);
        self.held.forget_dates();
    }

    /// Takes back those of `leases` that `learner` holds.
    pub(crate) fn withdraw(&mut self, learner: LearnerId, leases: &[LeaseId]) -> Vec<Returned> {
        let mut held = self.leases(learner);
        held.retain(|lease| leases.contains(lease));
        self.take_back(held)
    }

    /// Returns the time at which the next lease expires.
    #[must_use]
    pub fn deadline(&self) -> Option<Millis> {
        self.held.deadline()
    }

    /// Returns the windows that `learner` holds and has not reported as done.
    #[must_use]
    pub(crate) fn remaining(&self, learner: LearnerId) -> u32 {
        self.held.of(learner).map(|(_, held)| held.piece.windows - held.done).fold(0, u32::saturating_add)
    }

    /// Returns true if `learner` holds a lease.
    #[must_use]
    pub(crate) fn has(&self, learner: LearnerId) -> bool {
        self.held.has(learner)
    }

    /// Returns the leases of `learner`.
    #[must_use]
    pub fn leases(&self, learner: LearnerId) -> Vec<LeaseId> {
        self.held.of(learner).map(|(lease, _)| lease).collect()
    }

    /// Returns the number of windows in one pass over the data.
    #[must_use]
    pub(crate) fn epoch_windows(&self) -> u64 {
        self.windows.iter().map(|&count| u64::from(count)).sum()
    }

    /// Returns the current pass over the data, from 0.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Returns the windows that were granted a second time because their lease was lost.
    #[must_use]
    pub fn regranted_windows(&self) -> u64 {
        self.regranted_windows
    }

    /// Returns windows that were not leased in this epoch, or windows of the next epoch if all were.
    fn fresh(&self, learner: LearnerId, windows: u32) -> Piece {
        let is_over = self.cursors == self.windows;
        let cursor = |shard: u32| if is_over { 0 } else { self.cursors[shard as usize] };
        let mine = self.held.of(learner).next_back().map(|(_, held)| held.piece.shard);
        let (shard, _) = (0_u32..)
            .zip(&self.windows)
            .filter(|&(shard, &count)| cursor(shard) < count)
            .min_by_key(|(shard, _)| (Some(*shard) != mine, self.held.on_shard(*shard), *shard))
            .expect("a new epoch has windows, as `new` checked");
        let start = cursor(shard);
        let windows = windows.min(self.windows[shard as usize] - start);
        Piece { epoch: self.epoch + u32::from(is_over), shard, start, windows }
    }

    /// Takes back the leases `ended`, in their order.
    fn take_back(&mut self, ended: Vec<LeaseId>) -> Vec<Returned> {
        let mut taken = Vec::with_capacity(ended.len());
        for lease in ended {
            let Some(Held { learner, piece, done, .. }) = self.held.remove(lease) else { continue };
            let left = piece.windows - done;
            self.returned.push(Piece { start: piece.start + done, windows: left, ..piece });
            taken.push(Returned { learner, lease, windows: left });
        }
        taken
    }
}

#[cfg(test)]
mod tests;
