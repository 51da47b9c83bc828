//! A learner's copy of Θ̂ in host memory.

use std::sync::Arc;

use super::{Codec, FragmentId, Fragments, QuantError, Segment, halves};
use crate::wire::ApplyPolicy;

/// Θ̂ of one learner, with the last report on each fragment.
///
/// Parameters θ stay with the engine and are passed as a flat vector, `[layout.len()]`.
#[derive(Clone, Debug)]
pub struct Replica {
    fragments: Arc<Fragments>,
    codec: Codec,
    policy: ApplyPolicy,
    hat: Vec<f32>,
    /// Report of the last coded update of each fragment, while it is of use.
    reported: Vec<Option<Reported>>,
}

/// Report of an update.
#[derive(Clone, Debug)]
enum Reported {
    /// Coded progress. It is the same progress from any later Θ̂, so it waits until a change includes it.
    Progress(Vec<u8>),
    /// The position θ at coding, until the next change.
    Position(Vec<f32>),
}

/// Reasons for which a replica did nothing. The replica and θ are then unchanged.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum ReplicaError {
    /// There is no such fragment.
    #[error("fragment {fragment} of {count}")]
    Fragment {
        /// Requested fragment.
        fragment: FragmentId,
        /// Number of fragments.
        count: u16,
    },
    /// The number of parameters or values differs from that of the layout or the fragment.
    #[error("{actual} values where there should be {expected}")]
    Length {
        /// Expected number of values.
        expected: usize,
        /// Actual number of values.
        actual: usize,
    },
    /// A parameter is infinite or not a number: training diverged, load the fragment again.
    #[error("parameter {index} of fragment {fragment} is not finite: load the fragment again")]
    NotFinite {
        /// The fragment.
        fragment: FragmentId,
        /// Index in the fragment.
        index: usize,
    },
    /// There is no coded update to include.
    #[error("no coded update of fragment {fragment} waits to be merged")]
    NothingReported {
        /// The fragment.
        fragment: FragmentId,
    },
    /// The body cannot be decoded.
    #[error(transparent)]
    Body(#[from] QuantError),
}

impl Replica {
    /// Creates a replica with Θ̂ = 0. Call [`Self::load`] for each fragment before coding.
    #[must_use]
    pub fn new(fragments: Arc<Fragments>, codec: Codec, policy: ApplyPolicy) -> Self {
        let len = fragments.ids().map(|p| fragments.len(p)).sum();
        let reported = fragments.ids().map(|_| None).collect();
        Self { fragments, codec, policy, hat: vec![0.0; len], reported }
    }

    /// Returns Θ̂, `[layout.len()]`.
    #[must_use]
    pub fn hat(&self) -> &[f32] {
        &self.hat
    }

    /// Returns the digest of Θ̂ of `fragment`, see [`halves::digest`]; that of no values if there is no such
    /// fragment.
    #[must_use]
    pub fn digest(&self, fragment: FragmentId) -> u64 {
        halves::digest(&self.fragments.gather(fragment, &self.hat))
    }

    /// Codes `Θ̂ − θ` of `fragment`, and stores what this reports. That is the position θ until the next change, or
    /// with `residue` kept, the coded progress until a change includes it. A further call replaces it.
    ///
    /// # Errors
    /// [`ReplicaError::Fragment`], [`ReplicaError::Length`], and [`ReplicaError::NotFinite`] if θ or
    /// `Θ̂ − θ` is not finite somewhere in the fragment.
    pub fn encode(&mut self, fragment: FragmentId, theta: &[f32]) -> Result<Vec<u8>, ReplicaError> {
        let segments = self.checked(fragment, theta)?;
        let position = self.fragments.gather(fragment, theta);
        let mut delta = self.fragments.gather(fragment, &self.hat);
        for (delta, theta) in delta.iter_mut().zip(&position) {
            *delta -= theta;
        }
        all_finite(fragment, &delta)?;
        let body = self.codec.encode(segments, &delta);
        self.reported[usize::from(fragment.0)] = match self.policy {
            ApplyPolicy::Keep { residue: true } => Some(Reported::Progress(body.clone())),
            ApplyPolicy::Keep { residue: false } | ApplyPolicy::Blend { .. } => {
                Some(Reported::Position(position))
            }
            ApplyPolicy::Overwrite => None,
        };
        Ok(body)
    }

    /// Removes the last coded update from this learner's progress, since it is part of Θ̂ or of the next Θ̂:
    /// `θ += Θ̂ − reported position`. With `residue` kept, this may be called before or after the change that holds
    /// the update; otherwise before it. If the policy keeps no progress, it has no effect.
    ///
    /// # Errors
    /// [`ReplicaError::Fragment`], [`ReplicaError::Length`], and with `residue` kept
    /// [`ReplicaError::NothingReported`] if there is no such update.
    pub fn include(&mut self, fragment: FragmentId, theta: &mut [f32]) -> Result<(), ReplicaError> {
        let segments = self.checked(fragment, theta)?;
        let values = match &self.reported[usize::from(fragment.0)] {
            Some(Reported::Progress(body)) => {
                let mut values = self.codec.decode(segments, body)?;
                let local = self.fragments.gather(fragment, theta);
                values.iter_mut().zip(local).for_each(|(value, theta)| *value += theta);
                values
            }
            Some(Reported::Position(position)) => {
                // From the new end, so that a position that was just reported becomes Θ̂ to the bit.
                let mut values = self.fragments.gather(fragment, theta);
                let hat = self.fragments.gather(fragment, &self.hat);
                let ends = position.iter().zip(hat);
                values
                    .iter_mut()
                    .zip(ends)
                    .for_each(|(theta, (position, hat))| *theta = hat + (*theta - position));
                values
            }
            None if self.policy.is_additive() => return Err(ReplicaError::NothingReported { fragment }),
            None => return Ok(()),
        };
        self.fragments.scatter(fragment, &values, theta);
        self.reported[usize::from(fragment.0)] = None;
        Ok(())
    }

