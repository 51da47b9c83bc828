//! Assignment of fragments to processes. Each process decides for itself from its view of the roster.
//!
//! Pure: time is an argument, the time of this process alone. A process takes a lease that it has seen unchanged for
//! the duration of a lease, so clocks of different machines are never compared. Two leaders of one fragment do no harm
//! for a while, because the tape accepts the records of only one. Leases exist so that some process tries, but not all
//! of them.
//!
//! Each process aims at its share, the number of fragments divided by the number of present processes, and releases
//! fragments beyond it. If a fragment stays free for long, a process adopts it above its share and keeps it for a
//! while.

use std::collections::{BTreeMap, BTreeSet};

use archipelago_core::cluster::ProcessId;
use archipelago_core::wire::{FragmentId, Millis};

use crate::service::{Cell, Entry};

/// Time, in leases, that a new set of processes must last before fragments are released for it.
const SETTLED_LEASES: u64 = 2;
/// Time, in leases, that a fragment stays free before it is adopted above a share.
const IDLE_LEASES: u64 = 2;
/// Time, in leases, that an adopted fragment is kept.
const ADOPTED_LEASES: u64 = 20;

/// Write to the roster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// Cell to write.
    pub cell: Cell,
    /// New holder.
    pub holder: Option<ProcessId>,
    /// Current revision.
    pub expect: u64,
}

/// Roster view and leases of one process.
#[derive(Debug)]
pub struct Shares {
    process: ProcessId,
    fragments: Vec<FragmentId>,
    lease_ms: u64,
    /// Maximum number of fragments led.
    most: usize,
    /// Last seen entry of each cell, and the time since it is unchanged.
    seen: BTreeMap<Cell, (Entry, Millis)>,
    /// Held leases.
    held: BTreeMap<FragmentId, Held>,
    /// Time since which a fragment is free.
    idle: BTreeMap<FragmentId, Millis>,
    /// Revision of the own presence, 0 before the first write.
    present: u64,
    /// Present processes, and the time of their last change.
    crew: (BTreeSet<ProcessId>, Millis),
    /// Number of adoptions of each fragment since that change.
    adoptions: BTreeMap<FragmentId, u32>,
    /// Number of fragments that are free for long and exceed this process's capacity.
    left: usize,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    revision: u64,
    /// Time from which other processes may take the lease.
    until: Millis,
    /// Time of the adoption, if it was taken above the share.
    adopted: Option<Millis>,
}

/// Maximum number of doublings of [`ADOPTED_LEASES`] for a fragment that no other process takes over.
const DOUBLINGS_MAX: u32 = 10;

impl Shares {
    /// Creates the state of a `process` without leases, for `fragments`, with leases of `lease_ms` milliseconds.
    #[must_use]
    pub fn new(process: ProcessId, fragments: impl IntoIterator<Item = FragmentId>, lease_ms: u64) -> Self {
        let mut fragments: Vec<FragmentId> = fragments.into_iter().collect();
        // Each process starts at a different fragment, so that not all try the same one.
        let begin = usize::try_from(process.0).unwrap_or_default() % fragments.len().max(1);
        fragments.rotate_left(begin);
        Self {
            process,
            fragments,
            lease_ms,
            most: usize::MAX,
            seen: BTreeMap::new(),
            held: BTreeMap::new(),
            idle: BTreeMap::new(),
            present: 0,
            crew: (BTreeSet::new(), Millis(0)),
            adoptions: BTreeMap::new(),
            left: 0,
        }
    }

    /// Limits the number of led fragments to `most`. Fragments beyond the capacity of all processes stay free until a
    /// process with room joins.
    #[must_use]
    pub fn at_most(self, most: usize) -> Self {
        Self { most, ..self }
    }

    /// Updates the view of the roster at `now` and returns the writes. Released fragments are no longer led from now
    /// on.
    pub fn look(&mut self, now: Millis, entries: &[Entry]) -> Vec<Write> {
        self.see(now, entries);
        let mut writes = vec![Write {
            cell: Cell::Present(self.process),
            holder: Some(self.process),
            expect: self.present,
        }];
        self.held.retain(|_, held| held.until > now);
        let share = self.share();
        let given_back = self.excess(now, share);
        let kept = self.held.iter();
        writes.extend(kept.map(|(&fragment, held)| self.lease(fragment, Some(self.process), held.revision)));
        self.left = 0;
        let mut count = self.held.len();
        for fragment in self.fragments.clone() {
            let is_given_back = given_back.is_some_and(|write| write.cell == Cell::Lease(fragment));
            if self.held.contains_key(&fragment) || is_given_back {
                continue;
            }
            let Some(expect) = self.free(now, fragment) else {
                self.idle.remove(&fragment);
                continue;
            };
            let since = *self.idle.entry(fragment).or_insert(now);
            let is_forgotten = now.since(since) >= IDLE_LEASES * self.lease_ms;
            if count < share || (is_forgotten && count < self.most) {
                count += 1;
                writes.push(self.lease(fragment, Some(self.process), expect));
            } else if is_forgotten {
                self.left += 1;
            }
        }
        writes.extend(given_back);
        writes
    }

    /// Returns the number of fragments that are free for long and exceed this process's capacity.
    #[must_use]
    pub fn left(&self) -> usize {
        self.left
    }

