//! Identifier of a cluster, which marks its streams and states.

use std::fmt;

use archipelago_core::wire::RunId;

/// Identity of a cluster. Streams and blobs carry it, so that two clusters cannot share a prefix, and a cluster cannot
/// combine the tape of one run with the states of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterId {
    /// Run of the cluster.
    pub run: RunId,
    /// Random number from the process that created the cluster.
    pub nonce: u64,
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{:016x}", self.run.0, self.nonce)
    }
}

impl ClusterId {
    /// Parses the output of `to_string`.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let (run, nonce) = text.trim().split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some(Self { run: RunId(number(run)?), nonce: number(nonce)? })
    }

    /// Describes a mismatch with the expected mark.
    pub(crate) fn beside(&self, ours: &Self) -> String {
        format!("of run {self}, but this is run {ours}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_as_it_was_written() {
        let mark = ClusterId { run: RunId(0xabc), nonce: u64::MAX };
        assert_eq!(ClusterId::read(&mark.to_string()), Some(mark));
        for text in ["", "7", "x-y", "7-", "-7"] {
            assert_eq!(ClusterId::read(text), None, "{text}");
        }
    }
}
