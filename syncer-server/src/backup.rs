//! The verb `backup`: a copy of a run's folder that the run could go on from, made while it goes on.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::errors::ServerError;
use crate::guests::Guests;
use crate::store::{Store, disk, is_within, sync_folder, vacant};
use crate::tape::copy;

/// Copies tried. One fails only where the syncer writes two snapshots within the blink in which files are opened.
const TRIES: u32 = 5;

/// A copy of a run's folder.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BackedUp {
    /// Where it is.
    pub to: PathBuf,
    /// The run, as 16 hex digits.
    pub run: String,
    /// The last decision in it.
    pub decision: u64,
    /// Its files, in bytes.
    pub bytes: u64,
}

/// Copies the run in `dir`, which a syncer may be working in, to `to`. The copy is made beside its place and then
/// renamed, so it is whole or not there; every file of it is on the disk by then.
///
/// # Errors
/// - `NoRun`: there is no run.
/// - `Config`: `to` is inside `dir`.
/// - `DirTaken`: `to` is there already, and is not an empty folder.
/// - `Disk`: something cannot be read or written.
/// - `DirCorrupt`: a file of the run is damaged or missing.
pub fn backup(dir: &Path, to: &Path) -> Result<BackedUp, ServerError> {
    let store = Store::look(dir);
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
    let parent = match to.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    fs::create_dir_all(parent).map_err(disk("make", parent))?;
    let mut tries_left = TRIES;
    loop {
        tries_left -= 1;
        let before = store.snapshots()?;
        // Removed again unless it is kept; nobody else may look into it, for there are secrets in it.
        let beside = tempfile::Builder::new().prefix(".backup-").tempdir_in(parent);
        let beside = beside.map_err(disk("make a folder in", parent))?;
        Guests::copy(dir, beside.path())?;
        match copy(&store, &manifest, beside.path()) {
            Ok(copied) => {
                let permissions = fs::metadata(dir).map_err(disk("read", dir))?.permissions();
                fs::set_permissions(beside.path(), permissions).map_err(disk("write", beside.path()))?;
                fs::rename(beside.path(), to).map_err(disk("write", to))?;
                // Nothing is left there to be removed.
                let _ = beside.keep();
                sync_folder(parent).map_err(disk("sync", parent))?;
                let run = manifest.run.to_string();
                return Ok(BackedUp { to: to.to_owned(), run, decision: copied.last, bytes: copied.bytes });
            }
            // The syncer has moved on meanwhile, so that may be why.
            Err(error) if tries_left > 0 && store.snapshots()? != before => {
                tracing::debug!(%error, "the copy is not whole, taking another");
            }
            Err(error) => return Err(error),
        }
    }
}
