//! The syncer's knobs, and why a syncer cannot be built.

use serde::{Deserialize, Serialize};

use crate::diloco::LeaseError;
use crate::diloco::MergeRule;
use crate::diloco::OuterSpec;
use crate::diloco::QuantError;
use crate::diloco::QuorumPolicy;
use crate::wire::FragmentId;

/// The syncer's own knobs; what learners must agree on is in [`crate::wire::RunSpec`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SyncerConfig {
    /// When a round is over.
    pub quorum: QuorumPolicy,
    /// The outer optimiser.
    pub outer: OuterSpec,
    /// Share of the inner schedule's `total_tokens` over which the outer momentum rises in a line from 0,
    /// 0 to 1; 0 has it in full from the first round. Constant of ours, see ARCHITECTURE.md.
    pub momentum_warmup_ratio: f64,
    /// How updates are merged.
    pub merge: MergeRule,
    /// Live learners before the first round of a run.
    pub learners_start: u32,
    /// Connections with a learner behind them.
    pub learners_max: u32,
    /// Identities that the ledger remembers.
    pub identities_max: u32,
    /// Learners invited to one round; above it a rotating sample is.
    pub cohort_max: u32,
    /// A learner that is silent for longer is gone…
    pub silent_ms_max: u64,
    /// …unless it said that its tab is hidden or that it is paused.
    pub hidden_ms_max: u64,
    /// Training time that one lease is meant to last.
    pub lease_ms: u64,
    /// A lease without progress for so long goes to others, unless it waits for its turn at a learner that is there.
    pub lease_idle_ms_max: u64,
    /// An update is refused if its norm over the root of its steps is above so many medians.
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
            momentum_warmup_ratio: 0.2,
            merge: MergeRule::Radial,
            learners_start: 1,
            learners_max: 2_048,
            identities_max: 100_000,
            cohort_max: 64,
            silent_ms_max: 20_000,
            hidden_ms_max: 600_000,
            lease_ms: 30_000,
            lease_idle_ms_max: 60_000,
            norm_ratio_max: 20.0,
            refusals_max: 16,
            stop_tokens: 0,
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
