//! Decoupled DiLoCo as pure state machines, without I/O, clock, randomness, async, threads or hash maps.

pub use crate::wire::{
    ConnId, FragmentId, LearnerId, LeaseId, MergeClass, Millis, Round, RunId, Serial, Tensor, Version,
};

mod accounting;
pub mod binary16;
mod block;
mod claim_reference;
mod correction;
mod downlink;
mod entry;
mod fragment;
pub mod learner;
mod merge;
mod messages;
mod outer;
mod quant;
mod quorum;
mod rate;
pub mod replica;
mod rounds;
mod schedule;
mod sessions;
mod speed;
#[cfg(test)]
mod sync_harness;
pub mod syncer;
pub mod tape;
pub mod trust;
mod weighted_median;
mod window;

pub use accounting::{Account, FateCounts, LeaseError, LeasePool, Ledger};
pub use correction::{STATE_BYTES, encode_state};
pub use downlink::DownlinkPolicy;
pub use entry::{Entry, MergeEntry, Part, RollbackEntry, Suspicion};
pub(crate) use fragment::is_table;
pub use fragment::{ExpertWeights, FragmentExpert, Fragments, Layout, LayoutError, Segment};
pub use merge::{
    FragmentState, MergeError, MergeFailure, MergeJob, MergeOutcome, MergeRule, PartialSum, SumError,
    SumPlan, WeightedUpdate,
};
pub use messages::SenderInfo;
pub use outer::OuterSpec;
pub(crate) use quant::fragment_len;
pub use quant::{CheckedBody, Codec, QuantError, VALUE_ABS_MAX, checksum};
pub use quorum::{AbandonCause, Decision, MergeCause, QuorumPolicy, Timing};
pub use rate::learning_rate;
pub use replica::{Replica, ReplicaError};
pub use rounds::{RoundTerms, Verified, Verifier};
pub use sessions::Restrictions;
pub use trust::{SenderTrust, TrustLevel, TrustRecord, WeightBounds};

// State machines that only `Syncer` drives, and the values that they pass to each other.
pub(crate) use accounting::{Accounting, AccountingTerms, Returned, Speed};
pub(crate) use claim_reference::{ClaimReference, USUAL_RATIO};
pub(crate) use correction::{Correction, decode_state};
pub(crate) use downlink::{CatchUp, Downlink, DownlinkTerms};
pub(crate) use messages::{Launch, UpdateOutcome};
pub(crate) use quorum::RoundView;
pub(crate) use rounds::{AdmittedAnswer, Merge, Paced, RollbackResult, Rounds};
pub(crate) use schedule::{Schedule, ScheduleTerms, Traffic, Turn, cohort};
pub(crate) use sessions::{Roster, SilenceLimits};
pub(crate) use speed::average;
pub(crate) use trust::TURN_MS_MAX;
