//! Keys of runs.

use serde::{Deserialize, Serialize};

use crate::experiments::side::Side;

/// A set of parameters at the end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    Last,
    Averaged,
}

/// The key of a run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Key {
    /// Digest of the text.
    pub(super) text: String,
    /// Digest of all settings without a field here, except the name of the GPU.
    pub(super) settings: String,
    pub(super) side: Side,
    /// M.
    pub(super) learners: u32,
    /// Highest inner learning rate, as written.
    pub(super) lr: String,
    /// Share of the run over which the rate rises, as written.
    pub(super) warmup: String,
    pub(super) seed: u64,
    /// Whether the test part of the text was used.
    pub(super) is_told: bool,
}
