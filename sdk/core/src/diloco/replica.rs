//! A learner's copy of what the syncer knows it to hold, in host memory.

use std::sync::Arc;

use super::{Codec, FragmentId, Fragments, QuantError, Segment};
use crate::wire::ApplyPolicy;

/// Θ̂ as this learner holds it, and what it last reported of each fragment.
///
/// Parameters θ stay with the engine and come in as a flat vector, `[layout.len()]`.
#[derive(Clone, Debug)]
pub struct Replica {
    fragments: Arc<Fragments>,
    codec: Codec,
    policy: ApplyPolicy,
    hat: Vec<f32>,
    /// For each fragment, the θ that the update coded last stands for, until a change comes in.
    reported: Vec<Option<Vec<f32>>>,
}

/// Why a replica did nothing. It is unchanged then, and so is θ.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum ReplicaError {
    /// No such fragment.
    #[error("fragment {fragment} of {count}")]
    Fragment {
        /// The fragment asked for.
        fragment: FragmentId,
        /// How many there are.
        count: u16,
    },
    /// Parameters or values are not as many as the layout or the fragment has.
    #[error("{actual} values where there should be {expected}")]
    Length {
        /// Values that belong there.
        expected: usize,
        /// Values there are.
        actual: usize,
    },
    /// A parameter is infinite or no number: training diverged, load the fragment again.
    #[error("parameter {index} of fragment {fragment} is not finite: load the fragment again")]
    NotFinite {
        /// The fragment.
        fragment: FragmentId,
        /// Index within it.
        index: usize,
    },
    /// An update is said to be merged that was never coded.
    #[error("no update of fragment {fragment} was coded since its last change")]
    NothingReported {
        /// The fragment.
        fragment: FragmentId,
    },
    /// The body cannot be decoded.
    #[error(transparent)]
    Body(#[from] QuantError),
}

impl Replica {
    /// A replica with Θ̂ = 0; [`Self::load`] each fragment before coding.
    #[must_use]
    pub fn new(fragments: Arc<Fragments>, codec: Codec, policy: ApplyPolicy) -> Self {
        let len = fragments.ids().map(|p| fragments.len(p)).sum();
        let reported = fragments.ids().map(|_| None).collect();
        Self { fragments, codec, policy, hat: vec![0.0; len], reported }
    }

    /// Θ̂, `[layout.len()]`.
    #[must_use]
    pub fn hat(&self) -> &[f32] {
        &self.hat
    }

    /// Codes `Θ̂ − θ` of `fragment` and remembers the position that this reports: θ itself, or with
    /// `residue` kept, Θ̂ less what the code stands for.
    ///
    /// # Errors
    /// [`ReplicaError::Fragment`], [`ReplicaError::Length`], and [`ReplicaError::NotFinite`] if θ or
    /// `Θ̂ − θ` is not finite somewhere in the fragment.
    pub fn encode(&mut self, fragment: FragmentId, theta: &[f32]) -> Result<Vec<u8>, ReplicaError> {
        let segments = self.checked(fragment, theta)?;
        let mut position = self.fragments.gather(fragment, theta);
        let mut delta = self.fragments.gather(fragment, &self.hat);
        for (delta, theta) in delta.iter_mut().zip(&position) {
            *delta -= theta;
        }
        all_finite(fragment, &delta)?;
        let body = self.codec.encode(segments, &delta);
        match self.policy {
            ApplyPolicy::Keep { residue: true } => {
                self.codec.decode_into(segments, &body, &mut delta)?;
                position = self.fragments.gather(fragment, &self.hat);
                for (position, delta) in position.iter_mut().zip(&delta) {
                    *position -= delta;
                }
                self.reported[usize::from(fragment.0)] = Some(position);
            }
            ApplyPolicy::Keep { residue: false } | ApplyPolicy::Blend { .. } => {
                self.reported[usize::from(fragment.0)] = Some(position);
            }
            ApplyPolicy::Overwrite => {}
        }
        Ok(body)
    }

