//! Copy of Θ̂ of a learner in host memory, and the exchange of θ with it.

use std::sync::Arc;

use super::{Codec, FragmentId, Fragments, QuantError, Segment, binary16};
use crate::wire::ApplyPolicy;

/// Θ̂ of one learner, with the last coded update of each fragment.
///
/// The engine keeps the parameters θ and passes them as a flat vector, `[layout.len()]`.
#[derive(Clone, Debug)]
pub struct Replica {
    fragments: Arc<Fragments>,
    codec: Codec,
    policy: ApplyPolicy,
    /// Θ̂, `[layout.len()]`.
    hat: Vec<f32>,
    /// Last coded update of each fragment, `[P]`; `None` once it is not needed.
    reported: Vec<Option<Reported>>,
}

/// Coded update, in the form in which [`Replica::include`] needs it.
#[derive(Clone, Debug)]
enum Reported {
    /// Coded progress. It does not depend on later versions of Θ̂, so it is valid until a change includes it.
    Progress(Vec<u8>),
    /// θ at the time of coding, `[fragment_len]`. It is valid until the next change.
    Position(Vec<f32>),
}

/// Error of a replica. The replica and θ are then unchanged.
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
    /// The number of parameters is not that of the layout, or the number of values is not that of the fragment.
    #[error("{actual} values where there should be {expected}")]
    Length {
        /// Expected number of values.
        expected: usize,
        /// Actual number of values.
        actual: usize,
    },
    /// A parameter is infinite or NaN, because training diverged. The fragment must be loaded again.
    #[error("parameter {index} of fragment {fragment} is not finite: load the fragment again")]
    NotFinite {
        /// The fragment.
        fragment: FragmentId,
        /// Index of the value in the fragment.
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
    /// Creates a replica with Θ̂ = 0. Call [`Self::load`] for each fragment before [`Self::encode`].
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

    /// Returns the digest of Θ̂ of `fragment`, see [`binary16::digest`]; the digest of no values if there is no such
    /// fragment.
    #[must_use]
    pub fn digest(&self, fragment: FragmentId) -> u64 {
        binary16::digest(&self.fragments.gather(fragment, &self.hat))
    }

    /// Codes `Θ̂ − θ` of `fragment`, and remembers the update for [`Self::include`] in place of an earlier one. With
    /// [`ApplyPolicy::Keep`] and `residue`, the coded progress is remembered until `include`; with other policies that
    /// keep progress, θ is remembered until the next change.
    ///
    /// # Errors
    /// [`ReplicaError::Fragment`] or [`ReplicaError::Length`]; [`ReplicaError::NotFinite`] if a value of `Θ̂ − θ` is
    /// not finite.
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

    /// Removes the last coded update from the learner's progress, because Θ̂ or the next Θ̂ includes it: θ moves back
    /// by the coded progress, or by the remembered `θ − Θ̂`. With [`ApplyPolicy::Keep`] and `residue`, call this before
    /// or after the change that includes the update; with other policies, before it. If the policy keeps no progress,
    /// this has no effect.
    ///
    /// # Errors
    /// [`ReplicaError::Fragment`] or [`ReplicaError::Length`]; with [`ApplyPolicy::Keep`] and `residue`
    /// [`ReplicaError::NothingReported`] if no update is remembered.
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
                // In this order of operations, a θ that has not moved since coding becomes exactly Θ̂.
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

    /// Applies a change: sets `Θ̂ = nearest(Θ̂ + decode(body))` on `fragment`, see [`binary16::nearest`], then θ by the
    /// policy:
    /// - [`ApplyPolicy::Keep`]: `θ = Θ̂_new + (θ − Θ̂_old)`;
    /// - [`ApplyPolicy::Overwrite`]: `θ = Θ̂_new`;
    /// - [`ApplyPolicy::Blend`]: `θ = Θ̂_new + α (θ − Θ̂_old)`.
    ///
    /// If this change includes the last coded update, call [`Self::include`] first. A remembered θ is dropped;
    /// remembered progress stays.
    ///
    /// # Errors
    /// [`ReplicaError::Fragment`], [`ReplicaError::Length`] or [`ReplicaError::Body`].
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
            binary16::add(head, &self.hat[segment.range()]);
            rest = tail;
        }
        self.take(fragment, &values, kept_share(self.policy), theta);
        Ok(())
    }

    /// Replaces Θ̂ of `fragment` by `values`, `[fragment_len]`, rounded with [`binary16::nearest`]. A learner needs
    /// this when it joins and when it has missed a version. With `keep`, θ follows the policy as in [`Self::apply`].
    /// Otherwise `θ = Θ̂`, and the last coded update is dropped.
    ///
    /// # Errors
    /// [`ReplicaError::Fragment`] or [`ReplicaError::Length`]; [`ReplicaError::NotFinite`] if a value is not finite.
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
        binary16::round(&mut values);
        self.take(fragment, &values, share, theta);
        Ok(())
    }

    /// Sets Θ̂ of `fragment` to `values`, and θ to Θ̂ plus `share` of the unmerged progress. `None` drops the progress
    /// and the last coded update.
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
        // A remembered θ is valid only with its Θ̂, while coded progress stays valid.
        self.reported[usize::from(fragment.0)]
            .take_if(|report| share.is_none() || matches!(report, Reported::Position(_)));
    }

    fn checked(&self, fragment: FragmentId, theta: &[f32]) -> Result<&[Segment], ReplicaError> {
        same_length(self.hat.len(), theta.len())?;
        let count = self.fragments.count();
        self.fragments.segments(fragment).ok_or(ReplicaError::Fragment { fragment, count })
    }
}

