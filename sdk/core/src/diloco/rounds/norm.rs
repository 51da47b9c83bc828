//! Which norms of an update are believable.

use std::collections::VecDeque;

/// What updates of one fragment usually weigh in at: their norm over their pace, which is the learning rate of
/// the moment times the root of their steps. Without the rate, honest updates after the warm-up are a hundred
/// times those before.
#[derive(Clone, Debug)]
pub(super) struct NormGuard {
    /// The last ones, oldest first.
    noted: VecDeque<f64>,
    /// Values in the fragment.
    len: usize,
}

impl NormGuard {
    const KEPT: usize = 32;
    const NEEDED: usize = 8;
    /// AdamW moves a value by about the learning rate in a step; a tenth of that is usual whatever was sent.
    /// Otherwise whoever sends next to nothing for a while would lock out everybody who trains.
    const USUAL_PER_VALUE: f64 = 0.1;

    /// Of a fragment of `len` values, of which nothing is known yet.
    pub(super) fn new(len: usize) -> Self {
        Self { noted: VecDeque::new(), len }
    }

    /// Values in the fragment.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Never is less than this taken to be usual.
    fn usual_min(&self) -> f64 {
        Self::USUAL_PER_VALUE * (self.len as f64).sqrt()
    }

    /// The largest believable norm at this pace, `ratio_max` medians of the last ones; infinite while too little is
    /// known.
    pub(super) fn norm_max(&self, pace: f64, ratio_max: f64) -> f64 {
        if self.noted.len() < Self::NEEDED {
            return f64::INFINITY;
        }
        let mut sorted: Vec<f64> = self.noted.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        pace * ratio_max * sorted[sorted.len() / 2].max(self.usual_min())
    }

    /// Takes in the norm of an update, refused ones too. What is not believable counts as just believable: then a
    /// fragment whose updates have honestly grown is not locked out for good, and a few forgers move no median.
    pub(super) fn note(&mut self, norm: f64, pace: f64, ratio_max: f64) {
        let believed = norm.min(self.norm_max(pace, ratio_max));
        if self.noted.len() == Self::KEPT {
            self.noted.pop_front();
        }
        self.noted.push_back(believed / pace);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATIO: f64 = 20.0;

    fn used_to(norm: f64, pace: f64) -> NormGuard {
        let mut guard = NormGuard::new(1);
        for _ in 0..NormGuard::NEEDED {
            guard.note(norm, pace, RATIO);
        }
        guard
    }

    #[test]
    fn far_above_the_usual_is_not_believable() {
        assert_eq!(NormGuard::new(1).norm_max(1.0, RATIO), f64::INFINITY, "nothing is known yet");
        let guard = used_to(2.0, 2.0);
        assert_eq!(guard.norm_max(1.0, RATIO), 20.0);
        assert_eq!(guard.norm_max(2.0, RATIO), 40.0, "more steps or a higher rate, more norm");
    }

    #[test]
    fn what_has_grown_is_believed_in_the_end() {
        let mut guard = used_to(1.0, 1.0);
        for _ in 0..NormGuard::KEPT {
            guard.note(1e3, 1.0, RATIO);
        }
        assert!(guard.norm_max(1.0, RATIO) > 1e3, "{guard:?}");
    }

    #[test]
    fn next_to_nothing_does_not_become_usual() {
        for norm in [0.0, 1e-30] {
            let mut guard = NormGuard::new(100);
            for _ in 0..NormGuard::KEPT {
                guard.note(norm, 2.0, RATIO);
            }
            assert_eq!(guard.norm_max(2.0, RATIO), 2.0 * RATIO, "after updates of {norm}");
        }
    }

    #[test]
    fn a_minority_of_forgers_moves_no_bound() {
        let mut guard = used_to(1.0, 1.0);
        for _ in 0..10 * NormGuard::KEPT {
            guard.note(1.0, 1.0, RATIO);
            guard.note(1.0, 1.0, RATIO);
            guard.note(1e18, 1.0, RATIO);
        }
        assert_eq!(guard.norm_max(1.0, RATIO), RATIO);
    }
}
