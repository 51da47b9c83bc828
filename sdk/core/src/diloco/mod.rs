//! Decoupled DiLoCo as pure state machines. No I/O, clock, randomness, async, threads or hash maps.

pub use crate::wire::{ConnId, FragmentId, LearnerId, LeaseId, Millis, Round, RunId, Serial, Version};

mod block;
mod books;
mod correction;
mod downlink;
mod entry;
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
mod window;

pub use books::{
    Account, BookTerms, Books, BooksFull, FateCounts, LeaseError, LeasePool, Ledger, PROBATION_MS, Returned,
    Speed,
};
pub use correction::{Correction, KEPT_BYTES, kept, unkept};
pub use downlink::{Audience, Downlink, DownlinkPolicy, DownlinkTerms, Follow};
pub use entry::{Entry, MergeEntry, Part, RemadeEntry};
pub use fragment::{Fragments, Layout, LayoutError, MergeClass, Segment, Tensor};
pub use handover::{Launch, Settled, Standing};
pub use merge::{FragmentState, MergeError, MergeFailure, MergeJob, MergeOutcome, MergeRule, Weighted};
pub use outer::{OuterSpec, outer_step};
pub use quant::{CheckedBody, Codec, QuantError, VALUE_ABS_MAX, checksum};
pub use quorum::{AbandonCause, Decision, MergeCause, QuorumPolicy, RoundView, Timing};
pub use rate::learning_rate;
pub use replica::{Replica, ReplicaError};
pub use roster::{Patience, Reins, Roster, Session};
pub use rounds::{
    Answered, Influence, Merge, Paced, Quorum, Remade, RoundTerms, Rounds, Verdict, Verified, Verifier,
};
pub use schedule::{Schedule, ScheduleTerms, Traffic, Turn};
