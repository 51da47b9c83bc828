//! Assignment of fragments to processes. Each process decides for itself from its view of the roster.
//!
//! The code is pure: time is an argument, and it is only the time of this process. A process takes a lease over after
//! it has seen the lease unchanged for the duration of a lease, so clocks of different machines are never compared.
//! For a while, two processes may lead one fragment. That does no harm, because the tape accepts the records of only
//! one. Leases only ensure that some process tries to lead a fragment, and that not all do.
//!
//! The *share* of a process is the number of fragments divided by the number of present processes. Each process
//! claims fragments up to its share, and releases fragments beyond it. If a fragment stays free for long, a process
//! *adopts* it beyond its share and keeps it for a while.

use std::collections::{BTreeMap, BTreeSet};

use archipelago_core::cluster::ProcessId;
use archipelago_core::wire::{FragmentId, Millis};

use crate::service::{Cell, Entry};

/// Time, in leases, for which the set of present processes must be unchanged before fragments are released for it.
const SETTLED_LEASES: u64 = 2;
/// Time, in leases, for which a fragment is free before a process adopts it.
const IDLE_LEASES: u64 = 2;
/// Time, in leases, for which an adopted fragment is kept.
const ADOPTED_LEASES: u64 = 20;

/// Request for a write to the roster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// Cell to write.
    pub cell: Cell,
    /// New holder; `None` to release the cell.
    pub holder: Option<ProcessId>,
    /// Expected revision of the cell.
    pub expect: u64,
}

/// State of one process: its view of the roster, and its leases.
#[derive(Debug)]
pub struct FragmentAssignment {
    process: ProcessId,
    fragments: Vec<FragmentId>,
    lease_ms: u64,
    /// Maximum number of fragments that the process leads.
    most: usize,
    /// Last entry of each cell, and the time since which it is unchanged.
    seen: BTreeMap<Cell, (Entry, Millis)>,
    /// Leases of this process.
    held: BTreeMap<FragmentId, FragmentLease>,
    /// Time since which each free fragment is free.
    idle: BTreeMap<FragmentId, Millis>,
    /// Revision of this process's presence entry; 0 before its first write.
    present: u64,
    /// Present processes, and the time at which this set last changed.
    crew: (BTreeSet<ProcessId>, Millis),
    /// Number of adoptions of each fragment since then.
    adoptions: BTreeMap<FragmentId, u32>,
    /// Number of fragments that have been free for long, but that this process lacks the capacity to lead.
    left: usize,
}

#[derive(Clone, Copy, Debug)]
struct FragmentLease {
    revision: u64,
    /// Time at which the lease ends: other processes may take it over from then on.
    until: Millis,
    /// Time of the adoption, if the fragment was taken beyond the share.
    adopted: Option<Millis>,
}

/// Maximum number of doublings of [`ADOPTED_LEASES`] for a fragment that is adopted repeatedly.
const DOUBLINGS_MAX: u32 = 10;

impl FragmentAssignment {
    /// Returns the state of `process` without leases, for `fragments` and leases of `lease_ms` milliseconds.
    #[must_use]
    pub fn new(process: ProcessId, fragments: impl IntoIterator<Item = FragmentId>, lease_ms: u64) -> Self {
        let mut fragments: Vec<FragmentId> = fragments.into_iter().collect();
        // Processes try fragments in different orders, so that not all of them claim the same one.
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
    /// process with capacity joins.
    #[must_use]
    pub fn at_most(self, most: usize) -> Self {
        Self { most, ..self }
    }

    /// Updates the view of the roster at `now` and returns the writes to send. This process no longer leads the
    /// fragments that the writes release.
    pub fn update(&mut self, now: Millis, entries: &[Entry]) -> Vec<Write> {
        self.update_view(now, entries);
        let mut writes = vec![Write {
            cell: Cell::Present(self.process),
            holder: Some(self.process),
            expect: self.present,
        }];
        self.held.retain(|_, held| held.until > now);
        let share = self.share();
        let released = self.excess(now, share);
        let kept = self.held.iter();
        writes.extend(kept.map(|(&fragment, held)| self.lease(fragment, Some(self.process), held.revision)));
        self.left = 0;
        let mut count = self.held.len();
        for fragment in self.fragments.clone() {
            let is_released = released.is_some_and(|write| write.cell == Cell::Lease(fragment));
            if self.held.contains_key(&fragment) || is_released {
                continue;
            }
            let Some(expect) = self.free(now, fragment) else {
                self.idle.remove(&fragment);
                continue;
            };
            let since = *self.idle.entry(fragment).or_insert(now);
            let is_long_free = now.since(since) >= IDLE_LEASES * self.lease_ms;
            if count < share || (is_long_free && count < self.most) {
                count += 1;
                writes.push(self.lease(fragment, Some(self.process), expect));
            } else if is_long_free {
                self.left += 1;
            }
        }
        writes.extend(released);
        writes
    }

    /// Returns the number of fragments that have been free for long, but that this process lacks the capacity to
    /// lead.
    #[must_use]
    pub fn left(&self) -> usize {
        self.left
    }

    /// Records the answer to a write that was sent at `asked`: the new revision, or `None` if the write was refused.
    /// The caller does not call it without an answer.
    pub fn on_written(&mut self, asked: Millis, write: Write, revision: Option<u64>) {
        match (write.cell, revision) {
            (Cell::Present(process), Some(revision)) if process == self.process => self.present = revision,
            // An earlier write of this process succeeded, but its answer was lost.
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
                self.held.insert(fragment, FragmentLease { revision, until, adopted });
                self.idle.remove(&fragment);
            }
            (Cell::Lease(_), Some(_)) => {}
        }
    }

