//! The syncer's disk: two snapshots and the tape, as on the server, and their faults.

use super::attempt::{Ailment, Attempt};
use super::happening::Happening;
use super::recovered::Kept;
use super::snapshot::{Snapshot, bytes};
use super::tape::Tape;
use super::{Rng, World};
use archipelago_core::diloco::tape::Taking;

/// Snapshots kept, as on the server: the newest, and its predecessor in case the newest is damaged.
const SNAPSHOTS_KEPT: usize = 2;

/// The folder of the run.
#[derive(Debug)]
pub(super) struct Disk {
    /// Snapshots, oldest first; `None` stands for an unreadable file.
    pub(super) kept: Vec<Option<Snapshot>>,
    pub(super) tape: Tape,
    /// The owner's backup of both, with the checker's knowledge at that time.
    backup: Option<(Vec<Option<Snapshot>>, Tape, Kept)>,
    /// The disk's current fault.
    pub(super) ailment: Option<Ailment>,
    /// Writes and syncs that failed so far, including those of starts and snapshots.
    pub(super) failures: u64,
    /// Random numbers for disk faults.
    pub(super) rng: Rng,
}

impl Disk {
    pub(super) fn new(first: Snapshot, rng: Rng) -> Self {
        let (kept, tape) = (vec![Some(first)], Tape::default());
        Self { kept, tape, backup: None, ailment: None, failures: 0, rng }
    }

    /// Writes a snapshot. Returns false, and leaves the earlier ones as they were, if the disk fails.
    fn save(&mut self, snapshot: Snapshot) -> bool {
        if self.fails() {
            return false;
        }
        if self.kept.len() == SNAPSHOTS_KEPT {
            self.kept.remove(0);
        }
        self.kept.push(Some(snapshot));
        true
    }

    /// Returns the tape for writing, on the disk in its present condition.
    pub(super) fn attempt(&mut self) -> Attempt<'_> {
        Attempt { tape: &mut self.tape, ailment: self.ailment, rng: &mut self.rng }
    }

    /// Returns true if a write with its sync fails, at random.
    pub(super) fn fails(&mut self) -> bool {
        let rng = &mut self.rng;
        let fails = |ailment: Ailment| ailment.fails_to_write(rng) || ailment.fails_to_sync(rng);
        let failed = self.ailment.is_some_and(fails);
        self.failures += u64::from(failed);
        failed
    }

    /// Returns the newest intact snapshot.
    pub(super) fn latest(&self) -> Option<&Snapshot> {
        self.kept.iter().rev().flatten().next()
    }

    /// Damages the newest intact snapshot, as a power failure may.
    pub(super) fn tear(&mut self) {
        if let Some(newest) = self.kept.iter_mut().rev().find(|kept| kept.is_some()) {
            *newest = None;
        }
    }

    /// Makes the owner's backup of the folder; `known` is the checker's knowledge of it.
    pub(super) fn back_up(&mut self, known: Kept) {
        self.backup = Some((self.kept.clone(), self.tape.copy(), known));
    }

    /// Replaces the folder's contents with the backup, which remains. Returns the checker's knowledge at backup time.
    pub(super) fn put_back(&mut self) -> Option<Kept> {
        let (kept, tape, known) = self.backup.clone()?;
        (self.kept, self.tape) = (kept, tape);
        Some(known)
    }
}

impl World {
    pub(super) fn plan_snapshot(&mut self) {
        let at = self.now.after(self.spec.shell.snapshot_ms.max(1));
        self.queue.plan(at, Happening::Snapshot { generation: self.generation });
    }

    /// Begins a snapshot of the syncer's state, unless one is in progress.
    pub(super) fn take_snapshot(&mut self, generation: u32) {
        let (now, weight) = (self.now, self.weight());
        let Some(host) = self.host.as_mut().filter(|_| generation == self.generation) else { return };
        if self.record.taking.is_none() && !self.record.saving {
            self.record.taking = Some(Taking::begin(&host.core, self.record.gate.decided()));
            let copy_ps = bytes(host.core.states()) * weight * self.spec.shell.pace.copy_ps_per_byte;
            host.work(now, copy_ps / 1_000_000);
        }
        self.plan_snapshot();
        self.step_snapshot();
    }

    /// Continues a snapshot. Once it is complete and the tape has caught up, the snapshot is saved shortly afterwards.
    pub(super) fn step_snapshot(&mut self) {
        let (Some(host), Some(taking)) = (&self.host, &mut self.record.taking) else { return };
        taking.step(&host.core, self.record.gate.decided());
        if taking.is_ready(&self.record.gate) {
            let Some((seq, record, states)) = self.record.taking.take().map(Taking::into_parts) else {
                return;
            };
            self.record.saving = true;
            let snapshot = Box::new(Snapshot { seq, record, states });
            let (at, generation) = (self.now.after(self.spec.shell.save_ms), self.generation);
            self.queue.plan(at, Happening::Saved { generation, snapshot });
        }
    }

    pub(super) fn saved(&mut self, generation: u32, snapshot: Snapshot) {
        // A process that dies while writing leaves no file under the final name.
        if generation == self.generation {
            self.record.saving = false;
            self.disk.save(snapshot);
        }
    }
}
