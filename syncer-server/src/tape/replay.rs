//! Replay of the tape: verified, of the whole tape; and of a part of it without the updates of some learners, for
//! rollbacks while the run continues.

use std::collections::BTreeSet;
use std::path::Path;
use std::thread;
use std::time::Duration;

use archipelago_core::diloco::syncer::{Recovery, Rollback, senders};
use archipelago_core::diloco::{
    Entry, FragmentId, LearnerId, Part, RollbackEntry, Round, RunId, Serial, Version,
};
use serde::Serialize;

use super::bodies::Reader;
use super::recover::{BODIES, Broken, broken, follow, from_beginning, from_snapshot, kept};
use super::{Row, Rows};
use crate::errors::ServerError;
use crate::store::{Manifest, Store};

/// Result of a verified replay.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// Number of the first replayed row.
    pub first: u64,
    /// Number of the last replayed row.
    pub last: u64,
    /// Number of recomputed merges, all equal to the recorded ones bit for bit.
    pub merges: u64,
    /// Rollbacks, in order of their rows.
    pub undone: Vec<RolledBackFragment>,
    /// State after the last replayed row.
    pub recovery: Recovery,
}

/// A merge on the tape.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplayedMerge {
    /// Number of the row.
    pub seq: u64,
    /// Time of the decision, in milliseconds since 1970.
    pub at_ms: u64,
    /// Number of the round.
    pub round: Round,
    /// Merged fragment.
    pub fragment: FragmentId,
    /// Version of the fragment after the merge.
    pub version: Version,
    /// Learners whose updates were merged, with their shares.
    pub members: Vec<MergedSender>,
    /// Tokens credited for the merged updates.
    pub tokens: u64,
    /// L2 norm of the merged delta.
    pub norm: f64,
    /// Merged tokens of the run after the merge.
    pub clock_tokens: u64,
    /// Held-out loss after the merge, in nats per token, if it was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<f32>,
}

/// A rollback of one fragment on the tape.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RolledBackFragment {
    /// Number of the row.
    pub seq: u64,
    /// Fragment that was rolled back.
    pub fragment: FragmentId,
    /// Version of the fragment after the rollback.
    pub version: Version,
    /// Learners whose updates were left out.
    pub without: Vec<LearnerId>,
}

/// A learner whose update was merged.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MergedSender {
    /// Number of the learner.
    pub learner: LearnerId,
    /// Display name of the learner.
    pub name: String,
    /// Serial number of the update.
    pub serial: Serial,
    /// Tokens credited for the update.
    pub tokens: u64,
    /// Share of the update in the weights of the merge, 0 to 1.
    pub share: f64,
}

/// The tape in a run's folder, open for replays.
pub struct Recording {
    manifest: Manifest,
    store: Store,
    rows: Rows,
    is_whole: bool,
}

impl Recording {
    /// Opens the tape in the folder `dir`. A syncer may be using it at the same time.
    ///
    /// # Errors
    /// - `NoRun`: the folder holds no run.
    /// - `Disk`: a file cannot be read.
    /// - `DirCorrupt`: the tape is missing or belongs to another run, or a file that defines the run is damaged.
    pub fn open(dir: &Path) -> Result<Self, ServerError> {
        let store = Store::open_read_only(dir);
        let manifest = store.begun()?;
        store.check_tokenizer(&manifest)?;
        store.held_out(&manifest.spec.model)?;
        let path = store.tape_path();
        if !path.exists() {
            let why = "it is missing: serve a new fork once, or restore it from a copy".to_owned();
            return Err(ServerError::DirCorrupt { path, why });
        }
        let rows = Rows::open_read_only(&path, manifest.run).map_err(|error| broken(&path, error))?;
        rows.check_pages().map_err(|error| broken(&path, error))?;
        let is_whole = rows.is_whole().map_err(|error| broken(&path, error))?;
        Ok(Self { manifest, store, rows, is_whole })
    }

    /// Returns the run's manifest.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the run's folder.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the number of merges up to row `until`.
    ///
    /// # Errors
    /// `Disk`: the tape cannot be read.
    pub fn merges(&self, until: u64) -> Result<u64, ServerError> {
        self.rows.merges(until).map_err(|error| broken(&self.store.tape_path(), error))
    }

    /// Returns the state from which a replay starts, and the number of the last row before it. The replay starts with
    /// the first decision, or from the oldest intact snapshot if the first rows were deleted.
    ///
    /// # Errors
    /// - `NoSnapshot`: the first rows were deleted, and no snapshot is intact.
    /// - `Internal`: the snapshot does not match the run.
    pub fn start(&self) -> Result<(Recovery, u64), ServerError> {
        if self.is_whole {
            return Ok((from_beginning(&self.store, &self.manifest)?, 0));
        }
        let none = || ServerError::NoSnapshot { dir: self.store.dir().to_owned() };
        let snapshot = self.store.oldest(self.manifest.run)?.ok_or_else(none)?;
        Ok((from_snapshot(&self.manifest, &snapshot)?, snapshot.seq))
    }

