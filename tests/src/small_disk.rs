//! Disks with faults: a small file system that can fill up and be made read-only, and one with injected errors.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::processes::kill;

/// Environment variable that skips the tests on mounted disks if its value is `no`.
const SWITCH: &str = "ARCHIPELAGO_TEST_MOUNTS";
/// File that takes up the free space, in the root of the disk.
const BALLAST: &str = "ballast";

/// Returns true if the tests on mounted disks are skipped, and prints the reason: they are switched off, or mounting is
/// not permitted.
#[must_use]
#[expect(clippy::print_stdout, reason = "what a test leaves out stands in its output")]
pub fn is_left_out() -> bool {
    let is_off = std::env::var(SWITCH).is_ok_and(|value| value == "no");
    let is_left_out = is_off || !(may(&["--mount"]) || may(&["--map-root-user", "--mount"]));
    if is_left_out {
        println!("left out: {SWITCH}=no, or this system lets only root mount file systems");
    }
    is_left_out
}

/// Returns true if `unshare` may create namespaces with `flags`.
fn may(flags: &[&str]) -> bool {
    let tried = Command::new("unshare").args(flags).arg("true").stderr(Stdio::null()).status();
    tried.is_ok_and(|status| status.success())
}

/// Mounted file system. Dropping it unmounts it.
#[derive(Debug)]
pub struct SmallDisk {
    /// Process that keeps the namespace until its standard input ends.
    keeper: Child,
    mounted_at: PathBuf,
    /// True if the mounting process is root only inside the namespace.
    is_rootless: bool,
}

impl SmallDisk {
    /// Creates `path` and mounts a file system of `bytes` bytes there.
    ///
    /// # Panics
    /// If the system refuses.
    #[must_use]
    pub fn mount(path: &Path, bytes: u64) -> Self {
        fs::create_dir_all(path).expect("a folder to mount it on");
        let is_rootless = !may(&["--mount"]);
        let script = "mount -t tmpfs -o \"size=$1\" tmpfs \"$0\" && echo mounted && exec cat";
        let mut unshare = Command::new("unshare");
        if is_rootless {
            unshare.arg("--map-root-user");
        }
        unshare.args(["--mount", "sh", "-c", script]).arg(path).arg(bytes.to_string());
        unshare.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut keeper = unshare.spawn().expect("unshare can be started");
        let mut said = [0; 8];
        let out = keeper.stdout.as_mut().expect("it is piped");
        let is_there = out.read_exact(&mut said).is_ok() && said == *b"mounted\n";
        assert!(is_there, "the file system cannot be mounted");
        Self { keeper, mounted_at: path.to_owned(), is_rootless }
    }

    /// Returns the command that runs `program` inside the namespace.
    #[must_use]
    pub fn inside(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.keeper.id().to_string(), "--mount"]);
        if self.is_rootless {
            command.args(["--user", "--preserve-credentials"]);
        }
        command.arg("--").arg(program);
        command
    }

    /// Returns the path of `name` on the file system, for processes outside the namespace.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.keeper.id()));
        root.join(self.mounted_at.strip_prefix("/").expect("it is mounted at an absolute path")).join(name)
    }

    /// Sets the size of the file system to `bytes`.
    ///
    /// # Panics
    /// If the system refuses.
    pub fn resize(&self, bytes: u64) {
        self.mount_again(&format!("remount,size={bytes}"), &self.mounted_at);
    }

    /// Makes the file system read-only, or writable again. None of its files may be open for writing.
    ///
    /// # Panics
    /// If the system refuses.
    pub fn set_read_only(&self, is_read_only: bool) {
        self.mount_again(if is_read_only { "remount,ro" } else { "remount,rw" }, &self.mounted_at);
    }

    /// Makes the folder `name` on the file system read-only, or writable again, even while a process works in it.
    ///
    /// # Panics
    /// If the system refuses.
    pub fn set_folder_read_only(&self, name: &str, is_read_only: bool) {
        let folder = self.mounted_at.join(name);
        if !is_read_only {
            return succeed(self.inside("umount").arg(folder));
        }
        succeed(self.inside("mount").arg("--bind").args([&folder, &folder]));
        self.mount_again("remount,bind,ro", &folder);
    }

    fn mount_again(&self, how: &str, path: &Path) {
        succeed(self.inside("mount").args(["-o", how]).arg(path));
    }

    /// Fills the file system completely.
    ///
    /// # Panics
    /// If a write fails for another reason.
    pub fn fill(&self) {
        let mut ballast =
            File::options().append(true).create(true).open(self.path(BALLAST)).expect("a file for it");
        loop {
            match ballast.write_all(&[1; 4_096]) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => return,
                Err(error) => panic!("the disk cannot be filled: {error}"),
            }
        }
    }

    /// Frees the space that [`Self::fill`] took.
    ///
    /// # Panics
    /// If it took none.
    pub fn free(&self) {
        fs::remove_file(self.path(BALLAST)).expect("it was filled");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        kill(&mut self.keeper);
    }
}

fn succeed(command: &mut Command) {
    let status = command.status();
    assert!(status.is_ok_and(|status| status.success()), "{command:?} fails");
}

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
    /// Puts `folder` on a disk with injected faults, for the programs of [`Self::under`].
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
