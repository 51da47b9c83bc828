//! Attribution of a risen loss to learners, by leaving them out and measuring the loss again.

use std::collections::BTreeSet;

use crate::wire::LearnerId;

/// Smallest gain of a culprit, as a multiple of its equal share of the remaining rise and as a fraction of that rise.
/// With fewer suspects the threshold is higher, because chance makes one look bad more easily. Our own constants.
const SHARES_MIN: f64 = 1.6;
const PART_MIN: f64 = 0.05;
/// Smallest ratio between the gain of any culprit and that of any suspect who is not accused, which is noise. Our own
/// constant.
const NOISE_RATIO: f64 = 3.0;
/// Smallest fraction of the rise that the culprits must explain together; below it, no learner is blamed.
const EXPLAINED_MIN: f64 = 0.5;
/// Largest rise, relative to the good loss, that needs no further search. Our own constant.
const RISE_RATIO_MAX: f64 = 0.02;
/// Maximum number of passes. Each searches the remaining suspects, since one culprit can hide another.
const PASSES_MAX: u32 = 3;

/// State machine that searches for the learners whose updates raised a loss. It names the learners to leave out next,
/// and takes the loss without them.
///
/// It blames at most half of the senders, because a majority cannot be judged.
#[derive(Clone, Debug)]
pub struct Attribution {
    good: f64,
    bad: f64,
    /// Loss without the culprits found so far.
    now: f64,
    suspects: Vec<LearnerId>,
    culprits: BTreeSet<LearnerId>,
    passes: u32,
    step: Step,
}

#[derive(Clone, Debug)]
enum Step {
    /// Losses without each suspect in turn; the culprits are left out as well.
    Each(Vec<f64>),
    /// The accused, left out together, and the worst of them with the loss without it alone.
    Together(BTreeSet<LearnerId>, (LearnerId, f64)),
    Over,
}

/// Result of an attribution.
#[derive(Clone, Debug, PartialEq)]
pub struct Culprits {
    /// Learners whose updates did harm, by id, at least one.
    pub learners: Vec<LearnerId>,
    /// Loss without their updates, in nats per token.
    pub loss: f64,
}

impl Attribution {
    /// Starts a search among `suspects`, which sent updates while the loss rose from `good` to `bad`, in nats per
    /// token.
    #[must_use]
    pub fn new(good: f64, bad: f64, suspects: BTreeSet<LearnerId>) -> Self {
        let step = if suspects.is_empty() { Step::Over } else { Step::Each(Vec::new()) };
        // A loss that is not a number counts as the largest that can be compared.
        let bad = bounded(bad, good);
        let (suspects, culprits) = (suspects.into_iter().collect(), BTreeSet::new());
        Self { good, bad, now: bad, suspects, culprits, passes: 0, step }
    }

    /// Returns the learners to leave out next; `None` once the search is over.
    #[must_use]
    pub fn next(&self) -> Option<BTreeSet<LearnerId>> {
        let more = match &self.step {
            Step::Each(losses) => BTreeSet::from([*self.suspects.get(losses.len())?]),
            Step::Together(accused, _) => accused.clone(),
            Step::Over => return None,
        };
        Some(self.culprits.union(&more).copied().collect())
    }

    /// Takes the loss without the learners that [`Self::next`] returned.
    pub fn measured(&mut self, loss: f64) {
        let loss = bounded(loss, self.good);
        match &mut self.step {
            Step::Each(losses) => {
                losses.push(loss);
                if losses.len() == self.suspects.len() {
                    let losses = std::mem::take(losses);
                    self.accuse(&losses);
                }
            }
            Step::Together(accused, (worst, alone)) => {
                let (accused, worst, alone) = (std::mem::take(accused), *worst, *alone);
                // One culprit can make others look guilty. Together they must explain at least as much as the worst
                // alone.
                if loss <= alone {
                    self.convict(accused, loss)
                } else {
                    self.convict(BTreeSet::from([worst]), alone)
                }
            }
            Step::Over => {}
        }
    }

    /// Returns the verdict; `None` if no group of learners explains most of the rise.
    #[must_use]
    pub fn verdict(&self) -> Option<Culprits> {
        let explained = (self.bad - self.now) / (self.bad - self.good);
        let is_found = !self.culprits.is_empty() && explained >= EXPLAINED_MIN;
        is_found.then(|| Culprits { learners: self.culprits.iter().copied().collect(), loss: self.now })
    }

    /// Accuses suspects by the losses without each of them alone.
    fn accuse(&mut self, losses: &[f64]) {
        let (rise, now) = (self.now - self.good, self.now);
        let mut accused: Vec<_> = losses.iter().copied().zip(self.suspects.iter().copied()).collect();
        accused.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let gains: Vec<f64> = accused.iter().map(|(loss, _)| (now - loss).max(0.0)).collect();
        // Counted over all initial suspects, so that all passes together blame at most half.
        let all = self.suspects.len() + self.culprits.len();
        let most = (all / 2).saturating_sub(self.culprits.len()).min(gains.len().saturating_sub(1));
        let least = rise * (SHARES_MIN / gains.len() as f64).max(PART_MIN);
        // The accused must stand apart from all other suspects.
        let stand_apart =
            |&count: &usize| gains[count - 1] >= least && gains[count - 1] >= NOISE_RATIO * gains[count];
        accused.truncate((1..=most).rev().find(stand_apart).unwrap_or(0));
        match accused.first() {
            Some(&(alone, worst)) => {
                let accused: BTreeSet<_> = accused.into_iter().map(|(_, learner)| learner).collect();
                if accused.len() == 1 {
                    self.convict(accused, alone);
                } else {
                    self.step = Step::Together(accused, (worst, alone));
                }
            }
            _ => self.step = Step::Over,
        }
    }

