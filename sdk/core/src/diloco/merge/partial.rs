//! Sum of some of the updates of a merge, computed separately from the others.
//!
//! All updates of one merge have a common rounding, so that sums are exact. Each term is rounded once, to a whole
//! number of units. All further sums are sums of whole numbers. They are exact in `f64` as long as they stay below 2⁵³,
//! and so do not depend on the order or grouping of the updates. That bound follows from values that are known in
//! advance: each update's share of all weights, and the longest update on each segment. (Demmel and Nguyen, "Fast
//! Reproducible Floating-Point Summation", 2013, round to a common grid in the same way.)

use std::sync::Arc;

use super::{MergeJob, SegmentSum, Source, SumError, WeightedUpdate, add_whole, square};
use crate::diloco::block::whole;
use crate::diloco::quant::{Span, fragment_len};
use crate::diloco::{Codec, LearnerId, Segment};
use serde::{Deserialize, Serialize};

/// Size below which sums are exact.
const SUM_MAX: f64 = (1_u64 << 53) as f64;
/// Number of the byte layout, stored in the first byte.
const LAYOUT: u8 = 1;
/// Bytes of one value.
const WORD: usize = 8;

/// Sum of the updates of some learners.
///
/// A sum adds single updates and other sums, in any order. The sum of all updates has the same bits for any grouping,
/// see [`super::MergeJob::finish`].
///
/// For an update `v` with counted norm `r` and share `s` of all weights, each segment holds Σ s v/‖v‖, or for means Σ
/// s r v/‖v‖, and Σ s r. [`SumPlan`] defines how these are rounded to whole numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct PartialSum {
    plan: Arc<SumPlan>,
    codec: Codec,
    segments: Arc<Vec<Segment>>,
    /// Learners whose updates it holds, ascending.
    learners: Vec<LearnerId>,
    /// Sum of lengths of each segment, `[segments]`, whole numbers.
    lengths: Vec<f64>,
    /// Sums of values, `[fragment_len]`, whole numbers.
    sums: Vec<f64>,
}

impl PartialSum {
    /// Creates an empty sum for a fragment made of `segments`.
    ///
    /// # Errors
    /// [`SumError::Plan`]: it is the plan of another fragment.
    pub fn new(plan: Arc<SumPlan>, codec: Codec, segments: Arc<Vec<Segment>>) -> Result<Self, SumError> {
        if plan.terms.len() != segments.len() {
            return Err(SumError::Plan);
        }
        let (lengths, sums) = (vec![0.0; segments.len()], vec![0.0; fragment_len(&segments)]);
        Ok(Self { plan, codec, segments, learners: Vec::new(), lengths, sums })
    }

    /// Returns the learners whose updates it holds, ascending.
    #[must_use]
    pub fn learners(&self) -> &[LearnerId] {
        &self.learners
    }

    /// Adds an update of the plan's job.
    ///
    /// # Errors
    /// - `Duplicate`, or `Update` if the update is for another fragment: the sum is unchanged.
    /// - `Range`: the sum is no longer usable.
    pub fn add(&mut self, update: &WeightedUpdate) -> Result<(), SumError> {
        let learner = update.learner;
        let Err(at) = self.learners.binary_search(&learner) else {
            return Err(SumError::Duplicate { learner });
        };
        let body = update.body.bytes();
        let experts = self.segments.iter().filter_map(|segment| segment.expert).max();
        let is_lacking = experts.is_some_and(|last| update.experts.len() <= usize::from(last));
        if is_lacking || body.len() != self.codec.body_bytes(&self.segments) {
            return Err(SumError::Update { learner });
        }
        self.learners.insert(at, learner);
        let spans = self.codec.spans(&self.segments);
        for (i, (segment, span)) in self.segments.iter().zip(spans).enumerate() {
            let Term { factor, length } = self.plan.terms[i].term(update, i, update.weight_on(segment));
            self.lengths[i] += length;
            if factor != 0.0 {
                add_whole(&self.codec, span, body, factor, &mut self.sums);
            }
        }
        self.check()
    }

