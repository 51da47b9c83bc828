//! What an owner measures of its rounds, by which they begin and end.

use std::collections::BTreeMap;

use super::clock::FragmentClock;
use super::{GatewayId, OwnerTerms, Record};
use crate::diloco::syncer::Paces;
use crate::diloco::{OuterSpec, Timing, average};
use crate::wire::Millis;

/// A round that is launched so large a part of a turn after its time was held up. Constant of ours.
const HELD_UP_TURNS: u64 = 4;

/// Times, and how much of the fragment is merged.
#[derive(Debug)]
pub(super) struct Measured {
    timing: Timing,
    /// How fast the learners of each gateway are, and how many.
    paces: BTreeMap<GatewayId, (Paces, usize)>,
    /// Whether rounds are spread over a turn, which they are once the pace is known.
    is_spread: bool,
    /// When the last round was launched, in milliseconds, or a moment from which the next one counts. That may lie
    /// before the clock began.
    launched: Option<i64>,
    /// By which the outer step goes.
    clock: FragmentClock,
}

impl Measured {
    /// Nothing is, but what `terms` begin with.
    pub(super) fn new(terms: &OwnerTerms) -> Self {
        Self {
            timing: terms.timing,
            paces: BTreeMap::new(),
            is_spread: false,
            launched: None,
            clock: FragmentClock::default(),
        }
    }

    /// Whether anything was merged.
    pub(super) fn has_begun(&self) -> bool {
        self.clock.has_begun()
    }

    /// By which rounds end.
    pub(super) fn timing(&self) -> &Timing {
        &self.timing
    }

    /// Takes in all records that there are.
    pub(super) fn recount(&mut self, records: &[Record]) {
        self.clock = FragmentClock::default();
        records.iter().for_each(|record| self.count(record));
    }

    /// Takes in one more record.
    pub(super) fn count(&mut self, record: &Record) {
        if let Record::Merged { merge, .. } = record {
            self.clock.count(merge);
        }
    }

    /// The outer step at this point of the run.
    pub(super) fn outer(&self, terms: &OwnerTerms) -> OuterSpec {
        match terms.momentum_warmup_tokens > 0.0 {
            true => terms
                .outer
                .with_momentum_share(self.clock.schedule_tokens() as f64 / terms.momentum_warmup_tokens),
            false => terms.outer,
        }
    }

    /// A gateway says how fast its learners are, and how many: the median learner counts, as far as that can be told of
    /// medians.
    pub(super) fn note_paces(
        &mut self,
        now: Millis,
        terms: &OwnerTerms,
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
            // Owners know nothing of each other: each begins at its place in the turn, as rounds of one process do.
            let turn_ms = f64::from(terms.rounds.sync_every) * step_ms;
            let before_ms = (turn_ms * (1.0 - place(terms))) as i64;
            (self.is_spread, self.launched) = (true, Some(now.0 as i64 - before_ms));
        }
    }

    /// A gateway is gone.
    pub(super) fn forget(&mut self, gateway: GatewayId) {
        self.paces.remove(&gateway);
    }

    /// The time of the median learner; `None` while nobody's is known.
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

    /// When the next round may be launched: H steps after the last one; or while nobody says what a step takes, as when
    /// nobody trains, after `idle_ms`.
    pub(super) fn may_launch_at(&self, terms: &OwnerTerms) -> Millis {
        let turn_ms = self.turn_ms(terms);
        let at = |launched: i64| launched.saturating_add_unsigned(turn_ms);
        Millis(self.launched.map_or(0, |launched| u64::try_from(at(launched)).unwrap_or(0)))
    }

    /// A round was launched. If it was held up, then perhaps those of other fragments were too, and all of them are
    /// launched together now: the next ones are spread over a turn again.
    pub(super) fn note_launch(&mut self, now: Millis, terms: &OwnerTerms) {
        let turn_ms = self.turn_ms(terms);
        let held_up_ms = self.launched.map_or(0, |_| now.since(self.may_launch_at(terms)));
        let is_held_up = self.is_spread && held_up_ms > turn_ms / HELD_UP_TURNS;
        // In half a turn at least, and in one and a half at most, by the fragment's place among the others.
        let moved_ms = place(terms) * turn_ms as f64 - turn_ms as f64 / 2.0;
        self.launched = Some(now.0 as i64 + if is_held_up { moved_ms as i64 } else { 0 });
    }

    /// The time between two rounds, in milliseconds.
    fn turn_ms(&self, terms: &OwnerTerms) -> u64 {
        match self.median(|paces| paces.step_ms) {
            Some(step_ms) => (f64::from(terms.rounds.sync_every) * step_ms).ceil() as u64,
            None => terms.idle_ms,
        }
    }

    /// A round reached its quorum so long after its launch, in milliseconds.
    pub(super) fn note_quorum(&mut self, after_ms: u64) {
        self.timing.quorum_ms = average(self.timing.quorum_ms, after_ms as f64);
    }

    /// A round led to a version, so long after it ended collecting, in milliseconds.
    pub(super) fn note_merged(&mut self, sync_ms: u64) {
        self.timing.sync_ms = average(self.timing.sync_ms, sync_ms as f64);
    }
}

/// Where in a turn the fragment's rounds are, from 0 to 1.
fn place(terms: &OwnerTerms) -> f64 {
    f64::from(terms.rounds.fragment.0) / f64::from(terms.fragments.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::ProcessId;
    use crate::diloco::Fragments;
    use crate::diloco::syncer::SyncerConfig;
    use crate::testing::{layout, spec};
    use crate::wire::FragmentId;

    fn terms() -> OwnerTerms {
        let spec = spec();
        let fragments = Fragments::plan(&layout(), spec.exchange.fragments.try_into().unwrap());
        let terms = OwnerTerms::of(&spec, &SyncerConfig::default(), &fragments, ProcessId(1));
        terms.unwrap().swap_remove(0)
    }

    /// Goal: rounds of a fragment are as far apart as H steps of the median learner take, whoever it is connected to,
    /// and those of other fragments lie between them.
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

    /// Goal: when rounds of all fragments were held up together, as while the storage was away, they are launched
    /// together once, and spread over a turn from then on; one that is a little late keeps its place.
    #[test]
    fn rounds_that_were_held_up_are_spread_again() {
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
}
