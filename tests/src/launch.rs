//! Start of a syncer with limits, or on a special disk.

use std::path::PathBuf;
use std::process::Command;

use crate::{faulty_disk::FaultyDisk, small_disk::SmallDisk};

/// Environment of a syncer, and the number of its runs.
pub(crate) enum Serves {
    /// One run.
    One,
    /// One run, with a largest file size in bytes.
    Limited(u64),
    /// One run, with a largest number of open files and sockets.
    Crowded(u32),
    /// A run in each of its folders.
    Several,
    /// One run, in a file system of its own.
    OnSmallDisk(SmallDisk),
    /// One run, on a disk with injected faults.
    OnFaultyDisk(FaultyDisk),
}

impl Serves {
    /// Returns the environment of later starts; limits apply only to the first one.
    pub(crate) fn lasting(&self) -> &Self {
        if matches!(self, Self::Limited(_) | Self::Crowded(_)) { &Self::One } else { self }
    }

    /// Returns the command that runs `program` in this environment.
    pub(crate) fn command(&self, program: PathBuf) -> Command {
        match self {
            Self::One | Self::Several => Command::new(program),
            // The shell counts in blocks of 512 bytes. With the signal ignored, a write beyond the limit is an error.
            Self::Limited(bytes) => under(&format!("trap '' XFSZ; ulimit -S -f {}", bytes / 512), program),
            Self::Crowded(descriptors) => under(&format!("ulimit -n {descriptors}"), program),
            Self::OnSmallDisk(disk) => disk.inside(program),
            Self::OnFaultyDisk(disk) => disk.under(program),
        }
    }
}

/// Returns the command that runs `program` in a shell that has set `limits`.
fn under(limits: &str, program: PathBuf) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{limits}; exec \"$0\" \"$@\"")]).arg(program);
    shell
}
