//! The syncer's disk: two snapshots as the server keeps them, and what can happen to them.

use super::World;
use super::happening::Happening;
use super::snapshot::Snapshot;
use archipelago::diloco::syncer::Syncer;

/// Snapshots kept, as the server does: the newest, and the one before in case the newest is damaged.
const SNAPSHOTS_KEPT: usize = 2;
/// Wait before a syncer that could not start is started again, in milliseconds.
const START_AGAIN_MS: u64 = 1_000;

/// The folder of the run.
#[derive(Debug)]
pub(super) struct Disk {
    /// The oldest first; `None` is a file that cannot be read.
    kept: Vec<Option<Snapshot>>,
    /// A copy that the owner made.
    backup: Option<Snapshot>,
    /// Nothing more can be written.
    pub(super) full: bool,
}

impl Disk {
    pub(super) fn new(first: Snapshot) -> Self {
        Self { kept: vec![Some(first)], backup: None, full: false }
    }

    /// Writes a snapshot; whether it could be. What was there before still is, if not.
    fn save(&mut self, snapshot: Snapshot) -> bool {
        if self.full {
            return false;
        }
        if self.kept.len() == SNAPSHOTS_KEPT {
            self.kept.remove(0);
        }
        self.kept.push(Some(snapshot));
        true
    }

    /// The newest that is whole.
    fn latest(&self) -> Option<&Snapshot> {
        self.kept.iter().rev().flatten().next()
    }

    /// Damages the newest file, as a loss of power may; not one that is the last hope. A copy that is newer than what
    /// is left goes with it: a run that went on from the past does not come back to its future.
    pub(super) fn tear(&mut self) {
        let [.., Some(last), newest] = &mut self.kept[..] else { return };
        *newest = None;
        let left = last.record.next_round;
        self.backup.take_if(|backup| backup.record.next_round > left);
    }

    /// The owner keeps a copy of the newest.
    pub(super) fn back_up(&mut self) {
        self.backup = self.latest().cloned().or(self.backup.take());
    }

    /// The owner puts the copy into the place of all that is there; the copy stays.
    pub(super) fn put_back(&mut self) {
        if let Some(backup) = &self.backup {
            self.kept = vec![Some(backup.clone())];
        }
    }
}

impl World {
    pub(super) fn plan_snapshot(&mut self) {
        let at = self.now.after(self.spec.shell.snapshot_ms.max(1));
        self.queue.plan(at, Happening::Snapshot { generation: self.generation });
    }

    /// Copies what the syncer knows; it is on the disk a little later.
    pub(super) fn take_snapshot(&mut self, generation: u32) {
        let now = self.now;
        let weight = self.weight();
        let Some(host) = self.host.as_mut().filter(|_| generation == self.generation) else { return };
        let Some(snapshot) = Snapshot::of(&host.core, self.audit.books()) else {
            // Something is being merged; that takes milliseconds.
            return self.queue.plan(now.after(1), Happening::Snapshot { generation });
        };
        let shell = &self.spec.shell;
        host.work(now, snapshot.bytes() * weight * shell.pace.copy_ps_per_byte / 1_000_000);
        let snapshot = Box::new(snapshot);
        self.queue.plan(now.after(shell.save_ms), Happening::Saved { generation, snapshot });
        self.plan_snapshot();
    }

    pub(super) fn saved(&mut self, generation: u32, snapshot: Snapshot) {
        // A process that died while it wrote leaves nothing that has its name.
        if generation == self.generation {
            self.disk.save(snapshot);
        }
    }

    pub(super) fn crash_syncer(&mut self) {
        if self.host.take().is_none() {
            return;
        }
        self.generation += 1;
        for conn in self.conns.keys().copied().collect::<Vec<_>>() {
            self.drop_at_syncer(conn);
        }
    }

    /// Starts a syncer from the newest snapshot that is whole. As the server does, it writes one before it serves, and
    /// does not start if it cannot.
    pub(super) fn restart_syncer(&mut self) {
        if self.host.is_some() {
            return;
        }
        let Some(Snapshot { record, states, books }) =
            self.disk.latest().cloned().filter(|_| !self.disk.full)
        else {
            let again = super::Fault::RestartSyncer;
            return self.queue.plan(self.now.after(START_AGAIN_MS), Happening::Fault(again));
        };
        // The world began one second after 1970 did.
        let started_s = u32::try_from(1 + self.now.0 / 1_000).unwrap_or(u32::MAX);
        let core = Syncer::restore(record, &self.layout, self.spec.syncer, states, started_s)
            .expect("the snapshot is this run's own");
        self.audit.roll_back(&books, &core);
        self.generation += 1;
        let first = Snapshot::of(&core, self.audit.books()).expect("nothing is being merged yet");
        self.disk.save(first);
        self.start_host(core);
        self.plan_snapshot();
        self.drive_host();
    }
}
