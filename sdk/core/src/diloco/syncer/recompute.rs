//! Recomputation of a recorded merge.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::diloco::{
    Codec, FragmentState, KEPT_BYTES, LeaseError, MergeEntry, MergeError, MergeJob, MergeOutcome, QuantError,
    RemadeEntry, Segment, Weighted, checksum, unkept,
};
use crate::wire::{FragmentId, LearnerId, Version};

/// Error in an entry that does not follow its predecessors, or in the recomputation of a merge.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RecoveryError {
    /// A lease is out of sequence.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// The fragment does not exist.
    #[error("there is no fragment {0}")]
    NoFragment(FragmentId),
    /// The fragment is not at the version that the entry builds on.
    #[error("fragment {fragment} is at version {actual}, but the merge began at version {expected}")]
    Gap {
        /// The fragment.
        fragment: FragmentId,
        /// The version that the entry builds on.
        expected: Version,
        /// The current version.
        actual: Version,
    },
    /// The body of an update is missing.
    #[error("the update of learner {0} is missing: {1}")]
    Missing(LearnerId, String),
    /// The body of an update is not the one that was merged.
    #[error("the update of learner {0} is damaged: its checksum is {1:016x} instead of {2:016x}")]
    Damaged(LearnerId, u64, u64),
    /// The result of a rollback is missing or damaged.
    #[error("the rollback state of fragment {0} is missing: {1}")]
    Unkept(FragmentId, String),
    /// The body of an update cannot be decoded.
    #[error("the update of learner {0} cannot be read: {1}")]
    Body(LearnerId, QuantError),
    /// The updates cannot be merged.
    #[error(transparent)]
    Merge(#[from] MergeError),
    /// The recomputed merge differs from the recorded one.
    #[error(
        "recomputed, fragment {fragment} at version {version} has {what} {actual:016x} instead of {expected:016x}"
    )]
    Diverged {
        /// The fragment.
        fragment: FragmentId,
        /// The version.
        version: Version,
        /// Name of the value that differs.
        what: &'static str,
        /// The recomputed value.
        actual: u64,
        /// The recorded value.
        expected: u64,
    },
}

/// Recomputes `merge` on `state`, which advances, without the updates of the learners in `without`. `body` returns the
/// next recorded update, in order, of the given number of bytes. Returns `None` if no update is left: then only the
/// version advances.
///
/// # Errors
/// `Gap`, `Missing`, `Damaged`, `Body`, `Merge`; then `state` is unchanged.
pub(super) fn again(
    codec: &Codec,
    segments: &[Segment],
    state: &mut FragmentState,
    merge: &MergeEntry,
    without: &BTreeSet<LearnerId>,
    mut body: impl FnMut(usize) -> Result<Vec<u8>, String>,
) -> Result<Option<MergeOutcome>, RecoveryError> {
    let &MergeEntry { round, fragment, base, version, rule, outer, absent, .. } = merge;
    at_base(fragment, base, state)?;
    let len = codec.body_bytes(segments);
    let mut updates = Vec::with_capacity(merge.parts.len());
    for (at, part) in merge.parts.iter().enumerate() {
        let learner = part.learner;
        let bytes = body(len).map_err(|why| RecoveryError::Missing(learner, why))?;
        if without.contains(&learner) {
            continue;
        }
        let sum = checksum(&bytes);
        if sum != part.checksum {
            return Err(RecoveryError::Damaged(learner, sum, part.checksum));
        }
        let body = codec.check(segments, bytes).map_err(|error| RecoveryError::Body(learner, error))?;
        let steps = part.reach_steps.unwrap_or(part.steps);
        // A weight that is missing on the tape becomes NaN, which the merge rejects.
        let experts =
            merge.experts.iter().map(|of| of.weights.get(at).copied().unwrap_or(f64::NAN)).collect();
        updates.push(Weighted { learner, weight: part.weight, experts, steps, body });
    }
    if updates.is_empty() && !merge.parts.is_empty() {
        state.version = version;
        return Ok(None);
    }
    // Clones of the state share its tensors. The state is moved out so that the job need not copy them.
    let before = std::mem::replace(state, FragmentState::new(Vec::new()));
    let (segments, radii) = (segments.to_vec(), merge.radii.clone());
    let job = MergeJob {
        round,
        fragment,
        state: before,
        absent,
        absent_experts: merge.experts.iter().map(|of| of.absent).collect(),
        updates,
        segments,
        codec: *codec,
        rule,
        radii,
        outer,
        next: version,
    };
    match job.run() {
        Ok(outcome) => {
            *state = outcome.state.clone();
            Ok(Some(outcome))
        }
        Err(failure) => {
            *state = failure.state;
            Err(failure.error.into())
        }
    }
}

/// Checks that `state` is at the version that an entry builds on.
pub(super) fn at_base(
    fragment: FragmentId,
    base: Version,
    state: &FragmentState,
) -> Result<(), RecoveryError> {
    let actual = state.version;
    if base == actual { Ok(()) } else { Err(RecoveryError::Gap { fragment, expected: base, actual }) }
}

/// Reads Θ and the momentum, `len` values each, that a rollback recorded.
pub(super) fn read_kept(
    remade: &RemadeEntry,
    len: usize,
    mut body: impl FnMut(usize) -> Result<Vec<u8>, String>,
) -> Result<[Arc<Vec<f32>>; 2], RecoveryError> {
    let wrong = |why| RecoveryError::Unkept(remade.fragment, why);
    let bytes = body(KEPT_BYTES * len).map_err(wrong)?;
    let sum = checksum(&bytes);
    if sum != remade.kept {
        return Err(wrong(format!("its checksum is {sum:016x} instead of {:016x}", remade.kept)));
    }
    Ok(unkept(&bytes))
}
