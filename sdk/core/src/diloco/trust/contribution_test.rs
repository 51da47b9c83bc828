//! Loss-check verdicts: whether learners train as they claim, judged from single updates.
//!
//! Training on a text lowers the loss there more than elsewhere. In one update that gain drowns in noise. Gains are
//! therefore compared with those of other learners and accumulated over many loss checks.

use std::collections::{BTreeMap, VecDeque};

use crate::diloco::{MergeJob, Suspicion};
use crate::rng::key;
use crate::wire::{FragmentId, LearnerId};

/// Loss checks that are remembered for each fragment as its baseline. Our own constant.
const KEPT: usize = 64;
/// Loss checks of other learners that a verdict needs. Our own constant.
const NEEDED: usize = 12;
/// Fraction of the usual gain that an update has to show. Our own constant.
const PART: f64 = 0.45;
/// Smallest signal strength, in spreads, at which learners are judged. Below it, training does not show. Our own
/// constant.
const STRENGTH_MIN: f64 = 0.25;
/// Loss checks over which the signal strength is averaged, approximately. Our own constant.
const STRENGTH_LOOKS: u32 = 256;
/// Loss checks before the first verdict. Our own constant.
const STRENGTH_NEEDED: u32 = 48;
/// Fraction of the accumulated odds that one loss check stakes. Our own constant.
const STAKE: f64 = 0.6;
/// Odds of not training at which a learner becomes a suspect, see [`ContributionTest::take`]. Our own constant.
const SUSPECT_ODDS: f64 = 3e3;
/// Odds of training at which a learner is proven and any suspicion ends. At odds of 1 the proof lapses. Our own
/// constant.
const CLEAR_ODDS: f64 = 300.0;
/// Loss checks by which the sampling interval of a proven learner grows by one merge.
const LOOKS_FEW: u32 = 8;
/// Longest sampling interval of a proven learner, in merges.
const ONE_IN_MAX: u32 = 16;

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

/// Verdicts on all learners.
#[derive(Clone, Debug)]
pub struct ContributionTest {
    seed: u64,
    records: BTreeMap<LearnerId, Record>,
    /// Own gains by fragment, newest last.
    usual: BTreeMap<FragmentId, VecDeque<(LearnerId, f64)>>,
    /// Signal strength, in spreads, and the number of loss checks that it averages.
    strength: (f64, u32),
}

/// Verdict of the loss checks on one learner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContributionVerdict {
    /// Undecided.
    Open,
    /// The learner trains as it claims.
    Proven,
    /// The learner does not train as it claims.
    Suspected(Suspicion),
}

impl ContributionVerdict {
    /// Returns the evidence of a suspicion, if there is one.
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
    looks: u32,
    /// Logarithm of the odds that the learner does not train, at least 0; 0 for a suspect.
    against: f64,
    /// Logarithm of the odds that the learner trains, from 0 to that of [`CLEAR_ODDS`].
    trust: f64,
    /// `None` before the first loss check.
    verdict: Option<ContributionVerdict>,
}

impl Record {
    fn is_suspected(&self) -> bool {
        self.verdict.is_some_and(|verdict| verdict.suspicion().is_some())
    }

