//! How long the updates of a fragment usually are, and so how far one of them can pull a merge.

use std::collections::{BTreeMap, VecDeque};

use crate::diloco::Segment;
use crate::wire::LearnerId;

/// What updates of one fragment usually come to on each of its segments: their norm there over their pace, which is
/// the learning rate of the moment times the root of their steps. Without the rate, honest updates after the warm-up
/// are a hundred times those before.
///
/// Each learner has one voice, however many updates it sends.
#[derive(Clone, Debug)]
pub(super) struct Usual {
    voices: BTreeMap<LearnerId, Voice>,
    /// How many updates were taken in.
    count: u64,
    /// Never is less than this taken to be usual, `[segments]`.
    least: Vec<f64>,
    /// The pace of one step when the last one was noted.
    rate: f64,
}

/// What one learner says by its updates.
#[derive(Clone, Debug)]
struct Voice {
    /// The last ones, oldest first, `[segments]` each; never none.
    noted: VecDeque<Vec<f64>>,
    /// It had yet to prove itself when it sent the last one.
    is_new: bool,
    /// How many were taken in by then.
    at: u64,
}

impl Usual {
    /// Updates of one learner that are kept.
    const KEPT: usize = 8;
    /// What a voice is divided into: a multiple of every count up to [`Self::KEPT`].
    const VOICE: u64 = 840;
    /// Learners that are kept.
    const VOICES: usize = 64;
    const NEEDED: usize = 4;
    /// AdamW moves a value by about the learning rate in a step; a tenth of that is usual whatever was sent.
    /// Otherwise whoever sends next to nothing for a while would hold down everybody who trains.
    const USUAL_PER_VALUE: f64 = 0.1;

    /// Of a fragment of these segments, of which nothing is known yet.
    pub(super) fn new(segments: &[Segment]) -> Self {
        let least = |segment: &Segment| Self::USUAL_PER_VALUE * f64::from(segment.len).sqrt();
        Self { voices: BTreeMap::new(), count: 0, least: segments.iter().map(least).collect(), rate: 0.0 }
    }

    /// Takes in an update of `learner` of so many `steps`, by its sums of squares, `[segments]`. `rate` is the pace of
    /// one step, above 0. What is longer than usual is taken in as it is: a fragment whose updates have honestly grown
    /// is not held down for good, and a minority of forgers moves no median.
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

    /// How far the norm of an update of one step counts on each segment, `[segments]`: `ratio_max` medians of what is
    /// known. Who has yet to prove itself is heard while too little is known of others. Empty, which is no bound,
    /// while too little is known at all or if `ratio_max` is 0.
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

/// The median of values with weights; the geometric mean of both where there are two: of two learners neither has the
/// word alone. 0 if there are none.
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

    fn usual(lens: &[u32]) -> Usual {
        let segment = |&len: &u32| Segment { start: 0, len, merge: MergeClass::Radial, expert: None };
        Usual::new(&lens.iter().map(segment).collect::<Vec<_>>())
    }

    fn note(usual: &mut Usual, learner: u32, squares: &[f64], steps: u32, rate: f64) {
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

    /// Goal: the longest updates of a minority move no radius, however many they send and however many come and go.
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

    /// Goal: however many strangers come, those who are known say what is usual.
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
        assert_eq!(usual.voices.len(), Usual::VOICES);
    }

    #[test]
    fn next_to_nothing_does_not_become_usual() {
        let mut usual = usual(&[100]);
        (0..32).for_each(|_| note(&mut usual, 1, &[0.0], 1, 2.0));
        assert_eq!(usual.radii(RATIO), [6.0]);
    }
}
