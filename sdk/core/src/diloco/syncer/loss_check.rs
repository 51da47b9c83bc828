//! Loss checks, which measure the effect of single updates on the loss, and the monitor of the held-out loss.

use std::collections::VecDeque;
use std::sync::Arc;

use super::TrainedWindows;
use crate::data::Window;
use crate::diloco::trust::UpdateScore;
use crate::diloco::{Fragments, MergeJob, WeightedUpdate};
use crate::wire::LearnerId;

/// Maximum number of updates in one loss check. Each is measured on the windows of all of them. Our own constant.
pub const EXAMINED_MAX: usize = 8;
/// Maximum number of windows of one update in a loss check. Our own constant.
pub const WINDOWS_MAX: usize = 8;

/// Loss check of one merge, which measures each of its updates alone.
#[derive(Clone, Debug)]
pub struct LossCheck {
    /// Θ̂ of each fragment at about the time of the merge, `[P]`.
    pub hats: Vec<Arc<Vec<f32>>>,
    /// The merge.
    pub job: MergeJob,
    /// Windows on which each update was trained.
    pub fruit: Vec<TrainedWindows>,
}

impl LossCheck {
    /// Measures the effect of each update on the loss, with the update scaled as in the merge.
    ///
    /// Updates with unknown windows are skipped. With fewer than three updates the result is empty, because a
    /// difference between two updates does not show which of them is wrong. `seed` selects the updates if there are
    /// more than [`EXAMINED_MAX`]. `loss` returns the mean loss of parameters, `[layout.len()]`, on windows.
    ///
    /// # Errors
    /// The errors of `loss`.
    pub fn measure<E>(
        &self,
        fragments: &Fragments,
        seed: u64,
        mut loss: impl FnMut(&[f32], &[Window]) -> Result<f64, E>,
    ) -> Result<Vec<UpdateScore>, E> {
        let known: Vec<&TrainedWindows> =
            self.fruit.iter().filter(|fruit| !fruit.windows.is_empty()).collect();
        let skip = known.len().saturating_sub(EXAMINED_MAX) as u64;
        let first = if skip > 0 { (seed % known.len() as u64) as usize } else { 0 };
        let chosen: Vec<_> = known.iter().cycle().skip(first).take(known.len().min(EXAMINED_MAX)).collect();
        if chosen.len() < 3 {
            return Ok(Vec::new());
        }
        let mut theta = vec![0.0; self.hats.iter().map(|hat| hat.len()).sum()];
        for (fragment, hat) in fragments.ids().zip(&self.hats) {
            fragments.scatter(fragment, hat, &mut theta);
        }
        let MergeJob { fragment, state, updates, .. } = &self.job;
        fragments.scatter(*fragment, &state.hat, &mut theta);
        let mut losses = |theta: &[f32]| -> Result<Vec<f64>, E> {
            chosen.iter().map(|fruit| loss(theta, &fruit.windows)).collect()
        };
        let before = losses(&theta)?;
        let mut gains = Vec::with_capacity(chosen.len());
        for fruit in &chosen {
            let update = updates.iter().find(|update| update.learner == fruit.learner);
            let values = update.and_then(|update| scaled_values(&self.job, update));
            // Each update of a merge has a checked body, which can be decoded.
            let values = values.unwrap_or_else(|| vec![0.0; state.hat.len()]);
            let moved: Vec<f32> = state.hat.iter().zip(&values).map(|(hat, value)| hat - value).collect();
            fragments.scatter(*fragment, &moved, &mut theta);
            let after = losses(&theta)?;
            gains.push(before.iter().zip(after).map(|(before, after)| before - after).collect());
        }
        let of: Vec<(LearnerId, f64)> = chosen.iter().map(|fruit| (fruit.learner, fruit.batch)).collect();
        Ok(score_updates(&of, &gains))
    }
}

