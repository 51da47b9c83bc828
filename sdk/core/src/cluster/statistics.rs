//! Measurements that decide when a leader begins and ends rounds: step times and the learners of each gateway, the
//! schedule clock of the fragment, and the states that stay in storage.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use super::{GatewayId, LeaderTerms, Record};
use crate::diloco::syncer::Paces;
use crate::diloco::{ClaimReference, MergeEntry, OuterSpec, TURN_MS_MAX, Timing, average};
use crate::wire::{LearnerId, Millis};

/// A launch is *delayed* if it is late by more than a turn divided by this number. A turn is the time between two
/// rounds. Our own constant.
const DELAY_DIVISOR: u64 = 4;

/// Measured times, and the fragment's schedule clock.
#[derive(Debug)]
pub(super) struct Measured {
    timing: Timing,
    /// Median times and number of the learners of each gateway.
    paces: BTreeMap<GatewayId, (Paces, usize)>,
    /// True once a step time is known and the rounds of all fragments are spread over a turn.
    is_spread: bool,
    /// Launch time of the last round, in milliseconds, or the time from which the next launch is computed. It may be
    /// negative.
    launched: Option<i64>,
    /// Schedule clock, which determines the momentum of the outer step.
    clock: FragmentClock,
}

impl Measured {
    /// Returns measurements with the initial times of `terms`.
    pub(super) fn new(terms: &LeaderTerms) -> Self {
        Self {
            timing: terms.timing,
            paces: BTreeMap::new(),
            is_spread: false,
            launched: None,
            clock: FragmentClock::default(),
        }
    }

    /// Returns true if a merge was counted.
    pub(super) fn has_begun(&self) -> bool {
        self.clock.has_begun()
    }

    /// Returns the times that decide when rounds end.
    pub(super) fn timing(&self) -> &Timing {
        &self.timing
    }

    /// Recomputes the clock from all records of the tape.
    pub(super) fn recount(&mut self, records: &[Record]) {
        self.clock = FragmentClock::default();
        records.iter().for_each(|record| self.count(record));
    }

    /// Adds the merge of `record`, if it is one, to the clock.
    pub(super) fn count(&mut self, record: &Record) {
        if let Record::Merged { merge, .. } = record {
            self.clock.count(merge);
        }
    }

    /// Returns the outer step at the current point of the schedule.
    pub(super) fn outer(&self, terms: &LeaderTerms) -> OuterSpec {
        match terms.momentum_warmup_tokens > 0.0 {
            true => terms
                .outer
                .with_momentum_share(self.clock.schedule_tokens() as f64 / terms.momentum_warmup_tokens),
            false => terms.outer,
        }
    }

    /// Records the median times and the number of a gateway's learners. Rounds follow the median of the gateways'
    /// medians, weighted by their learners.
    pub(super) fn note_paces(
        &mut self,
        now: Millis,
        terms: &LeaderTerms,
        gateway: GatewayId,
        paces: Paces,
        learners: usize,
    ) {
        self.paces.insert(gateway, (paces, learners));
        if let Some(answer_ms) = self.median(|paces| paces.answer_ms) {
            self.timing.answer_ms = answer_ms;
        }
        let Some(step_ms) = self.median(|paces| paces.step_ms) else { return };
        let steps = f64::from(terms.rounds.sync_every) / f64::from(terms.fragments.max(1));
        self.timing.step_ms = step_ms;
        self.timing.launch_ms = step_ms * steps.max(1.0);
        if !self.is_spread {
            // Leaders do not coordinate. Each starts at a fixed offset that depends on its fragment, so that rounds
            // are spread as in a single process.
            let turn_ms = f64::from(terms.rounds.sync_every) * step_ms;
            let before_ms = (turn_ms * (1.0 - place(terms))) as i64;
            (self.is_spread, self.launched) = (true, Some(now.0 as i64 - before_ms));
        }
    }

    /// Forgets the times of a gateway.
    pub(super) fn forget(&mut self, gateway: GatewayId) {
        self.paces.remove(&gateway);
    }

