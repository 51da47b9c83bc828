//! Loss monitor: detects an abnormal loss and keeps the last moment with a normal one.

use std::collections::VecDeque;

/// Normal losses that are remembered. Our own constant.
const LOSSES_KEPT: usize = 8;
/// Largest normal rise above the lowest remembered loss, as a fraction of it or as a multiple of the largest remembered
/// rise, whichever is more. Our own constants.
const RISE_RATIO_MAX: f64 = 0.02;
const RISES_MAX: f64 = 3.0;
/// Cap on a normal rise, as a fraction of the lowest remembered loss. Without it, each rise that passes would make room
/// for a larger one. Our own constant.
const RISE_RATIO_CAP: f64 = 0.1;
/// Replaces [`RISE_RATIO_MAX`] while fewer than [`LOSSES_KEPT`] losses are known, since a young run may overshoot. Our
/// own constant.
const YOUNG_RISE_RATIO_MAX: f64 = 0.1;
/// Largest rise above the kept loss at which a newer moment replaces the kept one. Our own constant.
const AS_GOOD_RATIO: f64 = 0.005;

/// Monitor of a measured loss that keeps the last good moment, an `M`.
///
/// A slowly rising loss does not replace the moment. The kept moment has about the best of the last few losses, and so
/// precedes any harm that was done a little at a time.
#[derive(Clone, Debug)]
pub struct LossMonitor<M> {
    /// Oldest first.
    losses: VecDeque<f64>,
    held: Option<(f64, M)>,
    /// Measurements since the kept moment.
    age: usize,
}

impl<M> Default for LossMonitor<M> {
    fn default() -> Self {
        Self { losses: VecDeque::new(), held: None, age: 0 }
    }
}

impl<M> LossMonitor<M> {
    /// Creates a monitor that knows earlier losses, oldest first, and no moment yet.
    #[must_use]
    pub fn after(losses: impl IntoIterator<Item = f64>) -> Self {
        let mut kept: VecDeque<f64> = losses.into_iter().filter(|loss| loss.is_finite()).collect();
        kept.drain(..kept.len().saturating_sub(LOSSES_KEPT));
        Self { losses: kept, ..Self::default() }
    }

    /// Takes the loss at `moment`, in nats per token. If the loss is abnormal, it is not remembered, and the last good
    /// moment is returned with its loss.
    pub fn look(&mut self, loss: f64, moment: M) -> Option<(f64, &M)> {
        if !self.is_usual(loss) {
            if self.held.is_none() {
                self.wait_for_another(loss, moment);
                return None;
            }
            return self.held.as_ref().map(|(good, held)| (*good, held));
        }
        self.losses.push_back(loss);
        if self.losses.len() > LOSSES_KEPT {
            self.losses.pop_front();
        }
        self.age += 1;
        let is_as_good = self.held.as_ref().is_none_or(|(held, _)| loss <= held * (1.0 + AS_GOOD_RATIO));
        if is_as_good || self.age >= LOSSES_KEPT {
            self.hold(loss, moment);
        }
        None
    }

    /// Starts again at `moment`, whatever its loss, and forgets earlier losses.
    pub fn begin_anew(&mut self, loss: f64, moment: M) {
        self.losses.clear();
        self.held = None;
        if loss.is_finite() {
            self.losses.push_back(loss);
            self.hold(loss, moment);
        }
    }

    /// Returns the kept moment.
    #[must_use]
    pub fn held(&self) -> Option<&M> {
        self.held.as_ref().map(|(_, moment)| moment)
    }

    /// Waits for a normal loss if no moment is kept. After a while, accepts the current loss.
    fn wait_for_another(&mut self, loss: f64, moment: M) {
        self.age += 1;
        if self.age > LOSSES_KEPT {
            self.begin_anew(loss, moment);
        }
    }

    fn hold(&mut self, loss: f64, moment: M) {
        (self.held, self.age) = (Some((loss, moment)), 0);
    }

