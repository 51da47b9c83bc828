//! Contribution test: a sequential test, over many loss checks, of whether learners train as they claim.
//!
//! Training on a text lowers the loss on that text more than on other texts. In a single update, noise hides this gain.
//! Gains are therefore compared with those of other learners and accumulated over many loss checks.

use std::collections::{BTreeMap, VecDeque};

use crate::diloco::{MergeJob, Suspicion};
use crate::rng::key;
use crate::wire::{FragmentId, LearnerId};

/// Number of gains that are remembered for each fragment as its baseline. Our own constant.
const KEPT: usize = 64;
/// Number of remembered gains of other learners that a score needs. Our own constant.
const NEEDED: usize = 12;
/// Fraction of the baseline gain above which a score is positive. Our own constant.
const PART: f64 = 0.45;
/// Smallest signal strength, in spreads, at which learners are scored. Below it, the gains do not show training. Our
/// own constant.
const STRENGTH_MIN: f64 = 0.25;
/// Approximate number of gains over which the signal strength is averaged. Our own constant.
const STRENGTH_WINDOW: u32 = 256;
/// Number of gains in the signal strength before the first score. Our own constant.
const STRENGTH_NEEDED: u32 = 48;
/// Factor between a score and the relative change of the odds. Our own constant.
const STAKE: f64 = 0.6;
/// Odds of not training at which a learner becomes suspected, see [`ContributionTest::take`]. Our own constant.
const SUSPECT_ODDS: f64 = 3e3;
/// Odds of training at which a learner is proven and any suspicion ends. The proof lapses at odds of 1. Our own
/// constant.
const CLEAR_ODDS: f64 = 300.0;
/// Number of loss checks after which the sampling interval of a proven learner grows by one merge.
const CHECKS_PER_INTERVAL: u32 = 8;
/// Longest sampling interval of a proven learner, in merges.
const ONE_IN_MAX: u32 = 16;

/// Result of a loss check for one update, in nats per token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UpdateScore {
    /// Sender of the update.
    pub learner: LearnerId,
    /// Own gain: decrease of the loss on the update's own windows, beyond its decrease on the windows of others and
    /// beyond the effect of other updates on its own windows. It is multiplied by the square root of the windows per
    /// step, because one window has less effect on an update with larger batches.
    pub own: f64,
    /// Mean decrease of the loss on the windows of the other updates.
    pub others: f64,
}

/// Contribution test of all learners of a run.
#[derive(Clone, Debug)]
pub struct ContributionTest {
    seed: u64,
    records: BTreeMap<LearnerId, Record>,
    /// Baseline: own gains of learners that are not suspected, by fragment, newest last.
    usual: BTreeMap<FragmentId, VecDeque<(LearnerId, f64)>>,
    /// Signal strength, in spreads, and the number of gains in it, up to [`STRENGTH_WINDOW`].
    strength: (f64, u32),
}

/// Verdict of the contribution test on one learner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContributionVerdict {
    /// The evidence is not sufficient for either verdict.
    Open,
    /// The learner trains as it claims.
    Proven,
    /// The learner does not train as it claims.
    Suspected(Suspicion),
}

impl ContributionVerdict {
    /// Returns the suspicion, if this verdict is one.
    #[must_use]
    pub fn suspicion(self) -> Option<Suspicion> {
        match self {
            Self::Suspected(suspicion) => Some(suspicion),
            Self::Open | Self::Proven => None,
        }
    }
}

/// Loss-check record of one learner.
#[derive(Clone, Copy, Debug, Default)]
struct Record {
    /// Number of scored loss checks.
    checks: u32,
    /// Natural logarithm of the odds that the learner does not train, at least 0; 0 for a suspect.
    against: f64,
    /// Natural logarithm of the odds that the learner trains, 0 to `ln` [`CLEAR_ODDS`].
    trust: f64,
    /// `None` before the first scored loss check.
    verdict: Option<ContributionVerdict>,
}

impl Record {
    fn is_suspected(&self) -> bool {
        self.verdict.is_some_and(|verdict| verdict.suspicion().is_some())
    }

