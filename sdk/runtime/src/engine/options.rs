//! User options of an engine.

use std::num::NonZeroUsize;

use super::EngineKind;
use super::gpu::Tuning;

/// Hardware and memory that a learner may use for training.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Kind of engine.
    pub kind: EngineKind,
    /// Part of the name of the GPU to use. `None` selects the best GPU.
    pub adapter: Option<String>,
    /// Whether a GPU reads weights as 16-bit floats. Sums use 32 bits in either case.
    pub half_weights: bool,
    /// Whether a GPU multiplies 32-bit floats only. Otherwise a GPU with matrix units rounds operands to 16-bit floats
    /// where that is faster. Sums use 32 bits in either case.
    pub whole_products: bool,
    /// Maximum GPU memory, in MiB. `None` sets no limit.
    pub gpu_mib_max: Option<u64>,
    /// Threads of the CPU engine.
    pub threads: NonZeroUsize,
    /// Function that returns the free host memory in MiB, if known.
    pub free_mib: fn() -> Option<u64>,
    /// Tuning results of earlier builds on GPUs.
    pub tunings: Vec<Tuning>,
}

impl EngineOptions {
    /// Returns the maximum GPU memory, in bytes.
    pub(super) fn gpu_bytes_max(&self) -> Option<u64> {
        self.gpu_mib_max.map(|mib| mib.saturating_mul(1 << 20))
    }
}
