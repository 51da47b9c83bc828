//! Storage of a run's tape, independent of the medium: a server's disk or a simulated disk.
//!
//! | type | concept |
//! |---|---|
//! | [`Gate`] | queue of output that waits until earlier decisions are stored |
//! | [`PendingBodies`] | writer of batches, which stores bodies before the rows that refer to them |
//! | [`Tape`], [`Blobs`] | interfaces of the medium: one for rows, one for bodies |
//! | [`Links`] | check of the chained checksums of rows |
//! | [`SnapshotBuilder`] | snapshot in progress while merges continue |

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::Entry;
use crate::diloco::syncer::{Syncer, SyncerRecord};
use crate::diloco::{FragmentState, MergeEntry, RollbackEntry};
use crate::wire::{ConnId, FragmentId, Message, Round};
use sha2::{Digest, Sha256};

/// One decision on the tape.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Sequence number of the row, from 1 without gaps.
    pub seq: u64,
    /// Unix time of the decision by the machine's clock, in milliseconds.
    pub at_ms: u64,
    /// The decision.
    pub entry: Entry,
    /// Location of the bodies of a merge or a rollback; `None` for other entries.
    pub place: Option<Place>,
}

/// Location of the first body of a merge or a rollback. The other bodies follow it, in the order of the merge's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of the file of bodies.
    pub segment: u32,
    /// Offset in that file, in bytes. The length of the first body is stored there, before the body.
    pub offset: u64,
}

/// Checksum of a row and of all rows before it: the first 16 bytes of a SHA-256.
pub type Chain = [u8; 16];

/// Returns the checksum of a row. `before` is the checksum of the previous row, or zeros for the first row; `data` is
/// the row's entry in stored form.
#[must_use]
pub fn link(before: &Chain, seq: u64, at_ms: u64, data: &[u8], place: Option<Place>) -> Chain {
    let mut sha = Sha256::new();
    sha.update(before);
    sha.update(seq.to_le_bytes());
    sha.update(at_ms.to_le_bytes());
    if let Some(Place { segment, offset }) = place {
        sha.update(segment.to_le_bytes());
        sha.update(offset.to_le_bytes());
    }
    sha.update(data);
    let digest = sha.finalize();
    let mut chain = Chain::default();
    chain.copy_from_slice(&digest[..size_of::<Chain>()]);
    chain
}

/// Error for a row that is missing or differs from the written one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("row {seq} is damaged: {why}")]
pub struct RowDamage {
    /// Number of the row.
    pub seq: u64,
    /// Description of the damage.
    pub why: String,
}

/// Check of rows in reading order that detects changed, lost or misplaced rows.
#[derive(Clone, Debug)]
pub struct Links {
    /// Sequence number after which the replay begins.
    after: u64,
    /// Sequence number and checksum of the previous row; `None` before the first row of an incomplete tape.
    before: Option<(u64, Chain)>,
}

impl Links {
    /// Creates a check for a replay of the rows after `seq`. Reading may begin with any stored row up to `seq`, or with
    /// row 1 if `seq` is 0.
    #[must_use]
    pub fn after(seq: u64) -> Self {
        Self { after: seq, before: (seq == 0).then(|| (0, Chain::default())) }
    }

    /// Checks the next row, whose stored checksum is `chain`. Returns true if the replay needs the row.
    ///
    /// # Errors
    /// [`RowDamage`] if the row was changed, or if rows before it are missing.
    pub fn next(
        &mut self,
        seq: u64,
        at_ms: u64,
        data: &[u8],
        place: Option<Place>,
        chain: &Chain,
    ) -> Result<bool, RowDamage> {
        let damaged = |why: String| Err(RowDamage { seq, why });
        let is_wanted = match self.before {
            Some((last, _)) if seq != last + 1 => {
                return damaged(format!("the row before it is {last}, and those between are missing"));
            }
            Some((_, before)) if link(&before, seq, at_ms, data, place) != *chain => {
                return damaged("it does not match its checksum".to_owned());
            }
            Some(_) => seq > self.after,
            // The oldest stored row has no predecessor to check against, and the snapshot includes it.
            None if seq > self.after => {
                return damaged(format!("those between it and row {} are missing", self.after));
            }
            None => false,
        };
        self.before = Some((seq, *chain));
        Ok(is_wanted)
    }

    /// Checks, after the last row, that the tape reaches the start of the replay.
    ///
    /// # Errors
    /// [`RowDamage`] if the tape ends before that row.
    pub fn end(&self) -> Result<(), RowDamage> {
        if self.before.is_some_and(|(last, _)| last >= self.after) {
            return Ok(());
        }
        Err(RowDamage { seq: self.after, why: "it is missing, with all rows after it".to_owned() })
    }
}