    /// Returns the segments on which directions cancel out, once all updates are added. If directions cancel out on any
    /// segment, all updates must be summed again, see [`SumPlan::after_cancelling`].
    #[must_use]
    pub fn cancelled(&self) -> Vec<u32> {
        let spans = self.codec.spans(&self.segments).enumerate();
        spans.filter(|&(at, span)| self.scaled(at, span).is_none()).map(|(at, _)| at as u32).collect()
    }

    /// Adds the sum `other` of other updates.
    ///
    /// # Errors
    /// - `Plan` if the plan, the codec or the segments differ, or `Duplicate` if both sums hold an update of the same
    ///   learner: this sum is unchanged.
    /// - `Range`: this sum is no longer usable.
    pub fn join(&mut self, other: &Self) -> Result<(), SumError> {
        if (&self.plan, &self.codec, &self.segments) != (&other.plan, &other.codec, &other.segments) {
            return Err(SumError::Plan);
        }
        if let Some(&learner) = other.learners.iter().find(|id| self.learners.binary_search(id).is_ok()) {
            return Err(SumError::Duplicate { learner });
        }
        self.learners.extend(&other.learners);
        self.learners.sort_unstable();
        let (lengths, sums) = (self.lengths.iter_mut(), self.sums.iter_mut());
        lengths.zip(&other.lengths).for_each(|(sum, other)| *sum += other);
        sums.zip(&other.sums).for_each(|(sum, other)| *sum += other);
        self.check()
    }

    /// Returns the bytes of the sum, 8 for each value.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(5 + 4 * self.learners.len() + WORD * self.words());
        bytes.push(LAYOUT);
        bytes.extend((self.learners.len() as u32).to_le_bytes());
        bytes.extend(self.learners.iter().flat_map(|learner| learner.0.to_le_bytes()));
        let words = self.lengths.iter().chain(&self.sums);
        bytes.extend(words.flat_map(|&word| (word as i64).to_le_bytes()));
        bytes
    }

    /// Replaces the sum by one read from bytes of [`Self::to_bytes`], made by the same plan.
    ///
    /// # Errors
    /// `Layout`, `Length`, `Order` and `Range` if the bytes are not such a sum; this sum is then unchanged.
    pub fn read(&mut self, bytes: &[u8]) -> Result<(), SumError> {
        let short = |expected| SumError::Length { expected, actual: bytes.len() };
        let Some((&[layout, a, b, c, d], rest)) = bytes.split_first_chunk() else { return Err(short(5)) };
        if layout != LAYOUT {
            return Err(SumError::Layout { layout });
        }
        let count = u32::from_le_bytes([a, b, c, d]) as usize;
        let expected = count.saturating_mul(4).saturating_add(5 + WORD * self.words());
        let Some((learners, words)) = rest.split_at_checked(count.saturating_mul(4)) else {
            return Err(short(expected));
        };
        if bytes.len() != expected {
            return Err(short(expected));
        }
        let learners: Vec<_> =
            learners.as_chunks().0.iter().map(|id| LearnerId(u32::from_le_bytes(*id))).collect();
        if let Some(pair) = learners.windows(2).find(|pair| pair[0] >= pair[1]) {
            return Err(SumError::Order { learner: pair[1] });
        }
        let words = words.as_chunks().0.iter().map(|word| i64::from_le_bytes(*word));
        let too_large = |word: &i64| word.unsigned_abs() >= SUM_MAX as u64;
        if let Some(index) = words.clone().position(|word| too_large(&word)) {
            return Err(SumError::Range { index });
        }
        let mut words = words.map(|word| word as f64);
        self.lengths = words.by_ref().take(self.segments.len()).collect();
        self.sums = words.collect();
        self.learners = learners;
        Ok(())
    }

    /// Returns the plan, to share it with other sums.
    pub(crate) fn shared_plan(&self) -> &Arc<SumPlan> {
        &self.plan
    }

    /// Returns the plan.
    pub(super) fn plan(&self) -> &SumPlan {
        &self.plan
    }

    /// Returns the sum on segment `at`; zero if directions cancel out there.
    pub(super) fn added(&self, at: usize, span: Span) -> SegmentSum<'_> {
        self.scaled(at, span).unwrap_or_default()
    }

    fn scaled(&self, at: usize, span: Span) -> Option<SegmentSum<'_>> {
        let source = Source::Summed(&self.sums);
        let norm = || square(&self.codec, span, &source).sqrt();
        let (factor, norm) = self.plan.terms[at].scale(self.lengths[at], norm)?;
        Some(SegmentSum { source, factor, norm })
    }

    /// Returns the sums of values, `[fragment_len]`, whole numbers.
    pub(super) fn values(&self) -> &[f64] {
        &self.sums
    }

    fn words(&self) -> usize {
        self.lengths.len() + self.sums.len()
    }

    /// Checks that all sums are exact. This always holds if the plan's job has all these updates.
    fn check(&self) -> Result<(), SumError> {
        let exact = |word: &f64| word.abs() < SUM_MAX;
        match self.lengths.iter().chain(&self.sums).position(|word| !exact(word)) {
            Some(index) => Err(SumError::Range { index }),
            None => Ok(()),
        }
    }
}

