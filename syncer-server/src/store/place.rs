//! Checks of a run's folder, and file system functions. A run needs a folder that is empty, holds a run, or holds
//! remains of an interrupted first start.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use super::{disk, is_temporary, temporary};
use crate::errors::ServerError;

/// Files that only a folder with a run has.
const OF_A_RUN: [&str; 2] = ["run.json", "tape.sqlite"];

/// Names that may exist in a folder before it holds a run. They come from the first steps of a start, a server with
/// several runs, the processes of a cluster, or the root of a file system.
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

/// Files that a new run writes under its lock, before `run.json`. Without a lock file, they are foreign.
pub(super) const OF_A_BEGINNING: [&str; 4] =
    ["tokenizer.json", "held-out.json", "initial.safetensors", "frozen.bin"];

/// Checks that `dir` holds a run, or that a run may be created there. Runs never write next to foreign files.
///
/// # Errors
/// - `Config`: `dir` is a file.
/// - `DirForeign`: the folder holds other files and no run.
/// - `Disk`: `dir` cannot be read.
pub fn fit(dir: &Path) -> Result<(), ServerError> {
    let names = match names(dir) {
        Ok(names) => names,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            let why = format!("{} is a file: give --dir a folder", dir.display());
            return Err(ServerError::Config { why });
        }
        Err(error) => return Err(disk("read", dir)(error)),
    };
    let has = |name: &str| names.iter().any(|found| found == name);
    if OF_A_RUN.iter().any(|name| has(name)) {
        return Ok(());
    }
    let is_begun = has("lock");
    // Temporary files are removed after the folder is locked.
    let is_of_a_beginning = |name: &str| OF_A_BEGINNING.contains(&name) || is_temporary(name);
    let fits = |name: &str| BEFORE_A_RUN.contains(&name) || is_begun && is_of_a_beginning(name);
    match names.iter().find(|name| !fits(name)) {
        None => Ok(()),
        Some(found) => Err(ServerError::DirForeign { dir: dir.to_owned(), found: found.clone() }),
    }
}

/// Checks that a run in `dir` would not write into its own training text `data`, which would change the text for the
/// next start.
///
/// # Errors
/// `Config`: `dir` is inside `data`.
pub fn outside(dir: &Path, data: Option<&Path>) -> Result<(), ServerError> {
    let Some(data) = data.filter(|data| data.is_dir()) else { return Ok(()) };
    let Ok(text) = data.canonicalize() else { return Ok(()) };
    match real(dir).strip_prefix(&text) {
        // Hidden folders are not read as text.
        Ok(below) if !below.components().any(|part| part.as_os_str().to_string_lossy().starts_with('.')) => {
            let (dir, data) = (dir.display(), data.display());
            let why = format!(
                "--dir {dir} is inside --data {data}: the run's files would be read as text at the next start; give \
                 --dir a folder outside of it"
            );
            Err(ServerError::Config { why })
        }
        _ => Ok(()),
    }
}

/// Returns true if `path`, which need not exist, is `folder` or is inside it.
pub fn is_within(path: &Path, folder: &Path) -> bool {
    real(path).starts_with(real(folder))
}

/// Resolves symbolic links in the existing part of `path`.
fn real(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    // A link can change where `a/../b` leads, so `..` is resolved by the system. The part that does not exist has no
    // links.
    let there = path.ancestors().find_map(|above| Some((above, above.canonicalize().ok()?)));
    match there {
        Some((above, real)) => path.strip_prefix(above).map_or_else(|_| real.clone(), |rest| real.join(rest)),
        None => path,
    }
}

/// Creates the folder `dir`, readable only by its owner, because it holds secrets and private text. An existing folder
/// keeps its permissions.
///
/// # Errors
/// `Disk`: the folder cannot be created.
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

/// Writes a file atomically, readable only by its owner, and syncs it to disk.
///
/// # Errors
/// `Disk`: the file cannot be written.
pub fn write_private(path: &Path, text: &str) -> Result<(), ServerError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // On every system, only their owner can read temporary files.
    let mut file = temporary().tempfile_in(folder).map_err(disk("write", path))?;
    file.write_all(text.as_bytes()).and_then(|()| file.as_file().sync_all()).map_err(disk("write", path))?;
    file.persist(path).map_err(|error| disk("write", path)(error.error))?;
    sync_folder(folder).map_err(disk("sync", path))
}

/// Syncs the entries of the folder `dir` to disk. Some systems cannot open a folder, and some network file systems
/// cannot sync one. They do not need the sync or cannot do it, so this is no error.
///
/// # Errors
/// The operating system's error.
pub fn sync_folder(dir: &Path) -> std::io::Result<()> {
    let lacks_sync =
        |error: &std::io::Error| matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported);
    match fs::File::open(dir).map_or(Ok(()), |folder| folder.sync_all()) {
        Err(error) if lacks_sync(&error) => Ok(()),
        synced => synced,
    }
}

/// The error code ENOLCK on Linux and on macOS.
const NO_LOCKS: [i32; 2] = [37, 77];

/// Returns true if `error` means that the file system has no locks, as on some network file systems.
pub fn lacks_locks(error: &std::io::Error) -> bool {
    let is_known = error.raw_os_error().is_some_and(|code| NO_LOCKS.contains(&code));
    error.kind() == ErrorKind::Unsupported || is_known
}

/// Returns the sorted names of the entries of `dir`.
pub fn names(dir: &Path) -> std::io::Result<Vec<String>> {
    let entries = fs::read_dir(dir)?;
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names = names.collect::<std::io::Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

/// Returns true if `path` exists; nothing exists below a file. If the system cannot tell, this is an error.
///
/// # Errors
/// `Disk`: the path cannot be checked.
pub fn is_there(path: &Path) -> Result<bool, ServerError> {
    match path.try_exists() {
        Err(error) if error.kind() == ErrorKind::NotADirectory => Ok(false),
        found => found.map_err(disk("look at", path)),
    }
}

/// Returns the number of bytes that this program may still write on the disk of `dir`; `None` if the system does not
/// report it.
#[must_use]
pub fn free_bytes(dir: &Path) -> Option<u64> {
    #[cfg(unix)]
    {
        let disk = rustix::fs::statvfs(dir).ok()?;
        Some(disk.f_bavail.saturating_mul(disk.f_frsize))
    }
    #[cfg(not(unix))]
    {
        let _ = dir;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_refuses_a_folder_with_foreign_files() {
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
    fn folders_of_runs_are_private() {
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

    #[test]
    fn a_folder_has_room_and_one_that_is_not_there_has_none() {
        let dir = tempfile::tempdir().unwrap();
        assert!(free_bytes(dir.path()).is_some());
        assert_eq!(free_bytes(&dir.path().join("not-there")), None);
    }
}
