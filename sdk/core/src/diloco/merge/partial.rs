//! Sum of some of the updates of a merge, computed apart from the others.

use std::sync::Arc;

use super::plan::{SumPlan, Term};
use super::source::{Added, Source, add_whole, square};
use super::{SumError, Weighted};
use crate::diloco::quant::{Span, fragment_len};
use crate::diloco::{Codec, LearnerId, Segment};

/// Size below which sums are exact.
const SUM_MAX: f64 = (1_u64 << 53) as f64;
/// Number of the byte layout, the first byte.
const LAYOUT: u8 = 1;
/// Bytes of one value.
const WORD: usize = 8;

/// Sum of the updates of some learners.
///
/// It is made of single updates and of other sums, in any order. For any grouping, the sum of all updates has the
/// same bits, see [`super::MergeJob::finish`].
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
    /// `Duplicate`, or `Update` if it is for another fragment; the sum is then unchanged. `Range`: the sum is then
    /// useless.
    pub fn add(&mut self, update: &Weighted) -> Result<(), SumError> {
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

    /// Returns the segments on which directions cancel out, once all updates are added. If there are any, all updates
    /// must be summed again, see [`SumPlan::after_cancelling`].
    #[must_use]
    pub fn cancelled(&self) -> Vec<u32> {
        let spans = self.codec.spans(&self.segments).enumerate();
        spans.filter(|&(at, span)| self.scaled(at, span).is_none()).map(|(at, _)| at as u32).collect()
    }

    /// Adds the sum of other updates.
    ///
    /// # Errors
    /// `Plan` if it has another plan, or `Duplicate` if both hold the same update; the sum is then unchanged.
    /// `Range`: the sum is then useless.
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

    /// Returns its bytes, 8 for each value.
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

    /// Returns the plan, for the other sums.
    pub(crate) fn shared_plan(&self) -> &Arc<SumPlan> {
        &self.plan
    }

    /// Returns the plan.
    pub(super) fn plan(&self) -> &SumPlan {
        &self.plan
    }

    /// Returns the sum on segment `at`; zero if directions cancel out there.
    pub(super) fn added(&self, at: usize, span: Span) -> Added<'_> {
        self.scaled(at, span).unwrap_or_default()
    }

    fn scaled(&self, at: usize, span: Span) -> Option<Added<'_>> {
        let source = Source::Summed(&self.sums);
        let norm = || square(&self.codec, span, &source).sqrt();
        let (factor, norm) = self.plan.terms[at].scale(self.lengths[at], norm)?;
        Some(Added { source, factor, norm })
    }

    /// Returns the sums of values, `[fragment_len]`, whole numbers.
    pub(super) fn values(&self) -> &[f64] {
        &self.sums
    }

    fn words(&self) -> usize {
        self.lengths.len() + self.sums.len()
    }

    /// Checks that all sums are exact. They always are for a plan whose job has all these updates.
    fn check(&self) -> Result<(), SumError> {
        let exact = |word: &f64| word.abs() < SUM_MAX;
        match self.lengths.iter().chain(&self.sums).position(|word| !exact(word)) {
            Some(index) => Err(SumError::Range { index }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