/// Returns the values of an update of `job`, `[fragment_len]`. Each segment is scaled down to its norm bound, as in the
/// merge. Returns `None` if the body does not fit the fragment.
fn scaled_values(job: &MergeJob, update: &WeightedUpdate) -> Option<Vec<f32>> {
    let mut values = job.codec.decode(&job.segments, update.body.bytes()).ok()?;
    let mut rest = &mut values[..];
    for (i, (segment, square)) in job.segments.iter().zip(update.body.squares()).enumerate() {
        let (its, others) = rest.split_at_mut(segment.len as usize);
        let (norm, radius) = (square.sqrt(), job.radii.get(i).copied().unwrap_or(f64::INFINITY));
        let counted = update.counted(norm, radius);
        if counted < norm {
            its.iter_mut().for_each(|value| *value = (f64::from(*value) * counted / norm) as f32);
        }
        rest = others;
    }
    Some(values)
}

/// Returns the score of each update. `learners` has the sender and the windows per step of each update. `gains`,
/// `[learners, learners]`, has the decrease of the loss by the update of each row on the windows of each column.
///
/// Row and column means are removed, because easy windows and long updates prove nothing about a learner.
fn score_updates(learners: &[(LearnerId, f64)], gains: &[Vec<f64>]) -> Vec<UpdateScore> {
    let count = learners.len();
    let off = |sum: f64, own: f64, of: usize| (sum - own) / of as f64;
    let rows: Vec<f64> = gains.iter().map(|row| row.iter().sum()).collect();
    let columns: Vec<f64> = (0..count).map(|j| gains.iter().map(|row| row[j]).sum()).collect();
    let (all, diagonal): (f64, f64) = (rows.iter().sum(), (0..count).map(|i| gains[i][i]).sum());
    (0..count)
        .map(|i| {
            let own = gains[i][i];
            let others = off(rows[i], own, count - 1);
            let there = off(columns[i], own, count - 1);
            // Gains of other updates on the windows of other learners again.
            let rest = all - diagonal - (rows[i] - own) - (columns[i] - own);
            let rest = rest / ((count - 1) * (count - 2)) as f64;
            let (learner, batch) = learners[i];
            UpdateScore { learner, own: (own - others - there + rest) * batch.sqrt(), others }
        })
        .collect()
}

/// Number of normal losses that are remembered. Our own constant.
const LOSSES_KEPT: usize = 8;
/// Rise above the lowest remembered loss that is always normal, as a fraction of that loss. Our own constant.
const RISE_RATIO_MAX: f64 = 0.02;
/// Rise above the lowest remembered loss that is normal, as a multiple of the largest rise between two remembered
/// losses. Our own constant.
const RISES_MAX: f64 = 3.0;
/// Upper bound on a normal rise, as a fraction of the lowest remembered loss. [`RISES_MAX`] scales with the largest
/// remembered rise, so without this bound the threshold could grow again and again. Our own constant.
const RISE_RATIO_CAP: f64 = 0.1;
/// Replacement for [`RISE_RATIO_MAX`] while fewer than [`LOSSES_KEPT`] losses are known, since a young run may
/// overshoot. Our own constant.
const YOUNG_RISE_RATIO_MAX: f64 = 0.1;
/// Rise above the loss of the kept moment up to which a newer moment replaces it, as a fraction of that loss. Our own
/// constant.
const AS_GOOD_RATIO: f64 = 0.005;

/// Monitor of the held-out loss that detects an abnormal rise and keeps the moment to return to, an `M`.
///
/// The kept moment has about the best of the last few losses. A slowly rising loss does not replace it, so that it
/// precedes harm done in small steps.
#[derive(Clone, Debug)]
pub struct LossMonitor<M> {
    /// Remembered normal losses, oldest first, in nats per token.
    losses: VecDeque<f64>,
    /// The kept moment with its loss.
    held: Option<(f64, M)>,
    /// Number of normal losses since the kept moment. Without one, the number of abnormal losses so far.
    age: usize,
}

impl<M> Default for LossMonitor<M> {
    fn default() -> Self {
        Self { losses: VecDeque::new(), held: None, age: 0 }
    }
}

