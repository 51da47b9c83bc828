//! Atomic creation of folders.

use std::fs::{self, File};
use std::path::Path;

use super::temporary::{TEMPORARY, remove};
use super::{disk, locked, make_private, sync_folder, temporary};
use crate::errors::ServerError;

/// Content of a temporary folder: a file that its program keeps locked, and the new folder.
const IN_USE: &str = "in-use";
const MADE: &str = "made";

/// Creates the folder `to` atomically. `make` fills a temporary folder under the same parent, which is then renamed to
/// `to`.
///
/// # Errors
/// - `Disk`: a folder cannot be created, synced or renamed.
/// - Those of `make`; the temporary folder is then removed.
pub fn whole_folder<T>(
    to: &Path,
    make: impl FnOnce(&Path) -> Result<T, ServerError>,
) -> Result<T, ServerError> {
    let parent = match to.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    fs::create_dir_all(parent).map_err(disk("make", parent))?;
    sweep_beside(parent);
    let beside = temporary().tempdir_in(parent).map_err(disk("make a folder in", parent))?;
    let _in_use = locked(beside.path(), IN_USE)?;
    let folder = beside.path().join(MADE);
    make_private(&folder)?;
    let made = make(&folder)?;
    fs::rename(&folder, to).map_err(disk("write", to))?;
    sync_folder(parent).map_err(disk("sync", parent))?;
    Ok(made)
}

/// Removes the folders that killed programs left in `parent`. A program that still fills a folder holds its lock. If
/// the file system has no locks, all such folders stay, since any of them may be in use.
fn sweep_beside(parent: &Path) {
    let is_free =
        |path: &Path| File::options().write(true).open(path).is_ok_and(|file| file.try_lock().is_ok());
    remove(parent, |path, name| name.starts_with(TEMPORARY) && is_free(&path.join(IN_USE)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_made_whole_or_not_at_all() {
        let place = tempfile::tempdir().unwrap();
        let to = place.path().join("copy");
        let entries = || fs::read_dir(place.path()).unwrap().count();
        let failed = whole_folder(&to, |folder| {
            fs::write(folder.join("run.json"), "half").unwrap();
            // A concurrent creation leaves this folder alone.
            whole_folder(&place.path().join("other"), |_| Ok(())).unwrap();
            assert!(folder.join("run.json").exists());
            Err::<(), _>(ServerError::NoRun { dir: folder.to_owned() })
        });
        assert!(failed.is_err() && entries() == 1, "the other one alone is there");

        // A killed program left this file.
        let killed = place.path().join(".archipelago-tmp-killed");
        fs::create_dir(&killed).unwrap();
        drop(locked(&killed, IN_USE).unwrap());
        fs::create_dir(place.path().join(".archipelago-tmp-not-ours")).unwrap();
        let write =
            |folder: &Path| fs::write(folder.join("run.json"), "whole").map_err(disk("write", folder));
        whole_folder(&to, write).unwrap();
        assert_eq!(fs::read_to_string(to.join("run.json")).unwrap(), "whole");
        assert_eq!(entries(), 3);
    }
}
