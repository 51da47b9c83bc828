//! Storage of a run's tape, independent of the medium: a server's disk or a simulated one.
//!
//! | type | concept |
//! |---|---|
//! | [`Gate`] | output that waits until earlier decisions are stored |
//! | [`Held`] | write order of bodies and rows, several decisions at once |
//! | [`Tape`], [`Blobs`] | interface of the medium: rows in one place, bodies in another |
//! | [`Links`] | checksum of a row and of all before it |
//! | [`Taking`] | snapshot that is taken while merges go on |

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::Entry;
use crate::diloco::syncer::{Syncer, SyncerRecord};
use crate::diloco::{FragmentState, MergeEntry, RemadeEntry};
use crate::wire::{ConnId, FragmentId, Message, Round};
use sha2::{Digest, Sha256};

/// One decision on the tape.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Number: 1, 2, 3 …, without gaps.
    pub seq: u64,
    /// Time of the decision by the machine's clock, in milliseconds since 1970.
    pub at_ms: u64,
    /// The decision.
    pub entry: Entry,
    /// Location of the bodies of a merge.
    pub place: Option<Place>,
}

/// Start of the bodies of a merge, which are stored one after another in the order of its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of the file.
    pub segment: u32,
    /// Offset of the first byte, which belongs to the length of the first body.
    pub offset: u64,
}

/// Checksum of a row and of all before it: the first half of a SHA-256.
pub type Chain = [u8; 16];

/// Returns the checksum of a row that follows a row with checksum `before` (zeros for the first). `data` is its entry
/// in stored form.
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

/// A row that differs from what was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("row {seq} is damaged: {why}")]
pub struct RowDamage {
    /// Number of the row.
    pub seq: u64,
    /// Description of the damage.
    pub why: String,
}

/// Reads rows in order, and detects changed, lost or misplaced ones.
#[derive(Clone, Debug)]
pub struct Links {
    /// Row after which reading begins.
    after: u64,
    /// Number and checksum of the previous row.
    before: Option<(u64, Chain)>,
}

impl Links {
    /// Creates a reader of the rows after `seq`. Unless that is 0, row `seq` must be read first, as the start of the
    /// chain.
    #[must_use]
    pub fn after(seq: u64) -> Self {
        Self { after: seq, before: (seq == 0).then(|| (0, Chain::default())) }
    }

    /// Takes in the next row, which is stored with the checksum `chain`. Returns true if it comes after the start.
    ///
    /// # Errors
    /// [`RowDamage`]: the row was changed, or rows before it are missing.
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
            // The oldest remaining row has no predecessor to check against, and was replayed already.
            None if seq > self.after => {
                return damaged(format!("those between it and row {} are missing", self.after));
            }
            None => false,
        };
        self.before = Some((seq, *chain));
        Ok(is_wanted)
    }

    /// Checks that the tape did not end too early, once all rows were read.
    ///
    /// # Errors
    /// [`RowDamage`]: the tape ends before the row at which reading was to begin.
    pub fn end(&self) -> Result<(), RowDamage> {
        if self.before.is_some_and(|(last, _)| last >= self.after) {
            return Ok(());
        }
        Err(RowDamage { seq: self.after, why: "it is missing, with all rows after it".to_owned() })
    }
}

/// Queue that delays output until all earlier decisions are stored. Output leaves in the order in which it came,
/// except messages that reveal no decision.
#[derive(Debug)]
pub struct Gate<T> {
    /// Newest decision.
    decided: u64,
    /// Newest stored decision.
    safe: u64,
    waiting: VecDeque<(u64, T)>,
    /// Number of delayed outputs that were released.
    out: u64,
    /// Position of the newest delayed `Welcome` to each connection, in the same count…
    welcomes: BTreeMap<ConnId, u64>,
    /// …and of every delayed `Welcome`, in order.
    welcomed: VecDeque<(u64, ConnId)>,
    /// Decision that made the version of each fragment, `[P]`.
    versions: Vec<u64>,
    /// The owner's last decision to pause or resume the run.
    word: u64,
}

