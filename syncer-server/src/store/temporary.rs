//! Temporary files and folders with a common prefix, and removal of those left by killed programs.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use tempfile::Builder;

use super::{disk, locked, make_private, sync_folder};
use crate::errors::ServerError;

/// Name prefix of all temporary files and folders.
pub(super) const TEMPORARY: &str = ".archipelago-tmp-";

/// Prefix and length of the names that the crate `tempfile` chooses by default, for example in `safetensors`.
const UNNAMED: &str = ".tmp";
const UNNAMED_LEN: usize = UNNAMED.len() + 6;

/// Returns the path at which a file is written before it is renamed to `path`.
pub(super) fn partial(path: &Path) -> PathBuf {
    let mut name = OsString::from(TEMPORARY);
    name.push(path.file_name().unwrap_or_default());
    path.with_file_name(name)
}

/// Returns a builder of temporary files and folders with the common prefix.
pub fn temporary<'a>() -> Builder<'a, 'static> {
    let mut builder = Builder::new();
    builder.prefix(TEMPORARY);
    builder
}

/// Returns true if `name` is that of a temporary file or folder of our programs.
pub fn is_temporary(name: &str) -> bool {
    let is_unnamed = name.starts_with(UNNAMED)
        && name.len() == UNNAMED_LEN
        && name.bytes().skip(1).all(|byte| byte.is_ascii_alphanumeric());
    name.starts_with(TEMPORARY) || is_unnamed
}

/// Removes temporary files of killed programs from `folder`, whose lock the caller holds.
pub(super) fn sweep(folder: &Path) {
    remove(folder, |_, name| is_temporary(name));
}

/// Removes each entry of `folder` for which `is_left` returns true. It gets the path and the name.
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

/// Names inside a temporary folder: a file that its program keeps locked, and the folder under construction.
const IN_USE: &str = "in-use";
const MADE: &str = "made";

/// Creates the folder `to` atomically: `make` fills a temporary folder next to it, which is then renamed to `to`.
///
/// # Errors
/// - `Disk`: a folder cannot be created, synced or renamed.
/// - Those of `make`. The temporary folder is then removed.
pub fn whole_folder<T>(
    to: &Path,
    make: impl FnOnce(&Path) -> Result<T, ServerError>,
) -> Result<T, ServerError> {
    let parent = match to.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    fs::create_dir_all(parent).map_err(disk("make", parent))?;
    sweep_siblings(parent);
    let beside = temporary().tempdir_in(parent).map_err(disk("make a folder in", parent))?;
    let _in_use = locked(beside.path(), IN_USE)?;
    let folder = beside.path().join(MADE);
    make_private(&folder)?;
    let made = make(&folder)?;
    fs::rename(&folder, to).map_err(disk("write", to))?;
    sync_folder(parent).map_err(disk("sync", parent))?;
    Ok(made)
}

/// Writes the file `path` atomically: `write` creates it in a temporary folder next to it, from which it is moved. Use
/// this for libraries that choose the names of their own temporary files.
///
/// # Errors
/// `Disk`: the file cannot be written.
pub fn whole_file(path: &Path, write: impl FnOnce(&Path) -> io::Result<()>) -> Result<(), ServerError> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let beside = temporary().tempdir_in(parent).map_err(disk("make a folder in", parent))?;
    let _in_use = locked(beside.path(), IN_USE)?;
    let made = beside.path().join(MADE);
    write(&made).and_then(|()| fs::rename(&made, path)).map_err(disk("write", path))
}

/// Removes what killed programs left in `folder` while they wrote `files` there: temporary folders that no program
/// uses, and temporary files with these names.
pub fn sweep_files(folder: &Path, files: &[&str]) {
    sweep_siblings(folder);
    let is_of = |name: &str| name.strip_prefix(TEMPORARY).is_some_and(|name| files.contains(&name));
    remove(folder, |path, name| is_of(name) && path.is_file());
}

/// Removes temporary folders of killed programs from `parent`. A program that is filling a folder holds its lock. If
/// the file system has no locks, all temporary folders stay, because any may be in use.
fn sweep_siblings(parent: &Path) {
    let is_free =
        |path: &Path| File::options().write(true).open(path).is_ok_and(|file| file.try_lock().is_ok());
    remove(parent, |path, name| name.starts_with(TEMPORARY) && is_free(&path.join(IN_USE)));
}

#[cfg(test)]
mod tests {
    use super::super::Store;
    use super::*;

    /// Goal: temporary files of killed programs are removed once the next program opens the run, and nothing else is.
    #[test]
    fn files_of_killed_programs_are_removed_at_the_start() {
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

    /// Goal: what an interrupted export leaves is removed by the next one, and files of others stay.
    #[test]
    fn a_file_is_made_whole_and_remains_are_swept() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("model");
        let remains = [".archipelago-tmp-README.md", ".archipelago-tmp-notes", ".tmpAb12Yz"];
        remains.iter().for_each(|name| fs::write(place.path().join(name), "half").unwrap());
        let killed = place.path().join(".archipelago-tmp-killed");
        fs::create_dir(&killed).unwrap();
        drop(locked(&killed, IN_USE).unwrap());
        whole_file(&path, |made| {
            fs::write(made, "whole")?;
            sweep_files(place.path(), &["README.md"]);
            Ok(())
        })
        .unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "whole");
        let failed = whole_file(&path, |made| fs::write(made, "half").and(Err(io::Error::other("no"))));
        assert!(failed.is_err() && fs::read_to_string(&path).unwrap() == "whole");
        assert_eq!(super::super::names(place.path()).unwrap(), [remains[1], remains[2], "model"]);
    }

    #[test]
    fn a_folder_is_made_whole_or_not_at_all() {
        let place = tempfile::tempdir().unwrap();
        let to = place.path().join("copy");
        let entries = || fs::read_dir(place.path()).unwrap().count();
        let failed = whole_folder(&to, |folder| {
            fs::write(folder.join("run.json"), "half").unwrap();
            // A simultaneous creation leaves this folder alone.
            whole_folder(&place.path().join("other"), |_| Ok(())).unwrap();
            assert!(folder.join("run.json").exists());
            Err::<(), _>(ServerError::NoRun { dir: folder.to_owned() })
        });
        assert!(failed.is_err() && entries() == 1, "the other one alone is there");

        // A killed program left this folder.
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
