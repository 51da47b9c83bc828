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
/// Time, in leases, that a fragment stays free before a process adopts it above its share.
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
pub struct FragmentAssignment {
    process: ProcessId,
    fragments: Vec<FragmentId>,
    lease_ms: u64,
    /// Maximum number of fragments led.
    most: usize,
    /// Last seen entry of each cell, and the time since which it has been unchanged.
    seen: BTreeMap<Cell, (Entry, Millis)>,
    /// Held leases.
    held: BTreeMap<FragmentId, FragmentLease>,
    /// Time since which each free fragment has been free.
    idle: BTreeMap<FragmentId, Millis>,
    /// Revision of this process's presence; 0 before the first write.
    present: u64,
    /// Present processes, and the time of their last change.
    crew: (BTreeSet<ProcessId>, Millis),
    /// Number of adoptions of each fragment since that change.
    adoptions: BTreeMap<FragmentId, u32>,
    /// Number of fragments that have long been free, but that this process has no capacity to lead.
    left: usize,
}

#[derive(Clone, Copy, Debug)]
struct FragmentLease {
    revision: u64,
    /// Time from which other processes may take the lease.
    until: Millis,
    /// Time of the adoption, if the fragment was taken above the share.
    adopted: Option<Millis>,
}

/// Maximum number of doublings of [`ADOPTED_LEASES`] for a fragment that no other process takes over.
const DOUBLINGS_MAX: u32 = 10;

impl FragmentAssignment {
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

    /// Returns the number of fragments that have long been free, but that this process has no capacity to lead.
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
                self.held.insert(fragment, FragmentLease { revision, until, adopted });
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
        let may_go =
            |(fragment, held): &(&FragmentId, &FragmentLease)| !self.is_kept(now, **fragment, **held);
        let is_adopted = |(_, held): &(&FragmentId, &FragmentLease)| held.adopted.is_some();
        let (&fragment, _) = (self.held.iter().rev().filter(may_go).find(is_adopted))
            .or_else(|| self.held.iter().rev().find(may_go))?;
        self.give_back(fragment)
    }

    /// Returns true if a fragment was adopted recently. The time grows with each adoption that no other process took
    /// over.
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

    /// Roster and processes that read it in turn.
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

        /// Advances by `beats` beats. Processes in `away` do nothing.
        fn run(&mut self, beats: u64, away: &[u64]) {
            for _ in 0..beats {
                self.now += BEAT_MS;
                // Each process has its own clock.
                for process in self.crew.keys().copied().collect::<Vec<_>>() {
                    if away.contains(&process) {
                        continue;
                    }
                    let now = Millis(self.now + 1_000_000 * process);
                    let entries: Vec<Entry> = self.entries.values().copied().collect();
                    let writes = self.crew.get_mut(&process).unwrap().look(now, &entries);
                    for write in writes {
                        let outcome = self.write(write);
                        self.crew.get_mut(&process).unwrap().wrote(now, write, outcome);
                    }
                }
            }
        }

        /// Returns the number of fragments that each process leads. Asserts that no fragment has two leaders.
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

    /// Goal: each fragment has exactly one leader, and the shares are as even as possible.
    #[test]
    fn fragments_are_shared_fairly() {
        let mut world = RosterSimulation::new(7, &[1, 2, 3]);
        world.run(30, &[]);
        assert_eq!(world.held(&[]), [3, 2, 2]);
    }

    /// Goal: a new process gets a share of the fragments, and those of a lost process have new leaders one lease later.
    #[test]
    fn who_comes_gets_its_share_and_who_goes_is_followed() {
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

    /// Goal: a released fragment is taken at the next poll, without waiting for the end of a lease.
    #[test]
    fn what_is_given_back_is_taken_at_once() {
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

    /// Goal: a process that is present and takes nothing does not keep others from leading. Fragments led in its place
    /// do not move back and forth.
    #[test]
    fn an_idle_process_keeps_no_fragment_from_being_led() {
        let mut world = RosterSimulation::new(2, &[1]);
        world.run(10, &[]);
        // This process only announces its presence.
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

    /// Goal: a process never leads more fragments than its capacity, however long the rest stay free. A new process
    /// with room leads them.
    #[test]
    fn nobody_leads_more_than_it_has_room_for() {
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
    fn uneven_rooms_come_to_rest() {
        let mut world = RosterSimulation::new(8, &[]);
        for (process, room) in [(1, 5), (2, 3)] {
            world.come(process);
            let shares = world.crew.remove(&process).unwrap();
            world.crew.insert(process, shares.at_most(room));
        }
        let (mut changes, mut unled) = (0, 0);
        let mut before = Vec::new();
        // Ten minutes, and then ten more.
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

    /// Goal: a lost answer neither loses a lease forever nor keeps an expired one.
    #[test]
    fn an_answer_that_does_not_come_is_survived() {
        let mut shares = FragmentAssignment::new(ProcessId(7), [FragmentId(0)], LEASE_MS);
        let writes = shares.look(Millis(0), &[]);
        assert_eq!(writes.len(), 2);
        // Both writes succeeded, and the answers were lost.
        let entries: Vec<Entry> = (1..)
            .zip(writes)
            .map(|(revision, w)| Entry { cell: w.cell, holder: w.holder, revision })
            .collect();
        assert_eq!(shares.until(Millis(1), FragmentId(0)), None);
        let writes = shares.look(Millis(600), &entries);
        assert_eq!(writes.iter().map(|write| write.expect).collect::<Vec<_>>(), [1, 2]);
        shares.wrote(Millis(600), writes[1], Some(3));
        assert_eq!(shares.until(Millis(601), FragmentId(0)), Some(Millis(3_600)));
        assert_eq!(shares.until(Millis(3_600), FragmentId(0)), None);
        // Another process holds the lease.
        let taken = Entry { cell: Cell::Lease(FragmentId(0)), holder: Some(ProcessId(9)), revision: 9 };
        shares.wrote(Millis(1_200), Write { expect: 3, ..writes[1] }, None);
        assert_eq!(shares.until(Millis(1_201), FragmentId(0)), None);
        let writes = shares.look(Millis(1_800), &[taken]);
        assert!(writes.iter().all(|write| write.cell != taken.cell), "{writes:?}");
    }
}