impl<T> Gate<T> {
    /// Creates a gate for a run of `fragments` fragments. Row `seq` is the newest decision, and stored.
    #[must_use]
    pub fn new(seq: u64, fragments: u16) -> Self {
        let versions = vec![seq; fragments.into()];
        let (waiting, welcomes, welcomed) = (VecDeque::new(), BTreeMap::new(), VecDeque::new());
        Self { decided: seq, safe: seq, waiting, out: 0, welcomes, welcomed, versions, word: seq }
    }

    /// Numbers `entry`, the next decision.
    pub fn decide(&mut self, entry: &Entry) -> u64 {
        self.decided += 1;
        match entry {
            Entry::Merged(MergeEntry { fragment, .. }) | Entry::Remade(RemadeEntry { fragment, .. }) => {
                if let Some(version) = self.versions.get_mut(usize::from(fragment.0)) {
                    *version = self.decided;
                }
            }
            Entry::Held { .. } => self.word = self.decided,
            _ => {}
        }
        self.decided
    }

    /// Returns the newest decision.
    #[must_use]
    pub fn decided(&self) -> u64 {
        self.decided
    }

    /// Returns true if the decision `seq` is stored.
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

    /// Returns true if the version of `fragment` is stored, so that it may be served.
    #[must_use]
    pub fn is_version_safe(&self, fragment: FragmentId) -> bool {
        self.versions.get(usize::from(fragment.0)).is_none_or(|&seq| self.is_safe(seq))
    }

    /// Records that all decisions up to `seq` are stored.
    pub fn reach(&mut self, seq: u64) {
        self.safe = self.safe.max(seq);
    }

    /// Returns `said` if it may be sent at once. Otherwise queues it.
    pub fn pass(&mut self, said: T) -> Option<T> {
        if self.waiting.is_empty() && self.is_all_safe() {
            return Some(said);
        }
        self.waiting.push_back((self.decided, said));
        None
    }

    /// Does the same for `said`, which is `message` to `conns`. A question, or the confirmation that an update
    /// arrived, reveals no decision except that the owner lets the run go on, and waits for that one only. It does
    /// not overtake a `Welcome`, whose state of the learner's updates is older than the question.
    pub fn pass_message(&mut self, conns: &[ConnId], message: &Message, said: T) -> Option<T> {
        let tells_little = matches!(message, Message::Collect { .. } | Message::UpdateReceived { .. });
        let is_welcomed = |conn: &ConnId| !self.welcomes.contains_key(conn);
        if tells_little && self.is_safe(self.word) && conns.iter().all(is_welcomed) {
            return Some(said);
        }
        let before = self.out + self.waiting.len() as u64;
        let passed = self.pass(said);
        if passed.is_none() && matches!(message, Message::Welcome(_)) {
            self.welcomes.extend(conns.iter().map(|&conn| (conn, before)));
            self.welcomed.extend(conns.iter().map(|&conn| (before, conn)));
        }
        passed
    }

    /// Returns the next output whose decisions are stored.
    pub fn release(&mut self) -> Option<T> {
        let (_, said) = self.waiting.pop_front_if(|(after, _)| *after <= self.safe)?;
        self.out += 1;
        let out = self.out;
        while let Some((before, conn)) = self.welcomed.pop_front_if(|(before, _)| *before < out) {
            if self.welcomes.get(&conn) == Some(&before) {
                self.welcomes.remove(&conn);
            }
        }
        Some(said)
    }
}

/// Jobs for the writer of a tape.
#[derive(Clone, Debug)]
pub enum TapeJob {
    /// Bodies that are merged in this round, in order.
    Bodies(Round, Vec<Arc<Vec<u8>>>),
    /// A decision.
    Row(Row),
    /// No row before this one is needed for recovery.
    Forget(u64),
}

/// Bodies of a round, and their location once they are written.
type Merging = (Vec<Arc<Vec<u8>>>, Option<Place>);

/// Bodies to which no stored row refers yet, and their locations once they are written.
#[derive(Debug, Default)]
pub struct Held(BTreeMap<Round, Merging>);

