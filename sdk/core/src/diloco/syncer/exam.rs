//! What single updates of a merge do to the loss on the text that they were trained on, and on that of the others.

use std::sync::Arc;

use super::Fruit;
use crate::data::Window;
use crate::diloco::{Fragments, MergeJob};
use crate::wire::LearnerId;

/// Updates of one merge that are looked at together, at most: each is tried on the windows of all. Constant of ours.
pub const EXAMINED_MAX: usize = 8;
/// Windows of one update that are looked at, at most. Constant of ours.
pub const WINDOWS_MAX: usize = 8;

/// Updates of one merge, to be tried one by one.
#[derive(Clone, Debug)]
pub struct Exam {
    /// Θ̂ of each fragment about when they were merged, `[P]`.
    pub hats: Vec<Arc<Vec<f32>>>,
    /// The merge.
    pub job: MergeJob,
    /// What each of them was trained on.
    pub fruit: Vec<Fruit>,
}

/// What one update showed, in nats per token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shown {
    /// Who sent it.
    pub learner: LearnerId,
    /// By how much more it lowers the loss on the windows that it was trained on than on those of others, and more than
    /// updates of others do there, times the root of the windows in one of its steps: the more there are in a step, the
    /// less it follows each.
    pub own: f64,
    /// By how much it lowers the loss on the windows of others.
    pub others: f64,
}

impl Exam {
    /// What each update shows, by learner; nothing of one whose windows are not known, and nothing at all of fewer than
    /// three: of two that differ nobody knows which one is right. `seed` picks, where there are more than
    /// [`EXAMINED_MAX`]. `loss` gives the mean loss of parameters, `[layout.len()]`, on windows.
    ///
    /// # Errors
    /// Those of `loss`.
    pub fn look<E>(
        &self,
        fragments: &Fragments,
        seed: u64,
        mut loss: impl FnMut(&[f32], &[Window]) -> Result<f64, E>,
    ) -> Result<Vec<Shown>, E> {
        let known: Vec<&Fruit> = self.fruit.iter().filter(|fruit| !fruit.windows.is_empty()).collect();
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
        let MergeJob { fragment, codec, segments, state, updates, .. } = &self.job;
        fragments.scatter(*fragment, &state.hat, &mut theta);
        let mut losses = |theta: &[f32]| -> Result<Vec<f64>, E> {
            chosen.iter().map(|fruit| loss(theta, &fruit.windows)).collect()
        };
        let before = losses(&theta)?;
        let mut gains = Vec::with_capacity(chosen.len());
        for fruit in &chosen {
            let update = updates.iter().find(|update| update.learner == fruit.learner);
            let values = update.and_then(|update| codec.decode(segments, update.body.bytes()).ok());
            // A body that was checked can be read, and who is in a merge has one.
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

/// What is to be read from the `gains`, `[learners, learners]`: by how much the update of one lowers the loss on the
/// windows of another; with the windows in a step of each.
///
/// Some windows are easier, and some updates longer: neither is to the credit of anybody's own.
fn shown(learners: &[(LearnerId, f64)], gains: &[Vec<f64>]) -> Vec<Shown> {
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
            // Pairs of two others.
            let rest = all - diagonal - (rows[i] - own) - (columns[i] - own);
            let rest = rest / ((count - 1) * (count - 2)) as f64;
            let (learner, batch) = learners[i];
            Shown { learner, own: (own - others - there + rest) * batch.sqrt(), others }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
