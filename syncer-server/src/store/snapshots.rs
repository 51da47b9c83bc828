//! Reading, writing and removal of the snapshots in a run's folder.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use archipelago_core::wire::RunId;

use super::{Snapshot, Store, disk, is_there, or_remove, publish, temporary};
use crate::errors::ServerError;
use crate::progress::{Cancellation, Progress};

impl Store {
    /// Returns the newest intact snapshot of `run`. Damaged ones are skipped with a warning.
    ///
    /// # Errors
    /// - `Disk`: the folder cannot be read.
    /// - `DirCorrupt`: there are snapshots, but none is intact and belongs to `run`.
    pub fn latest(&self, run: RunId) -> Result<Option<Snapshot>, ServerError> {
        let paths = self.snapshots()?;
        let mut last_fault = None;
        for path in paths.iter().rev() {
            // Missing permission is no damage, so an older snapshot must not be used instead.
            File::open(path).map_err(disk("read", path))?;
            match Snapshot::read(path) {
                Ok(snapshot) if snapshot.record.run == run => return Ok(Some(snapshot)),
                Ok(snapshot) => last_fault = Some(format!("it is of run {}, not {run}", snapshot.record.run)),
                Err(why) => {
                    tracing::warn!(snapshot = %path.display(), %why, "snapshot is damaged; using the one before it");
                    last_fault = Some(why);
                }
            }
        }
        match last_fault {
            None => Ok(None),
            Some(why) => Err(ServerError::DirCorrupt {
                path: self.dir.join("snapshots"),
                why: format!(
                    "no snapshot can be used ({why}): give --dir another folder, or move this one away"
                ),
            }),
        }
    }

    /// Returns the oldest intact snapshot of `run`.
    ///
    /// # Errors
    /// `Disk`: the folder cannot be read.
    pub fn oldest(&self, run: RunId) -> Result<Option<Snapshot>, ServerError> {
        let whole = |path: &PathBuf| Snapshot::read(path).ok().filter(|snapshot| snapshot.record.run == run);
        Ok(self.snapshots()?.iter().find_map(whole))
    }

    /// Describes the damaged snapshots, each with its file. A start skips them. A syncer may remove snapshots in the
    /// meantime.
    ///
    /// # Errors
    /// `Disk`: the folder cannot be read.
    pub fn damaged_snapshots(&self, run: RunId) -> Result<Vec<String>, ServerError> {
        let wrong = |path: &PathBuf| {
            let why = match Snapshot::read(path) {
                Ok(snapshot) if snapshot.record.run == run => return None,
                Ok(snapshot) => format!("it is of run {}", snapshot.record.run),
                Err(_) if !path.exists() => return None,
                Err(why) => why,
            };
            Some(format!("{}: {why}", path.display()))
        };
        Ok(self.snapshots()?.iter().filter_map(wrong).collect())
    }

    /// Writes `snapshot` as the newest one. Of the others, keeps only the newest intact one.
    ///
    /// # Errors
    /// `Disk`: the snapshot cannot be written. The earlier ones remain.
    pub fn save(&self, snapshot: &Snapshot) -> Result<PathBuf, ServerError> {
        self.save_with(snapshot, &Progress::silent(&Cancellation::default()))
    }

    /// Does the same as [`Self::save`], and reports to `progress`, which may be cancelled.
    ///
    /// # Errors
    /// - `Disk`: the snapshot cannot be written. The earlier ones remain.
    /// - `Cancelled`: the write was cancelled. The earlier ones remain.
    pub(crate) fn save_with(&self, snapshot: &Snapshot, progress: &Progress) -> Result<PathBuf, ServerError> {
        let before = self.snapshots()?;
        let next = before.last().map_or(1, |path| number(path).unwrap_or(0) + 1);
        let folder = self.dir.join("snapshots");
        let path = folder.join(format!("{next:08}.safetensors"));
        let partial = temporary::partial(&path);
        let written = snapshot.write(&partial, progress).map_err(disk("write", &partial));
        let written = progress.check().and(written);
        or_remove(written.and_then(|()| publish(&partial, &path)), &partial)?;
        let is_whole = |path: &&PathBuf| Snapshot::check(path).is_ok_and(|run| run == snapshot.record.run);
        let keep = before.iter().rev().find(is_whole);
        for old in before.iter().filter(|&old| Some(old) != keep) {
            fs::remove_file(old).map_err(disk("remove", old))?;
        }
        Ok(path)
    }

    /// Returns the paths of all snapshots, oldest first.
    pub(crate) fn snapshots(&self) -> Result<Vec<PathBuf>, ServerError> {
        let folder = self.dir.join("snapshots");
        if !is_there(&folder)? {
            return Ok(Vec::new());
        }
        let mut paths = Vec::new();
        for entry in fs::read_dir(&folder).map_err(disk("read", &folder))? {
            let path = entry.map_err(disk("read", &folder))?.path();
            if path.extension().is_some_and(|ending| ending == "safetensors") && number(&path).is_some() {
                paths.push(path);
            }
        }
        paths.sort_by_key(|path| number(path));
        Ok(paths)
    }
}

fn number(path: &Path) -> Option<u64> {
    path.file_stem()?.to_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::write_file;
    use super::*;

    #[test]
    fn a_failed_write_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("held.json");
        fs::create_dir(&path).unwrap();
        assert!(write_file(&path, b"bytes").is_err(), "a folder is in its place");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "half a file is left");
    }
}
