//! Whether a folder may become a run's: it is empty, or what a start left there that was cut off.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use super::{disk, is_temporary, temporary};
use crate::errors::ServerError;

/// What tells that a run is in a folder.
const OF_A_RUN: [&str; 2] = ["run.json", "tape.sqlite"];

/// What may be in a folder before a run is begun there: what a start writes first, what a server of several runs keeps
/// beside each run, where the processes of a run on several machines work, and what a file system puts into its own
/// root.
const BEFORE_A_RUN: [&str; 8] = [
    "lock",
    "admin.token",
    "invite.token",
    "settings.toml",
    "archived",
    "snapshots",
    "processes",
    "lost+found",
];

/// What the beginning of a run writes behind its lock, before `run.json`. Without the lock it is somebody else's.
pub(super) const OF_A_BEGINNING: [&str; 4] =
    ["tokenizer.json", "held-out.json", "initial.safetensors", "frozen.bin"];

/// Sees to it that a run is in `dir`, or could be begun there: nobody's files are written among, or over.
///
/// # Errors
/// - `DirForeign`: no run is there, but something else is.
/// - `Disk`: it is no folder, or cannot be read.
pub fn fit(dir: &Path) -> Result<(), ServerError> {
    let names = match names(dir) {
        Ok(names) => names,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(disk("read", dir)(error)),
    };
    let has = |name: &str| names.iter().any(|found| found == name);
    if OF_A_RUN.iter().any(|name| has(name)) {
        return Ok(());
    }
    let is_begun = has("lock");
    // Temporary files are removed as soon as the folder is locked.
    let is_of_a_beginning = |name: &str| OF_A_BEGINNING.contains(&name) || is_temporary(name);
    let fits = |name: &str| BEFORE_A_RUN.contains(&name) || is_begun && is_of_a_beginning(name);
    match names.iter().find(|name| !fits(name)) {
        None => Ok(()),
        Some(found) => Err(ServerError::DirForeign { dir: dir.to_owned(), found: found.clone() }),
    }
}

/// Sees to it that a run in `dir` does not write into the text that it trains on: the next start would find another
/// text there.
///
/// # Errors
/// `Config`.
pub fn outside(dir: &Path, data: Option<&Path>) -> Result<(), ServerError> {
    let Some(data) = data.filter(|data| data.is_dir()) else { return Ok(()) };
    let Ok(text) = data.canonicalize() else { return Ok(()) };
    match real(dir).strip_prefix(&text) {
        // What is in a hidden folder is no text.
        Ok(below) if !below.components().any(|part| part.as_os_str().to_string_lossy().starts_with('.')) => {
            let (dir, data) = (dir.display(), data.display());
            let why = format!(
                "--dir {dir} is inside --data {data}: what the run keeps there would be read as text at the next \
                 start; give --dir a folder outside of it"
            );
            Err(ServerError::Config { why })
        }
        _ => Ok(()),
    }
}

/// Whether `path`, which need not be there, is `folder` or something in it.
pub fn is_within(path: &Path, folder: &Path) -> bool {
    real(path).starts_with(real(folder))
}

/// `path` without links, as far as it is there.
fn real(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    // `a/../b` need not be in the folder that `a` is in, but what is not there yet is no link.
    let there = path.ancestors().find_map(|above| Some((above, above.canonicalize().ok()?)));
    match there {
        Some((above, real)) => path.strip_prefix(above).map_or_else(|_| real.clone(), |rest| real.join(rest)),
        None => path,
    }
}

/// Makes the folder `dir` unless it is there, and then for its owner alone: a run's folder holds secrets, and text that
/// others need not read. One that is there keeps the rights that its owner gave it.
///
/// # Errors
/// `Disk`.
pub fn make_private(dir: &Path) -> Result<(), ServerError> {
    if let Some(above) = dir.parent().filter(|above| !above.as_os_str().is_empty()) {
        fs::create_dir_all(above).map_err(disk("make", above))?;
    }
    let mut folder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut folder, 0o700);
    match folder.create(dir) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(disk("make", dir)(error)),
        _ => Ok(()),
    }
}

