//! How long the updates of a fragment usually are, and so how far one of them can pull a merge.

use std::collections::VecDeque;

use crate::diloco::Segment;

/// What updates of one fragment usually come to on each of its segments: their norm there over their pace, which is
/// the learning rate of the moment times the root of their steps. Without the rate, honest updates after the warm-up
/// are a hundred times those before.
#[derive(Clone, Debug)]
pub(super) struct Usual {
    /// The last ones, oldest first, `[segments]` each.
    noted: VecDeque<Vec<f64>>,
    /// Never is less than this taken to be usual, `[segments]`.
    least: Vec<f64>,
    /// The pace of one step when the last one was noted.
    rate: f64,
}

impl Usual {
    const KEPT: usize = 32;
    const NEEDED: usize = 4;
    /// AdamW moves a value by about the learning rate in a step; a tenth of that is usual whatever was sent.
    /// Otherwise whoever sends next to nothing for a while would hold down everybody who trains.
    const USUAL_PER_VALUE: f64 = 0.1;

    /// Of a fragment of these segments, of which nothing is known yet.
    pub(super) fn new(segments: &[Segment]) -> Self {
        let least = |segment: &Segment| Self::USUAL_PER_VALUE * f64::from(segment.len).sqrt();
        Self { noted: VecDeque::new(), least: segments.iter().map(least).collect(), rate: 0.0 }
    }

    /// Takes in an update of so many `steps`, by its sums of squares, `[segments]`. `rate` is the pace of one step,
    /// above 0. What is longer than usual is taken in as it is: a fragment whose updates have honestly grown is not
    /// held down for good, and a minority of forgers moves no median.
    pub(super) fn note(&mut self, squares: &[f64], steps: u32, rate: f64) {
        if self.noted.len() == Self::KEPT {
            self.noted.pop_front();
        }
        let pace = rate * f64::from(steps.max(1)).sqrt();
        self.noted.push_back(squares.iter().map(|square| square.sqrt() / pace).collect());
        self.rate = rate;
    }

    /// How far the norm of an update of one step counts on each segment, `[segments]`: `ratio_max` medians of the last
    /// ones. Empty, which is no bound, while too little is known or if `ratio_max` is 0.
    pub(super) fn radii(&self, ratio_max: f64) -> Vec<f64> {
        if self.noted.len() < Self::NEEDED || ratio_max <= 0.0 {
            return Vec::new();
        }
        let radius = |(segment, least): (usize, &f64)| {
            let mut norms: Vec<f64> = self.noted.iter().map(|norms| norms[segment]).collect();
            norms.sort_by(f64::total_cmp);
            ratio_max * self.rate * norms[norms.len() / 2].max(*least)
        };
        self.least.iter().enumerate().map(radius).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diloco::MergeClass;

    const RATIO: f64 = 3.0;

    fn usual(lens: &[u32]) -> Usual {
        let segment = |&len: &u32| Segment { start: 0, len, merge: MergeClass::Radial };
        Usual::new(&lens.iter().map(segment).collect::<Vec<_>>())
    }

    #[test]
    fn each_segment_has_a_radius_that_follows_rate_and_steps() {
        let mut usual = usual(&[1, 1]);
        for _ in 0..3 {
            usual.note(&[16.0, 64.0], 4, 1.0);
        }
        assert_eq!(usual.radii(RATIO), [0.0; 0], "too little is known");
        usual.note(&[16.0, 64.0], 4, 1.0);
        assert_eq!(usual.radii(RATIO), [6.0, 12.0]);
        assert_eq!(usual.radii(0.0), [0.0; 0]);
        usual.note(&[1.0, 4.0], 1, 0.5);
        assert_eq!(usual.radii(RATIO), [3.0, 6.0], "half the rate, half the radius");
    }

    #[test]
    fn what_has_grown_is_usual_in_the_end() {
        let mut usual = usual(&[1]);
        (0..32).for_each(|_| usual.note(&[1.0], 1, 1.0));
        (0..15).for_each(|_| usual.note(&[1e6], 1, 1.0));
        assert_eq!(usual.radii(RATIO), [3.0], "a minority of forgers moves no radius");
        (0..17).for_each(|_| usual.note(&[1e6], 1, 1.0));
        assert_eq!(usual.radii(RATIO), [3e3]);
    }

    #[test]
    fn next_to_nothing_does_not_become_usual() {
        let mut usual = usual(&[100]);
        (0..32).for_each(|_| usual.note(&[0.0], 1, 2.0));
        assert_eq!(usual.radii(RATIO), [6.0]);
    }
}
