//! Attribution of a rise of the held-out loss to learners, by measuring the loss without their updates.

use std::collections::BTreeSet;

use crate::wire::LearnerId;

/// Smallest gain of a culprit, as a multiple of the remaining rise divided by the number of suspects. Fewer suspects
/// raise the threshold, because a gain by chance is then more likely. Our own constant.
const SHARES_MIN: f64 = 1.6;
/// Smallest gain of a culprit, as a fraction of the remaining rise. Our own constant.
const PART_MIN: f64 = 0.05;
/// Smallest ratio between the gain of an accused learner and the largest gain of the other suspects, which is taken as
/// noise. Our own constant.
const NOISE_RATIO: f64 = 3.0;
/// Smallest fraction of the rise that the culprits must explain together; below it, no learner is blamed.
const EXPLAINED_MIN: f64 = 0.5;
/// Remaining rise, as a fraction of the good loss, at which the search ends. Our own constant.
const RISE_RATIO_MAX: f64 = 0.02;
/// Maximum number of passes over the remaining suspects. One culprit can hide another, so one pass may not be enough.
const PASSES_MAX: u32 = 3;

/// Search for the learners whose updates raised a loss. The caller repeats the merges without the learners of
/// [`Self::next`] and passes the resulting loss to [`Self::measured`].
///
/// The gain of a learner is the decrease of the loss without its updates. At most half of the senders are blamed,
/// because the test cannot tell a majority of culprits from honest learners.
#[derive(Clone, Debug)]
pub struct Attribution {
    /// Loss before the rise, in nats per token.
    good: f64,
    /// Loss after the rise.
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
    /// Measures the loss without the culprits and one suspect at a time. Holds the losses so far, in order of suspects.
    Each(Vec<f64>),
    /// Measures the loss without all accused together. Holds the accused, the worst of them, and the loss without the
    /// worst alone.
    Together(BTreeSet<LearnerId>, (LearnerId, f64)),
    /// The search has ended.
    Over,
}

/// Result of an attribution.
#[derive(Clone, Debug, PartialEq)]
pub struct AttributionResult {
    /// At least one learner whose updates did harm, in order of ids.
    pub learners: Vec<LearnerId>,
    /// Loss without their updates, in nats per token.
    pub loss: f64,
}

impl Attribution {
    /// Starts a search among `suspects`, the senders of updates while the loss rose from `good` to `bad`, in nats per
    /// token.
    #[must_use]
    pub fn new(good: f64, bad: f64, suspects: BTreeSet<LearnerId>) -> Self {
        let step = if suspects.is_empty() { Step::Over } else { Step::Each(Vec::new()) };
        // A NaN becomes the largest finite loss.
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

    /// Continues the search with the loss without the learners of [`Self::next`].
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
                // One culprit can make others seem guilty. Together they must explain at least as much as the worst
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

    /// Returns the culprits; `None` if those found so far explain less than half of the rise.
    #[must_use]
    pub fn verdict(&self) -> Option<AttributionResult> {
        let explained = (self.bad - self.now) / (self.bad - self.good);
        let is_found = !self.culprits.is_empty() && explained >= EXPLAINED_MIN;
        is_found
            .then(|| AttributionResult { learners: self.culprits.iter().copied().collect(), loss: self.now })
    }

    /// Accuses the suspects with the largest gains. `losses` are the losses without each suspect alone.
    fn accuse(&mut self, losses: &[f64]) {
        let (rise, now) = (self.now - self.good, self.now);
        let mut accused: Vec<_> = losses.iter().copied().zip(self.suspects.iter().copied()).collect();
        accused.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let gains: Vec<f64> = accused.iter().map(|(loss, _)| (now - loss).max(0.0)).collect();
        // All passes together blame at most half of the initial suspects.
        let all = self.suspects.len() + self.culprits.len();
        let most = (all / 2).saturating_sub(self.culprits.len()).min(gains.len().saturating_sub(1));
        let least = rise * (SHARES_MIN / gains.len() as f64).max(PART_MIN);
        // All accused must have larger gains than noise.
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

/// Returns `loss` limited to 1,000 nats above `good`; that limit if `loss` is not finite.
fn bounded(loss: f64, good: f64) -> f64 {
    let most = good + 1e3;
    if loss.is_finite() { loss.min(most) } else { most }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a search in which the loss is 2 plus the value in `adds` of each learner, and was `good` before. Returns
    /// the verdict and the number of measurements.
    fn search(good: f64, adds: &[f64]) -> (Option<AttributionResult>, usize) {
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
    fn single_culprit_is_found_with_one_trial_per_suspect() {
        let (verdict, trials) = search(2.0, &[-0.01, 0.4, -0.02, 0.005]);
        assert_eq!(verdict.map(|verdict| verdict.learners), Some(vec![LearnerId(2)]));
        assert_eq!(trials, 4);
    }

    #[test]
    fn several_culprits_with_small_parts_are_found_together() {
        assert_eq!(culprits(2.0, &[0.2, -0.01, 0.25, -0.01, 0.005, -0.02, 0.001, -0.01]), [1, 3]);
        let mut adds = vec![-0.003; 20];
        adds[..5].fill(0.08);
        assert_eq!(culprits(2.0, &adds), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn hidden_culprits_are_found_in_the_next_pass() {
        // The second learner explains less than a tenth of the rise.
        assert_eq!(culprits(2.0, &[9.0, 0.8, -0.01, 0.01, -0.01]), [1, 2]);
        assert_eq!(culprits(2.0, &[5.0, 0.6, 0.7, -0.01, 0.01, -0.01, 0.01, -0.01]), [1, 2, 3]);
    }

    #[test]
    fn nobody_is_blamed_for_common_rises_or_noise() {
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
    fn loss_that_is_not_finite_is_a_rise() {
        let learners = BTreeSet::from([1, 2, 3].map(LearnerId));
        let mut attribution = Attribution::new(2.0, f64::NAN, learners);
        while let Some(out) = attribution.next() {
            attribution.measured(if out.contains(&LearnerId(3)) { 2.01 } else { f64::INFINITY });
        }
        assert_eq!(
            attribution.verdict(),
            Some(AttributionResult { learners: vec![LearnerId(3)], loss: 2.01 })
        );
    }
}
