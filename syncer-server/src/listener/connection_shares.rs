//! Limits on the long-lived connections of each run of a server: WebSockets of learners, and event streams.
//!
//! Half of the connections are reserved in equal parts, one per served run, so that no run can lock out another. The
//! other half is first come, first served, so that one run may have many learners while others have few.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Fraction of all connections that is reserved for short requests such as pages and downloads, as a divisor.
const PASSING_PART: u32 = 8;

/// Connections held by all runs of a server. Cheap to clone; all clones share the counts.
#[derive(Clone)]
pub struct Shares {
    held: Arc<Mutex<ConnectionCounts>>,
    all_max: u32,
}

#[derive(Default)]
struct ConnectionCounts {
    /// Connections by run.
    counts: BTreeMap<u64, u32>,
    next: u64,
}

impl ConnectionCounts {
    fn all(&self) -> u32 {
        self.counts.values().sum()
    }

    /// Returns true if `run` may hold one more of the `all_max` connections.
    fn has_room(&self, run: u64, all_max: u32) -> bool {
        let runs = u32::try_from(self.counts.len()).unwrap_or(u32::MAX);
        let kept = all_max / 2 / runs.max(1);
        let free = all_max.saturating_sub(self.all());
        let others = self.counts.iter().filter(|(other, _)| **other != run);
        let kept_for_others: u32 = others.map(|(_, count)| kept.saturating_sub(*count)).sum();
        let count = self.counts.get(&run).copied().unwrap_or(0);
        free > kept_for_others || free > 0 && count < kept
    }
}

impl Shares {
    /// Creates the shares for a server with at most `connections_max` connections.
    pub fn new(connections_max: u32) -> Self {
        Self { held: Arc::default(), all_max: (connections_max - connections_max / PASSING_PART).max(1) }
    }

    /// Adds a run and returns its share. Dropping the share removes the run.
    pub fn join(&self) -> ConnectionShare {
        let mut held = self.held();
        let run = held.next;
        held.next += 1;
        held.counts.insert(run, 0);
        drop(held);
        ConnectionShare(Arc::new(RunShare { shares: self.clone(), run }))
    }

    /// Locks the counts. A panic cannot leave them inconsistent, so a poisoned lock is still valid.
    fn held(&self) -> MutexGuard<'_, ConnectionCounts> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The share of connections of one run.
#[derive(Clone)]
pub struct ConnectionShare(Arc<RunShare>);

struct RunShare {
    shares: Shares,
    run: u64,
}

impl Drop for RunShare {
    fn drop(&mut self) {
        self.shares.held().counts.remove(&self.run);
    }
}

impl ConnectionShare {
    /// Takes one connection until the returned value is dropped. Returns `None` if none is free for this run.
    pub fn take(&self) -> Option<ConnectionPermit> {
        let RunShare { shares, run } = &*self.0;
        let mut held = shares.held();
        if !held.has_room(*run, shares.all_max) {
            return None;
        }
        *held.counts.entry(*run).or_insert(0) += 1;
        Some(ConnectionPermit(self.clone()))
    }
}

/// One held connection of a run.
pub struct ConnectionPermit(ConnectionShare);

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let RunShare { shares, run } = &*self.0.0;
        if let Some(count) = shares.held().counts.get_mut(run) {
            *count -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_all(share: &ConnectionShare) -> Vec<ConnectionPermit> {
        std::iter::from_fn(|| share.take()).take(1_000).collect()
    }

    #[test]
    fn a_single_run_may_take_all_connections() {
        let shares = Shares::new(32);
        assert_eq!(take_all(&shares.join()).len(), 28, "an eighth is for those who come and go");
        assert_eq!(take_all(&Shares::new(1).join()).len(), 1);
    }

    #[test]
    fn greedy_runs_leave_each_run_its_part() {
        let shares = Shares::new(32);
        let runs = [(); 4].map(|()| shares.join());
        let greedy = [take_all(&runs[0]), take_all(&runs[1])];
        assert_eq!(greedy.each_ref().map(Vec::len), [19, 3], "14 at least are kept, 3 for each");
        assert_eq!(take_all(&runs[2]).len(), 3);
        let taken = take_all(&runs[3]);
        assert_eq!((taken.len(), shares.held().all()), (3, 25));
    }

    #[test]
    fn released_connections_are_available_again() {
        let shares = Shares::new(32);
        let (one, other) = (shares.join(), shares.join());
        let mut taken = take_all(&one);
        assert_eq!((taken.len(), take_all(&other).len()), (21, 7));
        taken.truncate(5);
        assert_eq!(take_all(&other).len(), 21);
        drop((taken, other));
        assert_eq!(shares.held().counts.len(), 1);
        assert_eq!(take_all(&one).len(), 28, "the other run is served no more");
    }
}
