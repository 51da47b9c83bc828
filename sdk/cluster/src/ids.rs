//! Identifiers of clusters, and the assignment of learner numbers, the same at every gateway.

use std::fmt;
use std::sync::Arc;

use archipelago_core::diloco::checksum;
use archipelago_core::wire::{Fingerprint, FragmentId, LearnerId, RunId};

use crate::service::{Blobs, ServiceError};

/// Fragment id under which the blobs hold the assigned numbers, apart from all fragments.
const NUMBERS: FragmentId = FragmentId(u16::MAX);
/// Maximum number of candidate numbers for one identity. With a million learners, another learner already holds about
/// one candidate in four thousand.
const TRIES: u64 = 16;

/// Returns the number of the learner with this identity, and records it if it is new. Returns `None` if other learners
/// hold all candidate numbers.
///
/// # Errors
/// Those of [`Blobs::store`].
pub(crate) async fn number(
    blobs: &dyn Blobs,
    identity: Fingerprint,
) -> Result<Option<LearnerId>, ServiceError> {
    for number in candidates(identity) {
        let bytes = Arc::new(identity.0.to_vec());
        if blobs.store(NUMBERS, number.0.into(), bytes).await? {
            return Ok(Some(number));
        }
    }
    Ok(None)
}

/// Returns the candidate numbers for this identity, in order.
fn candidates(identity: Fingerprint) -> impl Iterator<Item = LearnerId> {
    (0..TRIES).map(move |turn| {
        let mut bytes = identity.0.to_vec();
        bytes.extend(turn.to_le_bytes());
        LearnerId(checksum(&bytes) as u32)
    })
}

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
    use crate::local::Local;

    /// Goal: each learner has one number at every gateway, and no two learners share one.
    #[tokio::test]
    async fn nobody_has_the_number_of_another() {
        let blobs = Local::services().blobs;
        let (anne, bert) = (Fingerprint([1; 16]), Fingerprint([2; 16]));
        let first = candidates(anne).next().unwrap();
        assert_eq!(number(&*blobs, anne).await, Ok(Some(first)));
        assert_eq!(number(&*blobs, anne).await, Ok(Some(first)), "once more");

        // Another learner holds Bert's first candidate.
        let mut tries = candidates(bert);
        let taken = tries.next().unwrap();
        let others = Arc::new(vec![9; 16]);
        assert_eq!(blobs.store(NUMBERS, taken.0.into(), others).await, Ok(true));
        assert_eq!(number(&*blobs, bert).await, Ok(tries.next()));
        for taken in tries {
            drop(blobs.store(NUMBERS, taken.0.into(), Arc::new(vec![9; 16])).await);
        }
        let carl = Fingerprint([3; 16]);
        for taken in candidates(carl) {
            drop(blobs.store(NUMBERS, taken.0.into(), Arc::new(vec![9; 16])).await);
        }
        assert_eq!(number(&*blobs, carl).await, Ok(None));
    }

    #[test]
    fn a_mark_is_read_as_it_was_written() {
        let mark = ClusterId { run: RunId(0xabc), nonce: u64::MAX };
        assert_eq!(ClusterId::read(&mark.to_string()), Some(mark));
        for text in ["", "7", "x-y", "7-", "-7"] {
            assert_eq!(ClusterId::read(text), None, "{text}");
        }
    }
}