    fn is_usual(&self, loss: f64) -> bool {
        let Some(low) = self.losses.iter().copied().reduce(f64::min) else { return loss.is_finite() };
        let rises = self.losses.iter().zip(self.losses.iter().skip(1)).map(|(before, after)| after - before);
        let rise = rises.fold(0.0, f64::max);
        let is_young = self.losses.len() < LOSSES_KEPT;
        let ratio = if is_young { YOUNG_RISE_RATIO_MAX } else { RISE_RATIO_MAX };
        loss.is_finite() && loss - low <= (ratio * low).max(RISES_MAX * rise).min(RISE_RATIO_CAP * low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(losses: &[f64]) -> LossMonitor<usize> {
        let mut lookout = LossMonitor::default();
        for (at, &loss) in losses.iter().enumerate() {
            assert_eq!(lookout.look(loss, at), None, "{loss} is usual");
        }
        lookout
    }

    #[test]
    fn a_rise_is_seen_with_the_moment_before_it() {
        let mut lookout = after(&[5.5, 4.0, 3.6, 3.3, 3.1, 3.0, 2.9, 2.8]);
        assert_eq!(lookout.look(2.9, 8), Some((2.8, &7)));
        assert_eq!(lookout.look(f64::NAN, 9), Some((2.8, &7)));
        assert_eq!(lookout.look(2.81, 10), None, "and what does not count is forgotten");
    }

    #[test]
    fn a_run_that_begins_may_overshoot() {
        let mut lookout = after(&[5.5, 4.0, 3.0, 3.2]);
        assert_eq!(lookout.look(4.0, 4), Some((3.0, &2)));
    }

    #[test]
    fn a_loss_that_goes_up_and_down_may_do_so() {
        let mut lookout = after(&[2.0, 2.0, 2.0, 2.0, 2.03, 2.0, 2.02, 2.01]);
        assert_eq!(lookout.look(2.08, 5), None, "three times the rise that there was");
        assert!(lookout.look(2.3, 6).is_some());
    }

    /// Goal: a loss that rises step by step, each as far as the previous rises permit, does not gain ever more room.
    #[test]
    fn rises_that_were_let_through_make_no_room_without_end() {
        let mut lookout = after(&[2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.04, 2.12]);
        // Three times the rise from 2.04 to 2.12.
        assert_eq!(lookout.look(2.23, 9), Some((2.0, &6)));
        assert_eq!(lookout.look(2.19, 10), None, "a tenth is the most that there is");
    }

    #[test]
    fn what_creeps_up_leaves_the_moment_where_it_was_best() {
        let mut lookout = after(&[2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.015, 2.03]);
        assert_eq!(lookout.held(), Some(&5));
        assert_eq!(lookout.look(2.09, 8), Some((2.0, &5)));
    }

    #[test]
    fn no_moment_is_held_for_ever() {
        let mut losses = vec![2.0];
        losses.resize(LOSSES_KEPT, 2.03);
        assert_eq!(after(&losses).held(), Some(&0));
        losses.push(2.03);
        assert_eq!(after(&losses).held(), Some(&LOSSES_KEPT));
    }

    #[test]
    fn the_first_loss_is_what_there_is() {
        let mut lookout = LossMonitor::default();
        assert_eq!(lookout.look(f64::INFINITY, 0), None);
        assert_eq!(lookout.held(), None, "a moment without a loss is none");
        assert_eq!(lookout.look(7.0, 1), None);
        lookout.begin_anew(9.0, 2);
        assert_eq!(lookout.look(99.0, 4), Some((9.0, &2)));
        let mut lookout = LossMonitor::after([3.0, 2.0]);
        for at in 0..LOSSES_KEPT {
            assert_eq!(lookout.look(5.0, at), None, "there is nothing to go back to");
            assert_eq!(lookout.held(), None, "it is worse than before the start");
        }
        assert_eq!(lookout.look(5.0, 9), None);
        assert_eq!(lookout.held(), Some(&9), "it does not become as it was");
        let mut lookout = LossMonitor::default();
        lookout.begin_anew(9.0, 2);
        assert_eq!(lookout.held(), Some(&2));
        assert_eq!(lookout.look(9.1, 3), None);
    }
}
