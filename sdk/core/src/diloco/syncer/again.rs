//! A merge that is on the tape, computed once more.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::diloco::{
    Codec, FragmentState, KEPT_BYTES, LeaseError, MergeEntry, MergeError, MergeJob, MergeOutcome, QuantError,
    RemadeEntry, Segment, Weighted, checksum, unkept,
};
use crate::wire::{FragmentId, LearnerId, Version};

/// Why an entry does not follow on what came before it, or a merge cannot be computed again.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RecoveryError {
    /// A lease is not the next one.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// There is no such fragment.
    #[error("there is no fragment {0}")]
    NoFragment(FragmentId),
    /// The version that was merged onto is not the one that is there.
    #[error("fragment {fragment} is at version {actual}, and was merged onto version {expected}")]
    Gap {
        /// The fragment.
        fragment: FragmentId,
        /// The version that the entry is about.
        expected: Version,
        /// The version that is there.
        actual: Version,
    },
    /// The body of an update is not there.
    #[error("the update of learner {0} is missing: {1}")]
    Missing(LearnerId, String),
    /// The body of an update is not the one that was merged.
    #[error("the update of learner {0} is damaged: its checksum is {1:016x} and was {2:016x}")]
    Damaged(LearnerId, u64, u64),
    /// What an undoing led to is not there, or is not what was kept.
    #[error("what fragment {0} was undone to is missing: {1}")]
    Unkept(FragmentId, String),
    /// The body of an update is none.
    #[error("the update of learner {0} cannot be read: {1}")]
    Body(LearnerId, QuantError),
    /// It cannot be merged.
    #[error(transparent)]
    Merge(#[from] MergeError),
    /// Merged again, it gives something else.
    #[error(
        "merged again, fragment {fragment} at version {version} has {what} {actual:016x} and had {expected:016x}"
    )]
    Diverged {
        /// The fragment.
        fragment: FragmentId,
        /// The version.
        version: Version,
        /// What differs.
        what: &'static str,
        /// As it is now.
        actual: u64,
        /// As the tape has it.
        expected: u64,
    },
}

/// Computes `merge` again on `state`, which moves on, without the updates of some learners. `body` gives the next of
/// what was sent for it, in order, of so many bytes. `None` if nothing of it is left: then only the version moves.
///
/// # Errors
/// `Gap`, `Missing`, `Damaged`, `Body`, `Merge`; then `state` is as it was.
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
        // What a tape lacks is no weight, and says so.
        let experts =
            merge.experts.iter().map(|of| of.weights.get(at).copied().unwrap_or(f64::NAN)).collect();
        updates.push(Weighted { learner, weight: part.weight, experts, steps, body });
    }
    if updates.is_empty() && !merge.parts.is_empty() {
        state.version = version;
        return Ok(None);
    }
    // Copies of the state cost nothing, and this one is given up before the job changes it.
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

/// Whether `state` is the one that something was done to.
pub(super) fn at_base(
    fragment: FragmentId,
    base: Version,
    state: &FragmentState,
) -> Result<(), RecoveryError> {
    let actual = state.version;
    if base == actual { Ok(()) } else { Err(RecoveryError::Gap { fragment, expected: base, actual }) }
}

/// Θ and the momentum, of `len` values each, that an undoing led to.
pub(super) fn read_kept(
    remade: &RemadeEntry,
    len: usize,
    mut body: impl FnMut(usize) -> Result<Vec<u8>, String>,
) -> Result<[Arc<Vec<f32>>; 2], RecoveryError> {
    let wrong = |why| RecoveryError::Unkept(remade.fragment, why);
    let bytes = body(KEPT_BYTES * len).map_err(wrong)?;
    let sum = checksum(&bytes);
    if sum != remade.kept {
        return Err(wrong(format!("its checksum is {sum:016x} and was {:016x}", remade.kept)));
    }
    Ok(unkept(&bytes))
}