    /// Adds the score of a loss check, −1 to 1, and returns the verdict if it changed.
    fn take(&mut self, score: f64) -> Option<ContributionVerdict> {
        let (before, was_suspected) = (self.verdict, self.is_suspected());
        self.checks = self.checks.saturating_add(1);
        let enough = libm::log(CLEAR_ODDS);
        self.trust = (self.trust + libm::log1p(STAKE * score)).clamp(0.0, enough);
        if !was_suspected {
            self.against = (self.against + libm::log1p(-STAKE * score)).max(0.0);
        }
        if self.against >= libm::log(SUSPECT_ODDS) {
            let verdict = ContributionVerdict::Suspected(Suspicion { looks: self.checks });
            (self.verdict, self.against, self.trust) = (Some(verdict), 0.0, 0.0);
        } else if self.trust >= enough {
            self.verdict = Some(ContributionVerdict::Proven);
        } else if before.is_none() || before == Some(ContributionVerdict::Proven) && self.trust <= 0.0 {
            self.verdict = Some(ContributionVerdict::Open);
        }
        self.verdict.filter(|_| self.verdict != before)
    }
}

/// Selection of merges for loss checks.
#[derive(Clone, Debug)]
pub struct Sampling {
    seed: u64,
    /// Sampling interval of each learner, in merges.
    one_in: BTreeMap<LearnerId, u32>,
}

impl Sampling {
    /// Returns true if `job` has at least three updates and any of their learners is due for a loss check.
    #[must_use]
    pub fn wants(&self, job: &MergeJob) -> bool {
        let wants = |learner: LearnerId| {
            let one_in = self.one_in.get(&learner).copied().unwrap_or(1);
            key(&[self.seed, job.round.0, learner.0.into()]).is_multiple_of(one_in.into())
        };
        job.updates.len() > 2 && job.updates.iter().any(|update| wants(update.learner))
    }
}

