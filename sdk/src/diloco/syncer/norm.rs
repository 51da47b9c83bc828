//! Which norms of an update are believable.

use std::collections::VecDeque;

/// What updates of one fragment usually weigh in at: their norm over the root of their steps.
#[derive(Clone, Debug, Default)]
pub(super) struct NormGuard(VecDeque<f64>);

impl NormGuard {
    const KEPT: usize = 32;
    const NEEDED: usize = 8;

    /// Whether an update of this norm is believable: at most `ratio_max` medians of the last ones.
    pub(super) fn admits(&self, norm: f64, steps: u32, ratio_max: f64) -> bool {
        if self.0.len() < Self::NEEDED {
            return true;
        }
        let mut sorted: Vec<f64> = self.0.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        norm / f64::from(steps).sqrt() <= ratio_max * sorted[sorted.len() / 2]
    }

    pub(super) fn note(&mut self, norm: f64, steps: u32) {
        if self.0.len() == Self::KEPT {
            self.0.pop_front();
        }
        self.0.push_back(norm / f64::from(steps).sqrt());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_what_is_far_above_the_usual() {
        let mut guard = NormGuard::default();
        assert!(guard.admits(1e9, 1, 20.0), "nothing is known yet");
        for _ in 0..NormGuard::NEEDED {
            guard.note(2.0, 4);
        }
        assert!(guard.admits(20.0, 1, 20.0));
        assert!(!guard.admits(20.1, 1, 20.0));
        assert!(guard.admits(40.0, 4, 20.0), "more steps, more norm");
    }
}