impl Held {
    /// Writes the bodies and rows of `batch`. No row is written before its bodies are stored. After an error the same
    /// batch can be tried again.
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
            if let Entry::Merged(MergeEntry { round, .. }) | Entry::Remade(RemadeEntry { round, .. }) =
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
            | Entry::Remade(RemadeEntry { round, .. })
            | Entry::Abandoned { round, .. } = &row.entry
            {
                self.0.remove(round);
            }
        }
        Ok(())
    }
}

/// Stores the rows of a run, in order. Only one process may append at a time. A process that finds rows of another
/// one returns an error and no longer leads the run. No clock decides that.
pub trait Tape {
    /// Reason for which a row cannot be stored.
    type Error;

    /// Returns the newest stored row.
    fn last(&self) -> u64;

    /// Appends `rows`, which follow [`Self::last`], all or none. They are stored when this returns.
    ///
    /// # Errors
    /// Errors of the store.
    fn append_rows(&mut self, rows: &[Row]) -> Result<(), Self::Error>;
}

/// Stores the bodies to which rows refer: the updates of learners. Bodies without a row do no harm.
pub trait Blobs {
    /// Reason for which a body cannot be stored.
    type Error;

    /// Appends `bodies` one after another. They are stored after [`Self::sync_bodies`]. After an error none of them
    /// counts, and they can be appended again.
    ///
    /// # Errors
    /// Errors of the store.
    fn append_bodies(&mut self, bodies: &[Arc<Vec<u8>>]) -> Result<Place, Self::Error>;

    /// Waits until all appended bodies are stored. After an error it is unknown which ones are, so none counts.
    ///
    /// # Errors
    /// Errors of the store.
    fn sync_bodies(&mut self) -> Result<(), Self::Error>;
}

/// The books at one decision, and each fragment at its first rest after it.
#[derive(Debug)]
pub struct Taking {
    seq: u64,
    record: SyncerRecord,
    /// `[P]`
    states: Vec<Option<FragmentState>>,
    /// Newest row in any of the fragments: everything in a snapshot must be on the tape, too.
    newest: u64,
}

impl Taking {
    /// Begins a snapshot after row `decided`, the newest one.
    #[must_use]
    pub fn begin(syncer: &Syncer, decided: u64) -> Self {
        let states = vec![None; syncer.fragments().count().into()];
        let mut taking = Self { seq: decided, record: syncer.record_amid(), states, newest: decided };
        taking.step(syncer, decided);
        taking
    }

    /// Adds the fragments that are at rest now; `decided` is the newest row.
    pub fn step(&mut self, syncer: &Syncer, decided: u64) {
        for (state, kept) in syncer.rests().zip(&mut self.states) {
            if let Some(state) = state.filter(|_| kept.is_none()) {
                *kept = Some(state.clone());
                self.newest = decided;
            }
        }
    }

    /// Returns true if the snapshot may be written: it has every fragment, and all its decisions are on the tape.
    #[must_use]
    pub fn is_ready<T>(&self, gate: &Gate<T>) -> bool {
        self.states.iter().all(Option::is_some) && gate.is_safe(self.newest)
    }

    /// Returns the last row in the books, the books, and the fragments, `[P]` once it is ready.
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
    fn nothing_overtakes_a_decision_that_is_not_safe() {
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
    fn a_question_waits_for_the_owners_word_alone() {
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

    /// Goal: a learner is told that its update arrived before the tape is on disk.
    #[test]
    fn the_news_that_an_update_arrived_waits_for_no_decision() {
        let mut gate = Gate::new(0, 1);
        let arrived = Message::UpdateReceived { run: RunId(1), fragment: FragmentId(0), serial: Serial(5) };
        gate.decide(&SOME);
        assert_eq!(gate.pass("told"), None);
        assert_eq!(gate.pass_message(&[ConnId(1)], &arrived, "arrived"), Some("arrived"));
    }

    /// Goal: no question overtakes a `Welcome`. Otherwise that older `Welcome` would report the answer as lost.
    #[test]
    fn no_question_overtakes_a_welcome() {
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
