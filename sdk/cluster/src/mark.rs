//! The mark of a cluster: whose streams and states are.

use std::fmt;

use archipelago_core::wire::RunId;

/// What belongs to one cluster has one mark: streams and blobs say whose they are, so that two clusters do not use one
/// prefix, nor one cluster the tape of one run and the states of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The run.
    pub run: RunId,
    /// A random number of whoever began the cluster.
    pub nonce: u64,
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{:016x}", self.run.0, self.nonce)
    }
}

impl Mark {
    /// What `to_string` wrote.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let (run, nonce) = text.trim().split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some(Self { run: RunId(number(run)?), nonce: number(nonce)? })
    }

    /// Whose it is beside whose it should be, in words.
    pub(crate) fn beside(&self, ours: &Self) -> String {
        format!("of run {self}, and this is {ours}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_as_it_was_written() {
        let mark = Mark { run: RunId(0xabc), nonce: u64::MAX };
        assert_eq!(Mark::read(&mark.to_string()), Some(mark));
        for text in ["", "7", "x-y", "7-", "-7"] {
            assert_eq!(Mark::read(text), None, "{text}");
        }
    }
}
