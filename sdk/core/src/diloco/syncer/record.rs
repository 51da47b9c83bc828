//! Stopping and going on: everything of a syncer but its tensors and its connections.

use serde::{Deserialize, Serialize};

use super::{Syncer, SyncerConfig, SyncerError, plan};
use crate::diloco::FragmentState;
use crate::diloco::Layout;
use crate::diloco::LeasePool;
use crate::diloco::Ledger;
use crate::diloco::Timing;
use crate::wire::{FragmentId, RunId, RunSpec};

/// What a snapshot holds beside the [`FragmentState`]s. Who was slowed down or sent away is not in it: everybody
/// starts anew with the syncer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SyncerRecord {
    /// The run.
    pub run: RunId,
    /// What the run is.
    pub spec: RunSpec,
    /// The windows on lease.
    pub leases: LeasePool,
    /// The contribution ledger.
    pub ledger: Ledger,
    /// Measured times.
    pub timing: Timing,
    /// The number of the next round.
    pub next_round: u64,
    /// Whose turn it is.
    pub next_fragment: FragmentId,
    /// Rounds that led to a version.
    pub rounds_merged: u64,
    /// Rounds that led to nothing.
    pub rounds_abandoned: u64,
    /// Whether the owner holds the run.
    #[serde(default)]
    pub held: bool,
}

impl Syncer {
    /// What a snapshot holds beside [`Self::states`]; `None` while anything is being merged.
    #[must_use]
    pub fn record(&self) -> Option<SyncerRecord> {
        self.closed.is_empty().then(|| SyncerRecord {
            run: self.run,
            spec: self.spec.clone(),
            leases: self.leases.clone(),
            ledger: self.ledger.clone(),
            timing: self.timing,
            next_round: self.next_round,
            next_fragment: self.next_fragment,
            rounds_merged: self.rounds_merged,
            rounds_abandoned: self.rounds_abandoned,
            held: self.held,
        })
    }

    /// Goes on from a snapshot.
    ///
    /// Rounds and versions jump to a fresh range, so that none names two things: what was merged
    /// after the snapshot is lost, and learners find out by the versions in their `Welcome`. Each
    /// learner may count as many tokens more as two of its leases hold, since it may have trained on
    /// leases that the snapshot knows nothing of.
    ///
    /// # Errors
    /// Those of [`Self::new`], and [`SyncerError::FragmentCount`] or [`SyncerError::Fragment`] if
    /// `states` do not fit the layout.
    pub fn restore(
        mut record: SyncerRecord,
        layout: &Layout,
        config: SyncerConfig,
        states: Vec<FragmentState>,
    ) -> Result<Self, SyncerError> {
        let fragments = plan(&record.spec, layout)?;
        if states.len() != usize::from(fragments.count()) {
            let expected = usize::from(fragments.count());
            return Err(SyncerError::FragmentCount { expected, actual: states.len() });
        }
        for (fragment, state) in fragments.ids().zip(&states) {
            let expected = fragments.len(fragment);
            let lens = [state.theta.len(), state.hat.len(), state.momentum.len()];
            if let Some(&actual) = lens.iter().find(|&&len| len != expected) {
                return Err(SyncerError::Fragment { fragment, expected, actual });
            }
        }
        record.next_round = ((record.next_round >> 32) + 1) << 32;
        let slack = 2 * record.leases.epoch_windows().min(u64::from(super::session::LEASE_WINDOWS_MAX));
        let slack_tokens = slack * u64::from(record.spec.model.context);
        record.ledger.reopen(slack_tokens);
        Self::assemble(record, config, fragments, states)
    }
}
