//! The signal of a terminal that closes.

use std::fs;

/// The bit of SIGHUP in the masks of `/proc`.
const SIGHUP_BIT: u64 = 1;

/// Returns whether SIGHUP is to end this process politely. It is not if whoever started it had it ignored, as `nohup`
/// does, nor where the system does not say so (Linux does).
#[must_use]
pub fn hears_hangup() -> bool {
    fs::read_to_string("/proc/self/status").is_ok_and(|status| !ignores_hangup(&status))
}

/// Whether the mask of ignored signals in `status` holds SIGHUP; true if there is no such mask.
fn ignores_hangup(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_none_or(|mask| mask & SIGHUP_BIT != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nohup_is_respected() {
        assert!(ignores_hangup("Name:\tx\nSigIgn:\t0000000000001001\n"));
        assert!(!ignores_hangup("Name:\tx\nSigBlk:\t0000000000000001\nSigIgn:\t0000000000001000\n"));
        assert!(ignores_hangup("") && ignores_hangup("SigIgn:\tx\n"));
    }
}
