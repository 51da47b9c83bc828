//! Recomputation of a merge from stored states, bit for bit, and the encoding of a state as bytes.

use std::sync::Arc;

use crate::diloco::{
    Codec, Correction, FragmentState, MergeEntry, STATE_BYTES, Segment, binary16, checksum, decode_state,
    encode_state,
};
use crate::wire::Version;

/// Reason why a state does not match its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FollowError {
    /// Blob that is damaged or belongs to another fragment.
    #[error("the state of version {version} has checksum {actual:016x} and not {expected:016x}")]
    Damaged {
        /// Version of the state.
        version: Version,
        /// Checksum in the record.
        expected: u64,
        /// Checksum of the bytes.
        actual: u64,
    },
    /// Length that does not match the fragment.
    #[error("the state of version {version} has {bytes} bytes, which does not match {values} values")]
    Length {
        /// Version of the state.
        version: Version,
        /// Length of the blob in bytes.
        bytes: usize,
        /// Number of values of the fragment.
        values: usize,
    },
    /// Change from the previous version that differs from the recorded one.
    #[error("version {version} does not follow the version before it: run the same version on all machines")]
    Diverged {
        /// Version of the state.
        version: Version,
    },
}

/// Returns the Θ̂ that `merge` produced and the coded change from `before`, both bit for bit as at the leader.
/// `bytes` is the stored new state, and `sum` its recorded checksum.
///
/// If `before` is not the preceding version, the change is empty. Then it cannot be sent to learners, and they fetch
/// the fragment. `before` and the returned state have Θ̂ alone, also in place of Θ: the change is the difference
/// between the new Θ and the previous Θ̂, and does not depend on the previous Θ.
///
/// # Errors
/// All of [`FollowError`].
pub fn follow(
    before: &FragmentState,
    merge: &MergeEntry,
    (bytes, sum): (&[u8], u64),
    segments: &[Segment],
    codec: Codec,
) -> Result<(FragmentState, Vec<u8>), FollowError> {
    let &MergeEntry { round, fragment, base, version, .. } = merge;
    let actual = checksum(bytes);
    if actual != sum {
        return Err(FollowError::Damaged { version, expected: sum, actual });
    }
    let values = before.hat.len();
    let after = state_of(version, values, bytes);
    let after = after.ok_or(FollowError::Length { version, bytes: bytes.len(), values })?;
    if base != before.version {
        return Ok((FragmentState::of_hat(version, after.hat), Vec::new()));
    }
    let FragmentState { theta, momentum, .. } = after;
    let state = FragmentState::of_hat(before.version, Arc::clone(&before.hat));
    let segments = segments.to_vec();
    let step = Correction { round, fragment, state, theta, momentum, segments, codec, next: version };
    let outcome = step.run().map_err(|_| FollowError::Length { version, bytes: bytes.len(), values })?;
    if (outcome.checksum, outcome.digest) != (merge.checksum, merge.digest) {
        return Err(FollowError::Diverged { version });
    }
    Ok((FragmentState::of_hat(version, outcome.state.hat), outcome.body))
}

/// Encodes Θ and momentum as `f32`, then Θ̂ in 16 bits: 10 bytes for each value. A new leader continues from these
/// bytes.
#[must_use]
pub fn state_bytes(state: &FragmentState) -> Vec<u8> {
    let mut bytes = encode_state(state);
    bytes.extend(binary16::to_bytes(&state.hat));
    bytes
}

