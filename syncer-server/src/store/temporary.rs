//! Temporary files and folders, with a common prefix, and the removal of those that killed programs left.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use tempfile::Builder;

use super::{disk, locked, make_private, sync_folder};
use crate::errors::ServerError;

/// Prefix of the name of each temporary file and folder.
pub(super) const TEMPORARY: &str = ".archipelago-tmp-";

/// Prefix and length of the names that `tempfile` chooses by default, for instance for `safetensors`.
const UNNAMED: &str = ".tmp";
const UNNAMED_LEN: usize = UNNAMED.len() + 6;

/// Returns the path under which a file is written before it gets the name `path`.
pub(super) fn partial(path: &Path) -> PathBuf {
    let mut name = OsString::from(TEMPORARY);
    name.push(path.file_name().unwrap_or_default());
    path.with_file_name(name)
}

/// Returns a maker of temporary files and folders with our prefix.
pub fn temporary<'a>() -> Builder<'a, 'static> {
    let mut builder = Builder::new();
    builder.prefix(TEMPORARY);
    builder
}

/// Returns true if one of our programs chose the name for a temporary file.
pub fn is_temporary(name: &str) -> bool {
    let is_unnamed = name.starts_with(UNNAMED)
        && name.len() == UNNAMED_LEN
        && name.bytes().skip(1).all(|byte| byte.is_ascii_alphanumeric());
    name.starts_with(TEMPORARY) || is_unnamed
}

/// Removes leftovers of killed programs from `folder`. This program holds the folder's lock.
pub(super) fn sweep(folder: &Path) {
    remove(folder, |_, name| is_temporary(name));
}

/// Removes each entry of `folder` for which `is_left` returns true, given its path and name.
pub(super) fn remove(folder: &Path, is_left: impl Fn(&Path, &str) -> bool) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if !is_left(&path, &entry.file_name().to_string_lossy()) {
            continue;
        }
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        match if is_folder { fs::remove_dir_all(&path) } else { fs::remove_file(&path) } {
            Ok(()) => tracing::info!(path = %path.display(), "removed files of a killed program"),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "cannot remove files of a killed program");
            }
        }
    }
}

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
    use super::super::Store;
    use super::*;

    /// Goal: leftovers of killed programs are removed once the next program leads the run, and nothing else is.
    #[test]
    fn what_killed_programs_left_is_swept_at_the_start() {
        let dir = tempfile::tempdir().unwrap();
        drop(Store::open(dir.path()).unwrap());
        let names = [
            ("snapshots/.archipelago-tmp-00000007.safetensors", false),
            ("snapshots/.tmpAb12Yz", false),
            ("snapshots/00000006.safetensors", true),
            ("snapshots/mine.partial", true),
            (".archipelago-tmp-export/model.safetensors", false),
            (".tmpAb12Yz/model.safetensors", false),
            (".archipelago-tmp-run.json", false),
            (".tmp-mine", true),
            ("run.json", true),
        ];
        let write = |name: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "half").unwrap();
        };
        names.iter().for_each(|(name, _)| write(name));
        let _leads = Store::open(dir.path()).unwrap();
        for (name, stays) in names {
            assert_eq!(dir.path().join(name).exists(), stays, "{name}");
        }
        assert!(!dir.path().join(".archipelago-tmp-export").exists());
        write(names[0].0);
        assert!(
            Store::open(dir.path()).is_err() && dir.path().join(names[0].0).exists(),
            "another one writes"
        );
    }

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
