//! Who leads which fragments, decided by each process for itself from what it sees on the roster.
//!
//! Pure: time is an argument, and it is the time of this process alone. A lease that is not renewed is seen unchanged;
//! whoever sees that for as long as a lease lasts takes it. So clocks of machines are never compared. That two lead the
//! same fragment for a while does no harm, for the tape takes the records of one: leases are there so that somebody
//! tries, and not everybody.
//!
//! Each process wants its share, the fragments over the processes that are there, and gives back what it has beyond
//! that. What nobody takes for long is taken by whoever sees it, above its share, and kept for a while.

use std::collections::{BTreeMap, BTreeSet};

use archipelago_core::cluster::ProcessId;
use archipelago_core::wire::{FragmentId, Millis};

use crate::service::{Cell, Entry};

/// Leases that a process which has come or gone is given before others give fragments back for it.
const SETTLED_LEASES: u64 = 2;
/// Leases that a fragment lies idle before it is taken above a share.
const IDLE_LEASES: u64 = 2;
/// Leases that a fragment which was taken above a share is kept.
const ADOPTED_LEASES: u64 = 20;

/// Something to be written on the roster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// The place.
    pub cell: Cell,
    /// Who holds it from then on.
    pub holder: Option<ProcessId>,
    /// The revision that it has now.
    pub expect: u64,
}

/// What one process knows of the roster, and holds of it.
#[derive(Debug)]
pub struct Shares {
    process: ProcessId,
    fragments: Vec<FragmentId>,
    lease_ms: u64,
    /// It leads no more than so many.
    most: usize,
    /// What each place looks like, and since when, as this process saw it.
    seen: BTreeMap<Cell, (Entry, Millis)>,
    /// What it leads.
    held: BTreeMap<FragmentId, Held>,
    /// Since when nobody has held a fragment.
    idle: BTreeMap<FragmentId, Millis>,
    /// The revision of its own presence, 0 before the first.
    present: u64,
    /// Who is there, and since when it is these.
    crew: (BTreeSet<ProcessId>, Millis),
    /// How often a fragment had to be taken above the share since then.
    adoptions: BTreeMap<FragmentId, u32>,
    /// Fragments that nobody leads for long, and that it has no room for.
    left: usize,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    revision: u64,
    /// Others may take it from then on.
    until: Millis,
    /// It was taken above the share, then.
    adopted: Option<Millis>,
}

/// Doublings of [`ADOPTED_LEASES`] for a fragment that nobody takes over.
const DOUBLINGS_MAX: u32 = 10;

impl Shares {
    /// Those of a `process` that holds nothing yet, of `fragments`, with leases of `lease_ms` milliseconds.
    #[must_use]
    pub fn new(process: ProcessId, fragments: impl IntoIterator<Item = FragmentId>, lease_ms: u64) -> Self {
        let mut fragments: Vec<FragmentId> = fragments.into_iter().collect();
        // Each begins elsewhere, so that not all try the same one.
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

    /// The same, which never lead more than `most` fragments: what no process has room for is led by nobody until
    /// somebody comes who has.
    #[must_use]
    pub fn at_most(self, most: usize) -> Self {
        Self { most, ..self }
    }

    /// Takes in what is on the roster at `now`, and says what to write. What is given back is led no more from now on.
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

    /// Fragments that nobody has led for long, and that it has no room for.
    #[must_use]
    pub fn left(&self) -> usize {
        self.left
    }

    /// Takes in what became of a write that was asked for at `asked`: the new revision, or `None` if it was refused.
    /// Nothing is said of one without an answer.
    pub fn wrote(&mut self, asked: Millis, write: Write, revision: Option<u64>) {
        match (write.cell, revision) {
            (Cell::Present(process), Some(revision)) if process == self.process => self.present = revision,
            // Its own earlier write, of which no answer came.
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

    /// Until when it holds this fragment, if it does at `now`.
    #[must_use]
    pub fn until(&self, now: Millis, fragment: FragmentId) -> Option<Millis> {
        self.held.get(&fragment).map(|held| held.until).filter(|until| *until > now)
    }

    /// Gives one back, if it holds it; what to write for that.
    pub fn give_back(&mut self, fragment: FragmentId) -> Option<Write> {
        let held = self.held.remove(&fragment)?;
        Some(self.lease(fragment, None, held.revision))
    }

    /// Gives all back; what to write for that.
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

    /// The fragments that are its own to lead: those over the processes that are there, the rest going to the first,
    /// and no more than it has room for.
    fn share(&self) -> usize {
        let (crew, count) = (&self.crew.0, self.fragments.len());
        let processes = crew.len().max(1);
        let place = crew.iter().position(|process| *process == self.process).unwrap_or_default();
        (count / processes + usize::from(place < count % processes)).min(self.most)
    }

    /// The revision of a lease that may be taken.
    fn free(&self, now: Millis, fragment: FragmentId) -> Option<u64> {
        let Some((entry, since)) = self.seen.get(&Cell::Lease(fragment)) else { return Some(0) };
        let is_free = match entry.holder {
            None => true,
            // It holds what it does not know of: no answer came to its write.
            Some(holder) if holder == self.process => true,
            Some(_) => now.since(*since) >= self.lease_ms,
        };
        is_free.then_some(entry.revision)
    }

    /// One fragment beyond its share, given back.
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

    /// Whether a fragment was taken above the share, and not long ago: the longer the more often nobody took it over.
    fn is_kept(&self, now: Millis, fragment: FragmentId, held: Held) -> bool {
        let again = self.adoptions.get(&fragment).map_or(0, |count| count.saturating_sub(1));
        let kept_ms = (ADOPTED_LEASES * self.lease_ms) << again.min(DOUBLINGS_MAX);
        held.adopted.is_some_and(|since| now.since(since) < kept_ms)
    }
}

#[cfg(test)]
mod tests;
