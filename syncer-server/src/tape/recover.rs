//! Recovery from a snapshot to the end of the tape.

use std::path::Path;

use archipelago_core::diloco::syncer::{Recovery, RecoveryError, Syncer, SyncerConfig, SyncerRecord};
use archipelago_core::diloco::{MergeOutcome, RunId};
use rusqlite::ErrorCode;

use super::bodies::{LENGTH_BYTES, Reader, segments};
use super::{Place, Row, Rows, RowsError};
use crate::errors::ServerError;
use crate::status::RunStatistics;
use crate::store::{Manifest, Snapshot, Store, disk, is_of_the_disk};

/// Name of the folder of bodies inside the run's folder.
pub(super) const BODIES: &str = "bodies";

/// Returns true if the run's folder has bodies of updates. Only a run with a tape has them.
pub fn has_bodies(store: &Store) -> bool {
    segments(&store.dir().join(BODIES)).is_ok_and(|segments| !segments.is_empty())
}

/// Recovers a run to the end of its tape, from `snapshot` or else from its first decision. Returns its state and the
/// number of the last row.
///
/// # Errors
/// - `Disk`: the tape cannot be read.
/// - `DirCorrupt`: the tape is damaged, belongs to another run, or does not continue the snapshot.
/// - `Internal`: the snapshot does not fit the run.
pub fn recover(
    store: &Store,
    manifest: &Manifest,
    snapshot: Option<&Snapshot>,
) -> Result<(Recovery, u64), ServerError> {
    let folder = store.dir();
    let path = store.tape_path();
    let mut bodies = Reader::new(&folder.join(BODIES));
    let rows = Rows::open_read_only(&path, manifest.run).map_err(|error| broken(&path, error))?;
    let (mut recovery, seq) = match snapshot {
        Some(snapshot) => (from_snapshot(manifest, snapshot)?, snapshot.seq),
        None if rows.is_whole().map_err(|error| broken(&path, error))? => {
            (from_beginning(store, manifest)?, 0)
        }
        None => {
            return Err(corrupt(&folder.join("snapshots"), "no snapshot is left, and the tape begins later"));
        }
    };
    rows.read(seq, |row| follow(&mut recovery, &mut bodies, &row).map(drop))
        .map_err(|error: Broken| error.at(&path))?;
    Ok((recovery, rows.last()))
}

/// Returns the state of the run in `snapshot`.
pub(super) fn from_snapshot(manifest: &Manifest, snapshot: &Snapshot) -> Result<Recovery, ServerError> {
    // The spec is that of the manifest, which defines the run.
    let record = SyncerRecord { spec: manifest.spec.clone(), ..snapshot.record.clone() };
    let states = snapshot.states.clone();
    let layout = manifest.layout()?;
    Recovery::new(record, &layout, states).map_err(impossible)
}

/// Returns the state of the run before its first decision.
pub(super) fn from_beginning(store: &Store, manifest: &Manifest) -> Result<Recovery, ServerError> {
    let Manifest { run, spec, .. } = manifest;
    let layout = manifest.layout()?;
    let theta = store.initial(manifest)?;
    let syncer =
        Syncer::new(*run, spec.clone(), SyncerConfig::default(), &layout, &theta).map_err(impossible)?;
    Recovery::new(syncer.record_amid(), &layout, syncer.states().cloned().collect()).map_err(impossible)
}

fn impossible(error: impl std::fmt::Display) -> ServerError {
    ServerError::Internal { what: format!("the run cannot be set up: {error}") }
}

/// Applies one row to `recovery`. Returns the result if the row is a merge.
pub(super) fn follow(
    recovery: &mut Recovery,
    bodies: &mut Reader,
    row: &Row,
) -> Result<Option<MergeOutcome>, Broken> {
    let broken = |why: String| Broken::Row(row.seq, row.entry.kind(), why);
    let mut read = None;
    let followed = recovery.follow(&row.entry, kept(bodies, row.place, &mut read));
    followed.map_err(|error| match read.filter(|_| is_of_a_body(&error)) {
        Some((at, len)) => broken(damaged(bodies, at, len, &error)),
        None => broken(error.to_string()),
    })
}

