//! Snapshots, taken while merges continue.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use archipelago_cli::Bytes;
use archipelago_core::diloco::syncer::Syncer;
use archipelago_core::diloco::tape::SnapshotBuilder;
use tokio::task::{JoinError, JoinSet};

use super::record::Record;
use crate::errors::ServerError;
use crate::progress::{Cancellation, Progress};
use crate::status::RunStatistics;
use crate::store::{Snapshot, Store, free_bytes};

/// Free bytes, in addition to those for two snapshots, below which a disk counts as nearly full: the size of one
/// segment of the tape.
const FREE_BYTES_MIN: u64 = 64 << 20;

/// State of the snapshot that is being taken or written.
pub(super) struct Saves {
    /// True if a snapshot is due.
    pub(super) is_due: bool,
    builder: Option<(SnapshotBuilder, RunStatistics)>,
    writing: JoinSet<Result<Saved, ServerError>>,
    cancellation: Cancellation,
    /// Number of the last tape row in the newest written snapshot.
    last: Option<u64>,
    /// Warning that the disk was nearly full after that snapshot, as a sentence.
    pub(super) shortage: Option<Arc<str>>,
}

/// A written snapshot.
pub(super) struct Saved {
    /// Number of the last tape row in the snapshot.
    seq: u64,
    shortage: Option<Arc<str>>,
}

/// The result of a write.
pub(super) type Written = Result<Result<Saved, ServerError>, JoinError>;

impl Saves {
    /// Creates the state for a run that resumed from a snapshot with the rows up to `snapshot_seq` and has replayed
    /// the rows up to `decided`. Replayed rows go into a new snapshot at once. Otherwise a program that is killed
    /// repeatedly before the next snapshot would replay more and more rows.
    pub(super) fn after(snapshot_seq: Option<u64>, decided: u64) -> Self {
        let is_due = decided > snapshot_seq.unwrap_or(0);
        let cancellation = Cancellation::default();
        Self {
            is_due,
            builder: None,
            writing: JoinSet::new(),
            cancellation,
            last: snapshot_seq,
            shortage: None,
        }
    }

    /// Cancels the snapshot that is being written. The end of the run writes a newer one.
    pub(super) fn cancel(&self) {
        self.cancellation.cancel();
    }

    /// Takes the next step of the current snapshot, or begins a due one. `statistics` returns the server's figures.
    pub(super) fn step(
        &mut self,
        syncer: &Syncer,
        record: &Record,
        store: &Arc<Store>,
        statistics: impl FnOnce() -> RunStatistics,
    ) {
        if syncer.is_led() {
            // A cluster stores its run in the shared storage instead.
            return;
        }
        let decided = record.gate.decided();
        if std::mem::take(&mut self.is_due) && self.builder.is_none() && self.writing.is_empty() {
            self.builder = Some((SnapshotBuilder::begin(syncer, decided), statistics()));
        }
        let Some((builder, _)) = &mut self.builder else { return };
        builder.step(syncer, decided);
        if builder.is_ready(&record.gate) {
            let Some((builder, statistics)) = self.builder.take() else { return };
            let (seq, record, states) = builder.into_parts();
            let snapshot = Snapshot { seq, record, states, statistics };
            let (store, cancellation) = (Arc::clone(store), self.cancellation.clone());
            self.writing.spawn_blocking(move || {
                let file = store.save_with(&snapshot, &Progress::silent(&cancellation))?;
                Ok(Saved { seq: snapshot.seq, shortage: shortage(&file) })
            });
        }
    }

    /// Waits until a snapshot is written; never resolves if none is being written.
    pub(super) async fn next(&mut self) -> Option<Written> {
        self.writing.join_next().await
    }

    /// Records the result of a write and returns its fault, if any. Tape rows before the previous snapshot are no
    /// longer needed.
    pub(super) fn note(&mut self, written: Written, record: &Record) -> Option<Arc<str>> {
        let fault = match written {
            Ok(Ok(Saved { seq, shortage })) => {
                self.shortage = shortage;
                tracing::debug!(seq, "snapshot saved");
                if let Some(before) = self.last.replace(seq) {
                    record.forget(before);
                }
                None
            }
            Ok(Err(ServerError::Cancelled)) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(error) => Some(format!("saving a snapshot panicked: {error}")),
        };
        if let Some(fault) = &fault {
            tracing::error!(%fault, "snapshot not saved; retrying at the next interval");
        }
        fault.map(Arc::from)
    }
}

/// Returns a warning if the disk of the snapshot `file` has no room for two more snapshots and [`FREE_BYTES_MIN`].
fn shortage(file: &Path) -> Option<Arc<str>> {
    let snapshot = fs::metadata(file).ok()?.len();
    let free = free_bytes(file.parent()?)?;
    (free < 2 * snapshot + FREE_BYTES_MIN).then(|| {
        let (free, snapshot) = (Bytes(free), Bytes(snapshot));
        format!("The disk of the run has {free} left, and a snapshot takes {snapshot}: free some space.")
            .into()
    })
}