/// Writes a file for the owner alone, as a whole or not at all.
///
/// # Errors
/// `Disk`.
pub fn write_private(path: &Path, text: &str) -> Result<(), ServerError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Temporary files are made readable by their owner only, on every system.
    let mut file = temporary().tempfile_in(folder).map_err(disk("write", path))?;
    file.write_all(text.as_bytes()).and_then(|()| file.as_file().sync_all()).map_err(disk("write", path))?;
    file.persist(path).map_err(|error| disk("write", path)(error.error))?;
    sync_folder(folder).map_err(disk("sync", path))
}

/// Syncs the list of files in `dir` to the disk. Some systems cannot open a folder, and some network file systems
/// cannot sync one. Such systems do not need the sync, or have no way to do it, so this is no error.
///
/// # Errors
/// The error of the system.
pub fn sync_folder(dir: &Path) -> std::io::Result<()> {
    let lacks_sync =
        |error: &std::io::Error| matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported);
    match fs::File::open(dir).map_or(Ok(()), |folder| folder.sync_all()) {
        Err(error) if lacks_sync(&error) => Ok(()),
        synced => synced,
    }
}

/// ENOLCK of Linux and of macOS.
const NO_LOCKS: [i32; 2] = [37, 77];

/// Returns true if `error` means that the file system has no locks, as with some network file systems.
pub fn lacks_locks(error: &std::io::Error) -> bool {
    let is_known = error.raw_os_error().is_some_and(|code| NO_LOCKS.contains(&code));
    error.kind() == ErrorKind::Unsupported || is_known
}

/// The names of what is in `dir`, in order.
pub fn names(dir: &Path) -> std::io::Result<Vec<String>> {
    let entries = fs::read_dir(dir)?;
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names = names.collect::<std::io::Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

/// Whether something is at `path`. That it cannot be looked at is no answer.
///
/// # Errors
/// `Disk`.
pub fn is_there(path: &Path) -> Result<bool, ServerError> {
    path.try_exists().map_err(disk("look at", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_begins_among_nobodys_files() {
        let check = |names: &[&str], found: Option<&str>| {
            let dir = tempfile::tempdir().unwrap();
            for name in names {
                fs::write(dir.path().join(name), "x").unwrap();
            }
            match (fit(dir.path()), found) {
                (Ok(()), None) => {}
                (Err(error), Some(found)) => {
                    assert_eq!(error.exit_code(), 12, "{error}");
                    assert!(error.to_string().contains(found), "{error}");
                }
                other => panic!("{names:?}: {other:?}"),
            }
        };
        check(&[], None);
        check(&["admin.token", "lock", "lost+found", "settings.toml"], None);
        check(&["lock", "tokenizer.json", ".archipelago-tmp-Ab12Yz", ".tmpAb12Yz"], None);
        check(&["notes.txt", "run.json"], None);
        check(&["tokenizer.json"], Some("tokenizer.json"));
        check(&["admin.token", "photo.jpg"], Some("photo.jpg"));
        assert!(fit(Path::new("not/there")).is_ok());
    }

    #[cfg(unix)]
    #[test]
    fn what_is_made_for_a_run_is_its_owners_alone() {
        use std::os::unix::fs::PermissionsExt;
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("runs/a");
        make_private(&dir).unwrap();
        make_private(&dir).unwrap();
        assert_eq!(fs::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(is_within(&dir.join("copy"), &dir) && !is_within(&place.path().join("copy"), &dir));
    }

    #[test]
    fn a_run_is_not_in_its_own_text() {
        let dir = tempfile::tempdir().unwrap();
        let (text, beside) = (dir.path().join("text"), dir.path().join("runs/a"));
        fs::create_dir(&text).unwrap();
        assert!(outside(&beside, Some(&text)).is_ok());
        assert!(outside(&text.join(".run"), Some(&text)).is_ok(), "hidden folders are not read");
        for inside in [text.clone(), text.join("runs/a"), text.join("../text/run")] {
            assert_eq!(outside(&inside, Some(&text)).unwrap_err().exit_code(), 3, "{inside:?}");
        }
        assert!(outside(&text.join("run"), None).is_ok());
    }
}