/// Returns the fraction of unmerged progress that `policy` keeps; `None` if it drops all progress.
pub fn kept_share(policy: ApplyPolicy) -> Option<f32> {
    match policy {
        ApplyPolicy::Keep { .. } => Some(1.0),
        ApplyPolicy::Overwrite => None,
        ApplyPolicy::Blend { alpha } => Some(alpha),
    }
}

/// Checks that two numbers of values are equal.
///
/// # Errors
/// [`ReplicaError::Length`] if they differ.
pub fn same_length(expected: usize, actual: usize) -> Result<(), ReplicaError> {
    if expected == actual { Ok(()) } else { Err(ReplicaError::Length { expected, actual }) }
}

/// Checks that all `values` of `fragment` are finite.
///
/// # Errors
/// [`ReplicaError::NotFinite`] with the index of the first value that is not finite.
pub fn all_finite(fragment: FragmentId, values: &[f32]) -> Result<(), ReplicaError> {
    match values.iter().position(|value| !value.is_finite()) {
        None => Ok(()),
        Some(index) => Err(ReplicaError::NotFinite { fragment, index }),
    }
}

#[cfg(test)]
mod tests {
    //! Tests of the coded updates, and of θ after changes.

    use std::num::NonZeroU16;

    use proptest::prelude::*;

    use super::*;
    use crate::diloco::{
        FragmentState, Layout, LearnerId, MergeClass, MergeJob, MergeRule, OuterSpec, Round, Tensor, Version,
        WeightedUpdate,
    };
    use crate::wire::{Code, ExchangeSpec};

    const KEEP: ApplyPolicy = ApplyPolicy::Keep { residue: false };
    const RESIDUE: ApplyPolicy = ApplyPolicy::Keep { residue: true };
    const P0: FragmentId = FragmentId(0);

    fn codec(code: Code) -> Codec {
        Codec::new(&ExchangeSpec { fragments: 2, sync_every: 1, block: 8, code, apply: KEEP }).unwrap()
    }

    fn fragments(count: u16) -> Arc<Fragments> {
        let tensor = |name: &str, rows, merge| Tensor { name: name.into(), rows, cols: 5, merge };
        let tensors = vec![tensor("embedding", 11, MergeClass::Mean), tensor("w", 9, MergeClass::Radial)];
        Arc::new(Fragments::plan(&Layout::new(tensors).unwrap(), NonZeroU16::new(count).unwrap()))
    }

