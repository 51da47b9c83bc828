//! Loss checks: the effect of single updates on the loss on their own windows and on those of others.

use std::sync::Arc;

use super::TrainedWindows;
use crate::data::Window;
use crate::diloco::{Fragments, MergeJob, Weighted};
use crate::wire::LearnerId;

/// Largest number of updates in one loss check; each is tried on the windows of all. Our own constant.
pub const EXAMINED_MAX: usize = 8;
/// Largest number of windows of one update in a loss check. Our own constant.
pub const WINDOWS_MAX: usize = 8;

/// Loss check of one merge, which tries its updates one by one.
#[derive(Clone, Debug)]
pub struct LossCheck {
    /// Θ̂ of each fragment at about the time of the merge, `[P]`.
    pub hats: Vec<Arc<Vec<f32>>>,
    /// The merge.
    pub job: MergeJob,
    /// Windows that each update was trained on.
    pub fruit: Vec<TrainedWindows>,
}

/// Result of a loss check for one update, in nats per token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UpdateScore {
    /// Sender of the update.
    pub learner: LearnerId,
    /// Own gain: the decrease of the loss on the update's own windows, beyond what the update achieves on other windows
    /// and other updates achieve on these. It is multiplied by the root of the windows per step, because an update
    /// follows each window less if a step has more of them.
    pub own: f64,
    /// Mean decrease of the loss on the windows of others.
    pub others: f64,
}

impl LossCheck {
    /// Tries each update, at the length with which it counts in the merge. Updates with unknown windows are skipped.
    /// With fewer than three updates the result is empty, since it cannot tell which of two is right. `seed` selects
    /// updates if there are more than [`EXAMINED_MAX`]. `loss` returns the mean loss of parameters, `[layout.len()]`,
    /// on windows.
    ///
    /// # Errors
    /// Those of `loss`.
    pub fn look<E>(
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
            let values = update.and_then(|update| counted(&self.job, update));
            // A checked body can be decoded, and each update of a merge has one.
            let values = values.unwrap_or_else(|| vec![0.0; state.hat.len()]);
            let moved: Vec<f32> = state.hat.iter().zip(&values).map(|(hat, value)| hat - value).collect();
            fragments.scatter(*fragment, &moved, &mut theta);
            let after = losses(&theta)?;
            gains.push(before.iter().zip(after).map(|(before, after)| before - after).collect());
        }
        let of: Vec<(LearnerId, f64)> = chosen.iter().map(|fruit| (fruit.learner, fruit.batch)).collect();
        Ok(shown(&of, &gains))
    }
}

/// Returns the values of an update of `job`, `[fragment_len]`, with each segment scaled to the length that counts in
/// the merge. `None` if its body does not fit the fragment.
fn counted(job: &MergeJob, update: &Weighted) -> Option<Vec<f32>> {
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

/// Computes results from `gains`, `[learners, learners]`, where a row is an update and a column the windows of a
/// learner. `learners` has the windows per step of each.
///
/// Row and column means are removed, because easy windows and long updates prove nothing about a learner.
fn shown(learners: &[(LearnerId, f64)], gains: &[Vec<f64>]) -> Vec<UpdateScore> {
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
            // Pairs of two other learners.
            let rest = all - diagonal - (rows[i] - own) - (columns[i] - own);
            let rest = rest / ((count - 1) * (count - 2)) as f64;
            let (learner, batch) = learners[i];
            UpdateScore { learner, own: (own - others - there + rest) * batch.sqrt(), others }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diloco::{Codec, FragmentState, MergeClass, MergeRule, OuterSpec, Segment};
    use crate::wire::{ApplyPolicy, Code, ExchangeSpec, FragmentId, Round, Version};

    #[test]
    fn what_is_easy_or_long_is_nobodys_credit() {
        let learners = [1, 2, 3, 4].map(|id| (LearnerId(id), 4.0));
        let (long, easy, own) = ([0.1, 0.2, 0.0, 0.4], [0.05, 0.0, 0.3, 0.1], [0.02, 0.03, 0.0, -0.01]);
        let gain = |i: usize, j: usize| long[i] + easy[j] + if i == j { own[i] } else { 0.0 };
        let gains: Vec<Vec<f64>> = (0..4).map(|i| (0..4).map(|j| gain(i, j)).collect()).collect();
        for (shown, own) in shown(&learners, &gains).iter().zip(own) {
            assert!((shown.own - 2.0 * own).abs() < 1e-12, "{shown:?} {own}");
        }
    }

    /// A job with two segments of two values. On the first, one step counts up to a length of 2; the second is
    /// unbounded.
    fn job(steps: u32, values: &[f32]) -> MergeJob {
        let apply = ApplyPolicy::Overwrite;
        let exchange = ExchangeSpec { fragments: 1, sync_every: 1, block: 16, code: Code::F32, apply };
        let codec = Codec::new(&exchange).unwrap();
        let segment = |start| Segment { start, len: 2, merge: MergeClass::Radial, expert: None };
        let segments = vec![segment(0), segment(2)];
        let body = codec.check(&segments, codec.encode(&segments, values)).unwrap();
        MergeJob {
            round: Round(1),
            fragment: FragmentId(0),
            state: FragmentState::new(vec![0.0; 4]),
            absent: 0.0,
            absent_experts: Vec::new(),
            updates: vec![Weighted { learner: LearnerId(1), weight: 1.0, experts: Vec::new(), steps, body }],
            segments,
            codec,
            rule: MergeRule::Radial,
            radii: vec![2.0],
            outer: OuterSpec { lr: 1.0, momentum: 0.0 },
            next: Version(1),
        }
    }

    /// Goal: an update is tried with what a merge takes of it, so that one that is too long does not drown in its own
    /// noise.
    #[test]
    fn an_update_is_tried_as_long_as_it_counts() {
        let tried = |steps, values: &[f32]| {
            let job = job(steps, values);
            let tried = counted(&job, &job.updates[0]).unwrap();
            let alone: Vec<f32> = job.run().unwrap().state.theta.iter().map(|theta| 0.0 - theta).collect();
            assert_eq!(tried, alone, "a merge of it alone");
            tried
        };
        assert_eq!(tried(1, &[100.0, 0.0, 100.0, 0.0]), [2.0, 0.0, 100.0, 0.0]);
        assert_eq!(tried(4, &[0.0, -100.0, 1.0, 0.0]), [0.0, -4.0, 1.0, 0.0]);
        assert_eq!(tried(4, &[0.0, -3.0, 1.0, 0.0]), [0.0, -3.0, 1.0, 0.0]);
    }
}
