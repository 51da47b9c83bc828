//! The verb `backup`: a copy of a run's folder that the run could go on from, made while it goes on.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::errors::ServerError;
use crate::guests::Guests;
use crate::store::{Manifest, Store, disk, is_within, vacant, whole_folder};
use crate::tape::{Copied, copy};

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
    let mut tries_left = TRIES;
    loop {
        tries_left -= 1;
        let before = store.snapshots()?;
        match whole_folder(to, |folder| copy_to(&store, &manifest, folder)) {
            Ok(copied) => {
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

/// Copies the run in the folder of `store` to `folder`, with the same rights.
fn copy_to(store: &Store, manifest: &Manifest, folder: &Path) -> Result<Copied, ServerError> {
    let dir = store.dir();
    Guests::copy(dir, folder)?;
    let copied = copy(store, manifest, folder)?;
    let permissions = fs::metadata(dir).map_err(disk("read", dir))?.permissions();
    fs::set_permissions(folder, permissions).map_err(disk("write", folder))?;
    Ok(copied)
}