impl ContributionTest {
    /// Creates a test without evidence. `seed` selects the merges that are checked.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, records: BTreeMap::new(), usual: BTreeMap::new(), strength: (0.0, 0) }
    }

    /// Returns the selection of the next merges. All merges of a learner are checked if it is unproven or if evidence
    /// against it accumulates. The sampling interval of other learners grows with their number of checks.
    #[must_use]
    pub fn sampling(&self) -> Sampling {
        let one_in = |record: &Record| match record.verdict == Some(ContributionVerdict::Proven)
            && record.against <= 1.0
        {
            true => (record.checks / CHECKS_PER_INTERVAL).clamp(1, ONE_IN_MAX),
            false => 1,
        };
        let one_in = self.records.iter().map(|(&learner, record)| (learner, one_in(record))).collect();
        Sampling { seed: self.seed, one_in }
    }

    /// Adds the loss check of one merge on `fragment`, one result for each examined update, and returns the verdicts
    /// that changed.
    ///
    /// Each result multiplies the odds of not training by 1 − 0.6 s, with a minimum of 1. The score s, from −1 to 1, is
    /// the excess of the own gain over 45 % of the median gain of other learners, in spreads of those gains. The score
    /// of a learner that trains is positive on average, so its odds shrink; tests/evidence/POISON.md measures how far
    /// they rise by chance. A learner is scored only with enough results of other learners and a strong enough signal.
    pub fn take(
        &mut self,
        fragment: FragmentId,
        results: &[UpdateScore],
    ) -> Vec<(LearnerId, ContributionVerdict)> {
        let mut news = Vec::new();
        let compare =
            |result: &UpdateScore| self.usual(fragment, result.learner).map(|usual| (*result, usual));
        let compared: Vec<(UpdateScore, (f64, f64))> = results.iter().filter_map(compare).collect();
        self.update_strength(&compared);
        let (strength, known) = self.strength;
        for (result, (usual, spread)) in compared {
            if strength < STRENGTH_MIN || known < STRENGTH_NEEDED || usual <= 0.0 {
                continue;
            }
            let record = self.records.entry(result.learner).or_default();
            let score = ((result.own - PART * usual) / spread).clamp(-1.0, 1.0);
            news.extend(record.take(score).map(|verdict| (result.learner, verdict)));
        }
        let usual = self.usual.entry(fragment).or_default();
        for result in results {
            if !is_suspected(&self.records, result.learner) {
                usual.push_back((result.learner, result.own));
            }
        }
        usual.drain(..usual.len().saturating_sub(KEPT));
        news
    }

    /// Updates the signal strength with the median of one merge. A mean would not do: adversarial learners have gains
    /// far below zero and would lower it below the threshold.
    fn update_strength(&mut self, compared: &[(UpdateScore, (f64, f64))]) {
        let believed = compared.iter().filter(|(result, _)| !is_suspected(&self.records, result.learner));
        let mut gains: Vec<f64> = believed.map(|(result, (_, spread))| result.own / spread).collect();
        if gains.is_empty() {
            return;
        }
        let (strength, known) = &mut self.strength;
        // A merge has no more updates than there are learners, so the cast is lossless.
        *known = (*known + gains.len() as u32).min(STRENGTH_WINDOW);
        let part = gains.len() as f64 / f64::from(*known);
        *strength += (median(&mut gains) - *strength) * part.min(1.0);
    }

    /// Restores a suspicion that another process raised.
    pub fn suspect(&mut self, learner: LearnerId, suspicion: Suspicion) {
        let verdict = Some(ContributionVerdict::Suspected(suspicion));
        self.records.insert(learner, Record { checks: suspicion.looks, verdict, ..Record::default() });
    }

    /// Returns the median own gain of learners other than `learner` on `fragment`, and the spread (estimated standard
    /// deviation) of these gains; `None` if too few are known.
    fn usual(&self, fragment: FragmentId, learner: LearnerId) -> Option<(f64, f64)> {
        let others = self.usual.get(&fragment)?.iter().filter(|(other, _)| *other != learner);
        let mut others: Vec<f64> = others.map(|(_, own)| *own).collect();
        if others.len() < NEEDED {
            return None;
        }
        let usual = median(&mut others);
        let mut spread: Vec<f64> = others.iter().map(|own| (own - usual).abs()).collect();
        // For a normal distribution, the median absolute deviation is 0.6745 standard deviations.
        let spread = median(&mut spread) / 0.6745;
        (spread > 0.0 && spread.is_finite()).then_some((usual, spread))
    }
}

fn is_suspected(records: &BTreeMap<LearnerId, Record>, learner: LearnerId) -> bool {
    records.get(&learner).is_some_and(Record::is_suspected)
}