/// Binary digits after the point of a term of size at most 1. Shares add up to 1, so sums stay below 2⁵².
const DIGITS: i32 = 51;

/// Smallest and largest exponent of a length in powers of two. Shorter updates are rounded to zero.
const EXPONENTS: std::ops::RangeInclusive<i32> = -500..=500;

/// Rounding of the updates of one merge before they are summed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SumPlan {
    /// Terms of each segment, `[segments]`.
    pub(super) terms: Vec<Terms>,
}

/// Rounding of the updates on one segment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Terms {
    way: SumTerms,
    /// Sum of all weights, including missing updates.
    total: f64,
    /// Bound on the norm of a one-step update; `None` for no bound.
    radius: Option<f64>,
    /// Base-2 exponent of the longest counted norm, rounded up.
    exponent: i32,
}

/// Terms that are summed for an update `v` with share `s` and counted norm `r`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum SumTerms {
    /// The direction, `s v / ‖v‖`.
    Direction,
    /// The bounded update, `s r v / ‖v‖`.
    Mean,
    /// The bounded update, if it is the only one. The merge has its length.
    Only,
}

/// Term of one update on a segment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Term {
    /// Factor of the update's values. Each product is rounded to a whole number.
    pub(super) factor: f64,
    /// Its part of the merge's length, a whole number.
    pub(super) length: f64,
}

/// Length below which a sum of shares of unit vectors has no useful direction: the updates cancel out.
const DIRECTION_MIN: f64 = 1e-6;

impl SumPlan {
    /// Returns the plan of a checked job, from the weights, steps and norms of its updates.
    pub(super) fn of(job: &MergeJob) -> Self {
        let is_only = job.updates.len() == 1;
        let terms = job.segments.iter().enumerate().map(|(at, segment)| {
            let way = match job.is_radial(segment) {
                _ if is_only => SumTerms::Only,
                true => SumTerms::Direction,
                false => SumTerms::Mean,
            };
            let weights = job.weights(segment);
            let total = weights.absent + weights.weights.iter().sum::<f64>();
            let radius = job.radii.get(at).copied();
            let terms = Terms { way, total, radius, exponent: 0 };
            let counted = job.updates.iter().map(|update| terms.norms(update, at).1);
            let (_, exponent) = libm::frexp(counted.fold(0.0, f64::max));
            Terms { exponent: exponent.clamp(*EXPONENTS.start(), *EXPONENTS.end()), ..terms }
        });
        Self { terms: terms.collect() }
    }

    /// Returns true if all numbers are in the range that [`Self::of`] produces.
    pub(crate) fn is_sound(&self) -> bool {
        let is_size = |value: f64| value.is_finite() && value >= 0.0;
        self.terms.iter().all(|terms| {
            is_size(terms.total) && terms.radius.is_none_or(is_size) && EXPONENTS.contains(&terms.exponent)
        })
    }

    /// Returns true if `other` equals this plan, possibly after cancelling.
    pub(super) fn is_or_was(&self, other: &Self) -> bool {
        let same = |(terms, other): (&Terms, &Terms)| terms == other || terms.by_mean() == *other;
        self.terms.len() == other.terms.len() && self.terms.iter().zip(&other.terms).all(same)
    }

