//! The syncer's knobs, and why a syncer cannot be built.

use serde::{Deserialize, Serialize};

use crate::diloco::{
    BookTerms, Codec, DownlinkPolicy, DownlinkTerms, Fragments, Influence, LeaseError, MergeRule, OuterSpec,
    Patience, QuantError, QuorumPolicy, RoundTerms, ScheduleTerms,
};
use crate::wire::{FragmentId, RunSpec};

/// Changes that are kept: those of so many turns, at half a byte a parameter each, or
/// [`DownlinkPolicy::history_bytes_min`] if that is more. Constant of ours.
const HISTORY_TURNS: u64 = 2;

/// Identities of whom nothing is merged yet that are remembered, for each learner that may be connected: whoever throws
/// identities away fills neither books nor disk. Constant of ours.
const STRANGERS_PER_SEAT: u32 = 2;

/// The syncer's own knobs; what learners must agree on is in [`crate::wire::RunSpec`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SyncerConfig {
    /// When a round is over.
    pub quorum: QuorumPolicy,
    /// The outer optimiser.
    pub outer: OuterSpec,
    /// Share of the inner schedule's `total_tokens` over which the outer momentum rises in a line from 0,
    /// 0 to 1; 0 has it in full from the first round. Constant of ours, see
    /// `tests/evidence/DECISIONS.md`.
    pub momentum_warmup_ratio: f64,
    /// How updates are merged.
    pub merge: MergeRule,
    /// What an update weighs in a merge.
    pub influence: Influence,
    /// How much is on the way down to a learner.
    pub downlink: DownlinkPolicy,
    /// Live learners before the first round of a run.
    pub learners_start: u32,
    /// Connections with a learner behind them.
    pub learners_max: u32,
    /// Identities that the ledger remembers.
    pub identities_max: u32,
    /// Learners invited to one round; above it a rotating sample is, which costs some of the loss (STALENESS.md in
    /// `tests/evidence`).
    pub cohort_max: u32,
    /// A learner that is silent for longer is gone…
    pub silent_ms_max: u64,
    /// …unless it said that its tab is hidden or that it is paused.
    pub hidden_ms_max: u64,
    /// Training time that one lease is meant to last.
    pub lease_ms: u64,
    /// A lease without progress for so long goes to others, unless it waits for its turn at a learner that is there.
    pub lease_idle_ms_max: u64,
    /// On each segment the norm of an update over its pace, which is the learning rate times the root of its steps,
    /// counts up to this many medians; 0 for no bound.
    pub norm_ratio_max: f64,
    /// A learner with so many refusals in a row is sent away.
    pub refusals_max: u32,
    /// Merged tokens at which the run finishes by itself; 0 is never.
    pub stop_tokens: u64,
}

impl Default for SyncerConfig {
    fn default() -> Self {
        Self {
            quorum: QuorumPolicy::default(),
            outer: OuterSpec::default(),
            momentum_warmup_ratio: 0.25,
            merge: MergeRule::Radial,
            influence: Influence::default(),
            downlink: DownlinkPolicy::default(),
            learners_start: 1,
            learners_max: 2_048,
            identities_max: 100_000,
            cohort_max: 256,
            silent_ms_max: 20_000,
            hidden_ms_max: 600_000,
            lease_ms: 30_000,
            lease_idle_ms_max: 60_000,
            norm_ratio_max: 1.5,
            refusals_max: 16,
            stop_tokens: 0,
        }
    }
}

impl SyncerConfig {
    /// What holds for the rounds of `fragment`.
    pub(crate) fn round_terms(
        &self,
        spec: &RunSpec,
        fragment: FragmentId,
        fragments: &Fragments,
        codec: Codec,
    ) -> RoundTerms {
        RoundTerms {
            fragment,
            segments: fragments.segments(fragment).unwrap_or_default().to_vec(),
            experts: fragments.experts(fragment).to_vec(),
            mixture: spec.model.experts,
            codec,
            inner: spec.inner,
            sync_every: spec.exchange.sync_every,
            is_additive: spec.exchange.apply.is_additive(),
            lease_ms: self.lease_ms,
            quorum: self.quorum,
            merge: self.merge,
            influence: self.influence,
            norm_ratio_max: self.norm_ratio_max,
        }
    }

    /// What holds for the way down to learners, by the sizes of what is sent.
    pub(super) fn downlink_terms(&self, fragments: &Fragments, codec: Codec) -> DownlinkTerms {
        let segments = |p| fragments.segments(p).unwrap_or_default();
        let turn_bytes: u64 = fragments.ids().map(|p| codec.body_bytes(segments(p)) as u64).sum();
        DownlinkTerms {
            fragments: fragments.count(),
            policy: self.downlink,
            unconfirmed_bytes_max: turn_bytes.max(self.downlink.unconfirmed_bytes_min),
            history_bytes_max: (HISTORY_TURNS * turn_bytes).max(self.downlink.history_bytes_min),
        }
    }

    /// What holds for connections.
    pub(super) fn patience(&self) -> Patience {
        Patience { silent_ms_max: self.silent_ms_max, hidden_ms_max: self.hidden_ms_max }
    }

    /// What holds for leases and ledger.
    pub(super) fn book_terms(&self, spec: &RunSpec) -> BookTerms {
        BookTerms {
            context: spec.model.context,
            lease_ms: self.lease_ms,
            lease_idle_ms_max: self.lease_idle_ms_max,
            identities_max: self.identities_max,
            strangers_max: self.learners_max.saturating_mul(STRANGERS_PER_SEAT),
        }
    }

    /// What holds for the order of rounds on `fragments` fragments.
    pub(super) fn schedule_terms(&self, spec: &RunSpec, fragments: u16) -> ScheduleTerms {
        ScheduleTerms {
            fragments,
            sync_every: spec.exchange.sync_every,
            rounds_in_flight: self.quorum.rounds_in_flight,
            learners_start: self.learners_start,
            cohort_max: self.cohort_max,
        }
    }
}

/// Why a syncer cannot be built.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SyncerError {
    /// P is 0.
    #[error("a run needs at least 1 fragment, not 0")]
    NoFragments,
    /// H is 0.
    #[error("sync_every is 0: a fragment needs at least 1 step between two rounds")]
    NoSteps,
    /// The exchange code cannot be used.
    #[error(transparent)]
    Codec(#[from] QuantError),
    /// The data cannot be leased.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// The parameters do not fit the layout.
    #[error("{actual} initial parameters for a layout of {expected}")]
    Parameters {
        /// Values in the layout.
        expected: usize,
        /// Values given.
        actual: usize,
    },
    /// A restored fragment does not fit the layout.
    #[error("the snapshot's fragment {fragment} has {actual} values, the layout says {expected}")]
    Fragment {
        /// Which one.
        fragment: FragmentId,
        /// Values in the layout.
        expected: usize,
        /// Values in the snapshot.
        actual: usize,
    },
    /// A snapshot with another number of fragments.
    #[error("the snapshot has {actual} fragments, the run says {expected}")]
    FragmentCount {
        /// Fragments of the run.
        expected: usize,
        /// Fragments in the snapshot.
        actual: usize,
    },
}