    /// Applies a change. `included` is true if it includes the last coded update.
    fn apply(
        replica: &mut Replica,
        p: FragmentId,
        body: &[u8],
        included: bool,
        theta: &mut [f32],
    ) -> Result<(), ReplicaError> {
        if included {
            replica.include(p, theta)?;
        }
        replica.apply(p, body, theta)
    }

    /// Loads a whole Θ̂. `included` is true if it includes the last coded update.
    fn load(
        replica: &mut Replica,
        p: FragmentId,
        values: &[f32],
        keep: bool,
        included: bool,
        theta: &mut [f32],
    ) -> Result<(), ReplicaError> {
        if included {
            replica.include(p, theta)?;
        }
        replica.load(p, values, keep, theta)
    }

    /// Creates a replica with one parameter and Θ̂ = 10, and its θ.
    fn single(policy: ApplyPolicy, code: Code) -> (Replica, Vec<f32>) {
        let tensor = Tensor { name: "w".into(), rows: 1, cols: 1, merge: MergeClass::Mean };
        let layout = Layout::new(vec![tensor]).unwrap();
        let mut replica =
            Replica::new(Arc::new(Fragments::plan(&layout, NonZeroU16::MIN)), codec(code), policy);
        let mut theta = vec![0.0];
        load(&mut replica, P0, &[10.0], false, false, &mut theta).unwrap();
        assert_eq!((theta[0], replica.hat()[0]), (10.0, 10.0));
        (replica, theta)
    }

    /// Checks θ of a learner that codes an update at θ = 8, trains to θ = 7, and gets Θ̂ = 9.
    fn check(policy: ApplyPolicy, included: bool, expected: f32) {
        let (mut replica, mut theta) = single(policy, Code::F32);
        theta[0] = 8.0;
        assert_eq!(replica.encode(P0, &theta).unwrap(), 2.0_f32.to_le_bytes());
        theta[0] = 7.0;
        let mut whole = (replica.clone(), theta.clone());
        apply(&mut replica, P0, &(-1.0_f32).to_le_bytes(), included, &mut theta).unwrap();
        assert_eq!((theta[0], replica.hat()[0]), (expected, 9.0), "{policy:?}, included: {included}");

        load(&mut whole.0, P0, &[9.0], true, included, &mut whole.1).unwrap();
        assert_eq!((whole.1[0], whole.0.hat()[0]), (expected, 9.0), "load {policy:?}, included: {included}");
    }

    #[test]
    fn applies_by_the_policy() {
        check(KEEP, true, 9.0 - 1.0);
        check(KEEP, false, 9.0 - 3.0);
        check(RESIDUE, true, 9.0 - 1.0);
        check(RESIDUE, false, 9.0 - 3.0);
        check(ApplyPolicy::Overwrite, true, 9.0);
        check(ApplyPolicy::Overwrite, false, 9.0);
        check(ApplyPolicy::Blend { alpha: 0.5 }, true, 9.0 - 0.5);
        check(ApplyPolicy::Blend { alpha: 0.5 }, false, 9.0 - 1.5);
    }

    #[test]
    fn residue_is_kept_if_the_policy_says_so() {
        // Two values share a scale, so that the smaller is rounded to 0.
        let theta_after = |policy| {
            let tensor = Tensor { name: "w".into(), rows: 1, cols: 2, merge: MergeClass::Mean };
            let layout = Layout::new(vec![tensor]).unwrap();
            let plan = Arc::new(Fragments::plan(&layout, NonZeroU16::MIN));
            let mut replica = Replica::new(plan, codec(Code::Int4), policy);
            let mut theta = vec![-7.0, -0.25];
            let body = replica.encode(P0, &theta).unwrap();
            assert_eq!(
                replica.codec.decode(replica.fragments.segments(P0).unwrap(), &body).unwrap(),
                [7.0, 0.0]
            );
            let mut back = body.clone();
            back[4] = 0x09; // −7, 0: the merged change takes all of the update
            apply(&mut replica, P0, &back, true, &mut theta).unwrap();
            theta
        };
        assert_eq!(theta_after(KEEP), [-7.0, 0.0]);
        assert_eq!(theta_after(RESIDUE), [-7.0, -0.25]);
    }