    /// Returns the weighted median of `time` over gateways, or `None` while no gateway reports one.
    fn median(&self, time: impl Fn(&Paces) -> f64) -> Option<f64> {
        let known = self.paces.values().map(|(paces, learners)| (time(paces), *learners));
        let mut known: Vec<(f64, usize)> =
            known.filter(|(time_ms, learners)| *time_ms > 0.0 && *learners > 0).collect();
        known.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        let half = known.iter().map(|(_, learners)| learners).sum::<usize>().div_ceil(2);
        let mut before = 0;
        let median = known.into_iter().find(|(_, learners)| {
            before += learners;
            before >= half
        });
        median.map(|(time_ms, _)| time_ms)
    }

    /// Returns the earliest time of the next launch: H steps after the last one, or `idle_ms` after it while no step
    /// time is known.
    pub(super) fn may_launch_at(&self, terms: &LeaderTerms) -> Millis {
        let turn_ms = self.turn_ms(terms);
        let at = |launched: i64| launched.saturating_add_unsigned(turn_ms);
        Millis(self.launched.map_or(0, |launched| u64::try_from(at(launched)).unwrap_or(0)))
    }

    /// Records a launch. After a delay, as in an outage of the storage, all fragments may launch at the same time;
    /// their next launches are spread over a turn again.
    pub(super) fn note_launch(&mut self, now: Millis, terms: &LeaderTerms) {
        let turn_ms = self.turn_ms(terms);
        let delay_ms = self.launched.map_or(0, |_| now.since(self.may_launch_at(terms)));
        let is_delayed = self.is_spread && delay_ms > turn_ms / DELAY_DIVISOR;
        // The shift is between minus and plus half a turn, by the fragment's place in the turn.
        let moved_ms = place(terms) * turn_ms as f64 - turn_ms as f64 / 2.0;
        self.launched = Some(now.0 as i64 + if is_delayed { moved_ms as i64 } else { 0 });
    }

    /// Returns the length of a turn, the time between two rounds, in milliseconds.
    fn turn_ms(&self, terms: &LeaderTerms) -> u64 {
        match self.median(|paces| paces.step_ms) {
            Some(step_ms) => (f64::from(terms.rounds.sync_every) * step_ms).ceil() as u64,
            None => terms.idle_ms,
        }
    }

    /// Records the time from the launch of a round to its quorum.
    pub(super) fn note_quorum(&mut self, after_ms: u64) {
        self.timing.quorum_ms = average(self.timing.quorum_ms, after_ms as f64);
    }

    /// Records the time from the end of collecting to the new version.
    pub(super) fn note_merged(&mut self, sync_ms: u64) {
        self.timing.sync_ms = average(self.timing.sync_ms, sync_ms as f64);
    }
}

/// Returns the place of the fragment's rounds in a turn, from 0 to below 1.
fn place(terms: &LeaderTerms) -> f64 {
    f64::from(terms.rounds.fragment.0) / f64::from(terms.fragments.max(1))
}

/// Schedule clock of one fragment: the merged tokens that are credited to the schedule, computed without a ledger.
#[derive(Debug, Default)]
pub(super) struct FragmentClock {
    /// Tokens credited to the schedule.
    tokens: u64,
    /// Usual tokens of one learner in a merge; 0 while unknown.
    usual_tokens: u64,
    /// For each learner, the merged time in milliseconds, and the merged tokens that are not credited yet.
    learners: BTreeMap<LearnerId, (u64, u64)>,
}

impl FragmentClock {
    /// Adds a merge. A cluster has no suspected learners, because it checks no single updates.
    pub(super) fn count(&mut self, merge: &MergeEntry) {
        let reference = ClaimReference::of(self.usual_tokens, merge.parts.iter());
        self.usual_tokens = reference.usual_tokens;
        for part in &merge.parts {
            let (merged_ms, early) = self.learners.entry(part.learner).or_default();
            *merged_ms = merged_ms.saturating_add(part.after_ms.unwrap_or(0).min(TURN_MS_MAX));
            let counted = reference.counted(part, *merged_ms, *early);
            *early = early.saturating_add(part.tokens) - counted;
            self.tokens = self.tokens.saturating_add(counted);
        }
    }

