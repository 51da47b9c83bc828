//! Disk with injected faults that normal disks cannot produce on demand. A real program gets the system's errors for
//! its calls; `faulty_disk.c` next to this file intercepts them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// Injected fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFault {
    /// No fault.
    None,
    /// The file system is read-only, as after disk errors.
    ReadOnly,
    /// Writes succeed, but syncs fail.
    SyncFails,
    /// The disk does not answer.
    Hangs,
}

impl DiskFault {
    /// Returns the fault in the form that `faulty_disk.c` reads, with the system's error number.
    fn order(self) -> &'static str {
        match self {
            Self::None => "nothing",
            Self::ReadOnly => "write 30",
            Self::SyncFails => "sync 5",
            Self::Hangs => "hang 0",
        }
    }
}

/// Folder on a disk with injected faults.
#[derive(Debug)]
pub struct FaultyDisk {
    folder: PathBuf,
    dir: TempDir,
}

impl FaultyDisk {
    /// Puts `folder` on such a disk, for the programs of [`Self::under`].
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

    /// Returns the command that runs `program` on this disk.
    #[must_use]
    pub fn under(&self, program: PathBuf) -> Command {
        let mut command = Command::new(program);
        command.env("LD_PRELOAD", self.library());
        command.env("FAULTY_FOLDER", &self.folder).env("FAULTY_ORDER", self.order());
        command
    }

    /// Sets the fault from now on.
    ///
    /// # Panics
    /// If the order cannot be written.
    pub fn set(&self, fault: DiskFault) {
        // The write is atomic, so that no process reads half an order.
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