    /// Returns the plan for summing the same updates again, after directions cancelled out on some `segments`. On these
    /// segments, the new plan takes the weighted mean. Directions cancel out if updates are opposite to each other, as
    /// on tensors of a single value.
    #[must_use]
    pub fn after_cancelling(mut self, segments: &[u32]) -> Self {
        for &segment in segments {
            if let Some(terms) = self.terms.get_mut(segment as usize) {
                *terms = terms.by_mean();
            }
        }
        self
    }
}

impl Terms {
    /// Returns the norm of `update` on the segment, and the part of it that counts.
    fn norms(&self, update: &WeightedUpdate, segment: usize) -> (f64, f64) {
        let norm = update.body.squares().get(segment).copied().unwrap_or(0.0).sqrt();
        (norm, update.counted(norm, self.radius.unwrap_or(f64::INFINITY)))
    }

    /// Returns the term of `update`, with weight `weight` on the segment.
    pub(super) fn term(&self, update: &WeightedUpdate, segment: usize, weight: f64) -> Term {
        let (norm, counted) = self.norms(update, segment);
        if !(weight > 0.0 && norm > 0.0 && self.total > 0.0) {
            return Term { factor: 0.0, length: 0.0 };
        }
        let share = weight / self.total;
        let units = self.units();
        // A norm that counts in full is neither divided nor multiplied, so that a single update is merged unchanged.
        let shorter = if counted < norm { counted / norm } else { 1.0 };
        let factor = match self.way {
            SumTerms::Direction => share / norm * power(DIGITS),
            SumTerms::Mean | SumTerms::Only => share * shorter * units,
        };
        Term { factor, length: whole(share * counted * units) }
    }

    /// Returns the factor from the sum on the segment to Δ, and the norm of Δ. `length` is the sum of lengths, and
    /// `norm` computes the norm of the sum of values. Returns `None` if directions cancel out.
    pub(super) fn scale(&self, length: f64, norm: impl FnOnce() -> f64) -> Option<(f64, f64)> {
        let unit = self.units().recip();
        match self.way {
            SumTerms::Direction => {
                let (length, direction) = (length * unit, norm());
                (direction * power(-DIGITS) > DIRECTION_MIN).then(|| (length / direction, length))
            }
            SumTerms::Mean => Some((unit, norm() * unit)),
            SumTerms::Only => Some((unit, length * unit)),
        }
    }

    /// Returns the terms of the weighted mean, for updates whose directions cancel out.
    pub(super) fn by_mean(self) -> Self {
        if self.way == SumTerms::Direction { Self { way: SumTerms::Mean, ..self } } else { self }
    }

    /// Returns the number of units in a length of 1.
    fn units(&self) -> f64 {
        // A plan from another process may hold any exponent.
        power(DIGITS - self.exponent.clamp(*EXPONENTS.start(), *EXPONENTS.end()))
    }
}

fn power(exponent: i32) -> f64 {
    libm::scalbn(1.0, exponent)
}

#[cfg(test)]
mod tests {
    //! Tests of partial sums: any grouping gives the bits of a merge in one place.

    use std::sync::Arc;

    use proptest::prelude::*;

    use super::super::tests::{job, noisy_job};
    use super::super::{
        ExpertWeights, FragmentState, MergeError, MergeJob, MergeRule, OuterSpec, WeightedUpdate,
    };
    use super::*;
    use crate::wire::{Code, MergeClass};

    const CODES: [Code; 4] = [Code::Int4, Code::E3m0, Code::F32, Code::Int2];

    /// Creates a job with all features of a merge: an expert, weights of every size, missing updates and radii.
    fn rich_job(seed: u64, code: Code, weights: &[f64], absent: f64) -> MergeJob {
        let mut job = noisy_job(seed, code, weights.len() as u32);
        job.segments[2].expert = Some(0);
        for (at, (update, weight)) in job.updates.iter_mut().zip(weights).enumerate() {
            update.weight = *weight;
            update.experts = vec![if at % 3 == 1 { 0.0 } else { weight.sqrt() }];
            update.steps = 1 + at as u32;
        }
        (job.absent, job.absent_experts) = (absent, vec![absent / 2.0]);
        job.radii = vec![0.9, 0.5, 7.0];
        job
    }