    /// Returns true if a merge was added.
    pub(super) fn has_begun(&self) -> bool {
        !self.learners.is_empty()
    }

    /// Returns the tokens credited to the schedule.
    pub(super) fn schedule_tokens(&self) -> u64 {
        self.tokens
    }
}

/// Connected learners by gateway.
#[derive(Debug, Default)]
pub(super) struct GatewayMembership(BTreeMap<GatewayId, GatewayLearners>);

#[derive(Debug)]
struct GatewayLearners {
    /// Time of the gateway's last report.
    reported: Millis,
    learners: BTreeSet<LearnerId>,
    /// True if a learner waits for the end of a round before it joins.
    waits: bool,
}

impl GatewayMembership {
    /// Records a gateway's report. Returns the learners that were at this gateway before and are at no gateway now.
    pub(super) fn note(
        &mut self,
        now: Millis,
        gateway: GatewayId,
        learners: BTreeSet<LearnerId>,
        waits: bool,
    ) -> Vec<LearnerId> {
        let before = self.0.insert(gateway, GatewayLearners { reported: now, learners, waits });
        let before = before.map(|gateway| gateway.learners).unwrap_or_default();
        let is_there =
            |learner: &LearnerId| self.0.values().any(|gateway| gateway.learners.contains(learner));
        before.into_iter().filter(|learner| !is_there(learner)).collect()
    }

    /// Forgets gateways that have not reported for `patience_ms`, and returns them.
    pub(super) fn forget_silent(&mut self, now: Millis, patience_ms: u64) -> Vec<GatewayId> {
        let silent = self.0.extract_if(.., |_, gateway| now.since(gateway.reported) >= patience_ms);
        silent.map(|(gateway, _)| gateway).collect()
    }

    /// Returns the learners at all gateways.
    pub(super) fn all_learners(&self) -> BTreeSet<LearnerId> {
        self.0.values().flat_map(|gateway| &gateway.learners).copied().collect()
    }

    /// Returns true if a learner waits for the end of a round before it joins.
    pub(super) fn waits(&self) -> bool {
        self.0.values().any(|gateway| gateway.waits)
    }
}

/// Maximum number of keys before the oldest retained state that are deleted at once.
const CLEARED_MAX: u64 = 64;

/// Keys of the newest states, which stay in storage, oldest first.
#[derive(Debug)]
pub(super) struct Retention {
    keys: VecDeque<u64>,
    /// Maximum number of retained states, at least 1.
    max: usize,
}

impl Retention {
    /// Returns an empty list that retains `max` states.
    pub(super) fn new(max: usize) -> Self {
        Self { keys: VecDeque::new(), max: max.max(1) }
    }

    /// Restores the list from the keys of all states so far, in order. Returns older keys that may still have states
    /// in storage, to be deleted.
    pub(super) fn recall(&mut self, keys: &[u64]) -> Option<Range<u64>> {
        let first = keys.len().saturating_sub(self.max);
        self.keys = keys[first..].iter().copied().collect();
        let oldest = *self.keys.front().filter(|_| first > 0)?;
        Some(oldest.saturating_sub(CLEARED_MAX).max(1)..oldest)
    }