/// Returns the median of `values`, which must not be empty.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// Population of learners with one update each per merge. The gain of an update is the learner's value in `means`
    /// plus noise of one spread, in spreads.
    struct Population {
        rng: Rng,
        proofs: ContributionTest,
        means: Vec<f64>,
    }

    impl Population {
        fn new(seed: u64, means: Vec<f64>) -> Self {
            Self { rng: Rng::new(seed), proofs: ContributionTest::new(seed), means }
        }

        /// Returns normally distributed noise with occasional outliers.
        fn noise(&mut self) -> f64 {
            let bell: f64 = (0..12).map(|_| self.rng.unit()).sum::<f64>() - 6.0;
            if self.rng.below(20) == 0 { 5.0 * bell } else { bell }
        }

        fn verdict(&self, who: u32) -> Option<ContributionVerdict> {
            self.proofs.records.get(&LearnerId(who))?.verdict
        }

        /// Checks `merges` merges and returns each new suspect with the index of the merge that raised the suspicion.
        fn check(&mut self, merges: u32) -> Vec<(usize, u32)> {
            let mut found = Vec::new();
            for merge in 0..merges {
                let results: Vec<UpdateScore> = (0..self.means.len())
                    .map(|i| {
                        let own = 1e-3 * (self.means[i] + self.noise());
                        UpdateScore { learner: LearnerId(i as u32), own, others: 0.01 }
                    })
                    .collect();
                let news = self.proofs.take(FragmentId((merge % 4) as u16), &results);
                found.extend(
                    news.iter()
                        .filter(|(_, verdict)| verdict.suspicion().is_some())
                        .map(|(id, _)| (id.0 as usize, merge)),
                );
            }
            found
        }
    }

    /// Goal: honest learners with half to twice the typical gain are almost never suspected.
    #[test]
    fn honest_learners_are_hardly_ever_suspected() {
        let mut suspected = 0;
        for seed in 0..100 {
            let means = (0..10).map(|i| [1.0, 0.5, 2.0, 1.0, 0.7][i % 5]).collect();
            suspected += Population::new(seed, means).check(1_000).len();
        }
        assert!(suspected < 10, "{suspected} of 1,000 learners");
    }

    #[test]
    fn learners_without_gains_are_suspected_and_no_others() {
        for seed in 0..20 {
            let mut means = vec![1.0; 10];
            means[7..].fill(0.0);
            let found = Population::new(seed, means).check(400);
            let mut who: Vec<usize> = found.iter().map(|(who, _)| *who).collect();
            who.sort_unstable();
            assert_eq!(who, [7, 8, 9], "seed {seed}: {found:?}");
        }
    }

    /// Goal: a learner that trains is soon proven and mostly stays proven. One that does not train is never proven, and
    /// one that stops training loses its proof.
    #[test]
    fn training_learners_are_proven_before_others_are_suspected() {
        let (mut shown, mut kept, mut lost) = (0, 0, 0);
        for seed in 0..20 {
            let mut means = vec![1.0; 10];
            means[7..].fill(0.0);
            let mut population = Population::new(seed, means);
            let is_shown =
                |population: &Population, who| population.verdict(who) == Some(ContributionVerdict::Proven);
            for _ in 0..80 {
                population.check(1);
                assert!((7..10).all(|who| !is_shown(&population, who)), "seed {seed}");
            }
            shown += (0..7).filter(|&who| is_shown(&population, who)).count();
            population.check(400);
            kept += (0..7).filter(|&who| is_shown(&population, who)).count();
            population.means[0] = 0.0;
            lost += usize::from((0..400).any(|_| {
                population.check(1);
                population.verdict(0) == Some(ContributionVerdict::Open)
            }));
        }
        assert!(shown > 126 && kept > 133, "{shown} and {kept} of 140");
        assert!(lost > 16, "{lost} of 20 that stopped have shown nothing any more before they are suspected");
    }

    /// Goal: gains far below zero do not pass for a weak signal.
    #[test]
    fn adversarial_learners_are_suspected_soon() {
        for seed in 0..20 {
            let mut means = vec![0.7; 10];
            means[8..].fill(-4.0);
            let found = Population::new(seed, means).check(100);
            let mut who: Vec<usize> = found.iter().map(|(who, _)| *who).collect();
            who.sort_unstable();
            assert_eq!(who, [8, 9], "seed {seed}: {found:?}");
        }
    }

    #[test]
    fn suspects_that_train_again_are_cleared() {
        let mut population = Population::new(1, vec![1.0; 9]);
        population.means.push(0.0);
        assert_eq!(population.check(400).len(), 1);
        assert_eq!(population.proofs.sampling().one_in[&LearnerId(9)], 1);
        population.means[9] = 1.0;
        let mut merges = 0;
        while is_suspected(&population.proofs.records, LearnerId(9)) {
            assert_eq!(population.check(1), []);
            merges += 1;
        }
        assert!(merges < 200, "{merges}");
        population.check(300);
        assert_eq!(population.proofs.sampling().one_in[&LearnerId(9)], ONE_IN_MAX);
    }

    #[test]
    fn weak_signals_lead_to_no_suspicion() {
        for seed in 0..20 {
            for mean in [-0.2, 0.0, 0.1] {
                assert_eq!(Population::new(seed, vec![mean; 10]).check(1_000), [], "seed {seed}, {mean}");
            }
        }
    }
}
