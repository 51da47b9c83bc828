//! A disk that fails when it is told to, in ways that no common one can be made to: a real program gets the errors of
//! the system in the place of what it asked for. `faulty_disk.c` beside this file stands between the two.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// What fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFault {
    /// Nothing.
    None,
    /// The system has made the file system read-only, as it does after errors of the disk.
    ReadOnly,
    /// The disk takes writes and cannot keep them.
    SyncFails,
    /// It does not answer.
    Hangs,
}

impl DiskFault {
    /// As `faulty_disk.c` reads it, with the number of the system's error.
    fn order(self) -> &'static str {
        match self {
            Self::None => "nothing",
            Self::ReadOnly => "write 30",
            Self::SyncFails => "sync 5",
            Self::Hangs => "hang 0",
        }
    }
}

/// A folder on a disk that fails.
#[derive(Debug)]
pub struct FaultyDisk {
    folder: PathBuf,
    dir: TempDir,
}

impl FaultyDisk {
    /// Makes `folder` lie on one, for the programs of [`Self::under`].
    ///
    /// # Panics
    /// If there is no C compiler.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let disk = Self { folder: folder.to_owned(), dir };
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src/faulty_disk.c");
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(disk.library())
            .args([source, "-ldl"])
            .status();
        assert!(built.is_ok_and(|status| status.success()), "the C compiler cannot build {source}");
        disk.set(DiskFault::None);
        disk
    }

    /// `program`, which meets this disk.
    #[must_use]
    pub fn under(&self, program: PathBuf) -> Command {
        let mut command = Command::new(program);
        command.env("LD_PRELOAD", self.library());
        command.env("FAULTY_FOLDER", &self.folder).env("FAULTY_ORDER", self.order());
        command
    }

    /// What fails from now on.
    ///
    /// # Panics
    /// If the order cannot be written.
    pub fn set(&self, fault: DiskFault) {
        // As a whole: nobody may read half an order.
        let new = self.dir.path().join("new");
        fs::write(&new, fault.order()).and_then(|()| fs::rename(&new, self.order())).expect("an order");
    }

    fn library(&self) -> PathBuf {
        self.dir.path().join("faulty_disk.so")
    }

    fn order(&self) -> PathBuf {
        self.dir.path().join("order")
    }
}
