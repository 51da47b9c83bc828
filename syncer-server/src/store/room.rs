//! Free disk space of a folder.

use std::path::Path;

/// Returns the number of bytes that this program may still write on the disk of `dir`, or `None` if the system does not
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

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_room_and_one_that_is_not_there_has_none() {
        let dir = tempfile::tempdir().unwrap();
        assert!(free_bytes(dir.path()).is_some());
        assert_eq!(free_bytes(&dir.path().join("not-there")), None);
    }
}
