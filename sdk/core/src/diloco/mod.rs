//! Decoupled DiLoCo as pure state machines. No I/O, clock, randomness, async, threads or hash maps.

pub use crate::wire::{ConnId, FragmentId, LearnerId, LeaseId, Millis, Round, RunId, Version};

mod block;
mod fragment;
pub mod learner;
mod lease;
mod ledger;
mod merge;
mod outer;
#[cfg(test)]
mod pair;
mod quant;
mod quorum;
pub mod replica;
mod schedule;
pub mod syncer;

pub use fragment::{Fragments, Layout, LayoutError, MergeClass, Segment, Tensor};
pub use lease::{LeaseError, LeasePool, Returned};
pub use ledger::{Account, FateCounts, Ledger};
pub use merge::{FragmentState, MergeError, MergeJob, MergeOutcome, MergeRule, Weighted};
pub use outer::{OuterSpec, outer_step};
pub use quant::{Codec, QuantError, VALUE_ABS_MAX, checksum};
pub use quorum::{AbandonCause, Decision, MergeCause, QuorumPolicy, RoundView, Timing};
pub use replica::{Replica, ReplicaError};
pub use schedule::learning_rate;
