//! Snapshots: the state of a syncer without its tensors and connections.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Syncer, SyncerConfig, SyncerError, plan};
use crate::data;
use crate::diloco::accounting::LEASE_WINDOWS_MAX;
use crate::diloco::{
    Entry, FragmentState, Fragments, Layout, LeasePool, Ledger, Reins, Rounds, Timing, Turn,
};
use crate::wire::{FragmentId, LeaseId, RunId, RunSpec};

/// State of a run in a snapshot, next to its [`FragmentState`]s.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SyncerRecord {
    /// The run.
    pub run: RunId,
    /// The specification of the run.
    pub spec: RunSpec,
    /// The leases.
    pub leases: LeasePool,
    /// The contribution ledger.
    pub ledger: Ledger,
    /// Measured times.
    pub timing: Timing,
    /// The number of the next round.
    pub next_round: u64,
    /// The fragment of the next round.
    pub next_fragment: FragmentId,
    /// Rounds that led to a version.
    pub rounds_merged: u64,
    /// Rounds that were abandoned.
    pub rounds_abandoned: u64,
    /// Whether the owner has paused the run.
    pub held: bool,
    /// Whether the last collection has begun. An interrupted one is over once the syncer resumes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub finishing: bool,
    /// Whether the run is over for good.
    pub finished: bool,
    /// Learners that the owner slowed down or sent away.
    #[serde(default, skip_serializing_if = "Reins::is_empty")]
    pub reins: Reins,
}

impl SyncerRecord {
    pub(super) fn new(
        run: RunId,
        spec: RunSpec,
        leases: LeasePool,
        ledger: Ledger,
        turn: Turn,
        reins: Reins,
    ) -> Self {
        let Turn { timing, next_round, next_fragment, rounds_merged, rounds_abandoned, .. } = turn;
        let Turn { is_held: held, is_ending: finishing, is_over: finished, .. } = turn;
        Self {
            run,
            spec,
            leases,
            ledger,
            timing,
            next_round,
            next_fragment,
            rounds_merged,
            rounds_abandoned,
            held,
            finishing,
            finished,
            reins,
        }
    }

    /// Returns the fragments of the run if `states` fit them.
    pub(in crate::diloco) fn check(
        &self,
        layout: &Layout,
        states: &[FragmentState],
    ) -> Result<Arc<Fragments>, SyncerError> {
        let fragments = plan(&self.spec, layout)?;
        if states.len() != usize::from(fragments.count()) {
            let expected = usize::from(fragments.count());
            return Err(SyncerError::FragmentCount { expected, actual: states.len() });
        }
        for (fragment, state) in fragments.ids().zip(states) {
            let expected = fragments.len(fragment);
            let lens = [state.theta.len(), state.hat.len(), state.momentum.len()];
            if let Some(&actual) = lens.iter().find(|&&len| len != expected) {
                return Err(SyncerError::Fragment { fragment, expected, actual });
            }
        }
        Ok(fragments)
    }

    /// Returns the state of the schedule.
    pub(super) fn turn(&self) -> Turn {
        Turn {
            timing: self.timing,
            next_round: self.next_round,
            next_fragment: self.next_fragment,
            rounds_merged: self.rounds_merged,
            rounds_abandoned: self.rounds_abandoned,
            is_held: self.held,
            is_ending: self.finishing,
            is_over: self.finished,
        }
    }
}

impl Syncer {
    /// Starts a new run whose `fragments` are in `states`.
    pub(super) fn begin(
        run: RunId,
        spec: RunSpec,
        config: SyncerConfig,
        fragments: Arc<Fragments>,
        states: Vec<FragmentState>,
    ) -> Result<Self, SyncerError> {
        let lens = fragments.ids().map(|p| fragments.len(p) as u32).collect();
        let windows = spec.data.shards.iter().map(|shard| data::windows(shard.tokens, spec.model.context));
        let leases = LeasePool::new(windows.collect())?;
        let (ledger, turn) = (Ledger::new(lens), Turn::default());
        let record = SyncerRecord::new(run, spec, leases, ledger, turn, Reins::default());
        Self::assemble(record, config, fragments, states)
    }

    /// Returns the state of the run next to [`Self::states`]; `None` while any fragment is being merged.
    #[must_use]
    pub fn record(&self) -> Option<SyncerRecord> {
        let is_merging = self.rounds.iter().any(Rounds::is_merging);
        (!is_merging).then(|| self.record_amid())
    }

    /// Returns the state of the run, also during merges. With a tape, it may be stored with newer fragment states,
    /// taken after their merges: see [`super::Recovery::new`].
    #[must_use]
    pub fn record_amid(&self) -> SyncerRecord {
        let (leases, ledger) = (self.books.leases().clone(), self.books.ledger().clone());
        let (turn, reins) = (*self.schedule.turn(), self.roster.reins());
        SyncerRecord::new(self.run, self.spec.clone(), leases, ledger, turn, reins)
    }

    /// Resumes from a snapshot, in a process that started at Unix time `started_s`, in seconds.
    ///
    /// Rounds, versions and leases continue in a fresh range (see `Turn::after_restart`), so that no number is used
    /// twice. Merges after the snapshot are lost, and learners notice by the versions in their `Welcome`. Each learner
    /// may count additional tokens, as many as two of its leases hold, because it may have trained on leases that are
    /// not in the snapshot.
    ///
    /// # Errors
    /// Those of [`Self::new`], and [`SyncerError::FragmentCount`] or [`SyncerError::Fragment`] if `states` do not fit
    /// the layout.
    pub fn restore(
        record: SyncerRecord,
        layout: &Layout,
        config: SyncerConfig,
        states: Vec<FragmentState>,
        started_s: u32,
    ) -> Result<Self, SyncerError> {
        let slack = 2 * record.leases.epoch_windows().min(u64::from(LEASE_WINDOWS_MAX));
        let slack_tokens = slack * u64::from(record.spec.model.context);
        Self::reopen(record, layout, config, states, started_s, slack_tokens)
    }

    pub(super) fn reopen(
        mut record: SyncerRecord,
        layout: &Layout,
        config: SyncerConfig,
        states: Vec<FragmentState>,
        started_s: u32,
        slack_tokens: u64,
    ) -> Result<Self, SyncerError> {
        let fragments = record.check(layout, &states)?;
        record.next_round = record.turn().after_restart(started_s).next_round;
        record.leases.reopen(LeaseId(record.next_round));
        record.ledger.reopen(slack_tokens);
        let next_round = record.next_round;
        let mut syncer = Self::assemble(record, config, fragments, states)?;
        syncer.books.note(Entry::Began { next_round, slack_tokens });
        Ok(syncer)
    }
}