    /// Returns the end of this process's lease of the fragment, if the process has the lease at `now`.
    #[must_use]
    pub fn until(&self, now: Millis, fragment: FragmentId) -> Option<Millis> {
        self.held.get(&fragment).map(|held| held.until).filter(|until| *until > now)
    }

    /// Releases a fragment. Returns the write for that, or `None` if the process does not lead it.
    pub fn release(&mut self, fragment: FragmentId) -> Option<Write> {
        let held = self.held.remove(&fragment)?;
        Some(self.lease(fragment, None, held.revision))
    }

    /// Releases all fragments and the presence entry. Returns the writes for that.
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

    fn update_view(&mut self, now: Millis, entries: &[Entry]) {
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

    /// Returns the number of fragments that this process should lead, limited by its capacity. If the fragments do
    /// not divide evenly, the first processes lead one more each.
    fn share(&self) -> usize {
        let (crew, count) = (&self.crew.0, self.fragments.len());
        let processes = crew.len().max(1);
        let place = crew.iter().position(|process| *process == self.process).unwrap_or_default();
        (count / processes + usize::from(place < count % processes)).min(self.most)
    }

    /// Returns the current revision of the lease of `fragment` if the lease may be taken.
    fn free(&self, now: Millis, fragment: FragmentId) -> Option<u64> {
        let Some((entry, since)) = self.seen.get(&Cell::Lease(fragment)) else { return Some(0) };
        let is_free = match entry.holder {
            None => true,
            // This is a lease of this process that it does not know, because the answer to its write was lost.
            Some(holder) if holder == self.process => true,
            Some(_) => now.since(*since) >= self.lease_ms,
        };
        is_free.then_some(entry.revision)
    }

    /// Releases one fragment beyond the share, if the set of processes is stable.
    fn excess(&mut self, now: Millis, share: usize) -> Option<Write> {
        let is_settled = now.since(self.crew.1) >= SETTLED_LEASES * self.lease_ms;
        let kept = self.held.iter().filter(|(fragment, held)| self.is_kept(now, **fragment, **held)).count();
        if !is_settled || self.held.len() - kept <= share {
            return None;
        }
        let may_be_released =
            |(fragment, held): &(&FragmentId, &FragmentLease)| !self.is_kept(now, **fragment, **held);
        let is_adopted = |(_, held): &(&FragmentId, &FragmentLease)| held.adopted.is_some();
        let (&fragment, _) = (self.held.iter().rev().filter(may_be_released).find(is_adopted))
            .or_else(|| self.held.iter().rev().find(may_be_released))?;
        self.release(fragment)
    }

    /// Returns true if a fragment was adopted recently and is kept. The time doubles with each repeated adoption,
    /// because no other process took the fragment over.
    fn is_kept(&self, now: Millis, fragment: FragmentId, held: FragmentLease) -> bool {
        let again = self.adoptions.get(&fragment).map_or(0, |count| count.saturating_sub(1));
        let kept_ms = (ADOPTED_LEASES * self.lease_ms) << again.min(DOUBLINGS_MAX);
        held.adopted.is_some_and(|since| now.since(since) < kept_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE_MS: u64 = 3_000;
    const BEAT_MS: u64 = 600;

    /// Roster, and processes that poll it in turn.
    struct RosterSimulation {
        now: u64,
        entries: BTreeMap<Cell, Entry>,
        revision: u64,
        crew: BTreeMap<u64, FragmentAssignment>,
        fragments: u32,
    }

    impl RosterSimulation {
        fn new(fragments: u32, processes: &[u64]) -> Self {
            let mut world =
                Self { now: 0, entries: BTreeMap::new(), revision: 0, crew: BTreeMap::new(), fragments };
            processes.iter().for_each(|process| world.come(*process));
            world
        }

        fn come(&mut self, process: u64) {
            let fragments = (0..self.fragments).map(|p| FragmentId(p as u16));
            self.crew.insert(process, FragmentAssignment::new(ProcessId(process), fragments, LEASE_MS));
        }

        fn write(&mut self, write: Write) -> Option<u64> {
            if self.entries.get(&write.cell).map_or(0, |entry| entry.revision) != write.expect {
                return None;
            }
            self.revision += 1;
            let Write { cell, holder, .. } = write;
            self.entries.insert(cell, Entry { cell, holder, revision: self.revision });
            Some(self.revision)
        }

        /// Advances by `beats` polls. Processes in `away` do nothing.
        fn run(&mut self, beats: u64, away: &[u64]) {
            for _ in 0..beats {
                self.now += BEAT_MS;
                // Each process has a clock with its own offset.
                for process in self.crew.keys().copied().collect::<Vec<_>>() {
                    if away.contains(&process) {
                        continue;
                    }
                    let now = Millis(self.now + 1_000_000 * process);
                    let entries: Vec<Entry> = self.entries.values().copied().collect();
                    let writes = self.crew.get_mut(&process).unwrap().update(now, &entries);
                    for write in writes {
                        let outcome = self.write(write);
                        self.crew.get_mut(&process).unwrap().on_written(now, write, outcome);
                    }
                }
            }
        }

        /// Returns the number of fragments that each process leads, except for those in `away`. Asserts that no
        /// fragment has two leaders.
        fn held(&self, away: &[u64]) -> Vec<usize> {
            let mut all = BTreeSet::new();
            let mut counts = Vec::new();
            for (process, shares) in self.crew.iter().filter(|(process, _)| !away.contains(process)) {
                let now = Millis(self.now + 1_000_000 * process);
                let fragments = (0..self.fragments).map(|p| FragmentId(p as u16));
                let held: Vec<_> = fragments.filter(|p| shares.until(now, *p).is_some()).collect();
                held.iter().for_each(|p| assert!(all.insert(*p), "two lead {p:?}"));
                counts.push(held.len());
            }
            counts
        }
    }

    /// Goal: each fragment has exactly one leader, and fragments are divided as evenly as possible.
    #[test]
    fn fragments_are_shared_fairly() {
        let mut world = RosterSimulation::new(7, &[1, 2, 3]);
        world.run(30, &[]);
        assert_eq!(world.held(&[]), [3, 2, 2]);
    }

    /// Goal: a new process gets a share of the fragments. Fragments of a lost process get new leaders one lease
    /// later.
    #[test]
    fn new_process_gets_a_share_and_lost_process_is_replaced() {
        let mut world = RosterSimulation::new(6, &[1, 2]);
        world.run(20, &[]);
        assert_eq!(world.held(&[]), [3, 3]);
        world.come(3);
        world.run(40, &[]);
        assert_eq!(world.held(&[]), [2, 2, 2]);
        world.run(4, &[2]);
        assert_eq!(world.held(&[2]), [2, 2], "a lease is not over before its time");
        world.run(7, &[2]);
        assert_eq!(world.held(&[2]), [3, 3]);
    }

    /// Goal: a released fragment is taken at the next poll, and not only after the end of its lease.
    #[test]
    fn released_fragment_is_taken_at_once() {
        let mut world = RosterSimulation::new(4, &[1, 2]);
        world.run(20, &[]);
        assert_eq!(world.held(&[]), [2, 2]);
        let mut leaving = world.crew.remove(&1).unwrap();
        for write in leaving.leave() {
            assert!(world.write(write).is_some(), "{write:?}");
        }
        world.run(2, &[]);
        assert_eq!(world.held(&[]), [4]);
    }

    /// Goal: a process that is present and leads nothing does not keep fragments from being led. Adopted fragments do
    /// not move back and forth.
    #[test]
    fn an_idle_process_keeps_no_fragment_from_being_led() {
        let mut world = RosterSimulation::new(2, &[1]);
        world.run(10, &[]);
        // Process 0 only announces its presence.
        let mut changes = 0;
        let mut before = world.held(&[]);
        for _ in 0..60 {
            let (cell, holder) = (Cell::Present(ProcessId(0)), Some(ProcessId(0)));
            let expect = world.entries.get(&cell).map_or(0, |entry| entry.revision);
            world.write(Write { cell, holder, expect });
            world.run(1, &[]);
            let held = world.held(&[]);
            changes += usize::from(held != before);
            before = held;
        }
        assert_eq!(before, [2]);
        assert!(changes <= 4, "{changes}");
    }

    /// Goal: a process never leads more fragments than its capacity, even if others stay free. A new process with
    /// capacity leads those.
    #[test]
    fn process_never_exceeds_its_capacity() {
        let mut world = RosterSimulation::new(6, &[]);
        let come = |world: &mut RosterSimulation, process: u64| {
            world.come(process);
            let shares = world.crew.remove(&process).unwrap();
            world.crew.insert(process, shares.at_most(2));
        };
        come(&mut world, 1);
        for _ in 0..40 {
            world.run(1, &[]);
            assert!(world.held(&[])[0] <= 2, "{:?}", world.held(&[]));
        }
        assert_eq!((world.held(&[]), world.crew[&1].left()), (vec![2], 4));
        come(&mut world, 2);
        world.run(40, &[]);
        assert_eq!(world.held(&[]), [2, 2]);
        come(&mut world, 3);
        world.run(40, &[]);
        assert_eq!(world.held(&[]), [2, 2, 2]);
        assert!(world.crew.values().all(|shares| shares.left() == 0));
    }

    /// Goal: with uneven capacities, all fragments are led and do not move back and forth forever.
    #[test]
    fn uneven_capacities_reach_a_stable_assignment() {
        let mut world = RosterSimulation::new(8, &[]);
        for (process, room) in [(1, 5), (2, 3)] {
            world.come(process);
            let shares = world.crew.remove(&process).unwrap();
            world.crew.insert(process, shares.at_most(room));
        }
        let (mut changes, mut unled) = (0, 0);
        let mut before = Vec::new();
        // The first ten minutes are ignored, and the next ten are checked.
        for beat in 0..2_000 {
            world.run(1, &[]);
            let held = world.held(&[]);
            changes += usize::from(beat >= 1_000 && held != before);
            unled += usize::from(beat >= 1_000) * (8 - held.iter().sum::<usize>());
            before = held;
        }
        assert_eq!(before, [5, 3]);
        assert!(changes <= 6 && unled <= 30, "{changes} changes, {unled}");
    }

    /// Goal: after a lost answer, a lease is neither lost forever nor kept beyond its end.
    #[test]
    fn lost_answer_neither_loses_nor_extends_a_lease() {
        let mut shares = FragmentAssignment::new(ProcessId(7), [FragmentId(0)], LEASE_MS);
        let writes = shares.update(Millis(0), &[]);
        assert_eq!(writes.len(), 2);
        // Both writes succeeded, but their answers were lost.
        let entries: Vec<Entry> = (1..)
            .zip(writes)
            .map(|(revision, w)| Entry { cell: w.cell, holder: w.holder, revision })
            .collect();
        assert_eq!(shares.until(Millis(1), FragmentId(0)), None);
        let writes = shares.update(Millis(600), &entries);
        assert_eq!(writes.iter().map(|write| write.expect).collect::<Vec<_>>(), [1, 2]);
        shares.on_written(Millis(600), writes[1], Some(3));
        assert_eq!(shares.until(Millis(601), FragmentId(0)), Some(Millis(3_600)));
        assert_eq!(shares.until(Millis(3_600), FragmentId(0)), None);
        // Another process has the lease now.
        let taken = Entry { cell: Cell::Lease(FragmentId(0)), holder: Some(ProcessId(9)), revision: 9 };
        shares.on_written(Millis(1_200), Write { expect: 3, ..writes[1] }, None);
        assert_eq!(shares.until(Millis(1_201), FragmentId(0)), None);
        let writes = shares.update(Millis(1_800), &[taken]);
        assert!(writes.iter().all(|write| write.cell != taken.cell), "{writes:?}");
    }
}