/// Queue that delays output until all earlier decisions are stored. Output leaves in order of arrival, except for
/// messages that reveal no decision.
#[derive(Debug)]
pub struct Gate<T> {
    /// Sequence number of the newest decision.
    decided: u64,
    /// Sequence number of the newest stored decision.
    safe: u64,
    /// Delayed outputs, each with the decision that must be stored first.
    waiting: VecDeque<(u64, T)>,
    /// Number of delayed outputs that were released, which is also the index of the first one in `waiting`.
    out: u64,
    /// Index of the newest delayed `Welcome` to each connection.
    welcomes: BTreeMap<ConnId, u64>,
    /// Index and connection of every delayed `Welcome`, in ascending order.
    welcomed: VecDeque<(u64, ConnId)>,
    /// Sequence number of the decision that made the version of each fragment, `[P]`.
    versions: Vec<u64>,
    /// Sequence number of the owner's last decision to pause or resume the run.
    last_pause: u64,
}

impl<T> Gate<T> {
    /// Creates a gate for a run with `fragments` fragments, whose newest decision `seq` is stored.
    #[must_use]
    pub fn new(seq: u64, fragments: u16) -> Self {
        let versions = vec![seq; fragments.into()];
        let (waiting, welcomes, welcomed) = (VecDeque::new(), BTreeMap::new(), VecDeque::new());
        Self { decided: seq, safe: seq, waiting, out: 0, welcomes, welcomed, versions, last_pause: seq }
    }

    /// Registers `entry` as the next decision and returns its sequence number.
    pub fn decide(&mut self, entry: &Entry) -> u64 {
        self.decided += 1;
        match entry {
            Entry::Merged(MergeEntry { fragment, .. })
            | Entry::RolledBack(RollbackEntry { fragment, .. }) => {
                if let Some(version) = self.versions.get_mut(usize::from(fragment.0)) {
                    *version = self.decided;
                }
            }
            Entry::Held { .. } => self.last_pause = self.decided,
            _ => {}
        }
        self.decided
    }

    /// Returns the sequence number of the newest decision.
    #[must_use]
    pub fn decided(&self) -> u64 {
        self.decided
    }

    /// Returns true if decision `seq` is stored.
    #[must_use]
    pub fn is_safe(&self, seq: u64) -> bool {
        seq <= self.safe
    }

    /// Returns true if all decisions are stored.
    #[must_use]
    pub fn is_all_safe(&self) -> bool {
        self.is_safe(self.decided)
    }

    /// Returns the number of decisions that are not stored yet.
    #[must_use]
    pub fn unsaved(&self) -> u64 {
        self.decided.saturating_sub(self.safe)
    }

    /// Returns true if the decision that made the current version of `fragment` is stored, so that it may be served.
    #[must_use]
    pub fn is_version_safe(&self, fragment: FragmentId) -> bool {
        self.versions.get(usize::from(fragment.0)).is_none_or(|&seq| self.is_safe(seq))
    }

    /// Records that all decisions up to `seq` are stored.
    pub fn reach(&mut self, seq: u64) {
        self.safe = self.safe.max(seq);
    }

    /// Returns `output` if it may leave at once, otherwise queues it.
    pub fn pass(&mut self, output: T) -> Option<T> {
        if self.waiting.is_empty() && self.is_all_safe() {
            return Some(output);
        }
        self.waiting.push_back((self.decided, output));
        None
    }

    /// Returns `output` if it may leave at once, otherwise queues it. `output` is `message` to `conns`.
    ///
    /// `Collect` and `UpdateReceived` reveal only that the run is not paused. They therefore wait for the last decision
    /// to pause or resume alone. They do not overtake a `Welcome` on the same connection: it reports the fates of
    /// updates from before the request.
    pub fn pass_message(&mut self, conns: &[ConnId], message: &Message, output: T) -> Option<T> {
        let reveals_only_pauses = matches!(message, Message::Collect { .. } | Message::UpdateReceived { .. });
        let is_welcomed = |conn: &ConnId| !self.welcomes.contains_key(conn);
        if reveals_only_pauses && self.is_safe(self.last_pause) && conns.iter().all(is_welcomed) {
            return Some(output);
        }
        let before = self.out + self.waiting.len() as u64;
        let passed = self.pass(output);
        if passed.is_none() && matches!(message, Message::Welcome(_)) {
            self.welcomes.extend(conns.iter().map(|&conn| (conn, before)));
            self.welcomed.extend(conns.iter().map(|&conn| (before, conn)));
        }
        passed
    }

