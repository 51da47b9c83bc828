//! Trust in learners, as one state machine for each learner.
//!
//! | from | event | to |
//! |---|---|---|
//! | – | the learner joins for the first time | newcomer |
//! | newcomer, convicted | probation ends: enough merged updates and merged time | trusted |
//! | any | the contribution test suspects the learner | suspected |
//! | suspected | the contribution test clears the learner | level before the suspicion |
//! | any | conviction: an attribution finds that updates of the learner did harm | banned |
//! | banned | the exclusion after the first conviction ends | convicted |
//! | banned, convicted | the owner pardons the learner | newcomer |
//!
//! [`TrustRecord`] is the part that survives a restart: the ledger stores it, and the tape replays it. `Trust` adds the
//! state of connected learners in one process. [`WeightBounds`] turns levels into weights.

mod attribution;
mod contribution_test;
mod record;
mod weighting;

pub use attribution::{Attribution, AttributionResult};
pub use contribution_test::{ContributionTest, ContributionVerdict, Sampling, UpdateScore};
pub(crate) use record::TURN_MS_MAX;
pub use record::{CONVICTIONS_MAX, PROBATION_MS, SenderTrust, TrustLevel, TrustRecord};
pub use weighting::WeightBounds;
pub(super) use weighting::{Load, Weights, of_expert, reaching};

use std::collections::{BTreeMap, BTreeSet};

use super::speed::SPEED_SLACK;
use super::weighted_median::WeightedMedian;
use super::{Accounting, Ledger};
use crate::wire::{FragmentId, LearnerId};
use record::needed_ms;

/// Time for which a learner is excluded after its first conviction, in milliseconds.
pub(super) const EXCLUSION_MS: u32 = PROBATION_MS as u32;

/// Upper bound on the credited pace of a learner, as a multiple of the median pace of the other established learners.
/// The bound grows with the square root of the learner's merged time, in probations, once that is above 1. A much
/// faster learner is therefore credited in full after a while; a false claim is credited for 20 medians after an hour
/// and for less than 100 after a day. Our own constant.
const PACE_RATIO_MAX: f64 = 8.0;

/// Trust in all learners, with incremental statistics over the connected learners.
#[derive(Debug, Default)]
pub(super) struct Trust {
    /// Connected learners.
    learners: BTreeMap<LearnerId, Connected>,
    /// Connected learners, ordered by [`seat_priority`].
    merits: BTreeSet<(u64, LearnerId)>,
    /// Number of connected learners without a merged update.
    strangers: usize,
    /// Live learners, ordered by merged time in milliseconds.
    merged: BTreeSet<(u64, LearnerId)>,
    /// Established learners: those that are live and trusted.
    established: BTreeSet<LearnerId>,
    /// Paces of established learners, in tokens per millisecond, with equal weights.
    paces: WeightedMedian,
    /// Longest merged time of a live learner at the last [`Self::measure`], in milliseconds.
    longest_ms: u64,
    /// Whether the contribution test has proven a learner, for each learner with a verdict or a conviction. A restart
    /// clears this. Until a learner is proven again, no learner's weight is limited to the mean share.
    proven: BTreeMap<LearnerId, bool>,
}

/// Statistics of one connected learner.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Connected {
    /// As by [`seat_priority`].
    seat_priority: u64,
    /// Merged time of the learner, in milliseconds; `None` until it is live.
    merged_ms: Option<u64>,
}

/// Handlers of events.
impl Trust {
    /// Adds `learner`, which has connected.
    pub(super) fn joined(&mut self, ledger: &Ledger, learner: LearnerId) {
        self.note(ledger, learner, false);
    }

    /// Notes that the connected `learner` is ready to train.
    pub(super) fn ready(&mut self, ledger: &Ledger, learner: LearnerId) {
        self.note(ledger, learner, true);
    }

    /// Notes that an update of `learner` was merged.
    pub(super) fn merged(&mut self, ledger: &Ledger, learner: LearnerId) {
        self.update(ledger, learner);
    }

    /// Applies a verdict of the contribution test. Returns true if `learner` became suspected or was cleared.
    pub(super) fn judged(
        &mut self,
        accounting: &mut Accounting,
        learner: LearnerId,
        verdict: ContributionVerdict,
    ) -> bool {
        if accounting.ledger().account(learner).is_none() {
            return false;
        }
        self.proven.insert(learner, verdict == ContributionVerdict::Proven);
        let is_news = accounting.suspect(learner, verdict.suspicion());
        self.update(accounting.ledger(), learner);
        is_news
    }

