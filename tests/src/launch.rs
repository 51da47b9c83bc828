//! How a syncer is started: with which limits, and on which disk.

use std::path::PathBuf;
use std::process::Command;

use crate::{faulty_disk::FaultyDisk, small_disk::SmallDisk};

/// What a syncer serves from its folder, and in what surroundings.
pub(crate) enum Serves {
    /// One run.
    One,
    /// One run, where no file may be longer than so many bytes.
    Limited(u64),
    /// One run, by a program that may have so many files and sockets open.
    Crowded(u32),
    /// A run in each of its folders.
    Several,
    /// One run, in a file system of its own.
    OnSmallDisk(SmallDisk),
    /// One run, on a disk that fails when it is told to.
    OnFaultyDisk(FaultyDisk),
}

impl Serves {
    /// The same for a later start: limits were for the first one.
    pub(crate) fn lasting(&self) -> &Self {
        if matches!(self, Self::Limited(_) | Self::Crowded(_)) { &Self::One } else { self }
    }

    /// `program` in these surroundings.
    pub(crate) fn command(&self, program: PathBuf) -> Command {
        match self {
            Self::One | Self::Several => Command::new(program),
            // The shell counts in blocks of 512 bytes. A write beyond the limit is an error then, and no signal.
            Self::Limited(bytes) => under(&format!("trap '' XFSZ; ulimit -S -f {}", bytes / 512), program),
            Self::Crowded(descriptors) => under(&format!("ulimit -n {descriptors}"), program),
            Self::OnSmallDisk(disk) => disk.inside(program),
            Self::OnFaultyDisk(disk) => disk.under(program),
        }
    }
}

/// `program`, started by a shell that has set `limits`.
fn under(limits: &str, program: PathBuf) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{limits}; exec \"$0\" \"$@\"")]).arg(program);
    shell
}