    /// Removes and returns the next delayed output; `None` if it still waits for a decision.
    pub fn release(&mut self) -> Option<T> {
        let (_, output) = self.waiting.pop_front_if(|(after, _)| *after <= self.safe)?;
        self.out += 1;
        let out = self.out;
        while let Some((before, conn)) = self.welcomed.pop_front_if(|(before, _)| *before < out) {
            if self.welcomes.get(&conn) == Some(&before) {
                self.welcomes.remove(&conn);
            }
        }
        Some(output)
    }
}

/// Jobs for the writer of a tape.
#[derive(Clone, Debug)]
pub enum TapeJob {
    /// Store the bodies that this round merges, in the order of its parts.
    Bodies(Round, Vec<Arc<Vec<u8>>>),
    /// Store a decision.
    Row(Row),
    /// Delete rows before this sequence number, which recovery no longer needs.
    Forget(u64),
}

/// Bodies of a round, and their location once they are written.
type Merging = (Vec<Arc<Vec<u8>>>, Option<Place>);

/// Bodies to which no stored row refers yet, by round.
#[derive(Debug, Default)]
pub struct PendingBodies(BTreeMap<Round, Merging>);

impl PendingBodies {
    /// Writes the bodies and rows of `batch`, each row after its bodies are stored. After an error, the same batch can
    /// be written again.
    ///
    /// # Errors
    /// Errors of `store`.
    pub fn write<E, S>(&mut self, batch: &[TapeJob], store: &mut S) -> Result<(), E>
    where
        S: Tape<Error = E> + Blobs<Error = E>,
    {
        let mut rows = Vec::new();
        for job in batch {
            match job {
                TapeJob::Bodies(round, bodies) => {
                    self.0.entry(*round).or_insert_with(|| (bodies.clone(), None));
                }
                TapeJob::Row(row) if row.seq > store.last() => rows.push(row.clone()),
                TapeJob::Row(_) | TapeJob::Forget(_) => {}
            }
        }
        for (bodies, place) in self.0.values_mut().filter(|(_, place)| place.is_none()) {
            *place = Some(store.append_bodies(bodies)?);
        }
        for row in &mut rows {
            if let Entry::Merged(MergeEntry { round, .. }) | Entry::RolledBack(RollbackEntry { round, .. }) =
                &row.entry
            {
                row.place = self.0.get(round).and_then(|(_, place)| *place);
            }
        }
        // A row must not refer to missing bodies.
        if rows.iter().any(|row| row.place.is_some())
            && let Err(error) = store.sync_bodies()
        {
            self.0.values_mut().for_each(|(_, place)| *place = None);
            return Err(error);
        }
        if !rows.is_empty() {
            store.append_rows(&rows)?;
        }
        for row in &rows {
            if let Entry::Merged(MergeEntry { round, .. })
            | Entry::RolledBack(RollbackEntry { round, .. })
            | Entry::Abandoned { round, .. } = &row.entry
            {
                self.0.remove(round);
            }
        }
        Ok(())
    }
}

/// Storage of a run's rows, in order. Only one process may append at a time: if another process has appended, an append
/// fails and the caller no longer leads the run. This depends on no clock.
pub trait Tape {
    /// Error of the medium.
    type Error;

    /// Returns the sequence number of the newest stored row.
    fn last(&self) -> u64;

    /// Appends all of `rows`, which follow [`Self::last`], or none. They are on disk when this returns.
    ///
    /// # Errors
    /// Errors of the medium.
    fn append_rows(&mut self, rows: &[Row]) -> Result<(), Self::Error>;
}

/// Storage of the bodies to which rows refer: updates of merges and results of rollbacks. Bodies without a row are
/// ignored.
pub trait Blobs {
    /// Error of the medium.
    type Error;

    /// Appends `bodies` one after another and returns the location of the first. They are on disk only after
    /// [`Self::sync_bodies`]. After an error, append all of them again.
    ///
    /// # Errors
    /// Errors of the medium.
    fn append_bodies(&mut self, bodies: &[Arc<Vec<u8>>]) -> Result<Place, Self::Error>;

    /// Waits until all appended bodies are on disk. After an error, append every body to which no row refers again.
    ///
    /// # Errors
    /// Errors of the medium.
    fn sync_bodies(&mut self) -> Result<(), Self::Error>;
}

/// Snapshot in progress: the syncer's record at one decision, and the state of each fragment at the first moment after
/// it at which the fragment was not being merged.
#[derive(Debug)]
pub struct SnapshotBuilder {
    seq: u64,
    record: SyncerRecord,
    /// State of each fragment, `[P]`; `None` until it is known.
    states: Vec<Option<FragmentState>>,
    /// Newest row that any of the states includes. The tape must have it before the snapshot is written.
    newest: u64,
}