/// Returns a function that reads the bodies from `place` on, one per call. It records location and length of the last
/// one in `read`.
pub(super) fn kept<'a>(
    bodies: &'a mut Reader,
    place: Option<Place>,
    read: &'a mut Option<(Place, usize)>,
) -> impl FnMut(usize) -> Result<Vec<u8>, String> + 'a {
    let mut place = place;
    move |len| {
        let place = place.as_mut().ok_or("the row does not name the place of its bodies")?;
        *read = Some((*place, len));
        bodies.next(place, len)
    }
}

/// Returns true if the error is about the content of the body that was read last, which [`Reader`] does not check.
fn is_of_a_body(error: &RecoveryError) -> bool {
    matches!(error, RecoveryError::Damaged(..) | RecoveryError::Body(..) | RecoveryError::Unkept(..))
}

/// Describes damage to the body at `at` with `len` bytes, with its location.
pub(super) fn damaged(bodies: &Reader, at: Place, len: usize, why: &impl std::fmt::Display) -> String {
    let begin = at.offset + LENGTH_BYTES;
    format!("{} from byte {begin} on, {len} bytes: {why}", bodies.path(at.segment).display())
}

/// Reason why the tape cannot be read to its end.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    #[error("{0}")]
    Rows(#[from] RowsError),
    #[error("row {0} ({1}): {2}")]
    Row(u64, &'static str, String),
}

impl Broken {
    /// Converts the error to a server error about the file `path`.
    pub(super) fn at(self, path: &Path) -> ServerError {
        match self {
            Self::Rows(error) => broken(path, error),
            Self::Row(..) => corrupt(path, &self.to_string()),
        }
    }
}

/// Converts an error about the rows in the file `path` to a server error.
pub fn broken(path: &Path, error: RowsError) -> ServerError {
    match error {
        RowsError::Sqlite(error) if is_of_the_disk(&error) => {
            let code = error.sqlite_error_code();
            let writes = matches!(code, Some(ErrorCode::DiskFull | ErrorCode::ReadOnly));
            disk(if writes { "write" } else { "read" }, path)(std::io::Error::other(error))
        }
        RowsError::LogUnread(error) => disk("read", path)(error),
        RowsError::Sqlite(error) => corrupt(path, &format!("it is damaged: {error}")),
        error => corrupt(path, &error.to_string()),
    }
}

pub(super) fn corrupt(path: &Path, why: &str) -> ServerError {
    let why = format!("{why}; resume from a copy of the folder, or give --dir another one");
    ServerError::DirCorrupt { path: path.to_owned(), why }
}

/// Returns the statistics of the run `run`: `saved`, those of its newest snapshot, or those in the tape's file if they
/// are later. A server that stops before the first merge writes no snapshot.
///
/// # Errors
/// `Disk`, `DirCorrupt`: the tape cannot be read.
pub fn later_figures(store: &Store, run: RunId, saved: RunStatistics) -> Result<RunStatistics, ServerError> {
    if !store.has_tape() {
        return Ok(saved);
    }
    let path = store.tape_path();
    let rows = Rows::open_read_only(&path, run).map_err(|error| broken(&path, error))?;
    let figures = rows.figures().map_err(|error| broken(&path, error))?;
    Ok(saved.later(figures.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_cannot_be_written() {
        let said = |code: std::ffi::c_int| {
            let error = rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None);
            broken(Path::new("tape.sqlite"), error.into()).to_string()
        };
        assert!(said(rusqlite::ffi::SQLITE_FULL).starts_with("cannot write tape.sqlite: "));
        assert!(said(rusqlite::ffi::SQLITE_READONLY).starts_with("cannot write tape.sqlite: "));
        assert!(said(rusqlite::ffi::SQLITE_IOERR).starts_with("cannot read tape.sqlite: "));
        assert!(said(rusqlite::ffi::SQLITE_CORRUPT).contains("it is damaged"));
    }
}
