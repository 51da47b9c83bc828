//! Incremental statistics over connected learners, derived from the ledger: longest time merged, established learners,
//! their paces, and the order in which seats are given up.

use std::collections::{BTreeMap, BTreeSet};

use crate::diloco::weighted_median::WeightedMedian;
use crate::diloco::{Ledger, PROBATION_MS};
use crate::wire::LearnerId;

/// Statistics over connected learners.
#[derive(Debug, Default)]
pub(super) struct LearnerStats {
    stands: BTreeMap<LearnerId, LearnerEntry>,
    /// All learners by merit; 0 for a learner without a merged update.
    merits: BTreeSet<(u64, LearnerId)>,
    strangers: usize,
    /// Live learners by the time for which they were merged.
    merged: BTreeSet<(u64, LearnerId)>,
    /// Established learners: live, and past probation.
    known: BTreeSet<LearnerId>,
    /// Paces of established learners, with one vote each.
    paces: WeightedMedian,
    /// Longest time for which a live learner was merged, at the last measurement, in milliseconds.
    longest_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct LearnerEntry {
    merit: u64,
    /// Time for which the learner was merged, in milliseconds, if it is live.
    merged_ms: Option<u64>,
}

impl LearnerStats {
    /// Updates the statistics with the account of the connected `learner`, which is live or not.
    pub(super) fn note(&mut self, ledger: &Ledger, learner: LearnerId, is_live: bool) {
        let stands = LearnerEntry {
            merit: merit(ledger, learner),
            merged_ms: is_live.then(|| ledger.merged_ms(learner)),
        };
        let before = self.stands.insert(learner, stands);
        if before != Some(stands) {
            if let Some(before) = before {
                self.take(learner, before);
            }
            self.merits.insert((stands.merit, learner));
            self.strangers += usize::from(stands.merit == 0);
            if let Some(merged_ms) = stands.merged_ms {
                self.merged.insert((merged_ms, learner));
            }
        }
        self.judge(ledger, learner, is_live);
    }

    /// Updates the statistics with the account of `learner`, if it is connected.
    pub(super) fn look(&mut self, ledger: &Ledger, learner: LearnerId) {
        if let Some(stands) = self.stands.get(&learner) {
            self.note(ledger, learner, stands.merged_ms.is_some());
        }
    }

    /// Removes `learner`, which has left.
    pub(super) fn leave(&mut self, learner: LearnerId) {
        if let Some(before) = self.stands.remove(&learner) {
            self.take(learner, before);
            self.known.remove(&learner);
            self.paces.set(learner.0.into(), None);
        }
    }

    /// Measures the longest time merged, which sets the probation of all others.
    pub(super) fn measure(&mut self, ledger: &Ledger) {
        let before_ms = needed_ms(self.longest_ms);
        self.longest_ms = self.merged.last().map_or(0, |(merged_ms, _)| *merged_ms);
        let after_ms = needed_ms(self.longest_ms);
        let (least, most) = (before_ms.min(after_ms), before_ms.max(after_ms));
        let between = self.merged.range((least, LearnerId(0))..(most, LearnerId(0)));
        for learner in between.map(|(_, learner)| *learner).collect::<Vec<_>>() {
            self.judge(ledger, learner, true);
        }
    }

    /// Returns the longest time merged at the last measurement, in milliseconds.
    pub(super) fn longest_ms(&self) -> u64 {
        self.longest_ms
    }

    /// Returns the established learners.
    pub(super) fn known(&self) -> &BTreeSet<LearnerId> {
        &self.known
    }

    /// Returns the lower median pace of established learners except `except`, in tokens per millisecond; 0 if unknown.
    pub(super) fn pace(&self, except: LearnerId) -> f64 {
        self.paces.median(Some(except.0.into())).unwrap_or(0.0)
    }

    /// Returns the number of learners without a merged update.
    pub(super) fn strangers(&self) -> usize {
        self.strangers
    }

    /// Returns the smallest merit and its learner.
    pub(super) fn least(&self) -> Option<(u64, LearnerId)> {
        self.merits.first().copied()
    }

    fn judge(&mut self, ledger: &Ledger, learner: LearnerId, is_live: bool) {
        let is_known = is_live && !ledger.is_newcomer(learner, self.longest_ms);
        if is_known {
            self.known.insert(learner);
        } else {
            self.known.remove(&learner);
        }
        let pace = ledger.pace(learner).filter(|_| is_known);
        self.paces.set(learner.0.into(), pace.map(|pace| (pace, 1)));
    }

