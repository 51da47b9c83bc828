//! Pool of training windows. Each window is leased once per epoch, unless its lease is lost.

use std::collections::{BTreeMap, BTreeSet};

use crate::diloco::speed::SPEED_SLACK;
use crate::wire::{LearnerId, LeaseGrant, LeaseId, Millis};
use serde::{Deserialize, Serialize, Serializer};

/// State of all windows: free, leased or done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeasePool {
    /// Number of windows in each shard.
    windows: Vec<u32>,
    /// Current epoch, from 0.
    epoch: u32,
    /// Index of the first window of each shard that was not leased in this epoch yet.
    cursors: Vec<u32>,
    /// Ranges of returned windows, oldest first, which are granted before new ones.
    returned: Vec<Piece>,
    held: LeaseTable,
    /// Number of the next lease.
    next: u64,
    /// Number of windows that were granted a second time because their lease was lost.
    regranted_windows: u64,
}

/// Lease that ended before all its windows were done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Returned {
    /// Learner that held the lease.
    pub learner: LearnerId,
    /// The lease.
    pub lease: LeaseId,
    /// Number of windows that were not reported as done.
    pub windows: u32,
}

/// Error of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// No shard has a whole window.
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
    /// Creates a pool. `windows` is the number of windows in each shard.
    ///
    /// # Errors
    /// [`LeaseError::NoWindows`] if all shards are empty.
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
            held: LeaseTable::default(),
            next: 0,
            regranted_windows: 0,
        })
    }

    /// Grants `learner` a lease of up to `windows` windows of one shard until `expires`.
    ///
    /// Returned ranges of at least `least` windows are granted first. Otherwise the learner stays on its shard, which
    /// saves a download, or gets the shard with the fewest leases.
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

    /// Applies a grant from the tape, with an unknown expiry.
    ///
    /// # Errors
    /// [`LeaseError::OutOfTurn`] if the grant does not follow the previous ones. The pool is then unchanged.
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
        self.held.insert(lease, ActiveLease { learner, piece, done: 0, expires });
        Ok(())
    }

    /// Records that `done` windows of `lease` are trained, and extends the lease until `expires`. Returns true if more
    /// windows are done than before. Does nothing if `learner` does not hold the lease.
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

    /// Extends the leases of `learner` without finished windows until `expires`. Only [`Self::progress`] extends
    /// others.
    pub fn extend(&mut self, learner: LearnerId, expires: Millis) {
        let untouched = self.held.of(learner).filter(|(_, held)| held.done == 0).map(|(lease, _)| lease);
        for lease in untouched.collect::<Vec<_>>() {
            self.held.set_expiry(lease, Some(expires));
        }
    }

    /// Takes back the leases that are expired at `now`. Before, leases with unknown expiry are extended until `fresh`.
    pub(crate) fn expire(&mut self, now: Millis, fresh: Millis) -> Vec<Returned> {
        self.held.set_unknown_expiries(fresh);
        let expired = self.held.expired(now);
        self.end_leases(expired)
    }

    /// Takes back all leases of `learner`.
    pub fn release(&mut self, learner: LearnerId) -> Vec<Returned> {
        let held = self.leases(learner);
        self.end_leases(held)
    }

    /// Prepares the pool for a new process of the syncer. New leases are numbered from `first` on, if that is above the
    /// next number, since learners may hold leases that the snapshot does not have. All leases get their full time
    /// again.
    pub fn reopen(&mut self, first: LeaseId) {
        self.next = self.next.max(first.0);
        self.held.clear_expiries();
    }

    /// Takes back those among `leases` that `learner` holds.
    pub(crate) fn withdraw(&mut self, learner: LearnerId, leases: &[LeaseId]) -> Vec<Returned> {
        let mut held = self.leases(learner);
        held.retain(|lease| leases.contains(lease));
        self.end_leases(held)
    }

    /// Returns the time at which the next lease expires.
    #[must_use]
    pub fn deadline(&self) -> Option<Millis> {
        self.held.deadline()
    }

    /// Returns the number of leased windows that `learner` has not reported as done.
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

    /// Returns the number of windows in one epoch.
    #[must_use]
    pub(crate) fn epoch_windows(&self) -> u64 {
        self.windows.iter().map(|&count| u64::from(count)).sum()
    }

    /// Returns the current epoch (pass over the data), from 0.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Returns the number of windows that were granted a second time because their lease was lost.
    #[must_use]
    pub fn regranted_windows(&self) -> u64 {
        self.regranted_windows
    }

    /// Returns a range of up to `windows` windows that were not leased in this epoch, or of the next epoch if all were.
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

    /// Ends the leases `ended`, in this order, and returns their remaining windows to the pool.
    fn end_leases(&mut self, ended: Vec<LeaseId>) -> Vec<Returned> {
        let mut taken = Vec::with_capacity(ended.len());
        for lease in ended {
            let Some(ActiveLease { learner, piece, done, .. }) = self.held.remove(lease) else { continue };
            let left = piece.windows - done;
            self.returned.push(Piece { start: piece.start + done, windows: left, ..piece });
            taken.push(Returned { learner, lease, windows: left });
        }
        taken
    }
}