    /// Convicts `learner`, whose updates did harm.
    pub(super) fn convicted(&mut self, accounting: &mut Accounting, learner: LearnerId) {
        accounting.convict(learner);
        self.proven.insert(learner, false);
        self.update(accounting.ledger(), learner);
    }

    /// Pardons `learner`. Returns true if it had been convicted.
    pub(super) fn pardoned(&mut self, accounting: &mut Accounting, learner: LearnerId) -> bool {
        let was_convicted = accounting.pardon(learner);
        self.update(accounting.ledger(), learner);
        was_convicted
    }

    /// Removes `learner`, which has left.
    pub(super) fn left(&mut self, learner: LearnerId) {
        if let Some(before) = self.learners.remove(&learner) {
            self.take(learner, before);
            self.established.remove(&learner);
            self.paces.set(learner.0.into(), None);
        }
    }

    /// Updates the longest merged time, on which the probation of all learners depends.
    pub(super) fn measure(&mut self, ledger: &Ledger) {
        let before_ms = needed_ms(self.longest_ms);
        self.longest_ms = self.merged.last().map_or(0, |(merged_ms, _)| *merged_ms);
        let after_ms = needed_ms(self.longest_ms);
        let (least, most) = (before_ms.min(after_ms), before_ms.max(after_ms));
        let between = self.merged.range((least, LearnerId(0))..(most, LearnerId(0)));
        for learner in between.map(|(_, learner)| *learner).collect::<Vec<_>>() {
            self.establish(ledger, learner, true);
        }
    }
}

/// Queries.
impl Trust {
    /// Returns the level of `learner`. `is_excluded` is true while the learner is sent away.
    pub(super) fn level(&self, ledger: &Ledger, learner: LearnerId, is_excluded: bool) -> TrustLevel {
        let record = ledger.account(learner).map(|account| &account.trust);
        let is_banned = |record: &TrustRecord| record.is_banned() || record.convictions() > 0 && is_excluded;
        if record.is_some_and(is_banned) {
            TrustLevel::Banned
        } else {
            ledger.level(learner, self.longest_ms)
        }
    }

    /// Returns the trust in `learner` as the sender of an update.
    pub(super) fn sender(&self, ledger: &Ledger, learner: LearnerId) -> SenderTrust {
        let level = ledger.level(learner, self.longest_ms);
        SenderTrust { level, is_proven: self.proven.get(&learner).copied() }
    }

    /// Returns the established learners: those that are live and trusted.
    pub(super) fn established(&self) -> &BTreeSet<LearnerId> {
        &self.established
    }

    /// Returns the upper bound on the steps beyond H in one update of a sender, whose steps have `step_tokens` tokens
    /// each; `None` if only elapsed time bounds them. The pace of a sender that is not trusted is unknown, so its bound
    /// is 16 times the usual tokens of an update.
    pub(super) fn steps_max(
        ledger: &Ledger,
        sender: SenderTrust,
        fragment: FragmentId,
        step_tokens: u64,
    ) -> Option<u64> {
        let usual =
            Some(ledger.usual_tokens(fragment)).filter(|usual| !sender.level.is_trusted() && *usual > 0);
        usual.map(|usual| (PACE_RATIO_MAX * SPEED_SLACK) as u64 * (usual / step_tokens).max(1))
    }

    /// Returns the upper bound on the pace of `learner`, in tokens per millisecond; `None` for no bound.
    ///
    /// The bound is [`PACE_RATIO_MAX`] times the median pace of the other established learners, and grows slowly with
    /// the learner's merged time. The learner's own tokens have no influence on it, since they may rest on false
    /// claims. If no other learner is established, the bound is [`PACE_RATIO_MAX`] times the median pace from before
    /// the last restart, or [`SPEED_SLACK`] times the learner's own pace if that is more. Without either median, there
    /// is no bound.
    pub(super) fn pace_max(&self, ledger: &Ledger, learner: LearnerId) -> Option<f64> {
        let (median, before) = (self.pace(learner), ledger.pace_before());
        if median > 0.0 {
            let probations = ledger.merged_ms(learner) as f64 / PROBATION_MS as f64;
            return Some(PACE_RATIO_MAX * median * probations.max(1.0).sqrt());
        }
        let own = ledger.pace(learner).unwrap_or(0.0);
        (before > 0.0).then(|| (PACE_RATIO_MAX * before).max(SPEED_SLACK * own))
    }

