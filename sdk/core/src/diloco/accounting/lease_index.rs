//! Index of active leases, by lease, learner, shard and expiry.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize, Serializer};

use super::window_range::Piece;
use crate::wire::{LearnerId, LeaseId, Millis};

/// One lease.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Held {
    pub(super) learner: LearnerId,
    pub(super) piece: Piece,
    pub(super) done: u32,
    /// Expiry; unknown after a restart, which grants the full time again.
    #[serde(skip)]
    pub(super) expires: Option<Millis>,
}

/// All active leases. Serialises as the plain map of leases.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(from = "BTreeMap<LeaseId, Held>")]
pub(super) struct Holdings {
    held: BTreeMap<LeaseId, Held>,
    by_learner: BTreeMap<LearnerId, BTreeSet<LeaseId>>,
    /// Number of leases on each shard.
    by_shard: BTreeMap<u32, u32>,
    expiries: BTreeSet<(Millis, LeaseId)>,
    /// Leases with unknown expiry.
    undated: BTreeSet<LeaseId>,
}

impl Serialize for Holdings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.held.serialize(serializer)
    }
}

impl From<BTreeMap<LeaseId, Held>> for Holdings {
    fn from(held: BTreeMap<LeaseId, Held>) -> Self {
        let mut holdings = Self::default();
        held.into_iter().for_each(|(lease, held)| holdings.insert(lease, held));
        holdings
    }
}

impl Holdings {
    /// Adds `lease`, which must be new.
    pub(super) fn insert(&mut self, lease: LeaseId, held: Held) {
        self.by_learner.entry(held.learner).or_default().insert(lease);
        *self.by_shard.entry(held.piece.shard).or_default() += 1;
        self.date(lease, held.expires);
        self.held.insert(lease, held);
    }

    /// Removes `lease`.
    pub(super) fn remove(&mut self, lease: LeaseId) -> Option<Held> {
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
        self.undate(lease, held.expires);
        Some(held)
    }

    /// Returns the lease with this number.
    pub(super) fn get(&self, lease: LeaseId) -> Option<&Held> {
        self.held.get(&lease)
    }

    /// Sets the finished windows of `lease`, and extends it until `expires`.
    pub(super) fn progress(&mut self, lease: LeaseId, done: u32, expires: Millis) {
        if let Some(held) = self.held.get_mut(&lease) {
            held.done = done;
        }
        self.allow(lease, Some(expires));
    }

    /// Sets the expiry of `lease`, or makes it unknown.
    pub(super) fn allow(&mut self, lease: LeaseId, expires: Option<Millis>) {
        let Some(held) = self.held.get_mut(&lease).filter(|held| held.expires != expires) else { return };
        let before = std::mem::replace(&mut held.expires, expires);
        self.undate(lease, before);
        self.date(lease, expires);
    }

    /// Sets the expiry of all leases with unknown expiry to `fresh`.
    pub(super) fn allow_undated(&mut self, fresh: Millis) {
        for lease in std::mem::take(&mut self.undated) {
            if let Some(held) = self.held.get_mut(&lease) {
                held.expires = Some(fresh);
            }
            self.date(lease, Some(fresh));
        }
    }

    /// Makes the expiry of all leases unknown.
    pub(super) fn forget_dates(&mut self) {
        self.expiries.clear();
        for (&lease, held) in &mut self.held {
            held.expires = None;
            self.undated.insert(lease);
        }
    }

    /// Returns the leases that have expired at `now`, by number.
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

    /// Returns the leases of `learner`, by number.
    pub(super) fn of(&self, learner: LearnerId) -> impl DoubleEndedIterator<Item = (LeaseId, &Held)> {
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

    fn date(&mut self, lease: LeaseId, expires: Option<Millis>) {
        match expires {
            Some(at) => self.expiries.insert((at, lease)),
            None => self.undated.insert(lease),
        };
    }

    fn undate(&mut self, lease: LeaseId, expires: Option<Millis>) {
        match expires {
            Some(at) => self.expiries.remove(&(at, lease)),
            None => self.undated.remove(&lease),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// Goal: each lookup equals a search through all leases.
    #[test]
    fn all_that_is_looked_up_follows_from_the_leases() {
        let mut rng = Rng::new(3);
        let mut holdings = Holdings::default();
        for turn in 0..4_000_u64 {
            let lease = LeaseId(rng.below(1 + turn as u32).into());
            let expires = (rng.below(4) > 0).then(|| Millis(u64::from(rng.below(50))));
            match rng.below(6) {
                0 | 1 => {
                    let piece = Piece::of_shard(rng.below(4));
                    let learner = LearnerId(rng.below(9));
                    holdings.insert(LeaseId(10_000 + turn), Held { learner, piece, done: 0, expires });
                }
                2 => drop(holdings.remove(LeaseId(10_000 + lease.0))),
                3 => holdings.allow(LeaseId(10_000 + lease.0), expires),
                4 => holdings.progress(LeaseId(10_000 + lease.0), 1, Millis(7)),
                _ if turn % 50 == 0 => holdings.allow_undated(Millis(30)),
                _ => {}
            }
            assert_eq!(holdings, Holdings::from(holdings.held.clone()), "{turn}");
            let at = Millis(u64::from(rng.below(50)));
            let is_over = |held: &Held| held.expires.is_some_and(|expires| expires <= at);
            let over: Vec<_> =
                holdings.held.iter().filter(|(_, held)| is_over(held)).map(|(lease, _)| *lease).collect();
            assert_eq!(holdings.expired(at), over, "{turn}");
            let first = holdings.held.values().filter_map(|held| held.expires).min();
            assert_eq!(holdings.deadline(), first, "{turn}");
        }
        assert!(holdings.held.len() > 100);
        holdings.forget_dates();
        assert_eq!(holdings, Holdings::from(holdings.held.clone()));
    }
}
