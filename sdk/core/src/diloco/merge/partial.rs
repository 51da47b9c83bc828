//! The sum of some of the updates of a merge, made apart from the others.

use std::sync::Arc;

use super::plan::{SumPlan, Term};
use super::source::{Added, Source, add_whole, square};
use super::{SumError, Weighted};
use crate::diloco::quant::{Span, fragment_len};
use crate::diloco::{Codec, LearnerId, Segment};

/// What is below this in size is a sum without any rounding.
const SUM_MAX: f64 = (1_u64 << 53) as f64;
/// What bytes begin with: another layout gets another number.
const LAYOUT: u8 = 1;
/// Bytes of a sum.
const WORD: usize = 8;

/// The sum of the updates of some learners: it can be made of updates one by one and of other sums, in any order, and
/// whatever the grouping, the sum of all leads to the same bits, see [`super::MergeJob::finish`].
///
/// Per segment it holds Σ s v/‖v‖, or where means are merged Σ s r v/‖v‖, and Σ s r, of the updates `v` that count for
/// a length of `r` and for a share `s` of all weights. [`SumPlan`] says how these are rounded to whole numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct PartialSum {
    plan: Arc<SumPlan>,
    codec: Codec,
    segments: Arc<Vec<Segment>>,
    /// Whose updates are in it, ascending.
    learners: Vec<LearnerId>,
    /// Of each segment, `[segments]`, whole numbers.
    lengths: Vec<f64>,
    /// `[fragment_len]`, whole numbers.
    sums: Vec<f64>,
}

impl PartialSum {
    /// The sum of no update of a fragment made of `segments`.
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

    /// Whose updates are in it, ascending.
    #[must_use]
    pub fn learners(&self) -> &[LearnerId] {
        &self.learners
    }

    /// Adds an update, as the plan's job has it.
    ///
    /// # Errors
    /// Then nothing has changed: `Duplicate`, and `Update` if it is one for another fragment. After `Range` the sum is
    /// of no use any more.
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

    /// The segments on which directions cancel out, once all updates are in it. If there are any, they are to be added
    /// up once more, see [`SumPlan::after_cancelling`].
    #[must_use]
    pub fn cancelled(&self) -> Vec<u32> {
        let spans = self.codec.spans(&self.segments).enumerate();
        spans.filter(|&(at, span)| self.scaled(at, span).is_none()).map(|(at, _)| at as u32).collect()
    }

    /// Adds the sum of others.
    ///
    /// # Errors
    /// Then nothing has changed: `Plan` if it was made by another one, `Duplicate` if an update is in both. After
    /// `Range` the sum is of no use any more.
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

    /// Its bytes: 8 a value.
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

    /// Reads [`Self::to_bytes`] of a sum that was made by the plan of this one, instead of what is in it.
    ///
    /// # Errors
    /// Then nothing has changed: `Layout`, `Length`, `Order` and `Range`, if they are no such bytes.
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

    /// The plan, for whoever is to make the other sums.
    pub(crate) fn shared_plan(&self) -> &Arc<SumPlan> {
        &self.plan
    }

    /// By which plan it was made.
    pub(super) fn plan(&self) -> &SumPlan {
        &self.plan
    }

    /// What it says of segment `at`; nothing if directions cancel out there.
    pub(super) fn added(&self, at: usize, span: Span) -> Added<'_> {
        self.scaled(at, span).unwrap_or_default()
    }

    fn scaled(&self, at: usize, span: Span) -> Option<Added<'_>> {
        let source = Source::Summed(&self.sums);
        let norm = || square(&self.codec, span, &source).sqrt();
        let (factor, norm) = self.plan.terms[at].scale(self.lengths[at], norm)?;
        Some(Added { source, factor, norm })
    }

    /// The sums of all values, `[fragment_len]`, whole numbers.
    pub(super) fn values(&self) -> &[f64] {
        &self.sums
    }

    fn words(&self) -> usize {
        self.lengths.len() + self.sums.len()
    }

    /// Whether all are exact, as they always are by the plan of a job that has all these updates.
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
