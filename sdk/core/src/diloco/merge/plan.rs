//! Common rounding of the updates of one merge, so that sums are exact.
//!
//! Each term is rounded once, to a whole number of units. All further sums are sums of whole numbers. They are exact
//! in `f64` as long as they stay below 2⁵³, and so do not depend on the order or grouping of the updates. That bound
//! follows from values that are known in advance: each update's share of all weights, and the longest update on each
//! segment. (Demmel and Nguyen, "Fast Reproducible Floating-Point Summation", 2013, round to a common grid in the
//! same way.)

use serde::{Deserialize, Serialize};

use super::{MergeJob, Weighted};
use crate::diloco::block::whole;

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
    way: Way,
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
enum Way {
    /// The direction, `s v / ‖v‖`.
    Direction,
    /// The bounded update, `s r v / ‖v‖`.
    Mean,
    /// The same for a single update: the merge has its length.
    Only,
}

/// Term of one update on a segment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Term {
    /// Factor of its values, which are whole numbers once rounded.
    pub(super) factor: f64,
    /// Its part of the merge's length, a whole number.
    pub(super) length: f64,
}

/// Length below which a sum of shares of unit vectors has no useful direction: the updates cancel out.
const DIRECTION_MIN: f64 = 1e-6;

impl SumPlan {
    /// Makes the plan of a checked job, from the weights, steps and norms of its updates.
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

    /// Returns the plan to sum the same updates again, after directions cancelled out on some `segments`: there they
    /// are summed by length. That happens if updates are opposite to each other, as on tensors of a single value.
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
    fn norms(&self, update: &Weighted, segment: usize) -> (f64, f64) {
        let norm = update.body.squares().get(segment).copied().unwrap_or(0.0).sqrt();
        (norm, update.counted(norm, self.radius.unwrap_or(f64::INFINITY)))
    }

    /// Returns the term of `update`, with weight `weight` on the segment.
    pub(super) fn term(&self, update: &Weighted, segment: usize, weight: f64) -> Term {
        let (norm, counted) = self.norms(update, segment);
        if !(weight > 0.0 && norm > 0.0 && self.total > 0.0) {
            return Term { factor: 0.0, length: 0.0 };
        }
        let share = weight / self.total;
        let units = self.units();
        // A norm that counts in full is neither divided nor multiplied, so that a single update is merged unchanged.
        let shorter = if counted < norm { counted / norm } else { 1.0 };
        let factor = match self.way {
            Way::Direction => share / norm * power(DIGITS),
            Way::Mean | Way::Only => share * shorter * units,
        };
        Term { factor, length: whole(share * counted * units) }
    }

    /// Returns the factor from the sum on the segment to Δ, and the norm of Δ. `length` is the sum of lengths, and
    /// `norm` computes the norm of the sum of values. Returns `None` if directions cancel out.
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

    /// Returns the terms for updates whose directions cancel out.
    pub(super) fn by_mean(self) -> Self {
        if self.way == Way::Direction { Self { way: Way::Mean, ..self } } else { self }
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