    /// Replays the tape up to row `until`. Calls `on_merge` with each merge and the state after it.
    ///
    /// # Errors
    /// - Those of [`Self::start`].
    /// - `Disk`: a file cannot be read.
    /// - `DirCorrupt`: a row or a body is damaged or missing, or a result differs from the recorded one; the error says
    ///   which.
    /// - Those of `on_merge`.
    pub fn play(
        &self,
        until: u64,
        mut on_merge: impl FnMut(ReplayedMerge, &Recovery) -> Result<(), ServerError>,
    ) -> Result<Replayed, ServerError> {
        let (mut recovery, seq) = self.start()?;
        let mut bodies = Reader::new(&self.store.dir().join(BODIES));
        let (mut last, mut merges, mut undone, mut stopped) = (seq, 0, Vec::new(), None);
        let followed = self.rows.read(seq, |row| {
            if row.seq > until || stopped.is_some() {
                return Ok(());
            }
            follow(&mut recovery, &mut bodies, &row)?;
            last = row.seq;
            undone.extend(undone_by(&row));
            if let Some(merge) = merge_of(&row, &recovery) {
                merges += 1;
                stopped = on_merge(merge, &recovery).err();
            }
            Ok(())
        });
        followed.map_err(|error: Broken| error.at(&self.store.tape_path()))?;
        match stopped {
            Some(error) => Err(error),
            None => Ok(Replayed { first: seq + 1, last, merges, undone, recovery }),
        }
    }
}

fn undone_by(row: &Row) -> Option<RolledBackFragment> {
    let Entry::RolledBack(RollbackEntry { fragment, version, without, .. }) = &row.entry else { return None };
    Some(RolledBackFragment {
        seq: row.seq,
        fragment: *fragment,
        version: *version,
        without: without.clone(),
    })
}

fn merge_of(row: &Row, recovery: &Recovery) -> Option<ReplayedMerge> {
    let Entry::Merged(merge) = &row.entry else { return None };
    let ledger = &recovery.record().ledger;
    let weight: f64 = merge.parts.iter().map(|part| part.weight).sum();
    let member = |part: &Part| MergedSender {
        learner: part.learner,
        name: ledger.account(part.learner).map(|account| account.name.clone()).unwrap_or_default(),
        serial: part.serial,
        tokens: part.tokens,
        share: if weight > 0.0 { part.weight / weight } else { 0.0 },
    };
    Some(ReplayedMerge {
        seq: row.seq,
        at_ms: row.at_ms,
        round: merge.round,
        fragment: merge.fragment,
        version: merge.version,
        members: merge.parts.iter().map(member).collect(),
        tokens: merge.parts.iter().map(|part| part.tokens).sum(),
        norm: merge.norm,
        clock_tokens: ledger.clock_tokens(),
        loss: None,
    })
}

/// Maximum number of checks whether a row is on disk, and the pause between them.
const POLLS_MAX: u32 = 200;
const POLL_EVERY: Duration = Duration::from_millis(50);

/// Replays the rows of `run` after row `after` into each of `rollbacks`.
///
/// # Errors
/// - `Disk`: the tape cannot be read.
/// - `DirCorrupt`: the tape is damaged, or required rows or bodies were deleted.
pub fn rollback(
    store: &Store,
    run: RunId,
    rollbacks: &mut [Rollback],
    after: u64,
) -> Result<(), ServerError> {
    let mut bodies = Reader::new(&store.dir().join(BODIES));
    read_rows(store, run, after, |row| {
        let mut rollbacks = rollbacks.iter_mut();
        let followed = rollbacks
            .try_for_each(|rollback| rollback.follow(&row.entry, kept(&mut bodies, row.place, &mut None)));
        followed.map_err(|error| Broken::Row(row.seq, row.entry.kind(), error.to_string()))
    })
}

/// Returns the learners whose updates are in the merges after row `after` and up to row `until`. Waits up to ten
/// seconds until row `until` is on disk.
///
/// # Errors
/// Those of [`rollback`].
pub fn senders_between(
    store: &Store,
    run: RunId,
    after: u64,
    until: u64,
) -> Result<BTreeSet<LearnerId>, ServerError> {
    let path = store.tape_path();
    for _ in 0..POLLS_MAX {
        if Rows::open_read_only(&path, run).map_err(|error| broken(&path, error))?.last() >= until {
            break;
        }
        thread::sleep(POLL_EVERY);
    }
    let mut found = BTreeSet::new();
    read_rows(store, run, after, |row| {
        found.extend(senders(&row.entry).filter(|_| row.seq <= until));
        Ok(())
    })?;
    Ok(found)
}

/// Reads the rows of `run` after row `after` from the tape of `store`.
fn read_rows(
    store: &Store,
    run: RunId,
    after: u64,
    take: impl FnMut(Row) -> Result<(), Broken>,
) -> Result<(), ServerError> {
    let path = store.tape_path();
    let rows = Rows::open_read_only(&path, run).map_err(|error| broken(&path, error))?;
    rows.read(after, take).map_err(|error: Broken| error.at(&path))
}
