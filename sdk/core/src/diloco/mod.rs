//! Decoupled DiLoCo as pure state machines. No I/O, clock, randomness, async, threads or hash maps.

pub use crate::wire::{ConnId, FragmentId, LearnerId, LeaseId, Millis, Round, RunId, Serial, Version};

mod block;
mod books;
mod clock;
mod correction;
mod downlink;
mod entry;
mod experts;
mod fragment;
pub mod halves;
mod handover;
pub mod learner;
mod merge;
mod outer;
#[cfg(test)]
mod pair;
mod quant;
mod quorum;
mod rate;
pub mod replica;
mod roster;
mod rounds;
mod schedule;
mod speed;
pub mod syncer;
pub mod tape;
mod voices;
mod window;

pub use crate::wire::{MergeClass, Tensor};
pub use books::{Account, FateCounts, LeaseError, LeasePool, Ledger};
pub use correction::{KEPT_BYTES, kept};
pub use downlink::DownlinkPolicy;
pub use entry::{Doubt, Entry, MergeEntry, Part, RemadeEntry};
pub use experts::{ExpertWeights, FragmentExpert};
pub use fragment::{Fragments, Layout, LayoutError, Segment};
pub use handover::{Repute, Standing};
pub use merge::{
    FragmentState, MergeError, MergeFailure, MergeJob, MergeOutcome, MergeRule, PartialSum, SumError,
    SumPlan, Weighted,
};
pub use outer::OuterSpec;
pub(crate) use quant::fragment_len;
pub use quant::{CheckedBody, Codec, QuantError, VALUE_ABS_MAX, checksum};
pub use quorum::{AbandonCause, Decision, MergeCause, QuorumPolicy, Timing};
pub use rate::learning_rate;
pub use replica::{Replica, ReplicaError};
pub use roster::Reins;
pub use rounds::{Influence, RoundTerms, Verified, Verifier};

// The state machines that `Syncer` composes, and the values that they pass to each other. No other code drives them.
pub(crate) use books::{BookTerms, Books, PROBATION_MS, Returned, Speed, TURN_MS_MAX};
pub(crate) use clock::{USUAL_RATIO, Yardstick};
pub(crate) use correction::{Correction, unkept};
pub(crate) use downlink::{Downlink, DownlinkTerms, Follow};
pub(crate) use handover::{Launch, Settled};
pub(crate) use quorum::RoundView;
pub(crate) use roster::{Patience, Roster};
pub(crate) use rounds::{Answered, Merge, Paced, Remade, Rounds};
pub(crate) use schedule::{Schedule, ScheduleTerms, Traffic, Turn, cohort};
pub(crate) use speed::average;