    /// Sets `Θ̂ = nearest(Θ̂ + decode(body))` on `fragment`, see [`halves::nearest`], then θ by the policy:
    /// - [`ApplyPolicy::Keep`]: `θ = Θ̂_new + (θ − Θ̂_old)`;
    /// - [`ApplyPolicy::Overwrite`]: `θ = Θ̂_new`;
    /// - [`ApplyPolicy::Blend`]: `θ = Θ̂_new + α (θ − Θ̂_old)`.
    ///
    /// If the update coded last is part of this change, call [`Self::include`] first. With `residue` kept, a report
    /// stays until then; otherwise this call drops it.
    ///
    /// # Errors
    /// [`ReplicaError::Fragment`], [`ReplicaError::Length`], [`ReplicaError::Body`].
    pub fn apply(
        &mut self,
        fragment: FragmentId,
        body: &[u8],
        theta: &mut [f32],
    ) -> Result<(), ReplicaError> {
        let segments = self.checked(fragment, theta)?;
        let mut values = self.codec.decode(segments, body)?;
        let mut rest = values.as_mut_slice();
        for segment in segments {
            let (head, tail) = rest.split_at_mut(segment.len as usize);
            halves::add(head, &self.hat[segment.range()]);
            rest = tail;
        }
        self.take(fragment, &values, kept_share(self.policy), theta);
        Ok(())
    }

    /// Replaces Θ̂ of `fragment` by `values`, `[fragment_len]`, in a new learner or in one that missed a version.
    /// With `keep`, unmerged progress stays as in [`Self::apply`]. Otherwise `θ = Θ̂`, and the report is dropped.
    /// Values are rounded as [`halves::nearest`] does; those of a syncer already are.
    ///
    /// # Errors
    /// [`ReplicaError::Fragment`], [`ReplicaError::Length`], and [`ReplicaError::NotFinite`] if a value is not
    /// finite.
    pub fn load(
        &mut self,
        fragment: FragmentId,
        values: &[f32],
        keep: bool,
        theta: &mut [f32],
    ) -> Result<(), ReplicaError> {
        self.checked(fragment, theta)?;
        same_length(self.fragments.len(fragment), values.len())?;
        all_finite(fragment, values)?;
        let share = if keep { kept_share(self.policy) } else { None };
        let mut values = values.to_vec();
        halves::round(&mut values);
        self.take(fragment, &values, share, theta);
        Ok(())
    }

    /// Sets Θ̂ of `fragment` to `values`, and adds `share` of the unmerged progress in θ.
    fn take(&mut self, fragment: FragmentId, values: &[f32], share: Option<f32>, theta: &mut [f32]) {
        let mut start = 0;
        for segment in self.fragments.segments(fragment).unwrap_or_default() {
            let local = start..start + segment.len as usize;
            start = local.end;
            let new = &values[local];
            let theta = &mut theta[segment.range()];
            let hat = &mut self.hat[segment.range()];
            if let Some(share) = share {
                for ((theta, new), hat) in theta.iter_mut().zip(new).zip(&*hat) {
                    *theta = new + share * (*theta - hat);
                }
            } else {
                theta.copy_from_slice(new);
            }
            hat.copy_from_slice(new);
        }
        // A position is only valid with its Θ̂, while progress stays valid.
        self.reported[usize::from(fragment.0)]
            .take_if(|report| share.is_none() || matches!(report, Reported::Position(_)));
    }

    fn checked(&self, fragment: FragmentId, theta: &[f32]) -> Result<&[Segment], ReplicaError> {
        same_length(self.hat.len(), theta.len())?;
        let count = self.fragments.count();
        self.fragments.segments(fragment).ok_or(ReplicaError::Fragment { fragment, count })
    }
}

/// Returns the share of unmerged progress that `policy` keeps, or `None` if it drops all.
pub fn kept_share(policy: ApplyPolicy) -> Option<f32> {
    match policy {
        ApplyPolicy::Keep { .. } => Some(1.0),
        ApplyPolicy::Overwrite => None,
        ApplyPolicy::Blend { alpha } => Some(alpha),
    }
}

/// Checks the number of values.
///
/// # Errors
/// [`ReplicaError::Length`].
pub fn same_length(expected: usize, actual: usize) -> Result<(), ReplicaError> {
    if expected == actual { Ok(()) } else { Err(ReplicaError::Length { expected, actual }) }
}

/// Checks that all `values` of `fragment` are finite.
///
/// # Errors
/// [`ReplicaError::NotFinite`] with the first value that is not.
pub fn all_finite(fragment: FragmentId, values: &[f32]) -> Result<(), ReplicaError> {
    match values.iter().position(|value| !value.is_finite()) {
        None => Ok(()),
        Some(index) => Err(ReplicaError::NotFinite { fragment, index }),
    }
}

#[cfg(test)]
mod tests;