    /// Returns the sum of the updates of each group, added in the group's order. The plan takes the weighted mean on
    /// the segments `cancelled`.
    fn sums(job: &mut MergeJob, groups: &[Vec<usize>], cancelled: &[u32]) -> Vec<PartialSum> {
        let plan = Arc::new(job.plan().unwrap().after_cancelling(cancelled));
        let segments = Arc::new(job.segments.clone());
        let empty = PartialSum::new(plan, job.codec, segments).unwrap();
        let sum = |group: &Vec<usize>| {
            let mut sum = empty.clone();
            group.iter().for_each(|&at| sum.add(&job.updates[at]).unwrap());
            sum
        };
        groups.iter().map(sum).collect()
    }

    /// Joins the sums of all groups; all but the first are sent as bytes.
    fn joined(job: &mut MergeJob, groups: &[Vec<usize>], cancelled: &[u32]) -> PartialSum {
        let mut parts = sums(job, groups, cancelled).into_iter();
        let mut sum = parts.next().unwrap();
        for part in parts {
            let mut read = sum.clone();
            read.read(&part.to_bytes()).unwrap();
            assert_eq!(read, part);
            sum.join(&read).unwrap();
        }
        sum
    }

    /// Returns the job without the bodies of its updates.
    fn without_bodies(job: &MergeJob) -> MergeJob {
        let bodiless =
            |update: &WeightedUpdate| WeightedUpdate { body: update.body.without_bytes(), ..update.clone() };
        MergeJob { updates: job.updates.iter().map(bodiless).collect(), ..job.clone() }
    }

    #[test]
    fn flattened_matrices_do_not_depend_on_the_grouping() {
        let mut job = rich_job(5, Code::Int4, &[1.0, 2.0, 3.0, 0.5], 0.5);
        let radial = job.clone().run().unwrap();
        job.segments[2].cols = 20;
        job.rule = MergeRule::Flat;
        let whole = job.clone().run().unwrap();
        assert_ne!(whole.state, radial.state);
        for groups in [[vec![0, 3], vec![1], vec![2]], [vec![2], vec![], vec![1, 0, 3]]] {
            let sum = joined(&mut job, &groups, &[]);
            assert_eq!(without_bodies(&job).finish(&sum).unwrap(), whole);
        }
    }

