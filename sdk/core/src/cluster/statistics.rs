//! Measurements of an owner's rounds, which decide when rounds begin and end.

use std::collections::BTreeMap;

use super::clock::FragmentClock;
use super::{GatewayId, LeaderTerms, Record};
use crate::diloco::syncer::Paces;
use crate::diloco::{OuterSpec, Timing, average};
use crate::wire::Millis;

/// A launch counts as held up if it is late by more than one turn divided by this number. Constant of ours.
const HELD_UP_TURNS: u64 = 4;

/// Measured times, and the fragment's merged tokens.
#[derive(Debug)]
pub(super) struct Measured {
    timing: Timing,
    /// Speed and number of the learners of each gateway.
    paces: BTreeMap<GatewayId, (Paces, usize)>,
    /// True once the pace is known and rounds are spread over a turn.
    is_spread: bool,
    /// Launch time of the last round, in milliseconds, or the time from which the next launch is counted. It may
    /// precede the start of the clock.
    launched: Option<i64>,
    /// Schedule clock, which sets the outer step.
    clock: FragmentClock,
}

impl Measured {
    /// Creates measurements with the initial timing of `terms`.
    pub(super) fn new(terms: &LeaderTerms) -> Self {
        Self {
            timing: terms.timing,
            paces: BTreeMap::new(),
            is_spread: false,
            launched: None,
            clock: FragmentClock::default(),
        }
    }

    /// Returns true if anything was merged.
    pub(super) fn has_begun(&self) -> bool {
        self.clock.has_begun()
    }

    /// Returns the timing that decides when rounds end.
    pub(super) fn timing(&self) -> &Timing {
        &self.timing
    }

    /// Recounts the clock from all records.
    pub(super) fn recount(&mut self, records: &[Record]) {
        self.clock = FragmentClock::default();
        records.iter().for_each(|record| self.count(record));
    }

    /// Counts one more record.
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

    /// Records the speed and the number of a gateway's learners. The median learner sets the pace, estimated from the
    /// gateways' medians.
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
            // Owners do not coordinate. Each starts at its fragment's place in the turn, as the rounds of a single
            // process do.
            let turn_ms = f64::from(terms.rounds.sync_every) * step_ms;
            let before_ms = (turn_ms * (1.0 - place(terms))) as i64;
            (self.is_spread, self.launched) = (true, Some(now.0 as i64 - before_ms));
        }
    }

    /// Removes a gateway.
    pub(super) fn forget(&mut self, gateway: GatewayId) {
        self.paces.remove(&gateway);
    }

    /// Returns the time of the median learner, or `None` while no time is known.
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
    /// time is known (for example, while no learner trains).
    pub(super) fn may_launch_at(&self, terms: &LeaderTerms) -> Millis {
        let turn_ms = self.turn_ms(terms);
        let at = |launched: i64| launched.saturating_add_unsigned(turn_ms);
        Millis(self.launched.map_or(0, |launched| u64::try_from(at(launched)).unwrap_or(0)))
    }

    /// Records a launch. A delayed launch may coincide with delayed launches of other fragments; the next ones are
    /// spread over a turn again.
    pub(super) fn note_launch(&mut self, now: Millis, terms: &LeaderTerms) {
        let turn_ms = self.turn_ms(terms);
        let held_up_ms = self.launched.map_or(0, |_| now.since(self.may_launch_at(terms)));
        let is_held_up = self.is_spread && held_up_ms > turn_ms / HELD_UP_TURNS;
        // The shift is between minus half a turn and half a turn, by the fragment's place among the others.
        let moved_ms = place(terms) * turn_ms as f64 - turn_ms as f64 / 2.0;
        self.launched = Some(now.0 as i64 + if is_held_up { moved_ms as i64 } else { 0 });
    }

    /// Returns the time between two rounds, in milliseconds.
    fn turn_ms(&self, terms: &LeaderTerms) -> u64 {
        match self.median(|paces| paces.step_ms) {
            Some(step_ms) => (f64::from(terms.rounds.sync_every) * step_ms).ceil() as u64,
            None => terms.idle_ms,
        }
    }

    /// Records that a round reached its quorum `after_ms` milliseconds after its launch.
    pub(super) fn note_quorum(&mut self, after_ms: u64) {
        self.timing.quorum_ms = average(self.timing.quorum_ms, after_ms as f64);
    }

    /// Records that a round produced a version `sync_ms` milliseconds after it ended collecting.
    pub(super) fn note_merged(&mut self, sync_ms: u64) {
        self.timing.sync_ms = average(self.timing.sync_ms, sync_ms as f64);
    }
}

/// Returns the place of the fragment's rounds in a turn, from 0 to 1.
fn place(terms: &LeaderTerms) -> f64 {
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

    fn terms() -> LeaderTerms {
        let spec = spec();
        let fragments = Fragments::plan(&layout(), spec.exchange.fragments.try_into().unwrap());
        let terms = LeaderTerms::of(&spec, &SyncerConfig::default(), &fragments, ProcessId(1));
        terms.unwrap().swap_remove(0)
    }

    /// Goal: rounds of a fragment are H steps of the median learner apart, whichever gateway it uses. Rounds of other
    /// fragments lie between them.
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

    /// Goal: rounds of all fragments that were held up together, as during a storage outage, are launched together once
    /// and then spread over a turn again. A slightly late round keeps its place.
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
