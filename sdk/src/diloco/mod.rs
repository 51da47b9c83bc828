//! Decoupled DiLoCo as pure state machines. No I/O, clock, randomness, async, threads or hash maps.

pub use crate::wire::{ConnId, FragmentId, LearnerId, LeaseId, Millis, Round, RunId, Version};

mod fragment;

pub use fragment::{Fragments, Layout, LayoutError, MergeClass, Segment, Tensor};
