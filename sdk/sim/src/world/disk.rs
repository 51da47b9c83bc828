//! Disk of the syncer with its faults: two snapshots, and the tape in append-only files, as in the server.

use std::sync::Arc;

use archipelago_core::diloco::FragmentState;
use archipelago_core::diloco::syncer::SyncerRecord;
use archipelago_core::diloco::tape::{self, Blobs, Place, Row, SnapshotBuilder};
use serde::{Deserialize, Serialize};

use super::audit::AuditState;
use super::event::WorldEvent;
use super::tape::TapeFiles;
use super::{Rng, World};

/// Number of snapshots to keep, as in the server. The older one is used if the newest is damaged.
const SNAPSHOTS_KEPT: usize = 2;

/// Folder of the run.
#[derive(Debug)]
pub(super) struct Disk {
    /// Snapshots, oldest first. `None` is a damaged file.
    pub(super) kept: Vec<Option<DiskSnapshot>>,
    pub(super) tape: TapeFiles,
    /// The owner's backup of snapshots and tape, with the checker's state at the time of the backup.
    backup: Option<(Vec<Option<DiskSnapshot>>, TapeFiles, AuditState)>,
    /// Current fault of the disk.
    pub(super) ailment: Option<Ailment>,
    /// Number of failed writes and syncs, including those of starts and snapshots.
    pub(super) failures: u64,
    /// Random number generator for disk faults.
    pub(super) rng: Rng,
}

impl Disk {
    pub(super) fn new(first: DiskSnapshot, rng: Rng) -> Self {
        let (kept, tape) = (vec![Some(first)], TapeFiles::default());
        Self { kept, tape, backup: None, ailment: None, failures: 0, rng }
    }

    /// Writes a snapshot. If the disk fails, returns false and changes nothing.
    fn save(&mut self, snapshot: DiskSnapshot) -> bool {
        if self.fails() {
            return false;
        }
        if self.kept.len() == SNAPSHOTS_KEPT {
            self.kept.remove(0);
        }
        self.kept.push(Some(snapshot));
        true
    }

    /// Returns the tape for a write that may fail because of the disk's current fault.
    pub(super) fn attempt(&mut self) -> Attempt<'_> {
        Attempt { tape: &mut self.tape, ailment: self.ailment, rng: &mut self.rng }
    }

    /// Returns true if a write or its sync fails, which is random during a fault.
    pub(super) fn fails(&mut self) -> bool {
        let rng = &mut self.rng;
        let fails = |ailment: Ailment| ailment.fails_to_write(rng) || ailment.fails_to_sync(rng);
        let failed = self.ailment.is_some_and(fails);
        self.failures += u64::from(failed);
        failed
    }

    /// Returns the newest undamaged snapshot.
    pub(super) fn latest(&self) -> Option<&DiskSnapshot> {
        self.kept.iter().rev().flatten().next()
    }

    /// Damages the newest undamaged snapshot, as a power failure may.
    pub(super) fn tear(&mut self) {
        if let Some(newest) = self.kept.iter_mut().rev().find(|kept| kept.is_some()) {
            *newest = None;
        }
    }

    /// Makes the owner's backup of the folder. `known` is the checker's state.
    pub(super) fn back_up(&mut self, known: AuditState) {
        self.backup = Some((self.kept.clone(), self.tape.copy(), known));
    }

    /// Restores the backup and keeps it. Returns the checker's state at the time of the backup.
    pub(super) fn restore_backup(&mut self) -> Option<AuditState> {
        let (kept, tape, known) = self.backup.clone()?;
        (self.kept, self.tape) = (kept, tape);
        Some(known)
    }
}

impl World {
    pub(super) fn plan_snapshot(&mut self) {
        let at = self.now.after(self.spec.shell.snapshot_ms.max(1));
        self.queue.plan(at, WorldEvent::Snapshot { generation: self.generation });
    }

    /// Begins a snapshot of the syncer's state, unless one is in progress. Schedules the next snapshot.
    pub(super) fn take_snapshot(&mut self, generation: u32) {
        let (now, weight) = (self.now, self.weight());
        let Some(host) = self.host.as_mut().filter(|_| generation == self.generation) else { return };
        if self.record.builder.is_none() && !self.record.saving {
            self.record.builder = Some(SnapshotBuilder::begin(&host.core, self.record.gate.decided()));
            let copy_ps = bytes(host.core.states()) * weight * self.spec.shell.pace.copy_ps_per_byte;
            host.work(now, copy_ps / 1_000_000);
        }
        self.plan_snapshot();
        self.step_snapshot();
    }

