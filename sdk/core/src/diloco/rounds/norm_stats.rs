//! Norm statistics of a fragment's updates, which bound the length of a single update in a merge.

use std::collections::{BTreeMap, VecDeque};

use crate::diloco::Segment;
use crate::wire::LearnerId;

/// Norms of the updates of one fragment on each segment, divided by their scale: the learning rate times the square
/// root of the steps. Without the learning rate, honest updates after the warm-up would be a hundred times longer than
/// those before.
///
/// Each learner has the same weight, however many updates it sends.
#[derive(Clone, Debug)]
pub(super) struct NormStats {
    learners: BTreeMap<LearnerId, LearnerNorms>,
    /// Number of updates noted so far.
    count: u64,
    /// Lower bound on the scaled norm on each segment, `[segments]`.
    least: Vec<f64>,
    /// Scale of a one-step update at the last update.
    scale: f64,
}

/// Norms of one learner's updates.
#[derive(Clone, Debug)]
struct LearnerNorms {
    /// Scaled norms of its last updates, oldest first, `[segments]` each; never empty.
    noted: VecDeque<Vec<f64>>,
    /// Whether the learner was a newcomer at its last update.
    is_new: bool,
    /// Value of `NormStats::count` at its last update.
    at: u64,
}

impl NormStats {
    /// Number of updates that are kept per learner.
    const KEPT: usize = 8;
    /// Weight of one learner, divisible by every number up to [`Self::KEPT`].
    const LEARNER_WEIGHT: u64 = 840;
    /// Number of learners that are kept.
    const LEARNERS_MAX: usize = 64;
    /// Number of updates that a bound needs.
    const NEEDED: usize = 4;
    /// Lower bound on the norm per value, in learning rates. AdamW moves a value by about one learning rate in a step.
    /// Without this bound, a learner that sends tiny updates for a while would restrict every learner that trains.
    const LEAST_PER_VALUE: f64 = 0.1;

    /// Creates empty statistics for a fragment with these segments.
    pub(super) fn new(segments: &[Segment]) -> Self {
        let least = |segment: &Segment| Self::LEAST_PER_VALUE * f64::from(segment.len).sqrt();
        Self { learners: BTreeMap::new(), count: 0, least: segments.iter().map(least).collect(), scale: 0.0 }
    }

    /// Adds an update of `learner` with `steps` steps, from its sums of squares, `[segments]`. `scale` is the scale of
    /// a one-step update, above 0. Norms above the current bound are noted unchanged, so honest updates may grow over
    /// time, while a minority of learners cannot move the median.
    pub(super) fn note(&mut self, learner: LearnerId, is_new: bool, squares: &[f64], steps: u32, scale: f64) {
        let total = scale * f64::from(steps.max(1)).sqrt();
        let norms = squares.iter().map(|square| square.sqrt() / total).collect();
        (self.count, self.scale) = (self.count + 1, scale);
        let fresh = || LearnerNorms { noted: VecDeque::new(), is_new, at: 0 };
        let its = self.learners.entry(learner).or_insert_with(fresh);
        if its.noted.len() == Self::KEPT {
            its.noted.pop_front();
        }
        its.noted.push_back(norms);
        (its.is_new, its.at) = (is_new, self.count);
        if self.learners.len() > Self::LEARNERS_MAX {
            let oldest = self.learners.iter().min_by_key(|(_, its)| (!its.is_new, its.at));
            if let Some((&learner, _)) = oldest {
                self.learners.remove(&learner);
            }
        }
    }

    /// Returns the upper bound on the norm of a one-step update on each segment, `[segments]`: `ratio_max` times the
    /// median. Newcomers are included only if fewer than [`Self::NEEDED`] updates of other learners are known. Empty,
    /// for no bound, if fewer updates are known at all or if `ratio_max` is 0.
    pub(super) fn radii(&self, ratio_max: f64) -> Vec<f64> {
        let count = |learners: &[&LearnerNorms]| learners.iter().map(|its| its.noted.len()).sum::<usize>();
        let mut learners: Vec<&LearnerNorms> = self.learners.values().filter(|its| !its.is_new).collect();
        if count(&learners) < Self::NEEDED {
            learners = self.learners.values().collect();
        }
        if count(&learners) < Self::NEEDED || ratio_max <= 0.0 {
            return Vec::new();
        }
        let radius = |(segment, &least): (usize, &f64)| {
            let norms = learners.iter().flat_map(|its| {
                let part = Self::LEARNER_WEIGHT / its.noted.len() as u64;
                its.noted.iter().map(move |norms| (norms[segment].max(least), part))
            });
            ratio_max * self.scale * median(norms.collect())
        };
        self.least.iter().enumerate().map(radius).collect()
    }
}

