//! What all who add up the updates of one merge agree on, so that no addition is rounded.
//!
//! A term is rounded once, to a whole number of units, and from there on sums are sums of whole numbers: exact in `f64`
//! as long as they stay below 2⁵³, and so the same in any order and however the updates are grouped. That they stay
//! below follows from what is known before anything is added: an update's share of all weights, and the longest update
//! of each segment. (Demmel and Nguyen, "Fast Reproducible Floating-Point Summation", 2013, round to a common grid in
//! the same way.)

use serde::{Deserialize, Serialize};

use super::{MergeJob, Weighted};
use crate::diloco::block::whole;

/// Binary digits behind the point of a term whose size is at most 1: shares add up to 1, so that sums stay below 2⁵².
const DIGITS: i32 = 51;

/// The smallest and the largest power of two that lengths are told by; what is shorter rounds to nothing.
const EXPONENTS: std::ops::RangeInclusive<i32> = -500..=500;

/// What the updates of one merge are rounded to before they are added up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SumPlan {
    /// Of each segment, `[segments]`.
    pub(super) terms: Vec<Terms>,
}

/// How the updates of one merge are added up on a segment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Terms {
    way: Way,
    /// All weights there, with those of the absent.
    total: f64,
    /// How far the norm of an update of one step counts; `None` for no bound.
    radius: Option<f64>,
    /// No update counts for more than 2 to the power of this.
    exponent: i32,
}

/// What is added up of an update `v` whose share is `s` and whose norm counts as `r`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Way {
    /// Its direction, `s v / ‖v‖`.
    Direction,
    /// As long as it counts, `s r v / ‖v‖`.
    Mean,
    /// The same of the only update that there is: the merge is as long as it is.
    Only,
}

/// What one update adds on a segment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Term {
    /// Times its values: whole numbers once they are rounded.
    pub(super) factor: f64,
    /// Its share of the merge's length, a whole number.
    pub(super) length: f64,
}

/// Below this length a sum of shares of unit vectors has no direction worth following: the updates cancel out.
const DIRECTION_MIN: f64 = 1e-6;

impl SumPlan {
    /// The plan of a job that was checked; of its updates only weights, steps and norms count.
    pub(super) fn of(job: &MergeJob) -> Self {
        let is_only = job.updates.len() == 1;
        let terms = job.segments.iter().enumerate().map(|(at, segment)| {
            let way = match job.is_radial(segment) {
                _ if is_only => Way::Only,
                true => Way::Direction,
                false => Way::Mean,
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

    /// Whether its numbers are such as [`Self::of`] finds.
    pub(crate) fn is_sound(&self) -> bool {
        let is_size = |value: f64| value.is_finite() && value >= 0.0;
        self.terms.iter().all(|terms| {
            is_size(terms.total) && terms.radius.is_none_or(is_size) && EXPONENTS.contains(&terms.exponent)
        })
    }

    /// Whether `other` is this one, or what it becomes after cancelling.
    pub(super) fn is_or_was(&self, other: &Self) -> bool {
        let same = |(terms, other): (&Terms, &Terms)| terms == other || terms.by_mean() == *other;
        self.terms.len() == other.terms.len() && self.terms.iter().zip(&other.terms).all(same)
    }

    /// The plan to add the same updates up once more, after directions cancelled out on some `segments`: there they are
    /// added up by length. That happens where updates are opposite to each other, as of tensors of a single value.
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
    /// The norm of `update` on the segment, and how far it counts.
    fn norms(&self, update: &Weighted, segment: usize) -> (f64, f64) {
        let norm = update.body.squares().get(segment).copied().unwrap_or(0.0).sqrt();
        (norm, update.counted(norm, self.radius.unwrap_or(f64::INFINITY)))
    }

    /// What `update` adds on the segment, of which it weighs `weight`.
    pub(super) fn term(&self, update: &Weighted, segment: usize, weight: f64) -> Term {
        let (norm, counted) = self.norms(update, segment);
        if !(weight > 0.0 && norm > 0.0 && self.total > 0.0) {
            return Term { factor: 0.0, length: 0.0 };
        }
        let share = weight / self.total;
        let units = self.units();
        // What counts in full is not divided and multiplied, so that one update is its own merge.
        let shorter = if counted < norm { counted / norm } else { 1.0 };
        let factor = match self.way {
            Way::Direction => share / norm * power(DIGITS),
            Way::Mean | Way::Only => share * shorter * units,
        };
        Term { factor, length: whole(share * counted * units) }
    }

    /// By what sums on the segment are multiplied to become Δ, and the norm of Δ: given the sum of lengths, and how the
    /// norm of the other sums is found. `None` if these are of directions that cancel out.
    pub(super) fn scale(&self, length: f64, norm: impl FnOnce() -> f64) -> Option<(f64, f64)> {
        let unit = self.units().recip();
        match self.way {
            Way::Direction => {
                let (length, direction) = (length * unit, norm());
                (direction * power(-DIGITS) > DIRECTION_MIN).then(|| (length / direction, length))
            }
            Way::Mean => Some((unit, norm() * unit)),
            Way::Only => Some((unit, length * unit)),
        }
    }

    /// The same for updates whose directions cancel out.
    pub(super) fn by_mean(self) -> Self {
        if self.way == Way::Direction { Self { way: Way::Mean, ..self } } else { self }
    }

    /// Units in a length of 1.
    fn units(&self) -> f64 {
        // Plans of others may say anything.
        power(DIGITS - self.exponent.clamp(*EXPONENTS.start(), *EXPONENTS.end()))
    }
}

fn power(exponent: i32) -> f64 {
    libm::scalbn(1.0, exponent)
}