    /// Goal: coded progress stays valid through other changes. It is coded at Θ̂ = 10 and θ = 8; then the learner
    /// trains further and applies changes that do not include it.
    #[test]
    fn coded_progress_stays_valid_through_other_changes() {
        let (mut replica, mut theta) = single(RESIDUE, Code::F32);
        let change = |by: f32| by.to_le_bytes();
        theta[0] = 8.0;
        replica.encode(P0, &theta).unwrap();
        theta[0] = 7.5;
        apply(&mut replica, P0, &change(1.0), false, &mut theta).unwrap();
        assert_eq!((replica.hat()[0], theta[0]), (11.0, 8.5));
        theta[0] -= 0.25;
        load(&mut replica, P0, &[14.0], true, false, &mut theta).unwrap();
        assert_eq!((replica.hat()[0], theta[0]), (14.0, 11.25));
        let mut whole = (replica.clone(), theta.clone());
        // This change includes 2 of the progress of 2.75.
        apply(&mut replica, P0, &change(-3.0), true, &mut theta).unwrap();
        assert_eq!((replica.hat()[0], theta[0]), (11.0, 10.25));
        let again = apply(&mut replica, P0, &change(0.0), true, &mut theta);
        assert_eq!(again, Err(ReplicaError::NothingReported { fragment: P0 }));

        load(&mut whole.0, P0, &[11.0], true, true, &mut whole.1).unwrap();
        assert_eq!((whole.0.hat()[0], whole.1[0]), (11.0, 10.25));
        let again = load(&mut whole.0, P0, &[11.0], true, true, &mut whole.1);
        assert_eq!(again, Err(ReplicaError::NothingReported { fragment: P0 }));
    }

    /// Goal: a learner may load a Θ̂ before it knows that this Θ̂ includes its update.
    #[test]
    fn an_update_may_be_included_after_its_change() {
        let (mut replica, mut theta) = single(RESIDUE, Code::F32);
        theta[0] = 8.0;
        replica.encode(P0, &theta).unwrap();
        theta[0] = 7.5;
        replica.load(P0, &[14.0], true, &mut theta).unwrap();
        replica.include(P0, &mut theta).unwrap();
        assert_eq!(theta, [13.5], "0.5 of the progress are not in Θ̂");
        assert_eq!(replica.include(P0, &mut theta), Err(ReplicaError::NothingReported { fragment: P0 }));
    }

    /// Goal: a remembered θ is dropped with the next change, and a remembered update with dropped progress.
    #[test]
    fn invalid_updates_are_dropped() {
        for policy in [KEEP, ApplyPolicy::Blend { alpha: 0.5 }] {
            let (mut replica, mut theta) = single(policy, Code::F32);
            theta[0] = 8.0;
            replica.encode(P0, &theta).unwrap();
            apply(&mut replica, P0, &1.0_f32.to_le_bytes(), false, &mut theta).unwrap();
            let before = theta.clone();
            replica.include(P0, &mut theta).unwrap();
            assert_eq!(theta, before);
        }
        let (mut replica, mut theta) = single(RESIDUE, Code::F32);
        replica.encode(P0, &theta).unwrap();
        load(&mut replica, P0, &[1.0], false, false, &mut theta).unwrap();
        let late = apply(&mut replica, P0, &1.0_f32.to_le_bytes(), true, &mut theta);
        assert_eq!(late, Err(ReplicaError::NothingReported { fragment: P0 }));
    }

