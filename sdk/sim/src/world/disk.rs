//! The syncer's disk: two snapshots and the tape in append-only files, as on the server, and their faults.

use std::sync::Arc;

use archipelago_core::diloco::FragmentState;
use archipelago_core::diloco::syncer::SyncerRecord;
use archipelago_core::diloco::tape::{self, Blobs, Place, Row, Taking};
use serde::{Deserialize, Serialize};

use super::audit::AuditState;
use super::event::WorldEvent;
use super::tape::TapeFiles;
use super::{Rng, World};

/// Snapshots kept, as on the server: the newest, and its predecessor in case the newest is damaged.
const SNAPSHOTS_KEPT: usize = 2;

/// The folder of the run.
#[derive(Debug)]
pub(super) struct Disk {
    /// Snapshots, oldest first; `None` stands for an unreadable file.
    pub(super) kept: Vec<Option<DiskSnapshot>>,
    pub(super) tape: TapeFiles,
    /// The owner's backup of snapshots and tape, with the checker's knowledge at that time.
    backup: Option<(Vec<Option<DiskSnapshot>>, TapeFiles, AuditState)>,
    /// The disk's current fault.
    pub(super) ailment: Option<Ailment>,
    /// Writes and syncs that failed so far, including those of starts and snapshots.
    pub(super) failures: u64,
    /// Random numbers for disk faults.
    pub(super) rng: Rng,
}

impl Disk {
    pub(super) fn new(first: DiskSnapshot, rng: Rng) -> Self {
        let (kept, tape) = (vec![Some(first)], TapeFiles::default());
        Self { kept, tape, backup: None, ailment: None, failures: 0, rng }
    }

    /// Writes a snapshot. Returns false, and leaves the earlier ones as they were, if the disk fails.
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

    /// Returns the tape for a write that is subject to the disk's current fault.
    pub(super) fn attempt(&mut self) -> Attempt<'_> {
        Attempt { tape: &mut self.tape, ailment: self.ailment, rng: &mut self.rng }
    }

    /// Returns true if a write or its sync fails. During a fault, this is random.
    pub(super) fn fails(&mut self) -> bool {
        let rng = &mut self.rng;
        let fails = |ailment: Ailment| ailment.fails_to_write(rng) || ailment.fails_to_sync(rng);
        let failed = self.ailment.is_some_and(fails);
        self.failures += u64::from(failed);
        failed
    }

    /// Returns the newest intact snapshot.
    pub(super) fn latest(&self) -> Option<&DiskSnapshot> {
        self.kept.iter().rev().flatten().next()
    }

    /// Damages the newest intact snapshot, as a power failure may.
    pub(super) fn tear(&mut self) {
        if let Some(newest) = self.kept.iter_mut().rev().find(|kept| kept.is_some()) {
            *newest = None;
        }
    }

    /// Makes the owner's backup of the folder; `known` is the checker's knowledge of it.
    pub(super) fn back_up(&mut self, known: AuditState) {
        self.backup = Some((self.kept.clone(), self.tape.copy(), known));
    }

    /// Replaces the folder's contents with the backup, which remains. Returns the checker's knowledge at backup time.
    pub(super) fn put_back(&mut self) -> Option<AuditState> {
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
            let snapshot = Box::new(DiskSnapshot { seq, record, states });
            let (at, generation) = (self.now.after(self.spec.shell.save_ms), self.generation);
            self.queue.plan(at, WorldEvent::Saved { generation, snapshot });
        }
    }

    pub(super) fn saved(&mut self, generation: u32, snapshot: DiskSnapshot) {
        // A process that dies while writing leaves no file under the final name.
        if generation == self.generation {
            self.record.saving = false;
            self.disk.save(snapshot);
        }
    }
}

/// Share of the affected operations that fail. The rest succeed, so that the disk works between failures.
const FAILING_SHARE: f64 = 0.6;

/// A fault of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ailment {
    /// No free space: every write fails, and may leave a part behind.
    Full,
    /// Some writes fail, and may leave a part behind.
    Writes,
    /// Some syncs fail. Their data may or may not be on the disk, and later syncs do not report it.
    Syncs,
}

impl Ailment {
    /// All variants.
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

/// A failed write or sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DiskError;

/// The tape on a disk in its present condition.
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

/// Unit of disk writes, in bytes; small, to suit the small files of toys.
const PAGE: usize = 64;

/// Fate of unsynced writes at a power failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// They survive.
    Kept,
    /// They are gone.
    Lost,
    /// Only their beginning survives.
    Torn,
    /// Some pages have their old content, or the content of another place.
    Stale,
    /// One of their bits is flipped.
    Flipped,
}

impl Loss {
    /// All variants.
    pub const ALL: [Self; 5] = [Self::Kept, Self::Lost, Self::Torn, Self::Stale, Self::Flipped];
}

/// An append-only file.
#[derive(Clone, Debug, Default)]
pub(super) struct File {
    /// Content; bytes after `end` belong to failed writes and will be overwritten.
    bytes: Vec<u8>,
    /// Offset of the next byte.
    end: usize,
    /// Length of the prefix that is certainly on the disk.
    synced: usize,
}

impl File {
    /// Returns the content, as a process that has not crashed sees it.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the offset of the next byte.
    pub(super) fn len(&self) -> usize {
        self.end
    }

    pub(super) fn append(&mut self, bytes: &[u8]) {
        self.attempt(bytes);
        self.end += bytes.len();
    }

    /// Writes `bytes` at the end without advancing it, as a failed write does.
    pub(super) fn attempt(&mut self, bytes: &[u8]) {
        let until = self.end + bytes.len();
        if self.bytes.len() < until {
            self.bytes.resize(until, 0);
        }
        self.bytes[self.end..until].copy_from_slice(bytes);
    }

    /// Puts everything before `end` on the disk.
    pub(super) fn sync(&mut self) {
        self.synced = self.end;
    }

    /// Drops everything unsynced.
    pub(super) fn forget_unsynced(&mut self) {
        self.cut(self.synced);
    }

    /// Truncates the file to its first `len` bytes and treats the rest as synced.
    pub(super) fn cut(&mut self, len: usize) {
        self.bytes.truncate(len);
        (self.end, self.synced) = (self.bytes.len(), self.bytes.len());
    }

    /// Applies `loss` to the unsynced writes, as a crash does.
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

    /// Flips a random bit of byte `at`.
    pub(super) fn flip(&mut self, at: usize, rng: &mut Rng) {
        if let Some(byte) = self.bytes.get_mut(at) {
            *byte ^= 1 << rng.below(8);
        }
    }

    /// Overwrites the content from byte `at` on with `bytes`.
    pub(super) fn restore(&mut self, at: usize, bytes: &[u8]) {
        if let Some(there) = self.bytes.get_mut(at..at + bytes.len()) {
            there.copy_from_slice(bytes);
        }
    }

    /// Overwrites the page around byte `at` with zeros or with the preceding page. Only unsynced bytes change, unless
    /// byte `at` itself was synced.
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

/// The ledger after row `seq` of the tape, and the fragments at that time or later.
#[derive(Clone, Debug)]
pub(super) struct DiskSnapshot {
    pub(super) seq: u64,
    pub(super) record: SyncerRecord,
    pub(super) states: Vec<FragmentState>,
}

/// Returns the bytes of parameters in `states`.
pub(super) fn bytes<'a>(states: impl Iterator<Item = &'a FragmentState>) -> u64 {
    states.map(|state| 12 * state.theta.len() as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_is_written_over() {
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
        // All bytes differ, so that content from another place is detected.
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