/// Returns the median of `values`, each with its weight; 0 without values. If the middle lies between two values,
/// returns their geometric mean, so that neither of two learners decides alone.
fn median(mut values: Vec<(f64, u64)>) -> f64 {
    values.sort_by(|a, b| a.0.total_cmp(&b.0));
    let total: u64 = values.iter().map(|(_, weight)| weight).sum();
    let mut below = 0;
    let mut middle = values.iter().filter_map(|&(value, weight)| {
        let before = below;
        below += weight;
        (2 * below >= total && 2 * before <= total).then_some(value)
    });
    let Some(lower) = middle.next() else { return 0.0 };
    match middle.last() {
        Some(upper) if upper > lower => (lower * upper).sqrt(),
        _ => lower,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diloco::MergeClass;

    const RATIO: f64 = 3.0;

    fn usual(lens: &[u32]) -> NormStats {
        let segment =
            |&len: &u32| Segment { start: 0, len, merge: MergeClass::Radial, cols: 0, expert: None };
        NormStats::new(&lens.iter().map(segment).collect::<Vec<_>>())
    }

    fn note(usual: &mut NormStats, learner: u32, squares: &[f64], steps: u32, rate: f64) {
        usual.note(LearnerId(learner), false, squares, steps, rate);
    }

    #[test]
    fn each_segment_has_a_radius_that_follows_rate_and_steps() {
        let mut usual = usual(&[1, 1]);
        for _ in 0..3 {
            note(&mut usual, 1, &[16.0, 64.0], 4, 1.0);
        }
        assert_eq!(usual.radii(RATIO), [0.0; 0], "too little is known");
        note(&mut usual, 1, &[16.0, 64.0], 4, 1.0);
        assert_eq!(usual.radii(RATIO), [6.0, 12.0]);
        assert_eq!(usual.radii(0.0), [0.0; 0]);
        note(&mut usual, 1, &[1.0, 4.0], 1, 0.5);
        assert_eq!(usual.radii(RATIO), [3.0, 6.0], "half the rate, half the radius");
    }

    #[test]
    fn radii_follow_lasting_growth() {
        let mut usual = usual(&[1]);
        (0..32).for_each(|_| note(&mut usual, 1, &[1.0], 1, 1.0));
        (0..3).for_each(|_| note(&mut usual, 1, &[1e6], 1, 1.0));
        assert_eq!(usual.radii(RATIO), [3.0]);
        (0..5).for_each(|_| note(&mut usual, 1, &[1e6], 1, 1.0));
        assert_eq!(usual.radii(RATIO), [3e3]);
    }

    /// Goal: a minority of learners cannot move a radius, however many updates it sends.
    #[test]
    fn each_learner_has_the_same_weight() {
        let mut usual = usual(&[1]);
        (1..=3).for_each(|learner| note(&mut usual, learner, &[1.0], 1, 1.0));
        (0..1_000).for_each(|_| note(&mut usual, 9, &[1e6], 1, 1.0));
        (0..1_000).for_each(|_| note(&mut usual, 8, &[0.0], 1, 1.0));
        assert_eq!(usual.radii(RATIO), [3.0]);
        let mut pair = self::usual(&[1]);
        (0..100).for_each(|_| note(&mut pair, 1, &[1.0], 1, 1.0));
        note(&mut pair, 2, &[1e4], 1, 1.0);
        assert_eq!(pair.radii(RATIO), [30.0], "of two neither has the word alone");
    }

    /// Goal: whatever the number of newcomers, established learners determine the statistics.
    #[test]
    fn newcomers_enter_only_without_enough_other_updates() {
        let mut usual = usual(&[1]);
        for learner in 100..200 {
            usual.note(LearnerId(learner), true, &[1e6], 1, 1.0);
        }
        assert_eq!(usual.radii(RATIO), [3e3]);
        (0..3).for_each(|_| note(&mut usual, 1, &[1.0], 1, 1.0));
        assert_eq!(usual.radii(RATIO), [3e3], "too little is known of others");
        note(&mut usual, 1, &[1.0], 1, 1.0);
        assert_eq!(usual.radii(RATIO), [3.0]);
        for learner in 200..300 {
            usual.note(LearnerId(learner), true, &[1e6], 1, 1.0);
        }
        assert_eq!(usual.radii(RATIO), [3.0]);
        assert_eq!(usual.learners.len(), NormStats::LEARNERS_MAX);
    }

    #[test]
    fn radii_have_a_lower_bound() {
        let mut usual = usual(&[100]);
        (0..32).for_each(|_| note(&mut usual, 1, &[0.0], 1, 2.0));
        assert_eq!(usual.radii(RATIO), [6.0]);
    }
}