/// Active lease.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ActiveLease {
    pub(super) learner: LearnerId,
    pub(super) piece: Piece,
    /// Number of windows that were reported as done.
    pub(super) done: u32,
    /// Expiry; `None` after a restart until the full time is granted again.
    #[serde(skip)]
    pub(super) expires: Option<Millis>,
}

/// All active leases, with indices. Serialises as a map of leases.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(from = "BTreeMap<LeaseId, ActiveLease>")]
pub(super) struct LeaseTable {
    held: BTreeMap<LeaseId, ActiveLease>,
    by_learner: BTreeMap<LearnerId, BTreeSet<LeaseId>>,
    /// Number of leases on each shard.
    by_shard: BTreeMap<u32, u32>,
    expiries: BTreeSet<(Millis, LeaseId)>,
    /// Leases with unknown expiry.
    without_expiry: BTreeSet<LeaseId>,
}

impl Serialize for LeaseTable {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.held.serialize(serializer)
    }
}

impl From<BTreeMap<LeaseId, ActiveLease>> for LeaseTable {
    fn from(held: BTreeMap<LeaseId, ActiveLease>) -> Self {
        let mut holdings = Self::default();
        held.into_iter().for_each(|(lease, held)| holdings.insert(lease, held));
        holdings
    }
}

impl LeaseTable {
    /// Adds `lease`, which must be new.
    pub(super) fn insert(&mut self, lease: LeaseId, held: ActiveLease) {
        self.by_learner.entry(held.learner).or_default().insert(lease);
        *self.by_shard.entry(held.piece.shard).or_default() += 1;
        self.index_expiry(lease, held.expires);
        self.held.insert(lease, held);
    }

    /// Removes and returns `lease`.
    pub(super) fn remove(&mut self, lease: LeaseId) -> Option<ActiveLease> {
        let held = self.held.remove(&lease)?;
        if let Some(leases) = self.by_learner.get_mut(&held.learner) {
            leases.remove(&lease);
            if leases.is_empty() {
                self.by_learner.remove(&held.learner);
            }
        }
        if let Some(count) = self.by_shard.get_mut(&held.piece.shard) {
            *count -= 1;
            if *count == 0 {
                self.by_shard.remove(&held.piece.shard);
            }
        }
        self.unindex_expiry(lease, held.expires);
        Some(held)
    }

    /// Returns the lease with this number.
    pub(super) fn get(&self, lease: LeaseId) -> Option<&ActiveLease> {
        self.held.get(&lease)
    }

    /// Sets the number of finished windows of `lease`, and extends it until `expires`.
    pub(super) fn progress(&mut self, lease: LeaseId, done: u32, expires: Millis) {
        if let Some(held) = self.held.get_mut(&lease) {
            held.done = done;
        }
        self.set_expiry(lease, Some(expires));
    }

