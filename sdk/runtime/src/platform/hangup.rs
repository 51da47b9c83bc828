//! SIGHUP, the signal that a process gets when its terminal closes.

use std::fs;

/// Bit of SIGHUP in the signal masks of `/proc`.
const SIGHUP_BIT: u64 = 1;

/// Returns true if SIGHUP should end this process. Returns false if the process was started with SIGHUP ignored, as by
/// `nohup`, and on systems without `/proc`, which do not report it.
#[must_use]
pub fn handles_sighup() -> bool {
    fs::read_to_string("/proc/self/status").is_ok_and(|status| !ignores_sighup(&status))
}

/// Returns true if `status`, the content of `/proc/self/status`, lists SIGHUP as ignored or has no valid list.
fn ignores_sighup(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_none_or(|mask| mask & SIGHUP_BIT != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nohup_is_respected() {
        assert!(ignores_sighup("Name:\tx\nSigIgn:\t0000000000001001\n"));
        assert!(!ignores_sighup("Name:\tx\nSigBlk:\t0000000000000001\nSigIgn:\t0000000000001000\n"));
        assert!(ignores_sighup("") && ignores_sighup("SigIgn:\tx\n"));
    }
}
