//! What people may ask of an engine.

use std::num::NonZeroUsize;

use super::EngineKind;
use super::gpu::Tuning;

/// What a learner may train with.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Which engine.
    pub kind: EngineKind,
    /// Part of the name of the GPU to use; the best GPU is taken where this is `None`.
    pub adapter: Option<String>,
    /// Whether a GPU reads weights as 16-bit floats; sums are of 32 bits all the same.
    pub half_weights: bool,
    /// Whether a GPU multiplies 32-bit floats only. Otherwise one that has units for matrices rounds what it multiplies
    /// to 16-bit floats where that is faster; sums are of 32 bits all the same.
    pub whole_products: bool,
    /// Most memory that is taken of a GPU, in MiB; all that it gives where this is `None`.
    pub gpu_mib_max: Option<u64>,
    /// Threads of the CPU engine.
    pub threads: NonZeroUsize,
    /// Tells how much memory the host has free, in MiB, where that is known.
    pub free_mib: fn() -> Option<u64>,
    /// What earlier builds found out about GPUs.
    pub tunings: Vec<Tuning>,
}

impl EngineOptions {
    /// Most memory that is taken of a GPU, in bytes.
    pub(super) fn gpu_bytes_max(&self) -> Option<u64> {
        self.gpu_mib_max.map(|mib| mib.saturating_mul(1 << 20))
    }
}