    /// Sets the expiry of `lease`; `None` makes it unknown.
    pub(super) fn set_expiry(&mut self, lease: LeaseId, expires: Option<Millis>) {
        let Some(held) = self.held.get_mut(&lease).filter(|held| held.expires != expires) else { return };
        let before = std::mem::replace(&mut held.expires, expires);
        self.unindex_expiry(lease, before);
        self.index_expiry(lease, expires);
    }

    /// Sets the expiry of all leases with unknown expiry to `fresh`.
    pub(super) fn set_unknown_expiries(&mut self, fresh: Millis) {
        for lease in std::mem::take(&mut self.without_expiry) {
            if let Some(held) = self.held.get_mut(&lease) {
                held.expires = Some(fresh);
            }
            self.index_expiry(lease, Some(fresh));
        }
    }

    /// Makes the expiry of all leases unknown.
    pub(super) fn clear_expiries(&mut self) {
        self.expiries.clear();
        for (&lease, held) in &mut self.held {
            held.expires = None;
            self.without_expiry.insert(lease);
        }
    }

    /// Returns the leases that are expired at `now`, ordered by number.
    pub(super) fn expired(&self, now: Millis) -> Vec<LeaseId> {
        let expired = self.expiries.range(..=(now, LeaseId(u64::MAX))).map(|(_, lease)| *lease);
        let mut expired: Vec<_> = expired.collect();
        expired.sort_unstable();
        expired
    }

    /// Returns the time at which the next lease expires.
    pub(super) fn deadline(&self) -> Option<Millis> {
        self.expiries.first().map(|(at, _)| *at)
    }

    /// Returns the leases of `learner`, ordered by number.
    pub(super) fn of(&self, learner: LearnerId) -> impl DoubleEndedIterator<Item = (LeaseId, &ActiveLease)> {
        let leases = self.by_learner.get(&learner).into_iter().flatten();
        leases.filter_map(|&lease| Some((lease, self.held.get(&lease)?)))
    }

    /// Returns true if `learner` holds a lease.
    pub(super) fn has(&self, learner: LearnerId) -> bool {
        self.by_learner.contains_key(&learner)
    }

    /// Returns the number of leases on `shard`.
    pub(super) fn on_shard(&self, shard: u32) -> u32 {
        self.by_shard.get(&shard).copied().unwrap_or(0)
    }

    fn index_expiry(&mut self, lease: LeaseId, expires: Option<Millis>) {
        match expires {
            Some(at) => self.expiries.insert((at, lease)),
            None => self.without_expiry.insert(lease),
        };
    }

    fn unindex_expiry(&mut self, lease: LeaseId, expires: Option<Millis>) {
        match expires {
            Some(at) => self.expiries.remove(&(at, lease)),
            None => self.without_expiry.remove(&lease),
        };
    }
}

/// Number of steps that a lease covers before the learner has claimed a step time.
const FIRST_LEASE_STEPS: u32 = 256;

/// Step time and batch of a learner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// Claimed time of one step, in milliseconds; 0 without a claim.
    pub step_ms: f64,
    /// Lower bound on the time of one step, in milliseconds, above 0.
    pub step_ms_least: f64,
    /// Number of windows in one step, at least 1.
    pub batch: u32,
}

impl Speed {
    /// Returns the number of steps that the learner takes in `lease_ms`, at least 1.
    pub(super) fn lease_steps(&self, lease_ms: u64) -> u32 {
        if self.step_ms == 0.0 {
            return FIRST_LEASE_STEPS;
        }
        ((lease_ms as f64 / self.step_ms.max(self.step_ms_least)) as u32).max(1)
    }
}

/// Stock of each learner: leased windows on which it cannot have trained yet, whatever it reports.
#[derive(Clone, Debug, Default)]
pub(super) struct LeaseStocks(BTreeMap<LearnerId, Stock>);

