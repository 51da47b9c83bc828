//! Whether learners train what they say: a verdict on each, from what single updates of theirs show.
//!
//! To train on text lowers the loss there by more than elsewhere. What an update shows of that drowns in noise, so it
//! is set beside what those of the others show, and added up over many looks.

use std::collections::{BTreeMap, VecDeque};

use super::Shown;
use crate::diloco::{Doubt, MergeJob};
use crate::rng::key;
use crate::wire::{FragmentId, LearnerId};

/// Looks at a fragment that are remembered, to know what is usual there. Constant of ours.
const KEPT: usize = 64;
/// Of other learners, before one is held against them. Constant of ours.
const NEEDED: usize = 12;
/// Part of what is usual that an update is to show. Constant of ours.
const PART: f64 = 0.45;
/// Nobody is held against what is usual where that is less than so many times its spread: nothing shows there. Constant
/// of ours.
const STRENGTH_MIN: f64 = 0.25;
/// Over about so many looks that is averaged. Constant of ours.
const STRENGTH_LOOKS: u32 = 256;
/// Before so many nothing is said. Constant of ours.
const STRENGTH_NEEDED: u32 = 48;
/// Part of what is believed that is staked on one look. Constant of ours.
const STAKE: f64 = 0.6;
/// A learner is suspected once it is so many times as likely that it does not train, by [`Proofs::take`]. Constant of
/// ours.
const SUSPECT_ODDS: f64 = 3e3;
/// It has shown that it trains, and is suspected no more, once that is so many times as likely as not; it has shown
/// nothing any more once that is no likelier than not. Constant of ours.
const CLEAR_ODDS: f64 = 300.0;
/// Of a learner that has shown that it trains, one merge in as many is looked at as it had times so many looks.
const LOOKS_FEW: u32 = 8;
/// One merge in so many is looked at for a learner that has shown much.
const ONE_IN_MAX: u32 = 16;

/// The verdicts on all learners.
#[derive(Clone, Debug)]
pub struct Proofs {
    seed: u64,
    records: BTreeMap<LearnerId, Record>,
    /// Newest last.
    usual: BTreeMap<FragmentId, VecDeque<(LearnerId, f64)>>,
    /// What updates show on the whole, in spreads, and how many looks say so.
    strength: (f64, u32),
}

/// What looks at the updates of a learner say of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Regard {
    /// Nothing for sure.
    Open,
    /// It trains what it says it does.
    Shown,
    /// It does not.
    Suspected(Doubt),
}

impl Regard {
    /// Why it is suspected, if it is.
    #[must_use]
    pub fn doubt(self) -> Option<Doubt> {
        match self {
            Self::Suspected(doubt) => Some(doubt),
            Self::Open | Self::Shown => None,
        }
    }
}

/// What is known of one learner.
#[derive(Clone, Copy, Debug, Default)]
struct Record {
    looks: u32,
    /// Logarithm of the odds that it does not train, 0 or above; 0 for one that is suspected.
    against: f64,
    /// Logarithm of the odds that it does, from 0 to that of [`CLEAR_ODDS`].
    trust: f64,
    /// `None` before the first look.
    regard: Option<Regard>,
}

impl Record {
    fn is_suspected(&self) -> bool {
        self.regard.is_some_and(|regard| regard.doubt().is_some())
    }

    /// Takes in a look; gives what is to be thought from now on, if that is another thing.
    fn take(&mut self, score: f64) -> Option<Regard> {
        let (before, was_suspected) = (self.regard, self.is_suspected());
        self.looks = self.looks.saturating_add(1);
        let enough = libm::log(CLEAR_ODDS);
        self.trust = (self.trust + libm::log1p(STAKE * score)).clamp(0.0, enough);
        if !was_suspected {
            self.against = (self.against + libm::log1p(-STAKE * score)).max(0.0);
        }
        if self.against >= libm::log(SUSPECT_ODDS) {
            let regard = Regard::Suspected(Doubt { looks: self.looks });
            (self.regard, self.against, self.trust) = (Some(regard), 0.0, 0.0);
        } else if self.trust >= enough {
            self.regard = Some(Regard::Shown);
        } else if before.is_none() || before == Some(Regard::Shown) && self.trust <= 0.0 {
            self.regard = Some(Regard::Open);
        }
        self.regard.filter(|_| self.regard != before)
    }
}

/// Which merges are to be looked at.
#[derive(Clone, Debug)]
pub struct Sampling {
    seed: u64,
    /// One merge in so many.
    one_in: BTreeMap<LearnerId, u32>,
}

