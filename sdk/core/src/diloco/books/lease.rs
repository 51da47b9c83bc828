//! Handing out the training windows, each once an epoch unless a lease is lost.

use serde::{Deserialize, Serialize};

use super::holdings::{Held, Holdings};
use super::piece::Piece;
use crate::wire::{LearnerId, LeaseGrant, LeaseId, Millis};

/// Which windows are free, held and done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeasePool {
    /// Windows of each shard in an epoch.
    windows: Vec<u32>,
    epoch: u32,
    /// First window of each shard that nobody has had in this epoch.
    cursors: Vec<u32>,
    /// What came back, oldest first; granted before anything new.
    returned: Vec<Piece>,
    held: Holdings,
    next: u64,
    /// Windows that were granted a second time because their lease was lost.
    regranted_windows: u64,
}

/// A lease that ended unfinished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Returned {
    /// Who held it.
    pub learner: LearnerId,
    /// The lease.
    pub lease: LeaseId,
    /// Windows not known to be done.
    pub windows: u32,
}

/// Why there is nothing to lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// No shard holds a single window.
    #[error("the data holds no window of the context's length: give more text or a shorter context")]
    NoWindows,
    /// A grant that does not follow on those before it.
    #[error("lease {lease} does not follow on those before it")]
    OutOfTurn {
        /// The lease.
        lease: LeaseId,
    },
}

impl LeasePool {
    /// A pool over shards of so many `windows` each.
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
    /// What came back goes first, where it has `least` windows in a row. Otherwise the learner stays on the shard that
    /// it has, so that it need not fetch another, or gets the shard that the fewest learners are on.
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

    /// Takes in a grant that was made before, as a tape has it; the time allowed for it starts anew.
    ///
    /// # Errors
    /// [`LeaseError::OutOfTurn`]: it is not what this pool would grant next. The pool is as before.
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

    /// Notes that `done` windows of `lease` are trained, and allows it until `expires`; whether that is more than
    /// before. A lease that is not this learner's (any more) is left alone.
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

    /// Allows the leases of `learner` that it has not begun until `expires`: they wait for their turn. Those that it
    /// has begun are allowed by [`Self::progress`] alone.
    pub fn extend(&mut self, learner: LearnerId, expires: Millis) {
        let untouched = self.held.of(learner).filter(|(_, held)| held.done == 0).map(|(lease, _)| lease);
        for lease in untouched.collect::<Vec<_>>() {
            self.held.allow(lease, Some(expires));
        }
    }

    /// Takes back what expired at `now`; leases of before a restart are allowed until `fresh`.
    pub(crate) fn expire(&mut self, now: Millis, fresh: Millis) -> Vec<Returned> {
        self.held.allow_undated(fresh);
        let expired = self.held.expired(now);
        self.take_back(expired)
    }

    /// Takes back all that `learner` holds.
    pub fn release(&mut self, learner: LearnerId) -> Vec<Returned> {
        let held = self.leases(learner);
        self.take_back(held)
    }

    /// After a restart: numbers what is granted from here on from `first` on, if it is not further already, since
    /// learners may name leases that the snapshot knows nothing of. The time allowed for those that it knows starts
    /// anew.
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

    /// When the next lease expires.
    #[must_use]
    pub fn deadline(&self) -> Option<Millis> {
        self.held.deadline()
    }

    /// Windows that `learner` holds and has not reported done.
    #[must_use]
    pub(crate) fn remaining(&self, learner: LearnerId) -> u32 {
        self.held.of(learner).map(|(_, held)| held.piece.windows - held.done).fold(0, u32::saturating_add)
    }

    /// Whether `learner` holds any.
    #[must_use]
    pub(crate) fn has(&self, learner: LearnerId) -> bool {
        self.held.has(learner)
    }

    /// The leases of `learner`.
    #[must_use]
    pub fn leases(&self, learner: LearnerId) -> Vec<LeaseId> {
        self.held.of(learner).map(|(lease, _)| lease).collect()
    }

    /// Windows in one pass over the data.
    #[must_use]
    pub(crate) fn epoch_windows(&self) -> u64 {
        self.windows.iter().map(|&count| u64::from(count)).sum()
    }

    /// The pass over the data that is being granted, from 0.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Windows that were granted a second time because their lease was lost.
    #[must_use]
    pub fn regranted_windows(&self) -> u64 {
        self.regranted_windows
    }

    /// Windows that nobody had in this epoch, or once there are none in the next.
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

    /// Takes back the leases of these numbers, in their order.
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
