//! Whose updates it was that did harm: found by leaving learners out, one after the other, and measuring what the loss
//! would be.

use std::collections::BTreeSet;

use crate::wire::LearnerId;

/// A culprit answers for at least so many times its share of what the loss is still above the good one, and for this
/// part of it: the fewer there are, the more easily chance makes one look bad. Constants of ours.
const SHARES_MIN: f64 = 1.6;
const PART_MIN: f64 = 0.05;
/// To leave out a culprit makes the loss better by at least so many times as much as to leave out anybody who is not
/// accused: that is noise. Constant of ours.
const NOISE_RATIO: f64 = 3.0;
/// The culprits together answer for at least this part of what the loss rose by, or nobody is blamed.
const EXPLAINED_MIN: f64 = 0.5;
/// A loss so little above the good one is good enough. Constant of ours.
const RISE_RATIO_MAX: f64 = 0.02;
/// Searches one after the other, each among those who are left: what hid behind the first culprit shows then.
const PASSES_MAX: u32 = 3;

/// A search for those whose updates raised a loss, as a state machine: it says whom to leave out next, and takes what
/// the loss is then.
///
/// No more than half of those who sent something are ever blamed: of whom most is wrong with, nobody knows.
#[derive(Clone, Debug)]
pub struct Blame {
    good: f64,
    bad: f64,
    /// With the culprits so far left out.
    now: f64,
    suspects: Vec<LearnerId>,
    culprits: BTreeSet<LearnerId>,
    passes: u32,
    step: Step,
}

#[derive(Clone, Debug)]
enum Step {
    /// Each suspect by itself: the losses without those who were left out already.
    Each(Vec<f64>),
    /// Those together whom the losses speak against, and who of them is alone the worst, with the loss without it.
    Together(BTreeSet<LearnerId>, (LearnerId, f64)),
    Over,
}

/// Whose updates did harm, and what the loss is without them.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// By id, at least one.
    pub culprits: Vec<LearnerId>,
    /// Loss without their updates, in nats per token.
    pub loss: f64,
}

impl Blame {
    /// The loss was `good` and is `bad`, in nats per token, and these sent something in between.
    #[must_use]
    pub fn new(good: f64, bad: f64, suspects: BTreeSet<LearnerId>) -> Self {
        let step = if suspects.is_empty() { Step::Over } else { Step::Each(Vec::new()) };
        // A loss that is no number is as bad as can be told from others.
        let bad = bounded(bad, good);
        let (suspects, culprits) = (suspects.into_iter().collect(), BTreeSet::new());
        Self { good, bad, now: bad, suspects, culprits, passes: 0, step }
    }

    /// Whom to leave out next; `None` once the search is over.
    #[must_use]
    pub fn next(&self) -> Option<BTreeSet<LearnerId>> {
        let more = match &self.step {
            Step::Each(losses) => BTreeSet::from([*self.suspects.get(losses.len())?]),
            Step::Together(accused, _) => accused.clone(),
            Step::Over => return None,
        };
        Some(self.culprits.union(&more).copied().collect())
    }

    /// Takes the loss without those whom [`Self::next`] named.
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
                // Several who look bad may be one who is, and others who only look so beside it.
                if loss <= alone {
                    self.convict(accused, loss)
                } else {
                    self.convict(BTreeSet::from([worst]), alone)
                }
            }
            Step::Over => {}
        }
    }

    /// Whose updates did harm; `None` if the search found nobody who did most of it.
    #[must_use]
    pub fn verdict(&self) -> Option<Verdict> {
        let explained = (self.bad - self.now) / (self.bad - self.good);
        let is_found = !self.culprits.is_empty() && explained >= EXPLAINED_MIN;
        is_found.then(|| Verdict { culprits: self.culprits.iter().copied().collect(), loss: self.now })
    }

    /// Each of the suspects was left out by itself.
    fn accuse(&mut self, losses: &[f64]) {
        let (rise, now) = (self.now - self.good, self.now);
        let mut accused: Vec<_> = losses.iter().copied().zip(self.suspects.iter().copied()).collect();
        accused.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let gains: Vec<f64> = accused.iter().map(|(loss, _)| (now - loss).max(0.0)).collect();
        // Among all who ever were suspects, so that the passes together blame no more than half.
        let all = self.suspects.len() + self.culprits.len();
        let most = (all / 2).saturating_sub(self.culprits.len()).min(gains.len().saturating_sub(1));
        let least = rise * (SHARES_MIN / gains.len() as f64).max(PART_MIN);
        // Whoever is accused stands apart from all who are not.
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

/// A loss that can be reckoned with: one that is no number, or far beyond, is a thousand nats above `good`.
fn bounded(loss: f64, good: f64) -> f64 {
    let most = good + 1e3;
    if loss.is_finite() { loss.min(most) } else { most }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches in a world in which each learner adds so much to a loss of 2, from what left it at `good`.
    fn search(good: f64, adds: &[f64]) -> (Option<Verdict>, usize) {
        let learners: Vec<LearnerId> = (1..).map(LearnerId).take(adds.len()).collect();
        let loss = |out: &BTreeSet<LearnerId>| {
            let there = learners.iter().zip(adds).filter(|(learner, _)| !out.contains(learner));
            2.0 + there.map(|(_, add)| add).sum::<f64>()
        };
        let mut blame = Blame::new(good, loss(&BTreeSet::new()), learners.iter().copied().collect());
        let mut trials = 0;
        while let Some(out) = blame.next() {
            blame.measured(loss(&out));
            trials += 1;
            assert!(trials < 100, "it ends");
        }
        (blame.verdict(), trials)
    }

    fn culprits(good: f64, adds: &[f64]) -> Vec<u32> {
        let (verdict, _) = search(good, adds);
        verdict.map_or(Vec::new(), |verdict| verdict.culprits.iter().map(|learner| learner.0).collect())
    }

    #[test]
    fn one_who_did_it_is_found_after_a_trial_for_each() {
        let (verdict, trials) = search(2.0, &[-0.01, 0.4, -0.02, 0.005]);
        assert_eq!(verdict.map(|verdict| verdict.culprits), Some(vec![LearnerId(2)]));
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
        // The second one's part is below a tenth of it all.
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
        let mut blame = Blame::new(2.0, f64::NAN, learners);
        while let Some(out) = blame.next() {
            blame.measured(if out.contains(&LearnerId(3)) { 2.01 } else { f64::INFINITY });
        }
        assert_eq!(blame.verdict(), Some(Verdict { culprits: vec![LearnerId(3)], loss: 2.01 }));
    }
}