    fn take(&mut self, learner: LearnerId, stands: LearnerEntry) {
        self.merits.remove(&(stands.merit, learner));
        self.strangers -= usize::from(stands.merit == 0);
        if let Some(merged_ms) = stands.merged_ms {
            self.merged.remove(&(merged_ms, learner));
        }
    }
}

/// Returns the merit of `learner`: its time merged plus 1 ms, or 0 if none of its updates was merged.
pub(super) fn merit(ledger: &Ledger, learner: LearnerId) -> u64 {
    let is_stranger = ledger.account(learner).is_none_or(|account| account.is_stranger());
    if is_stranger { 0 } else { ledger.merged_ms(learner).saturating_add(1) }
}

/// Returns the probation next to a learner that was merged for `longest_ms`, in milliseconds: see
/// [`Ledger::is_newcomer`].
fn needed_ms(longest_ms: u64) -> u64 {
    PROBATION_MS.min(longest_ms / 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diloco::speed::lower_median;
    use crate::diloco::{BookTerms, Books, LeasePool, Part, Suspicion, UpdateOutcome};
    use crate::rng::Rng;
    use crate::testing;
    use crate::wire::{Fate, FragmentId, Identity, Serial, Version};

    const P: FragmentId = FragmentId(0);

    /// Merges an update of `learner` that came `after_ms` after its previous one.
    fn merge(books: &mut Books, learner: LearnerId, tokens: u64, after_ms: u64) {
        let part = Part { after_ms: Some(after_ms), ..testing::part(learner, tokens) };
        books.note_merge(testing::merge(P, part));
        let fate = Fate::Merged { version: Version(1), weight: 1.0, tokens };
        books.settle(&UpdateOutcome { round: None, fragment: P, learner, serial: Serial(1), tokens, fate });
    }

    /// Goal: the incremental statistics equal those computed from the ledger for each connected learner.
    #[test]
    fn standings_are_those_of_everybody_who_is_there() {
        let terms = BookTerms {
            context: 1,
            lease_ms: 1,
            lease_idle_ms_max: 1,
            identities_max: 100,
            strangers_max: 100,
        };
        let mut books = Books::new(terms, LeasePool::new(vec![9]).unwrap(), Ledger::new(vec![1]));
        let learners: Vec<LearnerId> =
            (0..20).map(|i| books.enrol(&Identity([i; 32]), "", "", None).0).collect();
        let (mut rng, mut standings) = (Rng::new(4), LearnerStats::default());
        let mut there: BTreeMap<LearnerId, bool> = BTreeMap::new();
        for turn in 0..6_000 {
            let learner = learners[rng.below(20) as usize];
            match rng.below(8) {
                0 => {
                    let is_live = rng.below(3) > 0;
                    there.insert(learner, is_live);
                    standings.note(books.ledger(), learner, is_live);
                }
                1 => {
                    there.remove(&learner);
                    standings.leave(learner);
                }
                2 => standings.measure(books.ledger()),
                3 if rng.below(9) == 0 => books.blame(learner),
                4 => drop(books.suspect(learner, (rng.below(3) == 0).then_some(Suspicion { looks: 1 }))),
                _ => merge(&mut books, learner, rng.below(90).into(), rng.below(20_000).into()),
            }
            standings.look(books.ledger(), learner);

            let (ledger, longest_ms) = (books.ledger(), standings.longest_ms());
            let is_known = |learner: &LearnerId| !ledger.is_newcomer(*learner, longest_ms);
            let live = || there.iter().filter(|(_, is_live)| **is_live).map(|(learner, _)| *learner);
            let known: BTreeSet<LearnerId> = live().filter(is_known).collect();
            assert_eq!(standings.known(), &known, "{turn}");
            let paces = known.iter().filter(|other| **other != learner);
            let pace = lower_median(paces.filter_map(|&other| ledger.pace(other)));
            assert_eq!(standings.pace(learner), pace, "{turn}");
            let merits = || there.keys().map(|&learner| (merit(ledger, learner), learner));
            assert_eq!(standings.least(), merits().min(), "{turn}");
            assert_eq!(standings.strangers(), merits().filter(|(merit, _)| *merit == 0).count(), "{turn}");
            if turn % 5 == 0 {
                let longest_ms = live().map(|learner| ledger.merged_ms(learner)).max().unwrap_or(0);
                standings.measure(ledger);
                assert_eq!(standings.longest_ms(), longest_ms, "{turn}");
            }
        }
        assert!(standings.known().len() > 3 && standings.longest_ms() > 600_000);
    }
}
