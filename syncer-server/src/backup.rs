//! The verb `backup`: a copy of a run's folder that the run could resume from, made while the run goes on.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::errors::ServerError;
use crate::invites::InviteStore;
use crate::store::{Manifest, Store, disk, is_within, vacant, whole_folder};
use crate::tape::{CopySummary, copy};

/// Number of attempts to copy. An attempt fails if the syncer writes two snapshots while the files are being opened.
const TRIES: u32 = 5;

/// A copy of a run's folder.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BackupResult {
    /// Folder of the copy.
    pub to: PathBuf,
    /// The run, as 16 hex digits.
    pub run: String,
    /// Number of the last decision in the copy.
    pub decision: u64,
    /// Size of its files, in bytes.
    pub bytes: u64,
}

/// Copies the run in `dir` to `to`, while a syncer may work in `dir`. The copy is made next to its destination, flushed
/// to disk, and then renamed, so it exists completely or not at all.
///
/// # Errors
/// - `NoRun`: there is no run.
/// - `Config`: `to` is inside `dir`.
/// - `DirTaken`: `to` exists and is not an empty folder.
/// - `Disk`: a file cannot be read or written.
/// - `DirCorrupt`: a file of the run is damaged or missing.
pub fn backup(dir: &Path, to: &Path) -> Result<BackupResult, ServerError> {
    let store = Store::open_read_only(dir);
    let manifest = store.begun()?;
    vacant(to)?;
    if is_within(to, dir) {
        let why = format!(
            "{} is inside the run's own folder {}: give a folder outside of it, best on another disk",
            to.display(),
            dir.display()
        );
        return Err(ServerError::Config { why });
    }
    let mut tries_left = TRIES;
    loop {
        tries_left -= 1;
        let before = store.snapshots()?;
        match whole_folder(to, |folder| copy_to(&store, &manifest, folder)) {
            Ok(copied) => {
                let run = manifest.run.to_string();
                return Ok(BackupResult {
                    to: to.to_owned(),
                    run,
                    decision: copied.last,
                    bytes: copied.bytes,
                });
            }
            // The syncer has written a snapshot meanwhile, which may be the cause.
            Err(error) if tries_left > 0 && store.snapshots()? != before => {
                tracing::debug!(%error, "the copy is incomplete; copying again");
            }
            Err(error) => return Err(error),
        }
    }
}

/// Copies the run in the folder of `store` to `folder`, with the same permissions.
fn copy_to(store: &Store, manifest: &Manifest, folder: &Path) -> Result<CopySummary, ServerError> {
    let dir = store.dir();
    InviteStore::copy(dir, folder)?;
    let copied = copy(store, manifest, folder)?;
    let permissions = fs::metadata(dir).map_err(disk("read", dir))?.permissions();
    fs::set_permissions(folder, permissions).map_err(disk("write", folder))?;
    Ok(copied)
}