/// Stock of one learner.
#[derive(Clone, Copy, Debug, Default)]
struct Stock {
    /// Number of steps in the stock.
    steps: f64,
    /// Number of windows in one step.
    batch: u32,
    /// Time for which `steps` was computed.
    at: Millis,
}

impl LeaseStocks {
    /// Returns true if the stock of `learner` is small enough for another lease: at most [`FIRST_LEASE_STEPS`] steps or
    /// `lease_ms` of training at the highest accepted speed. A learner that reports leases as done faster than it can
    /// train has to wait.
    pub(super) fn may_lease(
        &mut self,
        now: Millis,
        learner: LearnerId,
        speed: &Speed,
        lease_ms: u64,
    ) -> bool {
        let stock = self.0.entry(learner).or_default();
        let trained = SPEED_SLACK * now.since(stock.at) as f64 / speed.step_ms_least;
        *stock = Stock { steps: (stock.steps - trained).max(0.0), batch: speed.batch, at: now };
        stock.steps <= f64::from(FIRST_LEASE_STEPS).max(lease_ms as f64 / speed.step_ms_least)
    }

    /// Adds `windows` leased windows to the stock of `learner`.
    pub(super) fn add(&mut self, learner: LearnerId, windows: u32) {
        let stock = self.0.entry(learner).or_default();
        stock.steps += f64::from(windows) / f64::from(stock.batch.max(1));
    }

    /// Removes `windows` returned windows from the stock of `learner`.
    pub(super) fn remove_windows(&mut self, learner: LearnerId, windows: u32) {
        if let Some(stock) = self.0.get_mut(&learner) {
            stock.steps = (stock.steps - f64::from(windows) / f64::from(stock.batch.max(1))).max(0.0);
        }
    }

    /// Removes the stock of `learner`.
    pub(super) fn forget(&mut self, learner: LearnerId) {
        self.0.remove(&learner);
    }
}

/// Range of consecutive windows of one shard in one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Piece {
    pub(super) epoch: u32,
    pub(super) shard: u32,
    /// Index of the first window in the shard.
    pub(super) start: u32,
    /// Number of windows.
    pub(super) windows: u32,
}

impl Piece {
    /// Returns the grant of this range under the number `lease`.
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

    /// Returns true if the range contains the range `part`.
    pub(super) fn holds(&self, part: &Self) -> bool {
        (self.epoch, self.shard) == (part.epoch, part.shard)
            && self.start <= part.start
            && part.end() <= self.end()
    }