impl SnapshotBuilder {
    /// Begins a snapshot after row `decided`, the newest row.
    #[must_use]
    pub fn begin(syncer: &Syncer, decided: u64) -> Self {
        let states = vec![None; syncer.fragments().count().into()];
        let mut builder = Self { seq: decided, record: syncer.record_amid(), states, newest: decided };
        builder.step(syncer, decided);
        builder
    }

    /// Adds the state of each missing fragment that is not being merged now; `decided` is the newest row.
    pub fn step(&mut self, syncer: &Syncer, decided: u64) {
        for (state, kept) in syncer.rests().zip(&mut self.states) {
            if let Some(state) = state.filter(|_| kept.is_none()) {
                *kept = Some(state.clone());
                self.newest = decided;
            }
        }
    }

    /// Returns true if the snapshot may be written: it has every fragment, and the tape has all its decisions.
    #[must_use]
    pub fn is_ready<T>(&self, gate: &Gate<T>) -> bool {
        self.states.iter().all(Option::is_some) && gate.is_safe(self.newest)
    }

    /// Returns the newest row that the record includes, the record, and the fragment states, `[P]` once it is ready.
    #[must_use]
    pub fn into_parts(self) -> (u64, SyncerRecord, Vec<FragmentState>) {
        (self.seq, self.record, self.states.into_iter().flatten().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{RunId, Serial, Version};

    const SOME: Entry = Entry::Finishing;

    #[test]
    fn output_waits_until_earlier_decisions_are_stored() {
        let mut gate = Gate::new(7, 1);
        assert_eq!(gate.pass("a"), Some("a"), "nothing was decided");
        assert_eq!(gate.decide(&SOME), 8);
        assert_eq!((gate.pass("b"), gate.release()), (None, None));
        assert_eq!((gate.decide(&SOME), gate.unsaved()), (9, 2));
        assert_eq!(gate.pass("c"), None);
        gate.reach(8);
        assert_eq!(gate.pass("d"), None, "it comes after what waits");
        assert_eq!((gate.release(), gate.release()), (Some("b"), None));
        gate.reach(9);
        assert_eq!((gate.release(), gate.release(), gate.release()), (Some("c"), Some("d"), None));
        assert_eq!(gate.pass("e"), Some("e"));
        gate.reach(3);
        assert!(gate.is_safe(9), "what is on the disk stays there");
    }

    #[test]
    fn collect_waits_only_for_the_last_pause() {
        let mut gate = Gate::new(0, 1);
        let (run, fragment, base) = (RunId(1), FragmentId(0), Version(0));
        let question = Message::Collect { run, fragment, base };
        gate.decide(&SOME);
        assert_eq!(
            (gate.pass("told"), gate.pass_message(&[ConnId(1)], &question, "asked")),
            (None, Some("asked"))
        );
        gate.decide(&Entry::Held { held: false });
        assert_eq!(gate.pass_message(&[ConnId(1)], &question, "asked again"), None);
        gate.reach(2);
        assert_eq!((gate.release(), gate.release()), (Some("told"), Some("asked again")));
    }

    /// Goal: `UpdateReceived` leaves before earlier decisions are on disk.
    #[test]
    fn update_received_waits_for_no_decision() {
        let mut gate = Gate::new(0, 1);
        let arrived = Message::UpdateReceived { run: RunId(1), fragment: FragmentId(0), serial: Serial(5) };
        gate.decide(&SOME);
        assert_eq!(gate.pass("told"), None);
        assert_eq!(gate.pass_message(&[ConnId(1)], &arrived, "arrived"), Some("arrived"));
    }

    /// Goal: `Collect` does not overtake a `Welcome`. The older `Welcome` would report the answer to it as lost.
    #[test]
    fn collect_does_not_overtake_a_welcome() {
        let mut gate = Gate::new(0, 1);
        let question = Message::Collect { run: RunId(1), fragment: FragmentId(0), base: Version(0) };
        let welcome = Message::Welcome(Box::new(crate::wire::tests::welcome()));
        gate.decide(&SOME);
        assert_eq!(gate.pass("told"), None);
        assert_eq!(gate.pass_message(&[ConnId(1)], &welcome, "welcome"), None);
        assert_eq!(gate.pass_message(&[ConnId(2)], &question, "to another"), Some("to another"));
        assert_eq!(gate.pass_message(&[ConnId(1), ConnId(2)], &question, "question"), None);
        gate.reach(1);
        assert_eq!((gate.release(), gate.release()), (Some("told"), Some("welcome")));
        assert_eq!(gate.pass_message(&[ConnId(1)], &question, "welcomed"), Some("welcomed"));
        assert_eq!((gate.release(), gate.release()), (Some("question"), None));
    }
}