    fn convict(&mut self, accused: BTreeSet<LearnerId>, loss: f64) {
        self.suspects.retain(|learner| !accused.contains(learner));
        self.culprits.extend(accused);
        self.now = loss;
        self.passes += 1;
        let is_enough = self.now <= self.good * (1.0 + RISE_RATIO_MAX);
        let is_over = is_enough || self.passes == PASSES_MAX || self.suspects.is_empty();
        self.step = if is_over { Step::Over } else { Step::Each(Vec::new()) };
    }
}

/// Returns a finite loss, at most a thousand nats above `good`.
fn bounded(loss: f64, good: f64) -> f64 {
    let most = good + 1e3;
    if loss.is_finite() { loss.min(most) } else { most }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a search where the loss is 2 plus the contribution of each learner, and was `good` before.
    fn search(good: f64, adds: &[f64]) -> (Option<Culprits>, usize) {
        let learners: Vec<LearnerId> = (1..).map(LearnerId).take(adds.len()).collect();
        let loss = |out: &BTreeSet<LearnerId>| {
            let there = learners.iter().zip(adds).filter(|(learner, _)| !out.contains(learner));
            2.0 + there.map(|(_, add)| add).sum::<f64>()
        };
        let mut attribution =
            Attribution::new(good, loss(&BTreeSet::new()), learners.iter().copied().collect());
        let mut trials = 0;
        while let Some(out) = attribution.next() {
            attribution.measured(loss(&out));
            trials += 1;
            assert!(trials < 100, "it ends");
        }
        (attribution.verdict(), trials)
    }

    fn culprits(good: f64, adds: &[f64]) -> Vec<u32> {
        let (verdict, _) = search(good, adds);
        verdict.map_or(Vec::new(), |verdict| verdict.learners.iter().map(|learner| learner.0).collect())
    }

    #[test]
    fn one_who_did_it_is_found_after_a_trial_for_each() {
        let (verdict, trials) = search(2.0, &[-0.01, 0.4, -0.02, 0.005]);
        assert_eq!(verdict.map(|verdict| verdict.learners), Some(vec![LearnerId(2)]));
        assert_eq!(trials, 4);
    }

    #[test]
    fn several_are_found_together_also_where_each_did_little_of_it() {
        assert_eq!(culprits(2.0, &[0.2, -0.01, 0.25, -0.01, 0.005, -0.02, 0.001, -0.01]), [1, 3]);
        let mut adds = vec![-0.003; 20];
        adds[..5].fill(0.08);
        assert_eq!(culprits(2.0, &adds), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn what_hides_behind_another_shows_in_the_next_pass() {
        // The second learner explains less than a tenth of the rise.
        assert_eq!(culprits(2.0, &[9.0, 0.8, -0.01, 0.01, -0.01]), [1, 2]);
        assert_eq!(culprits(2.0, &[5.0, 0.6, 0.7, -0.01, 0.01, -0.01, 0.01, -0.01]), [1, 2, 3]);
    }

    #[test]
    fn nobody_is_blamed_for_what_all_did_or_for_noise() {
        assert_eq!(culprits(2.0, &[0.1, 0.11, 0.09, 0.1]), [0; 0], "all alike");
        assert_eq!(culprits(2.0, &[0.06, -0.02, 0.03, -0.03, 0.02, 0.01]), [0; 0], "noise");
        assert_eq!(culprits(2.0, &[0.5]), [0; 0], "nobody to compare it with");
        assert_eq!(culprits(2.0, &[0.1, 0.06]), [0; 0], "two alike");
        assert_eq!(culprits(2.0, &[0.3, 0.3, 0.3, -0.01, -0.01]), [0; 0], "most of them");
        assert_eq!(culprits(2.0, &[]), [0; 0]);
        assert_eq!(culprits(1.0, &[0.2, -0.01, -0.01, 0.01]), [0; 0], "most of the rise has another cause");
    }

    #[test]
    fn one_of_two_is_blamed_only_for_nearly_all_of_it() {
        assert_eq!(culprits(2.0, &[0.5, 0.01]), [1]);
        assert_eq!(culprits(2.0, &[0.5, 0.2]), [0; 0]);
    }

    #[test]
    fn a_loss_that_is_no_number_is_one_that_rose() {
        let learners = BTreeSet::from([1, 2, 3].map(LearnerId));
        let mut attribution = Attribution::new(2.0, f64::NAN, learners);
        while let Some(out) = attribution.next() {
            attribution.measured(if out.contains(&LearnerId(3)) { 2.01 } else { f64::INFINITY });
        }
        assert_eq!(attribution.verdict(), Some(Culprits { learners: vec![LearnerId(3)], loss: 2.01 }));
    }
}
