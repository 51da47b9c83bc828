//! Decoupled DiLoCo as pure state machines. No I/O, clock, randomness, async, threads or hash maps.

pub use crate::wire::{ConnId, FragmentId, LearnerId, LeaseId, Millis, Round, RunId, Version};

mod fragment;
mod quorum;

pub use fragment::{Fragments, Layout, LayoutError, MergeClass, Segment, Tensor};
pub use quorum::{AbandonCause, Decision, MergeCause, QuorumPolicy, RoundView, Timing};
