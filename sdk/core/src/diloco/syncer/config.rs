//! Settings of the syncer, and errors in them.

use serde::{Deserialize, Serialize};

use crate::diloco::{
    BookTerms, Codec, DownlinkPolicy, DownlinkTerms, Fragments, Influence, LeaseError, MergeRule, OuterSpec,
    Patience, QuantError, QuorumPolicy, RoundTerms, ScheduleTerms,
};
use crate::wire::{FragmentId, RunSpec};

/// Fragment turns whose changes are kept, at half a byte per parameter, unless [`DownlinkPolicy::history_bytes_min`] is
/// larger. Our own constant.
const HISTORY_TURNS: u64 = 2;

/// Remembered identities without a merged update, per seat. Throwing identities away therefore fills neither ledger nor
/// disk. Our own constant.
const STRANGERS_PER_SEAT: u32 = 2;

/// Settings of the syncer alone; [`crate::wire::RunSpec`] has those that learners must agree on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SyncerConfig {
    /// Rule for the end of a round.
    pub quorum: QuorumPolicy,
    /// The outer optimiser.
    pub outer: OuterSpec,
    /// Fraction of the inner schedule's `total_tokens` over which the outer momentum rises linearly from 0, 0 to 1; 0
    /// starts with full momentum. Our own constant, see `tests/evidence/DECISIONS.md`.
    pub momentum_warmup_ratio: f64,
    /// Rule that averages updates.
    pub merge: MergeRule,
    /// Bounds on the weights of updates.
    pub influence: Influence,
    /// Limits on data in flight to a learner.
    pub downlink: DownlinkPolicy,
    /// Live learners needed for the first round of a run.
    pub learners_start: u32,
    /// Largest number of connected learners.
    pub learners_max: u32,
    /// Largest number of identities in the ledger.
    pub identities_max: u32,
    /// Largest number of learners invited to one round. Larger runs invite a rotating sample, which raises the loss a
    /// little (STALENESS.md in `tests/evidence`).
    pub cohort_max: u32,
    /// Longest silence of a connected learner, in milliseconds…
    pub silent_ms_max: u64,
    /// …and of one that reported a hidden tab or a pause.
    pub hidden_ms_max: u64,
    /// Training time that one lease is meant to cover, in milliseconds.
    pub lease_ms: u64,
    /// Time without progress after which a lease goes to others, in milliseconds, unless it is queued at a connected
    /// learner.
    pub lease_idle_ms_max: u64,
    /// Largest norm of an update on a segment, in medians of the norm statistics; the excess does not count. Norms are
    /// divided by the learning rate and the root of the steps. 0 for no bound.
    pub norm_ratio_max: f64,
    /// Refusals in a row after which a learner is sent away.
    pub refusals_max: u32,
    /// Merged tokens at which the run finishes by itself; 0 for never.
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
    /// Returns the terms for the rounds of `fragment`.
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

    /// Returns the terms for the downlink, by the sizes of messages.
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

    /// Returns the time limits of connections.
    pub(super) fn patience(&self) -> Patience {
        Patience { silent_ms_max: self.silent_ms_max, hidden_ms_max: self.hidden_ms_max }
    }

    /// Returns the terms for leases and ledger.
    pub(super) fn book_terms(&self, spec: &RunSpec) -> BookTerms {
        BookTerms {
            context: spec.model.context,
            lease_ms: self.lease_ms,
            lease_idle_ms_max: self.lease_idle_ms_max,
            identities_max: self.identities_max,
            strangers_max: self.learners_max.saturating_mul(STRANGERS_PER_SEAT),
        }
    }

    /// Returns the terms for scheduling rounds on `fragments` fragments.
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

/// Error in the settings or the snapshot of a syncer.
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
    #[error("the snapshot's fragment {fragment} has {actual} values, the layout has {expected}")]
    Fragment {
        /// The fragment.
        fragment: FragmentId,
        /// Values in the layout.
        expected: usize,
        /// Values in the snapshot.
        actual: usize,
    },
    /// The snapshot has another number of fragments.
    #[error("the snapshot has {actual} fragments, the run has {expected}")]
    FragmentCount {
        /// Fragments of the run.
        expected: usize,
        /// Fragments in the snapshot.
        actual: usize,
    },
}
