//! Samples of a run's processes and folder.

use std::fs;
use std::path::Path;

use archipelago_demo::Process;

/// Resources of one process; 0 where the system does not report them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Held {
    /// Resident memory, in bytes.
    pub rss_bytes: u64,
    /// Open files and sockets.
    pub files: u64,
    pub threads: u64,
}

/// Sample at one time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Look {
    /// Time since the start, in seconds.
    pub at_s: f64,
    pub syncer: Held,
    /// Maximum over all learners, for each figure separately.
    pub learner: Held,
    /// Size of all files of the run, in bytes.
    pub disk_bytes: u64,
    /// Bytes of updates received since the start of this syncer.
    pub bytes_up: u64,
    /// Merges of the run so far.
    pub merges: u64,
    /// Number of the syncer's life, from 1.
    pub life: u32,
}

/// Returns the resources of `process`.
pub fn held(process: &Process) -> Held {
    let folder = Path::new("/proc").join(process.pid().to_string());
    let status = fs::read_to_string(folder.join("status")).unwrap_or_default();
    let files = fs::read_dir(folder.join("fd")).map_or(0, |files| files.count() as u64);
    Held { rss_bytes: 1_024 * field(&status, "VmRSS:"), files, threads: field(&status, "Threads:") }
}

/// Returns the maximum of each figure.
pub fn larger(a: Held, b: Held) -> Held {
    Held {
        rss_bytes: a.rss_bytes.max(b.rss_bytes),
        files: a.files.max(b.files),
        threads: a.threads.max(b.threads),
    }
}

/// Returns the size of all files below `folder`. Files that disappear meanwhile count as 0.
pub fn disk_bytes(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(data) if data.is_dir() => disk_bytes(&entry.path()),
        Ok(data) => data.len(),
        Err(_) => 0,
    };
    entries.flatten().map(size).sum()
}

fn field(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_by_its_name() {
        let status = "Name:\tx\nVmRSS:\t   5120 kB\nThreads:\t7\n";
        assert_eq!(
            (field(status, "VmRSS:"), field(status, "Threads:"), field(status, "Other:")),
            (5_120, 7, 0)
        );
    }

    #[test]
    fn a_folder_is_as_large_as_its_files() {
        // Two files of this crate, one of them in a subfolder.
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bench/soak");
        let gauge = fs::metadata(folder.join("gauge.rs")).unwrap().len();
        assert!(disk_bytes(&folder) > gauge && disk_bytes(folder.parent().unwrap()) > disk_bytes(&folder));
        assert_eq!(disk_bytes(&folder.join("nowhere")), 0);
    }
}