    /// `Θ̂ += decode(body)` on `fragment`, then θ by the policy. `included`: whether the update coded
    /// last was merged in this round.
    ///
    /// With `reference` = the reported position if `included`, else the old Θ̂:
    /// - [`ApplyPolicy::Keep`]: `θ = Θ̂ + (θ − reference)`;
    /// - [`ApplyPolicy::Overwrite`]: `θ = Θ̂`;
    /// - [`ApplyPolicy::Blend`]: `θ = Θ̂ + α (θ − reference)`.
    ///
    /// # Errors
    /// [`ReplicaError::Fragment`], [`ReplicaError::Length`], [`ReplicaError::Body`], and
    /// [`ReplicaError::NothingReported`] if `included` without an update.
    pub fn apply(
        &mut self,
        fragment: FragmentId,
        body: &[u8],
        included: bool,
        theta: &mut [f32],
    ) -> Result<(), ReplicaError> {
        let segments = self.checked(fragment, theta)?;
        let mut values = self.codec.decode(segments, body)?;
        let mut rest = values.as_mut_slice();
        for segment in segments {
            let (head, tail) = rest.split_at_mut(segment.len as usize);
            for (value, hat) in head.iter_mut().zip(&self.hat[segment.range()]) {
                *value += hat;
            }
            rest = tail;
        }
        self.take(fragment, &values, kept_share(self.policy), included, theta)
    }

    /// Takes a whole Θ̂ of `fragment`, `[fragment_len]`: that of a joiner, or of a learner that missed
    /// a version. With `keep`, unmerged progress stays as in [`Self::apply`]; else `θ = Θ̂`.
    ///
    /// # Errors
    /// [`ReplicaError::Fragment`], [`ReplicaError::Length`], [`ReplicaError::NotFinite`] if `values`
    /// are not, and [`ReplicaError::NothingReported`] if `keep` and `included` without an update.
    pub fn load(
        &mut self,
        fragment: FragmentId,
        values: &[f32],
        keep: bool,
        included: bool,
        theta: &mut [f32],
    ) -> Result<(), ReplicaError> {
        self.checked(fragment, theta)?;
        same_length(self.fragments.len(fragment), values.len())?;
        all_finite(fragment, values)?;
        let share = if keep { kept_share(self.policy) } else { None };
        self.take(fragment, values, share, included, theta)
    }

    /// Makes `values` the Θ̂ of `fragment`, with `share` of the unmerged progress on top in θ.
    fn take(
        &mut self,
        fragment: FragmentId,
        values: &[f32],
        share: Option<f32>,
        included: bool,
        theta: &mut [f32],
    ) -> Result<(), ReplicaError> {
        let reported = &mut self.reported[usize::from(fragment.0)];
        if share.is_some() && included && reported.is_none() {
            return Err(ReplicaError::NothingReported { fragment });
        }
        let position = reported.take().filter(|_| included);
        let mut start = 0;
        for segment in self.fragments.segments(fragment).unwrap_or_default() {
            let local = start..start + segment.len as usize;
            start = local.end;
            let new = &values[local.clone()];
            let theta = &mut theta[segment.range()];
            let hat = &mut self.hat[segment.range()];
            if let Some(share) = share {
                let reference = position.as_ref().map_or(&*hat, |position| &position[local]);
                for ((theta, new), reference) in theta.iter_mut().zip(new).zip(reference) {
                    *theta = new + share * (*theta - reference);
                }
            } else {
                theta.copy_from_slice(new);
            }
            hat.copy_from_slice(new);
        }
        Ok(())
    }

    fn checked(&self, fragment: FragmentId, theta: &[f32]) -> Result<&[Segment], ReplicaError> {
        same_length(self.hat.len(), theta.len())?;
        let count = self.fragments.count();
        self.fragments.segments(fragment).ok_or(ReplicaError::Fragment { fragment, count })
    }
}

/// The share of unmerged progress that `policy` keeps, `None` for none.
pub fn kept_share(policy: ApplyPolicy) -> Option<f32> {
    match policy {
        ApplyPolicy::Keep { .. } => Some(1.0),
        ApplyPolicy::Overwrite => None,
        ApplyPolicy::Blend { alpha } => Some(alpha),
    }
}

/// That there are as many values as belong there.
///
/// # Errors
/// [`ReplicaError::Length`].
pub fn same_length(expected: usize, actual: usize) -> Result<(), ReplicaError> {
    if expected == actual { Ok(()) } else { Err(ReplicaError::Length { expected, actual }) }
}

/// That `values` of `fragment` are all finite.
///
/// # Errors
/// [`ReplicaError::NotFinite`] with the first that is not.
pub fn all_finite(fragment: FragmentId, values: &[f32]) -> Result<(), ReplicaError> {
    match values.iter().position(|value| !value.is_finite()) {
        None => Ok(()),
        Some(index) => Err(ReplicaError::NotFinite { fragment, index }),
    }
}

#[cfg(test)]
mod tests;