/// Decodes the output of [`state_bytes`] for a fragment of `len` values at `version`. Returns `None` if the length
/// differs.
#[must_use]
pub fn state_of(version: Version, len: usize, bytes: &[u8]) -> Option<FragmentState> {
    let (masters, hat) = bytes.split_at_checked(STATE_BYTES.checked_mul(len)?)?;
    if hat.len() != binary16::BYTES * len {
        return None;
    }
    let [theta, momentum] = decode_state(masters);
    Some(FragmentState { version, theta, hat: Arc::new(binary16::from_bytes(hat)), momentum })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::state_bytes;
    use crate::diloco::syncer::{Syncer, SyncerConfig};
    use crate::diloco::{MergeJob, MergeRule, OuterSpec, WeightedUpdate};
    use crate::testing::{layout, merge, part, spec};
    use crate::wire::{FragmentId, LearnerId, Round, RunId};

    const P: FragmentId = FragmentId(1);

    /// Goal: a gateway that has only states reproduces, bit for bit, the change that the leader computed. It detects
    /// a wrong state and a missing version.
    #[test]
    fn the_change_between_two_states_is_the_one_that_was_made() {
        let (layout, run) = (layout(), spec());
        let codec = Codec::new(&run.exchange).unwrap();
        let theta: Vec<f32> = (0..layout.len()).map(|i| (i as f32 * 0.37).sin()).collect();
        let syncer = Syncer::new(RunId(7), run, SyncerConfig::default(), &layout, &theta).unwrap();
        let segments = syncer.fragments().segments(P).unwrap().to_vec();
        let before = syncer.states().nth(1).unwrap().clone();
        let values: Vec<f32> = (0..before.theta.len()).map(|i| (i as f32).cos()).collect();
        let body = codec.check(&segments, codec.encode(&segments, &values)).unwrap();
        let learner = LearnerId(1);
        let job = MergeJob {
            round: Round(5),
            fragment: P,
            state: before.clone(),
            absent: 0.0,
            absent_experts: Vec::new(),
            updates: vec![WeightedUpdate { learner, weight: 1.0, experts: Vec::new(), steps: 3, body }],
            segments: segments.clone(),
            codec,
            rule: MergeRule::Radial,
            radii: Vec::new(),
            outer: OuterSpec::default(),
            next: Version(5),
        };
        let made = job.run().unwrap();
        let entry = MergeEntry {
            round: Round(5),
            version: Version(5),
            checksum: made.checksum,
            digest: made.digest,
            norm: made.norm,
            ..merge(P, part(learner, 24))
        };
        let bytes = state_bytes(&made.state);
        let sum = checksum(&bytes);
        let before = FragmentState::of_hat(before.version, before.hat);
        let hat = FragmentState::of_hat(made.state.version, Arc::clone(&made.state.hat));
        let found = follow(&before, &entry, (&bytes, sum), &segments, codec).unwrap();
        assert_eq!(found, (hat.clone(), made.body));

        let gap = MergeEntry { base: Version(4), ..entry.clone() };
        let found = follow(&before, &gap, (&bytes, sum), &segments, codec).unwrap();
        assert_eq!(found, (hat, Vec::new()));
        let other = MergeEntry { digest: 0, ..entry.clone() };
        let diverged = Err(FollowError::Diverged { version: Version(5) });
        assert_eq!(follow(&before, &other, (&bytes, sum), &segments, codec), diverged);
        let damaged = follow(&before, &entry, (&bytes[1..], sum), &segments, codec);
        assert!(matches!(damaged, Err(FollowError::Damaged { .. })), "{damaged:?}");
        let short = follow(&before, &entry, (&[], checksum(&[])), &segments, codec);
        assert_eq!(
            short,
            Err(FollowError::Length { version: Version(5), bytes: 0, values: before.hat.len() })
        );
    }

    #[test]
    fn a_state_comes_back_to_the_bit() {
        let mut state = FragmentState::new(vec![1.0 / 3.0, -2.5e-7, 0.0]);
        state.momentum = Arc::new(vec![0.1, -0.0, 3.0]);
        state.version = Version(7);
        let bytes = state_bytes(&state);
        assert_eq!(bytes.len(), 30);
        assert_eq!(state_of(Version(7), 3, &bytes), Some(state));
        assert_eq!(state_of(Version(7), 2, &bytes), None);
        assert_eq!(state_of(Version(7), 4, &bytes), None);
        assert_eq!(state_of(Version(7), usize::MAX, &bytes), None);
    }
}