    /// Records the result of a write that was sent at `asked`: the new revision, or `None` if it was refused. The
    /// caller does not report writes without an answer.
    pub fn wrote(&mut self, asked: Millis, write: Write, revision: Option<u64>) {
        match (write.cell, revision) {
            (Cell::Present(process), Some(revision)) if process == self.process => self.present = revision,
            // Own earlier write, whose answer was lost.
            (Cell::Present(_), _) => {}
            (Cell::Lease(fragment), None) => {
                self.held.remove(&fragment);
            }
            (Cell::Lease(fragment), Some(revision)) if write.holder == Some(self.process) => {
                let until = asked.after(self.lease_ms);
                let before = self.held.get(&fragment);
                let is_above = before.is_none() && self.held.len() >= self.share();
                let adopted = before.map_or(is_above.then_some(asked), |before| before.adopted);
                if before.is_none() && is_above {
                    *self.adoptions.entry(fragment).or_default() += 1;
                }
                self.held.insert(fragment, Held { revision, until, adopted });
                self.idle.remove(&fragment);
            }
            (Cell::Lease(_), Some(_)) => {}
        }
    }

    /// Returns the end of this process's lease for the fragment, if it holds one at `now`.
    #[must_use]
    pub fn until(&self, now: Millis, fragment: FragmentId) -> Option<Millis> {
        self.held.get(&fragment).map(|held| held.until).filter(|until| *until > now)
    }

    /// Releases a fragment if it is held. Returns the write for that.
    pub fn give_back(&mut self, fragment: FragmentId) -> Option<Write> {
        let held = self.held.remove(&fragment)?;
        Some(self.lease(fragment, None, held.revision))
    }

    /// Releases all fragments. Returns the writes for that.
    pub fn leave(&mut self) -> Vec<Write> {
        let held = std::mem::take(&mut self.held);
        let leases = held.iter().map(|(&fragment, held)| self.lease(fragment, None, held.revision));
        let mut writes: Vec<Write> = leases.collect();
        writes.push(Write { cell: Cell::Present(self.process), holder: None, expect: self.present });
        writes
    }

    fn lease(&self, fragment: FragmentId, holder: Option<ProcessId>, expect: u64) -> Write {
        Write { cell: Cell::Lease(fragment), holder, expect }
    }

    fn see(&mut self, now: Millis, entries: &[Entry]) {
        let there: BTreeSet<Cell> = entries.iter().map(|entry| entry.cell).collect();
        self.seen.retain(|cell, _| there.contains(cell));
        for &entry in entries {
            let seen = self.seen.entry(entry.cell).or_insert((entry, now));
            if seen.0 != entry {
                *seen = (entry, now);
            }
            if entry.cell == Cell::Present(self.process) {
                self.present = self.present.max(entry.revision);
            }
        }
        let fresh = self.seen.values().filter(|(_, since)| now.since(*since) < self.lease_ms);
        let mut crew: BTreeSet<ProcessId> = fresh
            .filter_map(|(entry, _)| match entry.cell {
                Cell::Present(process) => entry.holder.map(|_| process),
                Cell::Lease(_) => None,
            })
            .collect();
        crew.insert(self.process);
        if crew != self.crew.0 {
            self.crew = (crew, now);
            self.adoptions.clear();
        }
    }

    /// Returns the share of this process: the fragments divided among the present processes, with the remainder going
    /// to the first ones, limited by its capacity.
    fn share(&self) -> usize {
        let (crew, count) = (&self.crew.0, self.fragments.len());
        let processes = crew.len().max(1);
        let place = crew.iter().position(|process| *process == self.process).unwrap_or_default();
        (count / processes + usize::from(place < count % processes)).min(self.most)
    }

    /// Returns the revision of a lease that may be taken.
    fn free(&self, now: Millis, fragment: FragmentId) -> Option<u64> {
        let Some((entry, since)) = self.seen.get(&Cell::Lease(fragment)) else { return Some(0) };
        let is_free = match entry.holder {
            None => true,
            // Own lease that it does not know: the answer to its write was lost.
            Some(holder) if holder == self.process => true,
            Some(_) => now.since(*since) >= self.lease_ms,
        };
        is_free.then_some(entry.revision)
    }

    /// Releases one fragment beyond the share.
    fn excess(&mut self, now: Millis, share: usize) -> Option<Write> {
        let is_settled = now.since(self.crew.1) >= SETTLED_LEASES * self.lease_ms;
        let kept = self.held.iter().filter(|(fragment, held)| self.is_kept(now, **fragment, **held)).count();
        if !is_settled || self.held.len() - kept <= share {
            return None;
        }
        let may_go = |(fragment, held): &(&FragmentId, &Held)| !self.is_kept(now, **fragment, **held);
        let is_adopted = |(_, held): &(&FragmentId, &Held)| held.adopted.is_some();
        let (&fragment, _) = (self.held.iter().rev().filter(may_go).find(is_adopted))
            .or_else(|| self.held.iter().rev().find(may_go))?;
        self.give_back(fragment)
    }

    /// Returns true if a fragment was adopted recently. The time grows with each adoption that no other process took
    /// over.
    fn is_kept(&self, now: Millis, fragment: FragmentId, held: Held) -> bool {
        let again = self.adoptions.get(&fragment).map_or(0, |count| count.saturating_sub(1));
        let kept_ms = (ADOPTED_LEASES * self.lease_ms) << again.min(DOUBLINGS_MAX);
        held.adopted.is_some_and(|since| now.since(since) < kept_ms)
    }
}

#[cfg(test)]
mod tests;