    /// Adds the score of a loss check and returns the new verdict if it has changed.
    fn take(&mut self, score: f64) -> Option<ContributionVerdict> {
        let (before, was_suspected) = (self.verdict, self.is_suspected());
        self.looks = self.looks.saturating_add(1);
        let enough = libm::log(CLEAR_ODDS);
        self.trust = (self.trust + libm::log1p(STAKE * score)).clamp(0.0, enough);
        if !was_suspected {
            self.against = (self.against + libm::log1p(-STAKE * score)).max(0.0);
        }
        if self.against >= libm::log(SUSPECT_ODDS) {
            let verdict = ContributionVerdict::Suspected(Suspicion { looks: self.looks });
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
    /// Returns true if `job` has at least three updates and at least one of their learners is due for a check.
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
    /// Creates an empty record. `seed` selects the merges that are checked.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, records: BTreeMap::new(), usual: BTreeMap::new(), strength: (0.0, 0) }
    }

    /// Returns the selection of the next merges. Each merge of an unproven or weakening learner is checked, and ever
    /// fewer merges of the others.
    #[must_use]
    pub fn sampling(&self) -> Sampling {
        let one_in = |record: &Record| match record.verdict == Some(ContributionVerdict::Proven)
            && record.against <= 1.0
        {
            true => (record.looks / LOOKS_FEW).clamp(1, ONE_IN_MAX),
            false => 1,
        };
        let one_in = self.records.iter().map(|(&learner, record)| (learner, one_in(record))).collect();
        Sampling { seed: self.seed, one_in }
    }

    /// Adds the loss checks of one merge on `fragment` and returns the verdicts that changed.
    ///
    /// Each check multiplies the odds of not training by 1 − 0.6 s, and they never fall below 1. The score s, from −1
    /// to 1, is the excess of the own gain over 45 % of the usual gain, in spreads of that. For a learner that trains,
    /// s is positive on average, however noisy. Its odds are a product of bets that it wins; tests/evidence/POISON.md
    /// measures how far they rise by chance. No learner is judged without enough checks of others or while the signal
    /// is too weak.
    pub fn take(
        &mut self,
        fragment: FragmentId,
        shown: &[UpdateScore],
    ) -> Vec<(LearnerId, ContributionVerdict)> {
        let mut news = Vec::new();
        let beside = |look: &UpdateScore| self.usual(fragment, look.learner).map(|usual| (*look, usual));
        let looks: Vec<(UpdateScore, (f64, f64))> = shown.iter().filter_map(beside).collect();
        self.strengthen(&looks);
        let (strength, known) = self.strength;
        for (look, (usual, spread)) in looks {
            if strength < STRENGTH_MIN || known < STRENGTH_NEEDED || usual <= 0.0 {
                continue;
            }
            let record = self.records.entry(look.learner).or_default();
            let score = ((look.own - PART * usual) / spread).clamp(-1.0, 1.0);
            news.extend(record.take(score).map(|verdict| (look.learner, verdict)));
        }
        let usual = self.usual.entry(fragment).or_default();
        for look in shown {
            if !is_suspected(&self.records, look.learner) {
                usual.push_back((look.learner, look.own));
            }
        }
        usual.drain(..usual.len().saturating_sub(KEPT));
        news
    }

    /// Updates the signal strength with the median of one merge. A mean would fail, because learners that work against
    /// the others show far less than zero and would thereby hide the signal.
    fn strengthen(&mut self, looks: &[(UpdateScore, (f64, f64))]) {
        let believed = looks.iter().filter(|(look, _)| !is_suspected(&self.records, look.learner));
        let mut shown: Vec<f64> = believed.map(|(look, (_, spread))| look.own / spread).collect();
        if shown.is_empty() {
            return;
        }
        let (strength, known) = &mut self.strength;
        // A merge has no more updates than there are learners.
        *known = (*known + shown.len() as u32).min(STRENGTH_LOOKS);
        let part = shown.len() as f64 / f64::from(*known);
        *strength += (median(&mut shown) - *strength) * part.min(1.0);
    }

    /// Restores a suspicion that another process raised.
    pub fn suspect(&mut self, learner: LearnerId, suspicion: Suspicion) {
        let verdict = Some(ContributionVerdict::Suspected(suspicion));
        self.records.insert(learner, Record { looks: suspicion.looks, verdict, ..Record::default() });
    }

    /// Returns the median own gain of learners other than `learner` on `fragment`, and its spread.
    fn usual(&self, fragment: FragmentId, learner: LearnerId) -> Option<(f64, f64)> {
        let others = self.usual.get(&fragment)?.iter().filter(|(other, _)| *other != learner);
        let mut others: Vec<f64> = others.map(|(_, own)| *own).collect();
        if others.len() < NEEDED {
            return None;
        }
        let usual = median(&mut others);
        let mut spread: Vec<f64> = others.iter().map(|own| (own - usual).abs()).collect();
        // For a normal distribution, the median absolute deviation is this part of the standard deviation.
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

    /// Merges of ten updates each, whose gains are the learner's `mean`, in spreads, plus noise of one spread.
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

        /// Checks each learner `looks` times and returns each new suspect with the check that raised it.
        fn look(&mut self, looks: u32) -> Vec<(usize, u32)> {
            let mut found = Vec::new();
            for look in 0..looks {
                let shown: Vec<UpdateScore> = (0..self.means.len())
                    .map(|i| {
                        let own = 1e-3 * (self.means[i] + self.noise());
                        UpdateScore { learner: LearnerId(i as u32), own, others: 0.01 }
                    })
                    .collect();
                let news = self.proofs.take(FragmentId((look % 4) as u16), &shown);
                found.extend(
                    news.iter()
                        .filter(|(_, verdict)| verdict.suspicion().is_some())
                        .map(|(id, _)| (id.0 as usize, look)),
                );
            }
            found
        }
    }

    /// Goal: honest learners that show half to twice the usual gain are almost never suspected.
    #[test]
    fn honest_learners_are_hardly_ever_suspected() {
        let mut suspected = 0;
        for seed in 0..100 {
            let means = (0..10).map(|i| [1.0, 0.5, 2.0, 1.0, 0.7][i % 5]).collect();
            suspected += Population::new(seed, means).look(1_000).len();
        }
        assert!(suspected < 10, "{suspected} of 1,000 learners");
    }

    #[test]
    fn who_shows_nothing_is_suspected_and_nobody_beside_it() {
        for seed in 0..20 {
            let mut means = vec![1.0; 10];
            means[7..].fill(0.0);
            let found = Population::new(seed, means).look(400);
            let mut who: Vec<usize> = found.iter().map(|(who, _)| *who).collect();
            who.sort_unstable();
            assert_eq!(who, [7, 8, 9], "seed {seed}: {found:?}");
        }
    }

    /// Goal: a learner that trains is soon proven and mostly stays so. One that does not is never proven, and one that
    /// stops loses its proof.
    #[test]
    fn who_trains_has_shown_it_before_the_others_are_suspected() {
        let (mut shown, mut kept, mut lost) = (0, 0, 0);
        for seed in 0..20 {
            let mut means = vec![1.0; 10];
            means[7..].fill(0.0);
            let mut population = Population::new(seed, means);
            let is_shown =
                |population: &Population, who| population.verdict(who) == Some(ContributionVerdict::Proven);
            for _ in 0..80 {
                population.look(1);
                assert!((7..10).all(|who| !is_shown(&population, who)), "seed {seed}");
            }
            shown += (0..7).filter(|&who| is_shown(&population, who)).count();
            population.look(400);
            kept += (0..7).filter(|&who| is_shown(&population, who)).count();
            population.means[0] = 0.0;
            lost += usize::from((0..400).any(|_| {
                population.look(1);
                population.verdict(0) == Some(ContributionVerdict::Open)
            }));
        }
        assert!(shown > 126 && kept > 133, "{shown} and {kept} of 140");
        assert!(lost > 16, "{lost} of 20 that stopped have shown nothing any more before they are suspected");
    }

    /// A gain far below zero must not pass for a weak signal.
    #[test]
    fn who_works_against_the_others_is_suspected_soon() {
        for seed in 0..20 {
            let mut means = vec![0.7; 10];
            means[8..].fill(-4.0);
            let found = Population::new(seed, means).look(100);
            let mut who: Vec<usize> = found.iter().map(|(who, _)| *who).collect();
            who.sort_unstable();
            assert_eq!(who, [8, 9], "seed {seed}: {found:?}");
        }
    }

    #[test]
    fn who_trains_again_is_cleared() {
        let mut population = Population::new(1, vec![1.0; 9]);
        population.means.push(0.0);
        assert_eq!(population.look(400).len(), 1);
        assert_eq!(population.proofs.sampling().one_in[&LearnerId(9)], 1);
        population.means[9] = 1.0;
        let mut looks = 0;
        while is_suspected(&population.proofs.records, LearnerId(9)) {
            assert_eq!(population.look(1), []);
            looks += 1;
        }
        assert!(looks < 200, "{looks}");
        population.look(300);
        assert_eq!(population.proofs.sampling().one_in[&LearnerId(9)], ONE_IN_MAX);
    }

    #[test]
    fn where_nothing_shows_nobody_is_suspected() {
        for seed in 0..20 {
            for mean in [-0.2, 0.0, 0.1] {
                assert_eq!(Population::new(seed, vec![mean; 10]).look(1_000), [], "seed {seed}, {mean}");
            }
        }
    }
}
