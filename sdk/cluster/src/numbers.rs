//! Which number a learner has, the same at whatever gateway it comes.

use std::sync::Arc;

use archipelago_core::diloco::checksum;
use archipelago_core::wire::{Fingerprint, FragmentId, LearnerId};

use crate::error::ServiceError;
use crate::service::Blobs;

/// Where it is kept who has which number: beside all fragments.
const NUMBERS: FragmentId = FragmentId(u16::MAX);
/// A number that somebody else has is tried no more than so often: with a million learners each try but the first fails
/// once in four thousand times.
const TRIES: u64 = 16;

/// The number of whoever has this identity, which is written down where nobody has it yet; `None` if all that may be
/// tried are others'.
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

/// The numbers that one with this identity tries, in order.
fn candidates(identity: Fingerprint) -> impl Iterator<Item = LearnerId> {
    (0..TRIES).map(move |turn| {
        let mut bytes = identity.0.to_vec();
        bytes.extend(turn.to_le_bytes());
        LearnerId(checksum(&bytes) as u32)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::Local;

    /// Goal: everybody has one number, wherever it is asked for, and nobody has that of another.
    #[tokio::test]
    async fn nobody_has_the_number_of_another() {
        let blobs = Local::services().blobs;
        let (anne, bert) = (Fingerprint([1; 16]), Fingerprint([2; 16]));
        let first = candidates(anne).next().unwrap();
        assert_eq!(number(&*blobs, anne).await, Ok(Some(first)));
        assert_eq!(number(&*blobs, anne).await, Ok(Some(first)), "once more");

        // Somebody else had what Bert tries first.
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
}