    /// Continues a snapshot. Once it is complete and the tape is written up to it, schedules its saving.
    pub(super) fn step_snapshot(&mut self) {
        let (Some(host), Some(builder)) = (&self.host, &mut self.record.builder) else { return };
        builder.step(&host.core, self.record.gate.decided());
        if builder.is_ready(&self.record.gate) {
            let Some((seq, record, states)) = self.record.builder.take().map(SnapshotBuilder::into_parts)
            else {
                return;
            };
            self.record.saving = true;
            let snapshot = Box::new(DiskSnapshot { seq, record, states });
            let (at, generation) = (self.now.after(self.spec.shell.save_ms), self.generation);
            self.queue.plan(at, WorldEvent::Saved { generation, snapshot });
        }
    }

    pub(super) fn saved(&mut self, generation: u32, snapshot: DiskSnapshot) {
        // A process that crashes while it writes leaves no file under the final name.
        if generation == self.generation {
            self.record.saving = false;
            self.disk.save(snapshot);
        }
    }
}

/// Probability that an affected operation fails. Others succeed, so the disk works now and then.
const FAILING_SHARE: f64 = 0.6;

/// Fault of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ailment {
    /// The disk is full: every write fails and may leave a part of its data.
    Full,
    /// Some writes fail and may leave a part of their data.
    Writes,
    /// Some syncs fail. Their data may or may not be on the disk, and later syncs report no error.
    Syncs,
}

impl Ailment {
    /// All disk faults.
    pub const ALL: [Self; 3] = [Self::Full, Self::Writes, Self::Syncs];

    /// Returns true if a write fails, at random.
    pub(super) fn fails_to_write(self, rng: &mut Rng) -> bool {
        self == Self::Full || self == Self::Writes && rng.chance(FAILING_SHARE)
    }

    /// Returns true if a sync fails, at random.
    pub(super) fn fails_to_sync(self, rng: &mut Rng) -> bool {
        self == Self::Syncs && rng.chance(FAILING_SHARE)
    }
}

/// Error of a failed write or sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DiskError;

/// Tape on a disk with its current fault.
pub(super) struct Attempt<'a> {
    pub(super) tape: &'a mut TapeFiles,
    pub(super) ailment: Option<Ailment>,
    pub(super) rng: &'a mut Rng,
}

impl Attempt<'_> {
    fn fails_to_write(&mut self) -> bool {
        self.ailment.is_some_and(|ailment| ailment.fails_to_write(self.rng))
    }

    fn fails_to_sync(&mut self) -> bool {
        self.ailment.is_some_and(|ailment| ailment.fails_to_sync(self.rng))
    }
}

impl tape::Tape for Attempt<'_> {
    type Error = DiskError;

    fn last(&self) -> u64 {
        self.tape.last()
    }

    fn append_rows(&mut self, rows: &[Row]) -> Result<(), DiskError> {
        if self.fails_to_write() {
            self.tape.try_rows(rows, Some(&mut *self.rng));
            return Err(DiskError);
        }
        if self.fails_to_sync() {
            self.tape.try_rows(rows, None);
            return Err(DiskError);
        }
        self.tape.append_rows(rows);
        Ok(())
    }
}

impl Blobs for Attempt<'_> {
    type Error = DiskError;

    fn append_bodies(&mut self, bodies: &[Arc<Vec<u8>>]) -> Result<Place, DiskError> {
        if self.fails_to_write() {
            self.tape.try_bodies(bodies, self.rng);
            return Err(DiskError);
        }
        Ok(self.tape.append_bodies(bodies))
    }

    fn sync_bodies(&mut self) -> Result<(), DiskError> {
        if self.fails_to_sync() {
            self.tape.abandon_bodies();
            return Err(DiskError);
        }
        self.tape.await_bodies();
        Ok(())
    }
}

/// Size of a disk page, in bytes. It is small because the files of toy runs are.
const PAGE: usize = 64;

/// Effect of a power failure on unsynced writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// All are kept.
    Kept,
    /// All are lost.
    Lost,
    /// Only a prefix is kept.
    Torn,
    /// A page has its old content, or that of the preceding page.
    Stale,
    /// One bit is flipped.
    Flipped,
}

impl Loss {
    /// All effects.
    pub const ALL: [Self; 5] = [Self::Kept, Self::Lost, Self::Torn, Self::Stale, Self::Flipped];
}

/// Append-only file.
#[derive(Clone, Debug, Default)]
pub(super) struct File {
    /// Content. Bytes after `end` are from failed writes and will be overwritten.
    bytes: Vec<u8>,
    /// Offset of the next write.
    end: usize,
    /// Length of the synced prefix.
    synced: usize,
}

impl File {
    /// Returns the content as a running process sees it.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the offset of the next write.
    pub(super) fn len(&self) -> usize {
        self.end
    }

