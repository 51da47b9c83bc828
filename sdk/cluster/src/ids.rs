//! Identifiers of clusters, and the assignment of learner numbers, which is the same at every gateway.

use std::fmt;
use std::sync::Arc;

use archipelago_core::diloco::checksum;
use archipelago_core::wire::{Fingerprint, FragmentId, LearnerId, RunId};

use crate::service::{Blobs, ServiceError};

/// Fragment id under which assigned numbers are stored as blobs. No fragment has it.
const NUMBERS: FragmentId = FragmentId(u16::MAX);
/// Maximum number of candidate numbers for one identity. If a run has a million learners, about one candidate in four
/// thousand is already taken.
const TRIES: u64 = 16;

/// Returns the number of the learner with this identity, and stores it if it is new. Returns `None` if all candidates
/// belong to other learners.
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

/// Identifier of a cluster, called its *mark*. Streams and storage contain it, so that two clusters cannot share a
/// prefix, and a cluster cannot combine the tape of one run with the states of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterId {
    /// Run of the cluster.
    pub run: RunId,
    /// Random number of the process that created the cluster.
    pub nonce: u64,
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{:016x}", self.run.0, self.nonce)
    }
}

impl ClusterId {
    /// Parses the display form.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let (run, nonce) = text.trim().split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some(Self { run: RunId(number(run)?), nonce: number(nonce)? })
    }

    /// Describes that `self` was found where `ours` was expected.
    pub(crate) fn mismatch_with(&self, ours: &Self) -> String {
        format!("of run {self}, but this is run {ours}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::Local;

    /// Goal: each learner has the same number at every gateway, and no two learners share one.
    #[tokio::test]
    async fn learner_numbers_are_unique() {
        let blobs = Local::services().blobs;
        let (anne, bert) = (Fingerprint([1; 16]), Fingerprint([2; 16]));
        let first = candidates(anne).next().unwrap();
        assert_eq!(number(&*blobs, anne).await, Ok(Some(first)));
        assert_eq!(number(&*blobs, anne).await, Ok(Some(first)), "once more");

        // Bert's first candidate belongs to another learner.
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
