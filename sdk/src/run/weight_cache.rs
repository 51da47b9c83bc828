//! Storage of frozen weights across starts, so that they are fetched only once.

use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{fmt, fs, io, process};

use futures::future::{LocalBoxFuture, ready};

/// File extension in a [`Folder`].
const ENDING: &str = "part";

/// Stores bytes under their checksums. It is only a cache: all data taken from it is checked, and fetched again if
/// missing or damaged.
pub trait WeightCache: fmt::Debug {
    /// Returns true if the shelf has room for `bytes`. Nothing is kept of weights that do not fit.
    fn has_room(&self, bytes: u64) -> bool;

    /// Returns the bytes stored under `name`, 64 hex digits, or `None`.
    ///
    /// # Errors
    /// [`ShelfError`]: the shelf cannot be read.
    fn take<'a>(&'a self, name: &'a str) -> LocalBoxFuture<'a, Result<Option<Vec<u8>>, ShelfError>>;

    /// Stores `bytes` under `name`, 64 hex digits, replacing earlier ones.
    ///
    /// # Errors
    /// [`ShelfError`]: the bytes cannot be stored.
    fn keep<'a>(&'a self, name: &'a str, bytes: &'a [u8]) -> LocalBoxFuture<'a, Result<(), ShelfError>>;
}

/// Reason why storing or reading failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct ShelfError {
    /// Cause of the failure.
    pub reason: String,
}

/// A folder of limited size; the oldest files are removed first.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    bytes_max: u64,
}

impl Folder {
    /// Returns the folder `path` for at most `bytes_max` bytes. It is created with the first stored bytes.
    #[must_use]
    pub fn new(path: PathBuf, bytes_max: u64) -> Self {
        Self { path, bytes_max }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path.join(format!("{name}.{ENDING}"))
    }

    fn read(&self, name: &str) -> Result<Option<Vec<u8>>, ShelfError> {
        let path = self.file(name);
        match fs::read(&path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("read", &path, &error)),
        }
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), ShelfError> {
        fs::create_dir_all(&self.path).map_err(|error| failed("make", &self.path, &error))?;
        self.make_room(bytes.len() as u64)?;
        // Written next to the target and renamed, so that another learner sees the whole file or none. A power failure
        // may still leave a partial file, which the check on reading detects.
        let (path, draft) = (self.file(name), self.path.join(format!("{name}.{}.tmp", process::id())));
        let written = fs::write(&draft, bytes).and_then(|()| fs::rename(&draft, &path));
        written.map_err(|error| {
            // The file may have filled the disk.
            let _ = fs::remove_file(&draft);
            failed("write", &path, &error)
        })
    }

    /// Removes the oldest files until there is room for `bytes` more.
    fn make_room(&self, bytes: u64) -> Result<(), ShelfError> {
        let mut kept = self.kept()?;
        kept.sort_by_key(|(written, _, path)| (*written, path.clone()));
        let mut held: u64 = kept.iter().map(|(_, len, _)| len).sum();
        for (_, len, path) in kept {
            if held.saturating_add(bytes) <= self.bytes_max {
                return Ok(());
            }
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(failed("remove", &path, &error));
                }
                _ => held -= len,
            }
        }
        match bytes <= self.bytes_max {
            true => Ok(()),
            false => {
                let reason =
                    format!("{} may hold {} bytes, not {bytes}", self.path.display(), self.bytes_max);
                Err(ShelfError { reason })
            }
        }
    }

    /// Returns the modification time, length and path of each file.
    fn kept(&self) -> Result<Vec<(SystemTime, u64, PathBuf)>, ShelfError> {
        let wrong = |error: io::Error| failed("read", &self.path, &error);
        let mut kept = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(wrong)? {
            let entry = entry.map_err(wrong)?;
            // Another learner may remove the file in the meantime.
            let Ok(metadata) = entry.metadata() else { continue };
            if entry.path().extension().is_some_and(|ending| ending == ENDING) {
                let written = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                kept.push((written, metadata.len(), entry.path()));
            }
        }
        Ok(kept)
    }
}

impl WeightCache for Folder {
    fn has_room(&self, bytes: u64) -> bool {
        bytes <= self.bytes_max
    }

    fn take<'a>(&'a self, name: &'a str) -> LocalBoxFuture<'a, Result<Option<Vec<u8>>, ShelfError>> {
        Box::pin(ready(self.read(name)))
    }

    fn keep<'a>(&'a self, name: &'a str, bytes: &'a [u8]) -> LocalBoxFuture<'a, Result<(), ShelfError>> {
        Box::pin(ready(self.write(name, bytes)))
    }
}

fn failed(what: &str, path: &Path, error: &io::Error) -> ShelfError {
    ShelfError { reason: format!("cannot {what} {}: {error}", path.display()) }
}

/// Returns the default folder for frozen weights: `archipelago/frozen` in the cache folder of the environment `env`, or
/// `None` without a home folder.
pub fn default_shelf(env: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let set = |name| env(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").filter(|path| path.is_absolute());
    Some(cache.or_else(|| Some(set("HOME")?.join(".cache")))?.join("archipelago/frozen"))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn names(folder: &Folder) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(&folder.path)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn what_is_kept_comes_back() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::new(place.path().join("made/for/it"), 100);
        assert_eq!(folder.read("a"), Ok(None));
        folder.write("a", &[1; 60]).unwrap();
        folder.write("a", &[2; 30]).unwrap();
        assert_eq!(folder.read("a"), Ok(Some(vec![2; 30])));
        assert_eq!(names(&folder), ["a.part"], "no draft is left");
    }

    #[test]
    fn it_grows_no_further_than_it_may() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::new(place.path().to_owned(), 100);
        fs::write(place.path().join("notes.txt"), [0; 500]).unwrap();
        for (name, len, year) in [("old", 40, 1), ("older", 40, 0), ("new", 40, 2)] {
            folder.write(name, &vec![0; len]).unwrap();
            let written = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(year);
            File::options().write(true).open(folder.file(name)).unwrap().set_modified(written).unwrap();
        }
        // The third file did not fit next to two others; the older one was removed.
        assert_eq!(names(&folder), ["new.part", "notes.txt", "old.part"]);
        folder.write("all", &[0; 100]).unwrap();
        assert_eq!(names(&folder), ["all.part", "notes.txt"]);
        let error = folder.write("more", &[0; 101]).unwrap_err().to_string();
        assert!(error.contains("may hold 100 bytes, not 101"), "{error}");
        assert!(folder.has_room(100) && !folder.has_room(101));
    }

    #[test]
    fn a_folder_that_cannot_be_used_is_said() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("file");
        fs::write(&file, "x").unwrap();
        let folder = Folder::new(file, 100);
        assert!(folder.write("a", &[1]).unwrap_err().to_string().contains("cannot make"));
    }

    #[test]
    fn the_folder_follows_the_environment() {
        let folder = |xdg: &str, home: &str| {
            default_shelf(|name| Some(if name == "HOME" { home } else { xdg }.to_owned()))
        };
        assert_eq!(folder("/x", "/h").unwrap(), Path::new("/x/archipelago/frozen"));
        assert_eq!(folder("relative", "/h").unwrap(), Path::new("/h/.cache/archipelago/frozen"));
        assert_eq!(folder("", ""), None);
    }
}