impl<M> LossMonitor<M> {
    /// Creates a monitor that remembers earlier `losses`, oldest first, and keeps no moment yet.
    #[must_use]
    pub fn after(losses: impl IntoIterator<Item = f64>) -> Self {
        let mut kept: VecDeque<f64> = losses.into_iter().filter(|loss| loss.is_finite()).collect();
        kept.drain(..kept.len().saturating_sub(LOSSES_KEPT));
        Self { losses: kept, ..Self::default() }
    }

    /// Observes the loss at `moment`, in nats per token. Returns the kept moment with its loss if the loss is abnormal.
    /// Abnormal losses are not remembered.
    pub fn observe(&mut self, loss: f64, moment: M) -> Option<(f64, &M)> {
        if !self.is_normal(loss) {
            if self.held.is_none() {
                self.await_normal_loss(loss, moment);
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

    /// Resets the monitor: forgets all losses, and keeps `moment` unless its loss is not finite.
    pub fn reset(&mut self, loss: f64, moment: M) {
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

    /// Handles an abnormal loss without a kept moment. After [`LOSSES_KEPT`] such losses, the next one is accepted.
    fn await_normal_loss(&mut self, loss: f64, moment: M) {
        self.age += 1;
        if self.age > LOSSES_KEPT {
            self.reset(loss, moment);
        }
    }

    fn hold(&mut self, loss: f64, moment: M) {
        (self.held, self.age) = (Some((loss, moment)), 0);
    }

    fn is_normal(&self, loss: f64) -> bool {
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
    use crate::diloco::{Codec, FragmentState, MergeClass, MergeRule, OuterSpec, Segment};
    use crate::wire::{ApplyPolicy, Code, ExchangeSpec, FragmentId, Round, Version};

    #[test]
    fn scores_ignore_easy_windows_and_long_updates() {
        let learners = [1, 2, 3, 4].map(|id| (LearnerId(id), 4.0));
        let (long, easy, own) = ([0.1, 0.2, 0.0, 0.4], [0.05, 0.0, 0.3, 0.1], [0.02, 0.03, 0.0, -0.01]);
        let gain = |i: usize, j: usize| long[i] + easy[j] + if i == j { own[i] } else { 0.0 };
        let gains: Vec<Vec<f64>> = (0..4).map(|i| (0..4).map(|j| gain(i, j)).collect()).collect();
        for (score, own) in score_updates(&learners, &gains).iter().zip(own) {
            assert!((score.own - 2.0 * own).abs() < 1e-12, "{score:?} {own}");
        }
    }

    /// Creates a job with one update and two segments of two values. The norm bound of one step is 2 on the first
    /// segment; the second segment has no bound.
    fn job(steps: u32, values: &[f32]) -> MergeJob {
        let apply = ApplyPolicy::Overwrite;
        let exchange = ExchangeSpec { fragments: 1, sync_every: 1, block: 16, code: Code::F32, apply };
        let codec = Codec::new(&exchange).unwrap();
        let segment = |start| Segment { start, len: 2, merge: MergeClass::Radial, cols: 0, expert: None };
        let segments = vec![segment(0), segment(2)];
        let body = codec.check(&segments, codec.encode(&segments, values)).unwrap();
        MergeJob {
            round: Round(1),
            fragment: FragmentId(0),
            state: FragmentState::new(vec![0.0; 4]),
            absent: 0.0,
            absent_experts: Vec::new(),
            updates: vec![WeightedUpdate {
                learner: LearnerId(1),
                weight: 1.0,
                experts: Vec::new(),
                steps,
                body,
            }],
            segments,
            codec,
            rule: MergeRule::Radial,
            radii: vec![2.0],
            outer: OuterSpec { lr: 1.0, momentum: 0.0 },
            next: Version(1),
        }
    }

    /// Goal: an update is measured at the same scale as in the merge. Otherwise the noise of an overlong update would
    /// hide its gain.
    #[test]
    fn updates_are_scaled_as_in_the_merge() {
        let tried = |steps, values: &[f32]| {
            let job = job(steps, values);
            let tried = scaled_values(&job, &job.updates[0]).unwrap();
            let alone: Vec<f32> = job.run().unwrap().state.theta.iter().map(|theta| 0.0 - theta).collect();
            assert_eq!(tried, alone, "a merge of it alone");
            tried
        };
        assert_eq!(tried(1, &[100.0, 0.0, 100.0, 0.0]), [2.0, 0.0, 100.0, 0.0]);
        assert_eq!(tried(4, &[0.0, -100.0, 1.0, 0.0]), [0.0, -4.0, 1.0, 0.0]);
        assert_eq!(tried(4, &[0.0, -3.0, 1.0, 0.0]), [0.0, -3.0, 1.0, 0.0]);
    }

    fn after(losses: &[f64]) -> LossMonitor<usize> {
        let mut monitor = LossMonitor::default();
        for (at, &loss) in losses.iter().enumerate() {
            assert_eq!(monitor.observe(loss, at), None, "{loss} is usual");
        }
        monitor
    }

    #[test]
    fn abnormal_loss_returns_the_moment_before_it() {
        let mut monitor = after(&[5.5, 4.0, 3.6, 3.3, 3.1, 3.0, 2.9, 2.8]);
        assert_eq!(monitor.observe(2.9, 8), Some((2.8, &7)));
        assert_eq!(monitor.observe(f64::NAN, 9), Some((2.8, &7)));
        assert_eq!(monitor.observe(2.81, 10), None, "and what does not count is forgotten");
    }

    #[test]
    fn young_run_may_overshoot() {
        let mut monitor = after(&[5.5, 4.0, 3.0, 3.2]);
        assert_eq!(monitor.observe(4.0, 4), Some((3.0, &2)));
    }

    #[test]
    fn fluctuating_loss_raises_the_threshold() {
        let mut monitor = after(&[2.0, 2.0, 2.0, 2.0, 2.03, 2.0, 2.02, 2.01]);
        assert_eq!(monitor.observe(2.08, 5), None, "three times the rise that there was");
        assert!(monitor.observe(2.3, 6).is_some());
    }

    /// Goal: a loss that rises again and again, each time up to the threshold, does not raise the threshold without
    /// end.
    #[test]
    fn threshold_has_an_upper_bound() {
        let mut monitor = after(&[2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.04, 2.12]);
        // Three times the rise from 2.04 to 2.12.
        assert_eq!(monitor.observe(2.23, 9), Some((2.0, &6)));
        assert_eq!(monitor.observe(2.19, 10), None, "a tenth is the most that there is");
    }

    #[test]
    fn slowly_rising_loss_does_not_replace_the_kept_moment() {
        let mut monitor = after(&[2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.015, 2.03]);
        assert_eq!(monitor.held(), Some(&5));
        assert_eq!(monitor.observe(2.09, 8), Some((2.0, &5)));
    }

    #[test]
    fn kept_moment_is_replaced_after_a_while() {
        let mut losses = vec![2.0];
        losses.resize(LOSSES_KEPT, 2.03);
        assert_eq!(after(&losses).held(), Some(&0));
        losses.push(2.03);
        assert_eq!(after(&losses).held(), Some(&LOSSES_KEPT));
    }

    #[test]
    fn monitor_without_a_moment_waits_for_a_normal_loss() {
        let mut monitor = LossMonitor::default();
        assert_eq!(monitor.observe(f64::INFINITY, 0), None);
        assert_eq!(monitor.held(), None, "a moment without a loss is none");
        assert_eq!(monitor.observe(7.0, 1), None);
        monitor.reset(9.0, 2);
        assert_eq!(monitor.observe(99.0, 4), Some((9.0, &2)));
        let mut monitor = LossMonitor::after([3.0, 2.0]);
        for at in 0..LOSSES_KEPT {
            assert_eq!(monitor.observe(5.0, at), None, "there is nothing to go back to");
            assert_eq!(monitor.held(), None, "it is worse than before the start");
        }
        assert_eq!(monitor.observe(5.0, 9), None);
        assert_eq!(monitor.held(), Some(&9), "it does not become as it was");
        let mut monitor = LossMonitor::default();
        monitor.reset(9.0, 2);
        assert_eq!(monitor.held(), Some(&2));
        assert_eq!(monitor.observe(9.1, 3), None);
    }
}
