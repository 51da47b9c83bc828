//! Norm statistics of a fragment's updates, which bound the pull of one update on a merge.

use std::collections::{BTreeMap, VecDeque};

use crate::diloco::Segment;
use crate::wire::LearnerId;

/// Norms of the updates of one fragment on each segment, divided by their pace. The pace is the current learning rate
/// times the root of the steps. Without the rate, honest updates after the warm-up would be a hundred times longer than
/// those before.
///
/// Each learner has one vote, however many updates it sends.
#[derive(Clone, Debug)]
pub(super) struct NormStats {
    voices: BTreeMap<LearnerId, Voice>,
    /// Updates noted so far.
    count: u64,
    /// Lower bound of a norm, `[segments]`.
    least: Vec<f64>,
    /// Pace of one step at the last update.
    rate: f64,
}

/// Vote of one learner, from its updates.
#[derive(Clone, Debug)]
struct Voice {
    /// Norms of its last updates, oldest first, `[segments]` each; never empty.
    noted: VecDeque<Vec<f64>>,
    /// Whether the learner was a newcomer at its last update.
    is_new: bool,
    /// Value of `NormStats::count` at its last update.
    at: u64,
}

impl NormStats {
    /// Updates that are kept per learner.
    const KEPT: usize = 8;
    /// Weight of a vote: divisible by every count up to [`Self::KEPT`].
    const VOICE: u64 = 840;
    /// Learners that are kept.
    const VOICES: usize = 64;
    const NEEDED: usize = 4;
    /// Lower bound of a norm per value, in learning rates. AdamW moves a value by about one learning rate in a step.
    /// Without the bound, a learner that sends tiny updates for a while would hold down every learner that trains.
    const USUAL_PER_VALUE: f64 = 0.1;

    /// Creates empty statistics for a fragment with these segments.
    pub(super) fn new(segments: &[Segment]) -> Self {
        let least = |segment: &Segment| Self::USUAL_PER_VALUE * f64::from(segment.len).sqrt();
        Self { voices: BTreeMap::new(), count: 0, least: segments.iter().map(least).collect(), rate: 0.0 }
    }

    /// Adds an update of `learner` with `steps` steps, from its sums of squares, `[segments]`. `rate` is the pace of
    /// one step, above 0. Long updates are noted in full. Honest updates may therefore grow over time, while a minority
    /// of forgers cannot move the median.
    pub(super) fn note(&mut self, learner: LearnerId, is_new: bool, squares: &[f64], steps: u32, rate: f64) {
        let pace = rate * f64::from(steps.max(1)).sqrt();
        let norms = squares.iter().map(|square| square.sqrt() / pace).collect();
        (self.count, self.rate) = (self.count + 1, rate);
        let fresh = || Voice { noted: VecDeque::new(), is_new, at: 0 };
        let voice = self.voices.entry(learner).or_insert_with(fresh);
        if voice.noted.len() == Self::KEPT {
            voice.noted.pop_front();
        }
        voice.noted.push_back(norms);
        (voice.is_new, voice.at) = (is_new, self.count);
        if self.voices.len() > Self::VOICES {
            let oldest = self.voices.iter().min_by_key(|(_, voice)| (!voice.is_new, voice.at));
            if let Some((&learner, _)) = oldest {
                self.voices.remove(&learner);
            }
        }
    }

    /// Returns the largest norm that counts for an update of one step on each segment, `[segments]`: `ratio_max`
    /// medians. Newcomers vote only while too few updates of other learners are known. Empty, for no bound, while too
    /// few updates are known at all or if `ratio_max` is 0.
    pub(super) fn radii(&self, ratio_max: f64) -> Vec<f64> {
        let count = |voices: &[&Voice]| voices.iter().map(|voice| voice.noted.len()).sum::<usize>();
        let mut voices: Vec<&Voice> = self.voices.values().filter(|voice| !voice.is_new).collect();
        if count(&voices) < Self::NEEDED {
            voices = self.voices.values().collect();
        }
        if count(&voices) < Self::NEEDED || ratio_max <= 0.0 {
            return Vec::new();
        }
        let radius = |(segment, &least): (usize, &f64)| {
            let norms = voices.iter().flat_map(|voice| {
                let part = Self::VOICE / voice.noted.len() as u64;
                voice.noted.iter().map(move |norms| (norms[segment].max(least), part))
            });
            ratio_max * self.rate * median(norms.collect())
        };
        self.least.iter().enumerate().map(radius).collect()
    }
}

/// Returns the weighted median of `values`; 0 without values. If two values share the middle, returns their
/// geometric mean, so that neither of two learners decides alone.
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
    fn what_has_grown_is_usual_in_the_end() {
        let mut usual = usual(&[1]);
        (0..32).for_each(|_| note(&mut usual, 1, &[1.0], 1, 1.0));
        (0..3).for_each(|_| note(&mut usual, 1, &[1e6], 1, 1.0));
        assert_eq!(usual.radii(RATIO), [3.0]);
        (0..5).for_each(|_| note(&mut usual, 1, &[1e6], 1, 1.0));
        assert_eq!(usual.radii(RATIO), [3e3]);
    }

    /// Goal: the longest updates of a minority move no radius, however many it sends and however many learners join and
    /// leave.
    #[test]
    fn each_learner_has_one_voice() {
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

    /// Goal: however many newcomers join, established learners determine the statistics.
    #[test]
    fn newcomers_are_heard_only_while_nobody_else_is_known() {
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
        assert_eq!(usual.voices.len(), NormStats::VOICES);
    }

    #[test]
    fn next_to_nothing_does_not_become_usual() {
        let mut usual = usual(&[100]);
        (0..32).for_each(|_| note(&mut usual, 1, &[0.0], 1, 2.0));
        assert_eq!(usual.radii(RATIO), [6.0]);
    }
}
