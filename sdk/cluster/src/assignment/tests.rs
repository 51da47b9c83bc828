//! Several processes on one roster, in virtual time.

use super::*;

const LEASE_MS: u64 = 3_000;
const BEAT_MS: u64 = 600;

/// Roster and processes that read it in turn.
struct World {
    now: u64,
    entries: BTreeMap<Cell, Entry>,
    revision: u64,
    crew: BTreeMap<u64, Shares>,
    fragments: u32,
}

impl World {
    fn new(fragments: u32, processes: &[u64]) -> Self {
        let mut world =
            Self { now: 0, entries: BTreeMap::new(), revision: 0, crew: BTreeMap::new(), fragments };
        processes.iter().for_each(|process| world.come(*process));
        world
    }

    fn come(&mut self, process: u64) {
        let fragments = (0..self.fragments).map(|p| FragmentId(p as u16));
        self.crew.insert(process, Shares::new(ProcessId(process), fragments, LEASE_MS));
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
    let mut world = World::new(7, &[1, 2, 3]);
    world.run(30, &[]);
    assert_eq!(world.held(&[]), [3, 2, 2]);
}

/// Goal: a new process gets a share of the fragments, and those of a lost process have new leaders one lease later.
#[test]
fn who_comes_gets_its_share_and_who_goes_is_followed() {
    let mut world = World::new(6, &[1, 2]);
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
    let mut world = World::new(4, &[1, 2]);
    world.run(20, &[]);
    assert_eq!(world.held(&[]), [2, 2]);
    let mut leaving = world.crew.remove(&1).unwrap();
    for write in leaving.leave() {
        assert!(world.write(write).is_some(), "{write:?}");
    }
    world.run(2, &[]);
    assert_eq!(world.held(&[]), [4]);
}

/// Goal: a process that is present and takes nothing does not keep others from leading. Fragments led in its place do
/// not move back and forth.
#[test]
fn an_idle_process_keeps_no_fragment_from_being_led() {
    let mut world = World::new(2, &[1]);
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

/// Goal: a process never leads more fragments than its capacity, however long the rest stay free. A new process with
/// room leads them.
#[test]
fn nobody_leads_more_than_it_has_room_for() {
    let mut world = World::new(6, &[]);
    let come = |world: &mut World, process: u64| {
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
    let mut world = World::new(8, &[]);
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
    let mut shares = Shares::new(ProcessId(7), [FragmentId(0)], LEASE_MS);
    let writes = shares.look(Millis(0), &[]);
    assert_eq!(writes.len(), 2);
    // Both writes succeeded, and the answers were lost.
    let entries: Vec<Entry> =
        (1..).zip(writes).map(|(revision, w)| Entry { cell: w.cell, holder: w.holder, revision }).collect();
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