    #[test]
    fn theta_hat_fits_in_16_bits() {
        let (mut replica, mut theta) = single(RESIDUE, Code::F32);
        load(&mut replica, P0, &[10.001], false, false, &mut theta).unwrap();
        assert_eq!((replica.hat()[0], theta[0]), (10.0, 10.0));
        apply(&mut replica, P0, &0.01_f32.to_le_bytes(), false, &mut theta).unwrap();
        assert_eq!((replica.hat()[0], theta[0]), (10.0078125, 10.0078125));
        assert_eq!(replica.digest(P0), binary16::digest(&[10.0078125]));
    }

    #[test]
    fn load_without_keep_replaces_theta() {
        let (mut replica, mut theta) = single(KEEP, Code::F32);
        theta[0] = 8.0;
        load(&mut replica, P0, &[5.0], false, false, &mut theta).unwrap();
        assert_eq!((theta[0], replica.hat()[0]), (5.0, 5.0));
    }

    #[test]
    fn errors_leave_the_replica_unchanged() {
        let (replica, theta) = single(RESIDUE, Code::F32);
        type Act<'a> = &'a dyn Fn(&mut Replica, &mut Vec<f32>) -> Result<(), ReplicaError>;
        let check = |expected: ReplicaError, act: Act| {
            let (mut replica, mut after) = (replica.clone(), theta.clone());
            assert_eq!(act(&mut replica, &mut after), Err(expected));
            assert_eq!((&replica.hat, &after), (&vec![10.0], &theta));
        };
        let p = FragmentId(1);
        let body = 1.0_f32.to_le_bytes();
        check(ReplicaError::Fragment { fragment: p, count: 1 }, &|r, t| apply(r, p, &body, false, t));
        check(ReplicaError::Fragment { fragment: p, count: 1 }, &|r, t| load(r, p, &[1.0], false, false, t));
        check(ReplicaError::Length { expected: 1, actual: 0 }, &|r, _| apply(r, P0, &body, false, &mut []));
        check(ReplicaError::Length { expected: 1, actual: 2 }, &|r, t| {
            load(r, P0, &[1.0; 2], true, false, t)
        });
        check(ReplicaError::NotFinite { fragment: P0, index: 0 }, &|r, t| {
            load(r, P0, &[f32::NAN], true, false, t)
        });
        check(ReplicaError::Fragment { fragment: p, count: 1 }, &|r, t| r.include(p, t));
        check(ReplicaError::NothingReported { fragment: P0 }, &|r, t| r.include(P0, t));
        let short = QuantError::Length { expected: 4, actual: 3 };
        check(ReplicaError::Body(short), &|r, t| apply(r, P0, &body[..3], false, t));
        for bad in [f32::NAN, f32::INFINITY] {
            check(ReplicaError::NotFinite { fragment: P0, index: 0 }, &|r, _| r.encode(P0, &[bad]).map(drop));
        }
    }

    /// Merge state of each fragment, and learners. Each round merges some of the learners.
    struct World {
        fragments: Arc<Fragments>,
        codec: Codec,
        outer: OuterSpec,
        states: Vec<Option<FragmentState>>,
        learners: Vec<(Replica, Vec<f32>)>,
        seed: u64,
    }

    impl World {
        fn new(seed: u64, policy: ApplyPolicy, code: Code, outer: OuterSpec, learners: usize) -> Self {
            let (fragments, codec) = (fragments(2), codec(code));
            let replica = Replica::new(Arc::clone(&fragments), codec, policy);
            let mut learners = vec![(replica, vec![0.0; 100]); learners];
            let state = |p| {
                let values: Vec<f32> = (0..fragments.len(p)).map(|i| i as f32 / 64.0).collect();
                for (replica, theta) in &mut learners {
                    load(replica, p, &values, false, false, theta).unwrap();
                }
                Some(FragmentState::new(values))
            };
            let states = fragments.ids().map(state).collect();
            Self { fragments, codec, outer, states, learners, seed }
        }