    /// Returns the parts of this range before and after `part`, which lies inside it; either may be empty.
    pub(super) fn without(&self, part: &Self) -> [Self; 2] {
        let before = Self { windows: part.start - self.start, ..*self };
        let start = part.start + part.windows;
        [before, Self { start, windows: self.start + self.windows - start, ..*self }]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::rng::Rng;

    const ANNE: LearnerId = LearnerId(1);
    const BERT: LearnerId = LearnerId(2);
    const END: Millis = Millis(100);

    fn windows(grant: LeaseGrant) -> impl Iterator<Item = (u32, u32, u32)> {
        (grant.start..grant.start + grant.windows).map(move |w| (grant.epoch, grant.shard, w))
    }

    #[test]
    fn grants_each_window_once_an_epoch() {
        let mut pool = LeasePool::new(vec![7, 0, 5]).unwrap();
        assert_eq!(pool.epoch(), 0);
        let mut seen = BTreeSet::new();
        while seen.len() < 24 {
            for window in windows(pool.grant(ANNE, 3, 1, END)) {
                assert!(seen.insert(window), "{window:?} granted twice");
            }
        }
        assert_eq!(seen.iter().filter(|(epoch, ..)| *epoch == 0).count(), 12);
        assert_eq!(pool.epoch(), 1);
        assert_eq!(pool.regranted_windows(), 0);
    }

    #[test]
    fn expired_lease_is_granted_again_without_its_done_windows() {
        let mut pool = LeasePool::new(vec![100]).unwrap();
        let lost = pool.grant(ANNE, 10, 1, END);
        pool.progress(ANNE, lost.lease, 4, END);
        assert_eq!(pool.expire(Millis(99), END), vec![]);
        let back = pool.expire(Millis(100), END);
        assert_eq!(back, vec![Returned { learner: ANNE, lease: lost.lease, windows: 6 }]);

        let again = pool.grant(BERT, 4, 1, END);
        assert_eq!((again.start, again.windows), (4, 4));
        let rest = pool.grant(BERT, 4, 1, END);
        assert_eq!((rest.start, rest.windows), (8, 2));
        assert_eq!(pool.regranted_windows(), 6);
        assert_eq!(pool.grant(BERT, 4, 1, END).start, 10);
    }

    #[test]
    fn returned_ranges_below_the_minimum_are_skipped() {
        let mut pool = LeasePool::new(vec![100]).unwrap();
        let [small, large] = [2, 5].map(|windows| pool.grant(ANNE, windows, 1, END));
        assert_eq!(pool.release(ANNE).len(), 2);
        let grant = pool.grant(BERT, 4, 3, END);
        assert_eq!((grant.start, grant.windows), (large.start, 4));
        assert_eq!(pool.grant(BERT, 4, 3, END).start, 7, "nothing that came back is large enough");
        let [first, second] = [4, 4].map(|windows| pool.grant(BERT, windows, 1, END));
        assert_eq!((first.start, first.windows), (small.start, 2));
        assert_eq!((second.start, second.windows), (large.start + 4, 1));
    }

    /// Goal: a grant from the tape may be any part of a returned range, also from its middle.
    #[test]
    fn recorded_grant_may_be_any_part_of_a_returned_range() {
        let mut pool = LeasePool::new(vec![100]).unwrap();
        pool.grant(ANNE, 10, 1, END);
        pool.release(ANNE);
        let grant =
            |lease, start, windows| LeaseGrant { lease: LeaseId(lease), epoch: 0, shard: 0, start, windows };
        assert_eq!(pool.regrant(BERT, grant(5, 4, 3)), Ok(()));
        assert_eq!(pool.regrant(BERT, grant(6, 5, 3)), Err(LeaseError::OutOfTurn { lease: LeaseId(6) }));
        assert_eq!(pool.regrant(BERT, grant(6, 7, 3)), Ok(()));
        assert_eq!(pool.regrant(BERT, grant(7, 0, 4)), Ok(()));
        assert_eq!(pool.grant(BERT, 4, 1, END).start, 10, "all is out again");
    }

    #[test]
    fn withdraw_ignores_leases_of_other_learners() {
        let mut pool = LeasePool::new(vec![100]).unwrap();
        let [first, second, other] = [ANNE, ANNE, BERT].map(|learner| pool.grant(learner, 10, 1, END));
        pool.progress(ANNE, second.lease, 3, END);
        let back = pool.withdraw(ANNE, &[second.lease, other.lease, LeaseId(77)]);
        assert_eq!(back, vec![Returned { learner: ANNE, lease: second.lease, windows: 7 }]);
        assert_eq!((pool.leases(ANNE), pool.leases(BERT)), (vec![first.lease], vec![other.lease]));
    }

    #[test]
    fn other_learners_cannot_finish_a_lease() {
        let mut pool = LeasePool::new(vec![100]).unwrap();
        let grant = pool.grant(ANNE, 10, 1, END);
        pool.progress(BERT, grant.lease, 10, Millis(1_000));
        assert_eq!(pool.remaining(ANNE), 10);
        assert_eq!(pool.deadline(), Some(END));
        pool.progress(ANNE, grant.lease, u32::MAX, END);
        assert_eq!(pool.remaining(ANNE), 0);
        assert_eq!(pool.deadline(), None);
    }

    #[test]
    fn lease_numbers_are_not_reused_after_a_restart() {
        let mut pool = LeasePool::new(vec![100]).unwrap();
        let snapshot = pool.clone();
        let lost = pool.grant(ANNE, 10, 1, END);
        let mut pool = snapshot;
        pool.reopen(LeaseId(1 << 32));
        let grant = pool.grant(ANNE, 10, 1, END);
        assert_eq!((grant.lease, grant.start), (LeaseId(1 << 32), lost.start));
        pool.reopen(LeaseId(5));
        assert_eq!(pool.expire(END, Millis(150)), [], "its time starts again");
        assert_eq!(pool.deadline(), Some(Millis(150)));
        assert_eq!(pool.grant(ANNE, 10, 1, END).lease, LeaseId((1 << 32) + 1));
    }

    #[test]
    fn a_grant_of_a_tape_keeps_its_number_which_is_not_given_again() {
        let mut pool = LeasePool::new(vec![100]).unwrap();
        let lease = LeaseId(7);
        let grant = LeaseGrant { lease, epoch: 0, shard: 0, start: 0, windows: 10 };
        assert_eq!(pool.regrant(ANNE, grant), Ok(()));
        let again = LeaseGrant { start: 10, ..grant };
        assert_eq!(pool.regrant(BERT, again), Err(LeaseError::OutOfTurn { lease }));
        assert_eq!(pool.grant(BERT, 10, 1, END).lease, LeaseId(8));
    }

    #[test]
    fn learners_spread_over_shards_and_stay() {
        let mut pool = LeasePool::new(vec![100, 100]).unwrap();
        assert_eq!(pool.grant(ANNE, 5, 1, END).shard, 0);
        assert_eq!(pool.grant(BERT, 5, 1, END).shard, 1);
        assert_eq!(pool.grant(ANNE, 5, 1, END).shard, 0);
        assert_eq!(pool.grant(BERT, 5, 1, END).shard, 1);
    }

    #[test]
    fn no_windows_is_an_error() {
        assert_eq!(LeasePool::new(vec![]), Err(LeaseError::NoWindows));
        assert_eq!(LeasePool::new(vec![0, 0]), Err(LeaseError::NoWindows));
    }

    /// Goal: the indices equal those built from scratch after any sequence of changes.
    #[test]
    fn indices_follow_from_the_leases() {
        let mut rng = Rng::new(3);
        let mut holdings = LeaseTable::default();
        for turn in 0..4_000_u64 {
            let lease = LeaseId(rng.below(1 + turn as u32).into());
            let expires = (rng.below(4) > 0).then(|| Millis(u64::from(rng.below(50))));
            match rng.below(6) {
                0 | 1 => {
                    let piece = Piece::of_shard(rng.below(4));
                    let learner = LearnerId(rng.below(9));
                    holdings.insert(LeaseId(10_000 + turn), ActiveLease { learner, piece, done: 0, expires });
                }
                2 => drop(holdings.remove(LeaseId(10_000 + lease.0))),
                3 => holdings.set_expiry(LeaseId(10_000 + lease.0), expires),
                4 => holdings.progress(LeaseId(10_000 + lease.0), 1, Millis(7)),
                _ if turn % 50 == 0 => holdings.set_unknown_expiries(Millis(30)),
                _ => {}
            }
            assert_eq!(holdings, LeaseTable::from(holdings.held.clone()), "{turn}");
            let at = Millis(u64::from(rng.below(50)));
            let is_over = |held: &ActiveLease| held.expires.is_some_and(|expires| expires <= at);
            let over: Vec<_> =
                holdings.held.iter().filter(|(_, held)| is_over(held)).map(|(lease, _)| *lease).collect();
            assert_eq!(holdings.expired(at), over, "{turn}");
            let first = holdings.held.values().filter_map(|held| held.expires).min();
            assert_eq!(holdings.deadline(), first, "{turn}");
        }
        assert!(holdings.held.len() > 100);
        holdings.clear_expiries();
        assert_eq!(holdings, LeaseTable::from(holdings.held.clone()));
    }
}