    /// Returns the connected learner that gives up its seat to an arriving one; `None` if a seat is free. `learner` is
    /// the number of the arriving learner if the ledger has one, `seats` the number of seats, and `taken` the number of
    /// taken seats.
    ///
    /// Once any learner of the run has a merged update, learners without one hold at most half of the seats. A learner
    /// takes the seat of another one if it has more than twice its merged time. Idle identities therefore cannot keep
    /// out a learner that trains.
    ///
    /// # Errors
    /// The reason to turn the arriving learner away.
    pub(super) fn seat(
        &self,
        ledger: &Ledger,
        learner: Option<LearnerId>,
        seats: usize,
        taken: usize,
    ) -> Result<Option<LearnerId>, String> {
        let seat_priority = learner.map_or(0, |learner| seat_priority(ledger, learner));
        let strangers = self.strangers;
        if seat_priority == 0 && ledger.len() > ledger.strangers() && strangers >= seats.div_ceil(2) {
            return Err(format!(
                "{strangers} learners without a merged update are connected, which is the limit"
            ));
        }
        if taken < seats {
            return Ok(None);
        }
        let least = self.merits.first().filter(|(least, _)| 2 * least < seat_priority);
        let full = || format!("{seats} learners are connected, which is the limit");
        least.map(|(_, learner)| Some(*learner)).ok_or_else(full)
    }

    /// Returns the lower median pace of the established learners other than `except`, in tokens per millisecond; 0
    /// without such learners.
    fn pace(&self, except: LearnerId) -> f64 {
        self.paces.median(Some(except.0.into())).unwrap_or(0.0)
    }
}

impl Trust {
    /// Updates the statistics from the account of the connected `learner`.
    fn note(&mut self, ledger: &Ledger, learner: LearnerId, is_live: bool) {
        let now = Connected {
            seat_priority: seat_priority(ledger, learner),
            merged_ms: is_live.then(|| ledger.merged_ms(learner)),
        };
        let before = self.learners.insert(learner, now);
        if before != Some(now) {
            if let Some(before) = before {
                self.take(learner, before);
            }
            self.merits.insert((now.seat_priority, learner));
            self.strangers += usize::from(now.seat_priority == 0);
            if let Some(merged_ms) = now.merged_ms {
                self.merged.insert((merged_ms, learner));
            }
        }
        self.establish(ledger, learner, is_live);
    }

    /// Updates the statistics from the account of `learner`, if it is connected.
    fn update(&mut self, ledger: &Ledger, learner: LearnerId) {
        if let Some(now) = self.learners.get(&learner) {
            self.note(ledger, learner, now.merged_ms.is_some());
        }
    }

    /// Adds `learner` to the established learners or removes it, depending on its level.
    fn establish(&mut self, ledger: &Ledger, learner: LearnerId, is_live: bool) {
        let is_established = is_live && ledger.level(learner, self.longest_ms).is_trusted();
        if is_established {
            self.established.insert(learner);
        } else {
            self.established.remove(&learner);
        }
        let pace = ledger.pace(learner).filter(|_| is_established);
        self.paces.set(learner.0.into(), pace.map(|pace| (pace, 1)));
    }

    fn take(&mut self, learner: LearnerId, before: Connected) {
        self.merits.remove(&(before.seat_priority, learner));
        self.strangers -= usize::from(before.seat_priority == 0);
        if let Some(merged_ms) = before.merged_ms {
            self.merged.remove(&(merged_ms, learner));
        }
    }
}