    pub(super) fn append(&mut self, bytes: &[u8]) {
        self.attempt(bytes);
        self.end += bytes.len();
    }

    /// Writes `bytes` at the end without advancing it, as a failed write may.
    pub(super) fn attempt(&mut self, bytes: &[u8]) {
        let until = self.end + bytes.len();
        if self.bytes.len() < until {
            self.bytes.resize(until, 0);
        }
        self.bytes[self.end..until].copy_from_slice(bytes);
    }

    /// Marks everything before `end` as synced.
    pub(super) fn sync(&mut self) {
        self.synced = self.end;
    }

    /// Discards everything that is not synced.
    pub(super) fn forget_unsynced(&mut self) {
        self.cut(self.synced);
    }

    /// Truncates the file to `len` bytes, and marks them as synced.
    pub(super) fn cut(&mut self, len: usize) {
        self.bytes.truncate(len);
        (self.end, self.synced) = (self.bytes.len(), self.bytes.len());
    }

    /// Applies `loss` to the unsynced writes, as a power failure does.
    pub(super) fn crash(&mut self, loss: Loss, rng: &mut Rng) {
        let unsynced = self.bytes.len() - self.synced;
        if unsynced > 0 {
            match loss {
                Loss::Kept => {}
                Loss::Lost => self.forget_unsynced(),
                Loss::Torn => self.bytes.truncate(self.synced + rng.below(unsynced as u64) as usize),
                Loss::Stale => self.overwrite(self.synced + rng.below(unsynced as u64) as usize, rng),
                Loss::Flipped => self.flip(self.synced + rng.below(unsynced as u64) as usize, rng),
            }
        }
        self.cut(self.bytes.len());
    }

    /// Flips a random bit of the byte at `at`.
    pub(super) fn flip(&mut self, at: usize, rng: &mut Rng) {
        if let Some(byte) = self.bytes.get_mut(at) {
            *byte ^= 1 << rng.below(8);
        }
    }

    /// Overwrites the content from offset `at` on with `bytes`.
    pub(super) fn restore(&mut self, at: usize, bytes: &[u8]) {
        if let Some(there) = self.bytes.get_mut(at..at + bytes.len()) {
            there.copy_from_slice(bytes);
        }
    }

    /// Overwrites the page around offset `at` with zeros or with the preceding page. Synced bytes change only if the
    /// byte at `at` is synced.
    pub(super) fn overwrite(&mut self, at: usize, rng: &mut Rng) {
        let floor = if at >= self.synced { self.synced } else { 0 };
        let start = (at / PAGE * PAGE).max(floor);
        let end = (at / PAGE * PAGE + PAGE).min(self.bytes.len());
        let is_blank = start < PAGE || rng.chance(0.5);
        for i in start..end {
            self.bytes[i] = if is_blank { 0 } else { self.bytes[i - PAGE] };
        }
    }
}

/// Snapshot on the disk: the syncer's record after row `seq` of the tape, and fragments of that version or later ones.
#[derive(Clone, Debug)]
pub(super) struct DiskSnapshot {
    pub(super) seq: u64,
    pub(super) record: SyncerRecord,
    pub(super) states: Vec<FragmentState>,
}

/// Returns the size of the parameter vectors in `states`, in bytes.
pub(super) fn bytes<'a>(states: impl Iterator<Item = &'a FragmentState>) -> u64 {
    states.map(|state| 12 * state.theta.len() as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_write_is_overwritten() {
        let mut file = File::default();
        file.append(b"ab");
        file.attempt(b"xyz");
        assert_eq!((file.len(), file.bytes()), (2, &b"abxyz"[..]));
        file.append(b"c");
        file.sync();
        assert_eq!((file.len(), file.bytes()), (3, &b"abcyz"[..]));
        file.crash(Loss::Lost, &mut Rng::new(1));
        assert_eq!((file.len(), file.bytes()), (3, &b"abc"[..]));
    }

    #[test]
    fn a_crash_touches_nothing_that_was_synced() {
        // All bytes differ, so content from another position is detected.
        let written: Vec<u8> = (0..200).collect();
        let (synced, unsynced) = written.split_at(100);
        for seed in 0..200 {
            for loss in Loss::ALL {
                let mut rng = Rng::new(seed);
                let mut file = File::default();
                file.append(synced);
                file.sync();
                file.append(unsynced);
                file.crash(loss, &mut rng);
                assert_eq!(&file.bytes()[..100], synced, "seed {seed}, {loss:?}");
                let is_whole = &file.bytes()[100..] == unsynced;
                assert_eq!(is_whole, loss == Loss::Kept, "seed {seed}, {loss:?}");
            }
        }
    }
}
