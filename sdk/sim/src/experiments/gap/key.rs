//! What tells one run from another.

use serde::{Deserialize, Serialize};

use crate::experiments::side::Side;

/// Which parameters at the end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    Last,
    Averaged,
}

/// What tells one run from another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Key {
    /// Digest of the text.
    pub(super) text: String,
    /// Digest of all settings that are not named here, but for the name of the GPU.
    pub(super) settings: String,
    pub(super) side: Side,
    /// M.
    pub(super) learners: u32,
    /// Highest inner learning rate, as written.
    pub(super) lr: String,
    /// Share of the run over which it rises, as written.
    pub(super) warmup: String,
    pub(super) seed: u64,
    /// Whether the part of the text was looked at that is told of.
    pub(super) is_told: bool,
}
