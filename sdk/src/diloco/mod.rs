//! Decoupled DiLoCo as pure state machines. No I/O, clock, randomness, async, threads or hash maps.

pub use crate::wire::{ConnId, FragmentId, LearnerId, LeaseId, Millis, Round, RunId, Version};

mod block;
mod fragment;
mod merge;
mod outer;
mod quant;
mod quorum;
mod replica;

pub use fragment::{Fragments, Layout, LayoutError, MergeClass, Segment, Tensor};
pub use merge::{FragmentState, MergeError, MergeJob, MergeOutcome, MergeRule, Weighted};
pub use outer::{OuterSpec, outer_step};
pub use quant::{Codec, QuantError, VALUE_ABS_MAX, checksum};
pub use quorum::{AbandonCause, Decision, MergeCause, QuorumPolicy, RoundView, Timing};
pub use replica::{Replica, ReplicaError};