        /// Returns a pseudo-random multiple of 2⁻⁸ with a magnitude of at most 1/16.
        fn noise(&mut self) -> f32 {
            self.seed =
                self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((self.seed >> 59) as f32 - 16.0) / 256.0
        }

        fn train(&mut self) {
            for learner in 0..self.learners.len() {
                for i in 0..100 {
                    self.learners[learner].1[i] += self.noise();
                }
            }
        }

        /// Trains all learners, codes their updates, trains further if `train_on`, merges the updates of learners that
        /// are true in `included`, and applies the change.
        fn round(&mut self, fragment: FragmentId, included: &[bool], train_on: bool) {
            self.train();
            let (codec, segments) = (self.codec, self.fragments.segments(fragment).unwrap().to_vec());
            let update = |(i, (replica, theta)): (u32, &mut (Replica, Vec<f32>))| WeightedUpdate {
                learner: LearnerId(i),
                weight: 1.0,
                experts: Vec::new(),
                steps: 1,
                body: codec.check(&segments, replica.encode(fragment, theta).unwrap()).unwrap(),
            };
            let updates: Vec<WeightedUpdate> = (0..).zip(&mut self.learners).map(update).collect();
            if train_on {
                self.train();
            }
            let slot = usize::from(fragment.0);
            let job = MergeJob {
                round: Round(0),
                fragment,
                state: self.states[slot].take().unwrap(),
                absent: 0.0,
                absent_experts: Vec::new(),
                updates: updates
                    .into_iter()
                    .zip(included)
                    .filter(|(_, included)| **included)
                    .map(|(u, _)| u)
                    .collect(),
                segments,
                codec: self.codec,
                rule: MergeRule::Radial,
                radii: Vec::new(),
                outer: self.outer,
                next: Version(1),
            };
            let outcome = job.run().unwrap();
            for ((replica, theta), included) in self.learners.iter_mut().zip(included) {
                apply(replica, fragment, &outcome.body, *included, theta).unwrap();
            }
            self.states[slot] = Some(outcome.state);
        }
    }

    #[test]
    fn single_learner_with_full_outer_steps_equals_theta() {
        for policy in [KEEP, RESIDUE, ApplyPolicy::Overwrite, ApplyPolicy::Blend { alpha: 0.5 }] {
            // All values are multiples of 2⁻⁸ below 2³, so no sum is rounded, not even to 16 bits.
            let mut world = World::new(1, policy, Code::F32, OuterSpec { lr: 1.0, momentum: 0.0 }, 1);
            for _ in 0..50 {
                for p in world.fragments.ids() {
                    world.round(p, &[true], false);
                    let state = world.states[usize::from(p.0)].as_ref().unwrap();
                    assert_eq!(world.fragments.gather(p, &world.learners[0].1), *state.theta, "{policy:?}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn learners_and_syncer_hold_the_same_bits(
            seed in any::<u64>(),
            policy in prop_oneof![Just(KEEP), Just(RESIDUE), Just(ApplyPolicy::Overwrite)],
            code in prop_oneof![Just(Code::Int4), Just(Code::E3m0), Just(Code::F32)],
            rounds in prop::collection::vec((0_u16..2, 1_u8..4), 1..60),
        ) {
            let mut world = World::new(seed, policy, code, OuterSpec::default(), 2);
            for (p, included) in rounds {
                world.round(FragmentId(p), &[included & 1 != 0, included & 2 != 0], true);
                for p in world.fragments.ids() {
                    let hat: Vec<u32> =
                        world.states[usize::from(p.0)].as_ref().unwrap().hat.iter().map(|v| v.to_bits()).collect();
                    for (replica, _) in &world.learners {
                        let held = world.fragments.gather(p, replica.hat());
                        prop_assert_eq!(held.iter().map(|v| v.to_bits()).collect::<Vec<_>>(), hat.clone());
                    }
                }
            }
        }
    }
}