impl Sampling {
    /// Whether `job` is: for the sake of somebody in it, each of whom nothing is known for sure.
    #[must_use]
    pub fn wants(&self, job: &MergeJob) -> bool {
        let wants = |learner: LearnerId| {
            let one_in = self.one_in.get(&learner).copied().unwrap_or(1);
            key(&[self.seed, job.round.0, learner.0.into()]).is_multiple_of(one_in.into())
        };
        job.updates.len() > 2 && job.updates.iter().any(|update| wants(update.learner))
    }
}

impl Proofs {
    /// Nothing is known of anybody yet. `seed` picks what is looked at.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, records: BTreeMap::new(), usual: BTreeMap::new(), strength: (0.0, 0) }
    }

    /// Which merges are to be looked at next: each of whoever has not shown that it trains or shows less than it did,
    /// ever fewer of the others.
    #[must_use]
    pub fn sampling(&self) -> Sampling {
        let one_in = |record: &Record| match record.regard == Some(Regard::Shown) && record.against <= 1.0 {
            true => (record.looks / LOOKS_FEW).clamp(1, ONE_IN_MAX),
            false => 1,
        };
        let one_in = self.records.iter().map(|(&learner, record)| (learner, one_in(record))).collect();
        Sampling { seed: self.seed, one_in }
    }

    /// Takes in what updates of one merge on `fragment` showed; gives those of whom another thing is to be thought from
    /// now on.
    ///
    /// Each look multiplies the odds by 1 − 0.6 s, where s, from −1 to 1, is by how much the update shows more
    /// than 45 % of what is usual, in spreads of that; and they never fall below 1. For who trains s is above 0
    /// on the whole, however noisy it is: its odds are a product of bets that it wins, and how far they go up by
    /// chance is measured in tests/evidence/POISON.md. Nobody is held against fewer than two others, nor where
    /// nothing shows.
    pub fn take(&mut self, fragment: FragmentId, shown: &[Shown]) -> Vec<(LearnerId, Regard)> {
        let mut news = Vec::new();
        let beside = |look: &Shown| self.usual(fragment, look.learner).map(|usual| (*look, usual));
        let looks: Vec<(Shown, (f64, f64))> = shown.iter().filter_map(beside).collect();
        self.strengthen(&looks);
        let (strength, known) = self.strength;
        for (look, (usual, spread)) in looks {
            if strength < STRENGTH_MIN || known < STRENGTH_NEEDED || usual <= 0.0 {
                continue;
            }
            let record = self.records.entry(look.learner).or_default();
            let score = ((look.own - PART * usual) / spread).clamp(-1.0, 1.0);
            news.extend(record.take(score).map(|regard| (look.learner, regard)));
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

    /// Takes in how much updates of one merge show. The one in the middle speaks for all of them: those who work
    /// against the others show far less than nothing, and would else be safe by that.
    fn strengthen(&mut self, looks: &[(Shown, (f64, f64))]) {
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

    /// Who is suspected goes on being so, in a process that did not find it out itself.
    pub fn suspect(&mut self, learner: LearnerId, doubt: Doubt) {
        let regard = Some(Regard::Suspected(doubt));
        self.records.insert(learner, Record { looks: doubt.looks, regard, ..Record::default() });
    }

    /// What updates of others than `learner` usually show on `fragment`, and the spread of that.
    fn usual(&self, fragment: FragmentId, learner: LearnerId) -> Option<(f64, f64)> {
        let others = self.usual.get(&fragment)?.iter().filter(|(other, _)| *other != learner);
        let mut others: Vec<f64> = others.map(|(_, own)| *own).collect();
        if others.len() < NEEDED {
            return None;
        }
        let usual = median(&mut others);
        let mut spread: Vec<f64> = others.iter().map(|own| (own - usual).abs()).collect();
        // Of what is normally distributed the median distance is that part of the standard deviation.
        let spread = median(&mut spread) / 0.6745;
        (spread > 0.0 && spread.is_finite()).then_some((usual, spread))
    }
}

fn is_suspected(records: &BTreeMap<LearnerId, Record>, learner: LearnerId) -> bool {
    records.get(&learner).is_some_and(Record::is_suspected)
}

/// The median of values, of which there is one at least.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// Merges of ten, of which each update shows `mean` of its learner, in spreads, and noise of so many spreads.
    struct Crowd {
        rng: Rng,
        proofs: Proofs,
        means: Vec<f64>,
    }

    impl Crowd {
        fn new(seed: u64, means: Vec<f64>) -> Self {
            Self { rng: Rng::new(seed), proofs: Proofs::new(seed), means }
        }

        /// Normally distributed, with now and then one that is far out.
        fn noise(&mut self) -> f64 {
            let bell: f64 = (0..12).map(|_| self.rng.unit()).sum::<f64>() - 6.0;
            if self.rng.below(20) == 0 { 5.0 * bell } else { bell }
        }

        fn regard(&self, who: u32) -> Option<Regard> {
            self.proofs.records.get(&LearnerId(who))?.regard
        }

        /// So many looks at each; who was suspected at which of them.
        fn look(&mut self, looks: u32) -> Vec<(usize, u32)> {
            let mut found = Vec::new();
            for look in 0..looks {
                let shown: Vec<Shown> = (0..self.means.len())
                    .map(|i| {
                        let own = 1e-3 * (self.means[i] + self.noise());
                        Shown { learner: LearnerId(i as u32), own, others: 0.01 }
                    })
                    .collect();
                let news = self.proofs.take(FragmentId((look % 4) as u16), &shown);
                found.extend(
                    news.iter()
                        .filter(|(_, regard)| regard.doubt().is_some())
                        .map(|(id, _)| (id.0 as usize, look)),
                );
            }
            found
        }
    }

    /// Goal: of honest learners who show half to twice what is usual hardly anybody is ever suspected.
    #[test]
    fn honest_learners_are_hardly_ever_suspected() {
        let mut suspected = 0;
        for seed in 0..100 {
            let means = (0..10).map(|i| [1.0, 0.5, 2.0, 1.0, 0.7][i % 5]).collect();
            suspected += Crowd::new(seed, means).look(1_000).len();
        }
        assert!(suspected < 10, "{suspected} of 1,000 learners");
    }

    #[test]
    fn who_shows_nothing_is_suspected_and_nobody_beside_it() {
        for seed in 0..20 {
            let mut means = vec![1.0; 10];
            means[7..].fill(0.0);
            let found = Crowd::new(seed, means).look(400);
            let mut who: Vec<usize> = found.iter().map(|(who, _)| *who).collect();
            who.sort_unstable();
            assert_eq!(who, [7, 8, 9], "seed {seed}: {found:?}");
        }
    }

    /// Goal: who trains has soon shown it and mostly goes on to, who does not never has, and who stops loses it.
    #[test]
    fn who_trains_has_shown_it_before_the_others_are_suspected() {
        let (mut shown, mut kept, mut lost) = (0, 0, 0);
        for seed in 0..20 {
            let mut means = vec![1.0; 10];
            means[7..].fill(0.0);
            let mut crowd = Crowd::new(seed, means);
            let is_shown = |crowd: &Crowd, who| crowd.regard(who) == Some(Regard::Shown);
            for _ in 0..80 {
                crowd.look(1);
                assert!((7..10).all(|who| !is_shown(&crowd, who)), "seed {seed}");
            }
            shown += (0..7).filter(|&who| is_shown(&crowd, who)).count();
            crowd.look(400);
            kept += (0..7).filter(|&who| is_shown(&crowd, who)).count();
            crowd.means[0] = 0.0;
            lost += usize::from((0..400).any(|_| {
                crowd.look(1);
                crowd.regard(0) == Some(Regard::Open)
            }));
        }
        assert!(shown > 126 && kept > 133, "{shown} and {kept} of 140");
        assert!(lost > 16, "{lost} of 20 that stopped have shown nothing any more before they are suspected");
    }

    /// However far below nothing: that must not pass for a crowd of whom nothing shows.
    #[test]
    fn who_works_against_the_others_is_suspected_soon() {
        for seed in 0..20 {
            let mut means = vec![0.7; 10];
            means[8..].fill(-4.0);
            let found = Crowd::new(seed, means).look(100);
            let mut who: Vec<usize> = found.iter().map(|(who, _)| *who).collect();
            who.sort_unstable();
            assert_eq!(who, [8, 9], "seed {seed}: {found:?}");
        }
    }

    #[test]
    fn who_trains_again_is_cleared() {
        let mut crowd = Crowd::new(1, vec![1.0; 9]);
        crowd.means.push(0.0);
        assert_eq!(crowd.look(400).len(), 1);
        assert_eq!(crowd.proofs.sampling().one_in[&LearnerId(9)], 1);
        crowd.means[9] = 1.0;
        let mut looks = 0;
        while is_suspected(&crowd.proofs.records, LearnerId(9)) {
            assert_eq!(crowd.look(1), []);
            looks += 1;
        }
        assert!(looks < 200, "{looks}");
        crowd.look(300);
        assert_eq!(crowd.proofs.sampling().one_in[&LearnerId(9)], ONE_IN_MAX);
    }

    #[test]
    fn where_nothing_shows_nobody_is_suspected() {
        for seed in 0..20 {
            for mean in [-0.2, 0.0, 0.1] {
                assert_eq!(Crowd::new(seed, vec![mean; 10]).look(1_000), [], "seed {seed}, {mean}");
            }
        }
    }
}
