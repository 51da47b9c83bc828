//! The whole tape once more, to see that it leads where it did.

use std::path::Path;

use archipelago_core::diloco::syncer::Recovery;
use archipelago_core::diloco::{Entry, FragmentId, LearnerId, Part, RemadeEntry, Round, Serial, Version};
use serde::Serialize;

use super::bodies::Reader;
use super::recover::{BODIES, Broken, broken, follow, from_beginning, from_snapshot};
use super::{Row, Rows};
use crate::errors::ServerError;
use crate::store::{Manifest, Store};

/// A tape that was followed to its end.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// The first row that was followed.
    pub first: u64,
    /// The last one.
    pub last: u64,
    /// Merges that were computed again, each to the same bits.
    pub merges: u64,
    /// What was undone, in order.
    pub undone: Vec<Undone>,
    /// Where it leads.
    pub recovery: Recovery,
}

/// A merge on the tape.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplayedMerge {
    /// Its row.
    pub seq: u64,
    /// When it was decided, in milliseconds since 1970.
    pub at_ms: u64,
    /// The round.
    pub round: Round,
    /// The fragment.
    pub fragment: FragmentId,
    /// The version that it led to.
    pub version: Version,
    /// Whose updates are in it.
    pub members: Vec<Member>,
    /// Tokens in it, as counted.
    pub tokens: u64,
    /// L2 norm of the merged delta.
    pub norm: f64,
    /// The run's merged tokens after it.
    pub clock_tokens: u64,
    /// Held-out loss after it, in nats per token, where it was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<f32>,
}

/// An undoing on the tape: a fragment that was merged again without somebody.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Undone {
    /// Its row.
    pub seq: u64,
    /// The fragment.
    pub fragment: FragmentId,
    /// The version that it led to.
    pub version: Version,
    /// Whose updates are not in it any more.
    pub without: Vec<LearnerId>,
}

/// A learner with an update in a merge.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Member {
    /// The learner.
    pub learner: LearnerId,
    /// What it calls itself.
    pub name: String,
    /// Its update, as it numbered it.
    pub serial: Serial,
    /// Tokens of its update, as counted.
    pub tokens: u64,
    /// Its weight over that of all, 0 to 1.
    pub share: f64,
}

/// The tape of a run's folder, to be followed as often as one likes.
pub struct Recording {
    manifest: Manifest,
    store: Store,
    rows: Rows,
    is_whole: bool,
}

impl Recording {
    /// Opens the tape in `dir`; a syncer may work there meanwhile.
    ///
    /// # Errors
    /// - `NoRun`: there is no run.
    /// - `Disk`: something cannot be read.
    /// - `DirCorrupt`: the tape is missing or another run's, or a file that tells what the run is was damaged.
    pub fn open(dir: &Path) -> Result<Self, ServerError> {
        let store = Store::look(dir);
        let manifest = store.begun()?;
        store.check_tokenizer(&manifest)?;
        store.held_out(&manifest.spec.model)?;
        let path = store.tape_path();
        if !path.exists() {
            let why = "it is missing: serve a new fork once, or put it back from a copy".to_owned();
            return Err(ServerError::DirCorrupt { path, why });
        }
        let rows = Rows::look(&path, manifest.run).map_err(|error| broken(&path, error))?;
        rows.check_pages().map_err(|error| broken(&path, error))?;
        let is_whole = rows.is_whole().map_err(|error| broken(&path, error))?;
        Ok(Self { manifest, store, rows, is_whole })
    }

    /// What the run is.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The run's folder.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Merges up to row `until`.
    ///
    /// # Errors
    /// `Disk`: the tape cannot be read.
    pub fn merges(&self, until: u64) -> Result<u64, ServerError> {
        self.rows.merges(until).map_err(|error| broken(&self.store.tape_path(), error))
    }

    /// Where following it begins, the run's beginning or, if that is forgotten, the oldest snapshot; and the row before
    /// the first one to follow.
    ///
    /// # Errors
    /// - `NoSnapshot`: the beginning is forgotten, and no snapshot is whole.
    /// - `Internal`: the snapshot does not fit the run.
    pub fn start(&self) -> Result<(Recovery, u64), ServerError> {
        if self.is_whole {
            return Ok((from_beginning(&self.store, &self.manifest)?, 0));
        }
        let none = || ServerError::NoSnapshot { dir: self.store.dir().to_owned() };
        let snapshot = self.store.oldest(self.manifest.run)?.ok_or_else(none)?;
        Ok((from_snapshot(&self.manifest, &snapshot)?, snapshot.seq))
    }

    /// Follows it up to row `until`. `tell` gets each merge and the run after it.
    ///
    /// # Errors
    /// - Those of [`Self::start`].
    /// - `Disk`: something cannot be read.
    /// - `DirCorrupt`: a row or a body is damaged or missing, or leads elsewhere than it did; it is named.
    /// - Those of `tell`.
    pub fn play(
        &self,
        until: u64,
        mut tell: impl FnMut(ReplayedMerge, &Recovery) -> Result<(), ServerError>,
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
                stopped = tell(merge, &recovery).err();
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

fn undone_by(row: &Row) -> Option<Undone> {
    let Entry::Remade(RemadeEntry { fragment, version, without, .. }) = &row.entry else { return None };
    Some(Undone { seq: row.seq, fragment: *fragment, version: *version, without: without.clone() })
}

fn merge_of(row: &Row, recovery: &Recovery) -> Option<ReplayedMerge> {
    let Entry::Merged(merge) = &row.entry else { return None };
    let ledger = &recovery.record().ledger;
    let weight: f64 = merge.parts.iter().map(|part| part.weight).sum();
    let member = |part: &Part| Member {
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
