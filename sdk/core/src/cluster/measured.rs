//! What an owner measures of its rounds, by which they begin and end.

use std::collections::BTreeMap;

use super::{GatewayId, OwnerTerms, Record};
use crate::diloco::{OuterSpec, Timing, average};
use crate::wire::Millis;

/// Times, and how much of the fragment is merged.
#[derive(Debug)]
pub(super) struct Measured {
    timing: Timing,
    /// What a step takes the learners of each gateway, in milliseconds, and how many they are.
    steps: BTreeMap<GatewayId, (f64, usize)>,
    /// When the last round was launched.
    launched: Option<Millis>,
    /// Tokens that are merged on the fragment: the clock of the outer step.
    tokens: u64,
}

impl Measured {
    /// Nothing is, but what `terms` begin with.
    pub(super) fn new(terms: &OwnerTerms) -> Self {
        Self { timing: terms.timing, steps: BTreeMap::new(), launched: None, tokens: 0 }
    }

    /// By which rounds end.
    pub(super) fn timing(&self) -> &Timing {
        &self.timing
    }

    /// Takes in all records that there are.
    pub(super) fn recount(&mut self, records: &[Record]) {
        self.tokens = 0;
        records.iter().for_each(|record| self.count(record));
    }

    /// Takes in one more record.
    pub(super) fn count(&mut self, record: &Record) {
        if let Record::Merged { merge, .. } = record {
            let tokens = merge.parts.iter().map(|part| part.tokens).fold(0, u64::saturating_add);
            self.tokens = self.tokens.saturating_add(tokens);
        }
    }

    /// The outer step at this point of the run.
    pub(super) fn outer(&self, terms: &OwnerTerms) -> OuterSpec {
        match terms.momentum_warmup_tokens > 0.0 {
            true => terms.outer.with_momentum_share(self.tokens as f64 / terms.momentum_warmup_tokens),
            false => terms.outer,
        }
    }

    /// A gateway says what a step takes its learners, and how many they are: the median learner's time counts, as far
    /// as that can be told of medians.
    pub(super) fn note_steps(
        &mut self,
        terms: &OwnerTerms,
        gateway: GatewayId,
        step_ms: f64,
        learners: usize,
    ) {
        self.steps.insert(gateway, (step_ms, learners));
        self.measure(terms);
    }

    /// A gateway is gone.
    pub(super) fn forget(&mut self, gateway: GatewayId) {
        self.steps.remove(&gateway);
    }

    fn measure(&mut self, terms: &OwnerTerms) {
        let known = self.steps.values().filter(|(step_ms, learners)| *step_ms > 0.0 && *learners > 0);
        let mut known: Vec<(f64, usize)> = known.copied().collect();
        known.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        let half = known.iter().map(|(_, learners)| learners).sum::<usize>().div_ceil(2);
        let mut before = 0;
        let median = known.into_iter().find(|(_, learners)| {
            before += learners;
            before >= half
        });
        let Some((step_ms, _)) = median else { return };
        let steps = f64::from(terms.rounds.sync_every) / f64::from(terms.fragments.max(1));
        self.timing.step_ms = step_ms;
        self.timing.launch_ms = step_ms * steps.max(1.0);
    }

    /// When the next round may be launched: H steps after the last one, as far as their time is known.
    pub(super) fn may_launch_at(&self, terms: &OwnerTerms) -> Millis {
        let known_ms = self.steps.values().any(|(step_ms, _)| *step_ms > 0.0).then_some(self.timing.step_ms);
        let turn_ms = f64::from(terms.rounds.sync_every) * known_ms.unwrap_or(0.0);
        self.launched.map_or(Millis(0), |launched| launched.after(turn_ms.ceil() as u64))
    }

    /// A round was launched.
    pub(super) fn note_launch(&mut self, now: Millis) {
        self.launched = Some(now);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::ProcessId;
    use crate::diloco::syncer::{Syncer, SyncerConfig};
    use crate::testing::{layout, spec};
    use crate::wire::RunId;

    fn terms() -> OwnerTerms {
        let (layout, config) = (layout(), SyncerConfig::default());
        let syncer = Syncer::new(RunId(7), spec(), config, &layout, &vec![0.0; layout.len()]).unwrap();
        OwnerTerms::of(&syncer, ProcessId(1)).unwrap().swap_remove(0)
    }

    /// Goal: rounds of a fragment are as far apart as H steps of the median learner take, whoever it is connected to.
    #[test]
    fn the_median_learner_sets_the_pace() {
        let terms = terms();
        let mut measured = Measured::new(&terms);
        measured.note_launch(Millis(1_000));
        assert_eq!(measured.may_launch_at(&terms), Millis(1_000), "nothing is known");
        let h = u64::from(terms.rounds.sync_every);
        measured.note_steps(&terms, GatewayId(1), 50.0, 1);
        assert_eq!(measured.may_launch_at(&terms), Millis(1_000 + 50 * h));
        measured.note_steps(&terms, GatewayId(2), 10.0, 3);
        assert_eq!(measured.may_launch_at(&terms), Millis(1_000 + 10 * h));
        measured.note_steps(&terms, GatewayId(3), 90.0, 9);
        assert_eq!(measured.may_launch_at(&terms), Millis(1_000 + 90 * h));
        measured.note_steps(&terms, GatewayId(3), 0.0, 9);
        assert_eq!(
            measured.may_launch_at(&terms),
            Millis(1_000 + 10 * h),
            "what says nothing counts for nothing"
        );
        measured.forget(GatewayId(2));
        measured.note_steps(&terms, GatewayId(3), 0.0, 0);
        assert_eq!(measured.may_launch_at(&terms), Millis(1_000 + 50 * h));
    }
}