    /// Adds a state. Returns the keys to delete: the oldest state if there are too many, and states after it that
    /// were stored but never reached the tape.
    pub(super) fn add(&mut self, key: u64) -> Vec<Range<u64>> {
        self.keys.push_back(key);
        if self.keys.len() <= self.max {
            return Vec::new();
        }
        let (Some(gone), Some(&oldest)) = (self.keys.pop_front(), self.keys.front()) else {
            return Vec::new();
        };
        // Any number of abandoned rounds, which store no state, may lie between the two states.
        let left = (gone + 1).max(oldest.saturating_sub(CLEARED_MAX));
        vec![gone..gone + 1, left..oldest]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::ProcessId;
    use crate::diloco::syncer::SyncerConfig;
    use crate::diloco::{Accounting, AccountingTerms, Fragments, LeasePool, Ledger, Part};
    use crate::rng::Rng;
    use crate::testing;
    use crate::testing::{layout, spec};
    use crate::wire::{FragmentId, Identity};

    fn terms() -> LeaderTerms {
        let spec = spec();
        let fragments = Fragments::plan(&layout(), spec.exchange.fragments.try_into().unwrap());
        let terms = LeaderTerms::of(&spec, &SyncerConfig::default(), &fragments, ProcessId(1));
        terms.unwrap().swap_remove(0)
    }

    /// Goal: rounds of a fragment are H steps of the median learner apart, regardless of its gateway. Rounds of other
    /// fragments take place between them.
    #[test]
    fn the_median_learner_sets_the_pace() {
        let mut terms = terms();
        terms.idle_ms = 700;
        terms.rounds.fragment = FragmentId(1);
        let mut measured = Measured::new(&terms);
        assert_eq!(measured.may_launch_at(&terms), Millis(0));
        measured.launched = Some(1_000);
        assert_eq!(measured.may_launch_at(&terms), Millis(1_700), "nothing is known");
        let h = u64::from(terms.rounds.sync_every);
        let says = |measured: &mut Measured, gateway, step_ms, learners| {
            let paces = Paces { step_ms, answer_ms: 2.0 * step_ms };
            measured.note_paces(Millis(5_000), &terms, GatewayId(gateway), paces, learners);
            measured.may_launch_at(&terms)
        };
        assert_eq!(says(&mut measured, 1, 50.0, 1), Millis(5_000 + 50 * h / 3), "it is the second of three");
        measured.launched = Some(6_000);
        assert_eq!(says(&mut measured, 2, 10.0, 3), Millis(6_000 + 10 * h));
        assert_eq!(says(&mut measured, 3, 90.0, 9), Millis(6_000 + 90 * h));
        assert_eq!(measured.timing().answer_ms, 180.0);
        assert_eq!(
            says(&mut measured, 3, 0.0, 9),
            Millis(6_000 + 10 * h),
            "what says nothing counts for nothing"
        );
        measured.forget(GatewayId(2));
        assert_eq!(says(&mut measured, 3, 0.0, 0), Millis(6_000 + 50 * h));
    }

    /// Goal: after an outage of the storage, the delayed rounds of all fragments are launched together once and then
    /// spread over a turn again. A slightly late round keeps its place.
    #[test]
    fn delayed_rounds_are_spread_again() {
        let places = |late_ms: u64| -> Vec<u64> {
            let due = |fragment: u16| {
                let mut terms = terms();
                (terms.rounds.fragment, terms.fragments) = (FragmentId(fragment), 4);
                terms.rounds.sync_every = 10;
                let mut measured = Measured::new(&terms);
                let paces = Paces { step_ms: 40.0, answer_ms: 1.0 };
                measured.note_paces(Millis(10), &terms, GatewayId(1), paces, 1);
                let first = measured.may_launch_at(&terms);
                assert_eq!(
                    first,
                    Millis(10 + 100 * u64::from(fragment)),
                    "also in a process that has just begun"
                );
                measured.note_launch(first, &terms);
                // A turn is 400 ms, and this is the second one.
                let at = measured.may_launch_at(&terms).0 + late_ms;
                measured.note_launch(Millis(at), &terms);
                measured.may_launch_at(&terms).0 - at
            };
            (0..4).map(due).collect()
        };
        assert_eq!(places(0), [400; 4]);
        assert_eq!(places(100), [400; 4]);
        assert_eq!(places(5_000), [200, 300, 400, 500]);
    }

    /// Returns a random plausible update of a learner as part of a merge.
    fn part(rng: &mut Rng, learner: LearnerId, is_proven: bool) -> Part {
        let (usual, is_ahead) = (50 + u64::from(rng.below(20)), learner.0 > 3 && rng.below(2) > 0);
        let tokens = if is_ahead { 40 * usual } else { usual };
        Part { after_ms: Some(500), is_proven, ..testing::part(learner, tokens) }
    }

    /// Goal: a leader and the accounting of a gateway credit the same tokens to the schedule, regardless of claims. The
    /// accounting also uses the merged time of other fragments; this test has only one fragment.
    #[test]
    fn fragment_clock_credits_as_many_tokens_as_the_ledger() {
        let (context, lease_ms, lease_idle_ms_max) = (4, 1_000, 500);
        let terms =
            AccountingTerms { context, lease_ms, lease_idle_ms_max, identities_max: 9, strangers_max: 9 };
        let mut accounting =
            Accounting::new(terms, LeasePool::new(vec![10_000]).unwrap(), Ledger::new(vec![7]));
        let (mut rng, mut clock) = (Rng::new(5), FragmentClock::default());
        let learners = [1, 2, 3, 4, 5].map(|i| accounting.enrol(&Identity([i; 32]), "a", "cpu", None).0);
        let (mut most, mut paid) = (0, 0);
        for turn in 0..300 {
            let parts = learners.map(|learner| part(&mut rng, learner, learner.0 == 4 && turn > 200));
            let parts: Vec<Part> = parts.into_iter().filter(|_| rng.below(4) > 0).collect();
            let Some(&first) = parts.first() else { continue };
            let merge = MergeEntry { parts, ..testing::merge(FragmentId(0), first) };
            clock.count(&merge);
            accounting.note_merge(merge.clone());
            merge.outcomes().for_each(|outcome| accounting.record_outcome(&outcome));
            let ledger = accounting.ledger();
            let early = ledger.clock_tokens() - ledger.schedule_tokens();
            (most, paid) = (early.max(most), paid.max(most.saturating_sub(early)));
            assert_eq!(clock.schedule_tokens(), ledger.schedule_tokens(), "{turn}");
        }
        assert!(most > 10_000 && paid > 10_000, "nothing was early, or all of it stayed so: {most} {paid}");
    }

    #[test]
    fn learner_that_changed_gateways_is_not_gone() {
        let mut membership = GatewayMembership::default();
        let mut say = |now, gateway, learners: &[u32], waits| {
            let learners = learners.iter().copied().map(LearnerId).collect();
            let gone = membership.note(Millis(now), GatewayId(gateway), learners, waits);
            (gone, membership.waits(), membership.all_learners().len())
        };
        assert_eq!(say(0, 1, &[1, 2, 3], false), (vec![], false, 3));
        assert_eq!(say(5, 2, &[2, 4], true), (vec![], true, 4));
        assert_eq!(say(10, 1, &[3], false), (vec![LearnerId(1)], true, 3), "2 is at the other one");
        assert_eq!(say(12, 2, &[4], false), (vec![LearnerId(2)], false, 2));
        assert_eq!(membership.forget_silent(Millis(19), 10), []);
        assert_eq!(membership.forget_silent(Millis(20), 10), [GatewayId(1)]);
        assert_eq!(membership.all_learners(), [LearnerId(4)].into());
    }

    #[test]
    fn newest_states_stay_and_all_older_keys_are_deleted() {
        let mut kept = Retention::new(2);
        assert_eq!((kept.add(2), kept.add(5)), (vec![], vec![]));
        assert_eq!(kept.add(6), [2..3, 3..5], "3 and 4 may have been stored for records that never came");
        assert_eq!(kept.add(7), [5..6, 6..6]);
        assert_eq!(kept.add(9_000), [6..7, 7..7]);
        assert_eq!(
            kept.add(9_001),
            [7..8, 8_936..9_000],
            "of many rounds without a merge the last ones count"
        );
        assert_eq!(kept.recall(&[100, 103]), None, "nobody had more than stay");
        assert_eq!(kept.recall(&[100, 103, 107]), Some(39..103));
        assert_eq!(kept.add(108), [103..104, 104..107]);
        assert_eq!(kept.recall(&[3, 4, 5]), Some(1..4), "there is no key 0");
        assert_eq!(Retention::new(0).add(9), [], "one always stays");
    }
}