/// Returns the merit of `learner`, its claim to a seat: its merged time plus 1 ms, or 0 if none of its updates was
/// merged.
fn seat_priority(ledger: &Ledger, learner: LearnerId) -> u64 {
    let is_stranger = ledger.account(learner).is_none_or(|account| account.is_stranger());
    if is_stranger { 0 } else { ledger.merged_ms(learner).saturating_add(1) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diloco::speed::lower_median;
    use crate::diloco::{AccountingTerms, LeasePool, Part, Suspicion, UpdateOutcome};
    use crate::rng::Rng;
    use crate::testing;
    use crate::wire::{Fate, Identity, Serial, Version};

    const P: FragmentId = FragmentId(0);

    /// Records a merged update of `learner` that arrived `after_ms` after its previous one.
    fn merge(accounting: &mut Accounting, learner: LearnerId, tokens: u64, after_ms: u64) {
        let part = Part { after_ms: Some(after_ms), ..testing::part(learner, tokens) };
        accounting.note_merge(testing::merge(P, part));
        let fate = Fate::Merged { version: Version(1), weight: 1.0, tokens };
        accounting.record_outcome(&UpdateOutcome {
            round: None,
            fragment: P,
            learner,
            serial: Serial(1),
            tokens,
            fate,
        });
    }

    fn accounting() -> Accounting {
        let terms = AccountingTerms {
            context: 1,
            lease_ms: 1,
            lease_idle_ms_max: 1,
            identities_max: 100,
            strangers_max: 100,
        };
        Accounting::new(terms, LeasePool::new(vec![9]).unwrap(), Ledger::new(vec![1]))
    }

    fn enrol(accounting: &mut Accounting, count: u8) -> Vec<LearnerId> {
        (0..count).map(|i| accounting.enrol(&Identity([i; 32]), "", "", None).0).collect()
    }

    /// Goal: the incremental statistics equal those computed from scratch.
    #[test]
    fn statistics_are_those_of_all_connected_learners() {
        let mut accounting = accounting();
        let learners = enrol(&mut accounting, 20);
        let (mut rng, mut trust) = (Rng::new(4), Trust::default());
        let mut there: BTreeMap<LearnerId, bool> = BTreeMap::new();
        for turn in 0..6_000 {
            let learner = learners[rng.below(20) as usize];
            match rng.below(8) {
                0 => {
                    let is_live = rng.below(3) > 0;
                    there.insert(learner, is_live);
                    trust.note(accounting.ledger(), learner, is_live);
                }
                1 => {
                    there.remove(&learner);
                    trust.left(learner);
                }
                2 => trust.measure(accounting.ledger()),
                3 if rng.below(9) == 0 => trust.convicted(&mut accounting, learner),
                4 => {
                    let suspected = ContributionVerdict::Suspected(Suspicion { looks: 1 });
                    let is_suspected = rng.below(3) == 0;
                    let verdict = if is_suspected { suspected } else { ContributionVerdict::Open };
                    trust.judged(&mut accounting, learner, verdict);
                }
                _ => {
                    merge(&mut accounting, learner, rng.below(90).into(), rng.below(20_000).into());
                    trust.merged(accounting.ledger(), learner);
                }
            }

            let (ledger, longest_ms) = (accounting.ledger(), trust.longest_ms);
            let is_trusted = |learner: &LearnerId| ledger.level(*learner, longest_ms).is_trusted();
            let live = || there.iter().filter(|(_, is_live)| **is_live).map(|(learner, _)| *learner);
            let established: BTreeSet<LearnerId> = live().filter(is_trusted).collect();
            assert_eq!(trust.established(), &established, "{turn}");
            let paces = established.iter().filter(|other| **other != learner);
            let pace = lower_median(paces.filter_map(|&other| ledger.pace(other)));
            assert_eq!(trust.pace(learner), pace, "{turn}");
            let merits = || there.keys().map(|&learner| (seat_priority(ledger, learner), learner));
            assert_eq!(trust.merits.first().copied(), merits().min(), "{turn}");
            assert_eq!(
                trust.strangers,
                merits().filter(|(seat_priority, _)| *seat_priority == 0).count(),
                "{turn}"
            );
            if turn % 5 == 0 {
                let longest_ms = live().map(|learner| ledger.merged_ms(learner)).max().unwrap_or(0);
                trust.measure(ledger);
                assert_eq!(trust.longest_ms, longest_ms, "{turn}");
            }
        }
        assert!(trust.established().len() > 3 && trust.longest_ms > 600_000);
    }

    /// Creates two connected learners: an established one, then one without a merged update.
    fn pair() -> (Accounting, Trust, LearnerId, LearnerId) {
        let (mut accounting, mut trust) = (accounting(), Trust::default());
        let learners = enrol(&mut accounting, 2);
        for &learner in &learners {
            trust.joined(accounting.ledger(), learner);
            trust.ready(accounting.ledger(), learner);
        }
        for _ in 0..8 {
            merge(&mut accounting, learners[0], 10, 100_000);
            trust.merged(accounting.ledger(), learners[0]);
        }
        trust.measure(accounting.ledger());
        (accounting, trust, learners[0], learners[1])
    }

    #[test]
    fn each_event_leads_to_its_level() {
        let (mut accounting, mut trust, old, new) = pair();
        let level = |trust: &Trust, accounting: &Accounting, learner| {
            trust.level(accounting.ledger(), learner, false)
        };
        assert_eq!(level(&trust, &accounting, new), TrustLevel::Newcomer);
        assert_eq!(level(&trust, &accounting, old), TrustLevel::Trusted);
        assert_eq!(
            trust.level(accounting.ledger(), old, true),
            TrustLevel::Trusted,
            "the owner sent it away"
        );

        let suspected = ContributionVerdict::Suspected(Suspicion { looks: 24 });
        for (verdict, is_news, expected) in [
            (ContributionVerdict::Open, false, TrustLevel::Trusted),
            (suspected, true, TrustLevel::Suspected),
            (suspected, false, TrustLevel::Suspected),
            (ContributionVerdict::Proven, true, TrustLevel::Trusted),
        ] {
            assert_eq!(trust.judged(&mut accounting, old, verdict), is_news, "{verdict:?}");
            assert_eq!(level(&trust, &accounting, old), expected, "{verdict:?}");
            assert_eq!(trust.established().contains(&old), expected.is_trusted(), "{verdict:?}");
            let is_proven = Some(verdict == ContributionVerdict::Proven);
            assert_eq!(trust.sender(accounting.ledger(), old), SenderTrust { level: expected, is_proven });
        }
        assert_eq!(trust.sender(accounting.ledger(), new).is_proven, None, "it was not checked");

        trust.convicted(&mut accounting, old);
        assert_eq!(trust.sender(accounting.ledger(), old).is_proven, Some(false));
        assert_eq!(trust.level(accounting.ledger(), old, true), TrustLevel::Banned);
        trust.convicted(&mut accounting, old);
        assert_eq!(level(&trust, &accounting, old), TrustLevel::Banned, "also once its exclusion is over");
        assert!(trust.pardoned(&mut accounting, old) && !trust.pardoned(&mut accounting, old));
        assert_ne!(trust.level(accounting.ledger(), old, true), TrustLevel::Banned);
    }

    /// Goal: a verdict on an unknown learner leaves no state behind.
    #[test]
    fn a_verdict_on_an_unknown_learner_has_no_effect() {
        let (mut accounting, mut trust, ..) = pair();
        assert!(!trust.judged(&mut accounting, LearnerId(99), ContributionVerdict::Proven));
        assert_eq!(trust.sender(accounting.ledger(), LearnerId(99)).is_proven, None);
        assert_eq!(trust.level(accounting.ledger(), LearnerId(99), false), TrustLevel::Newcomer);
    }

    #[test]
    fn a_seat_goes_to_a_learner_that_was_merged_for_longer() {
        let (accounting, mut trust, old, new) = pair();
        let ledger = accounting.ledger();
        assert_eq!(trust.seat(ledger, None, 9, 2), Ok(None));
        assert!(trust.seat(ledger, None, 2, 2).unwrap_err().contains("1 learners without a merged update"));
        assert!(trust.seat(ledger, None, 3, 3).unwrap_err().contains("3 learners are connected"));
        trust.left(old);
        assert_eq!(trust.seat(ledger, Some(old), 1, 1), Ok(Some(new)), "it has no merged update");
    }

    #[test]
    fn limits_of_a_sender_follow_from_its_level_and_the_others() {
        let (mut accounting, trust, old, new) = pair();
        let paces = [old, new].map(|learner| trust.pace_max(accounting.ledger(), learner));
        let pace = accounting.ledger().pace(old).unwrap();
        assert_eq!(paces, [None, Some(PACE_RATIO_MAX * pace)], "no other learner limits the first");
        let parts = [10, 10, 10].map(|tokens| testing::part(new, tokens));
        let entry = testing::merge(P, parts[0]);
        accounting.note_merge(crate::diloco::MergeEntry { parts: parts.to_vec(), ..entry });
        let steps_max = |learner| {
            let sender = trust.sender(accounting.ledger(), learner);
            Trust::steps_max(accounting.ledger(), sender, P, 5)
        };
        assert_eq!([steps_max(old), steps_max(new)], [None, Some(32)]);
    }
}