    /// Computes Δ and its norm by the formula of [`MergeJob::run`], with rounded additions.
    fn by_formula(job: &MergeJob) -> (Vec<f64>, f64) {
        let norm = |values: &[f64]| values.iter().map(|value| value * value).sum::<f64>().sqrt();
        let ratio = |a: f64, b: f64| if b > 0.0 { a / b } else { 0.0 };
        let mut delta = Vec::new();
        for (at, segment) in job.segments.iter().enumerate() {
            let (start, end) = (segment.start as usize, (segment.start + segment.len) as usize);
            let decode = |update: &WeightedUpdate| -> Vec<f64> {
                let values = job.codec.decode(&job.segments, update.body.bytes()).unwrap();
                values[start..end].iter().copied().map(f64::from).collect()
            };
            let values: Vec<Vec<f64>> = job.updates.iter().map(decode).collect();
            let ExpertWeights { weights, absent } = job.weights(segment);
            let total = absent + weights.iter().sum::<f64>();
            let lengths: Vec<(f64, f64)> = values
                .iter()
                .zip(&job.updates)
                .map(|(values, update)| (norm(values), update.counted(norm(values), job.radii[at])))
                .collect();
            let add = |factor: &dyn Fn(f64, f64) -> f64| -> Vec<f64> {
                let mut sum = vec![0.0; end - start];
                for ((values, weight), (norm, counted)) in values.iter().zip(&weights).zip(&lengths) {
                    let factor = ratio(*weight, total) * factor(*norm, *counted);
                    sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += factor * value);
                }
                sum
            };
            let direction = add(&|norm, _| ratio(1.0, norm));
            if job.is_radial(segment) && norm(&direction) > 1e-6 {
                let length: f64 = weights
                    .iter()
                    .zip(&lengths)
                    .map(|(weight, (_, counted))| ratio(*weight, total) * counted)
                    .sum();
                delta.extend(direction.iter().map(|value| value * length / norm(&direction)));
            } else {
                delta.extend(add(&|norm, counted| ratio(counted, norm)));
            }
        }
        let size = norm(&delta);
        (delta, size)
    }

    /// Splits the three updates of a job into two groups.
    fn two_groups() -> (MergeJob, Vec<PartialSum>) {
        let mut job = rich_job(3, Code::Int4, &[1.0, 2.0, 3.0], 0.0);
        let groups = sums(&mut job, &[vec![0, 2], vec![1]], &[]);
        (job, groups)
    }

    proptest! {
        /// Goal: every result of a merge is the same to the bit for any grouping of its updates, any order of updates
        /// and groups, and across processes.
        #[test]
        fn any_grouping_gives_the_same_bits(
            seed in any::<u64>(),
            code in prop::sample::select(&CODES[..]),
            members in prop::collection::vec((-20.0_f64..20.0, 0_usize..4, any::<u32>()), 1..9),
            absent in prop_oneof![Just(0.0), 0.0_f64..1e6],
            rotate in 0_usize..4,
        ) {
            let weights: Vec<f64> = members.iter().map(|(size, ..)| size.exp()).collect();
            let mut job = rich_job(seed, code, &weights, absent);
            let whole = job.clone().run().unwrap();
            let mut order: Vec<usize> = (0..members.len()).collect();
            order.sort_by_key(|&at| members[at].2);
            let mut groups = vec![Vec::new(); 4];
            order.into_iter().for_each(|at| groups[members[at].1].push(at));
            groups.rotate_left(rotate);
            let mut sum = joined(&mut job, &groups, &[]);
            let cancelled = sum.cancelled();
            if !cancelled.is_empty() {
                sum = joined(&mut job, &groups, &cancelled);
            }
            let finished = without_bodies(&job).finish(&sum).unwrap();
            prop_assert_eq!(&finished, &whole);
        }

        /// Goal: a merge follows its formula, up to rounding.
        #[test]
        fn merges_follow_the_formula(
            seed in any::<u64>(),
            code in prop::sample::select(&CODES[..]),
            sizes in prop::collection::vec(-3.0_f64..3.0, 1..9),
        ) {
            let weights: Vec<f64> = sizes.iter().map(|size| size.exp()).collect();
            let mut job = rich_job(seed, code, &weights, 0.5);
            job.state = FragmentState::new(vec![0.0; 340]);
            job.outer = OuterSpec { lr: 1.0, momentum: 0.0 };
            let (expected, size) = by_formula(&job);
            let outcome = job.run().unwrap();
            let largest = expected.iter().fold(0.0_f64, |max, value| max.max(value.abs()));
            prop_assert!(largest > 0.0 && (outcome.norm - size).abs() <= 1e-6 * size, "{} {}", outcome.norm, size);
            for (theta, expected) in outcome.state.theta.iter().zip(&expected) {
                let most = 1e-6 * expected.abs() + 1e-9 * largest;
                prop_assert!((f64::from(-theta) - expected).abs() <= most, "{} {}", theta, expected);
            }
        }

        /// Goal: any bytes are a sum or a typed error, and a sum is written as it was read.
        #[test]
        fn any_bytes_are_a_sum_or_refused(
            at in 0_usize..2_000,
            value in any::<u8>(),
            cut in prop_oneof![Just(None), (0_usize..3_000).prop_map(Some)],
        ) {
            let (_, groups) = two_groups();
            let mut bytes = groups[0].to_bytes();
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
            bytes.truncate(cut.unwrap_or(usize::MAX));
            let mut sum = groups[1].clone();
            match sum.read(&bytes) {
                Ok(()) => prop_assert_eq!(sum.to_bytes(), bytes),
                Err(_) => prop_assert_eq!(&sum, &groups[1]),
            }
        }
    }

    /// Goal: if directions cancel out, separate sums are computed again, and give the same mean as in one place.
    #[test]
    fn what_cancels_out_is_added_up_once_more() {
        let parts = [(2, MergeClass::Radial), (1, MergeClass::Radial)];
        let mut job = job(Code::F32, &parts, &[(1, 1.0, &[1.0, 2.0, 3.0]), (2, 1.0, &[2.0, 1.0, -1.0])]);
        let groups = [vec![1], vec![0]];
        let sum = joined(&mut job, &groups, &[]);
        assert_eq!(sum.cancelled(), [1]);
        let failure = job.clone().finish(&sum).unwrap_err();
        assert_eq!(failure.error, MergeError::Cancelled { segment: 1 });

        let sum = joined(&mut job, &groups, &[1]);
        let outcome = job.clone().finish(&sum).unwrap();
        assert_eq!(outcome.state.theta[2], -1.0, "the mean of 3 and −1");
        assert_eq!(outcome, job.run().unwrap());
    }

    #[test]
    fn bytes_that_are_no_sum_say_why() {
        let (_, groups) = two_groups();
        let bytes = groups[0].to_bytes();
        let len = 1 + 4 + 2 * 4 + 8 * (3 + 340);
        assert_eq!(bytes.len(), len, "layout, count, two learners, lengths and sums");
        let check = |change: &dyn Fn(&mut Vec<u8>), expected: SumError| {
            let mut other = bytes.clone();
            change(&mut other);
            assert_eq!(groups[1].clone().read(&other), Err(expected));
        };
        check(&|bytes| bytes[0] = 2, SumError::Layout { layout: 2 });
        check(&|bytes| bytes.truncate(4), SumError::Length { expected: 5, actual: 4 });
        check(&|bytes| bytes.push(0), SumError::Length { expected: len, actual: len + 1 });
        check(&|bytes| bytes[1] = 3, SumError::Length { expected: len + 4, actual: len });
        check(&|bytes| bytes[9] = 0, SumError::Order { learner: LearnerId(0) });
        check(&|bytes| *bytes.last_mut().unwrap() = 0x7f, SumError::Range { index: 342 });
    }

    #[test]
    fn no_update_is_in_a_sum_twice() {
        let (job, groups) = two_groups();
        let mut sum = groups[0].clone();
        let learner = job.updates[2].learner;
        assert_eq!(sum.add(&job.updates[2]), Err(SumError::Duplicate { learner }));
        assert_eq!(sum.join(&groups[0]), Err(SumError::Duplicate { learner: job.updates[0].learner }));
        assert_eq!(sum, groups[0]);
    }

    #[test]
    fn a_sum_is_of_one_merge() {
        let (job, mut groups) = two_groups();
        let failure = job.clone().finish(&groups[0]).unwrap_err();
        assert_eq!(
            (failure.state, failure.error),
            (job.state.clone(), MergeError::Sum { expected: 3, actual: 2 })
        );

        let mut other = rich_job(3, Code::Int4, &[1.0, 2.5, 3.0], 0.0);
        let others = sums(&mut other, &[vec![1]], &[]);
        assert_eq!(groups[0].join(&others[0]), Err(SumError::Plan), "other weights, another plan");
        let short = Arc::new(job.segments[..2].to_vec());
        assert_eq!(PartialSum::new(Arc::clone(&groups[0].plan), job.codec, short), Err(SumError::Plan));

        let stranger = job_of_eight().updates.remove(0);
        assert_eq!(groups[1].add(&stranger), Err(SumError::Update { learner: stranger.learner }));
        let rest = groups[1].clone();
        groups[0].join(&rest).unwrap();
        assert_eq!(job.clone().finish(&groups[0]).unwrap(), job.run().unwrap());
    }

    /// Creates a job on a fragment of another shape.
    fn job_of_eight() -> MergeJob {
        job(Code::Int4, &[(8, MergeClass::Mean)], &[(7, 1.0, &[1.0; 8])])
    }

    /// A plan that was made for other updates leads to an inexact sum, which is refused.
    #[test]
    fn what_is_too_large_to_be_exact_is_refused() {
        let (mut job, _) = two_groups();
        let plan = Arc::new(job.plan().unwrap());
        let mut sum = PartialSum::new(plan, job.codec, Arc::new(job.segments.clone())).unwrap();
        job.updates[0].weight = 1e9;
        assert!(matches!(sum.add(&job.updates[0]), Err(SumError::Range { .. })));
    }
}
