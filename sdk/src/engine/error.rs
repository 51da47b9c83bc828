//! Everything that can go wrong with an engine.

use super::BATCH_MAX;
#[cfg(feature = "gpu")]
use super::gpu::GpuError;
use crate::diloco::{QuantError, ReplicaError};
use crate::model::ModelError;

/// Why an engine cannot be built or cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The model or its input is wrong.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A batch of no windows, or too many.
    #[error("a batch of {batch} windows; it must be between 1 and {max}", max = BATCH_MAX)]
    Batch {
        /// What it was set to.
        batch: u32,
    },
    /// The number of windows is not the batch that the engine was built for.
    #[error("{found} windows given, the batch is {batch}")]
    Windows {
        /// Number given.
        found: usize,
        /// Number expected.
        batch: usize,
    },
    /// A learning rate that is negative or not finite.
    #[error("the learning rate is {lr}; it must be 0 or positive, and finite")]
    Rate {
        /// What it was set to.
        lr: f32,
    },
    /// Training has blown up: lower the learning rate, or look at the data.
    #[error("loss {loss} or gradient norm {grad_norm} is not finite; lower the learning rate")]
    NotFinite {
        /// Mean loss, in nats per token.
        loss: f32,
        /// Norm of the gradient.
        grad_norm: f32,
    },
    /// The code of the exchange.
    #[error("the run's exchange makes no sense: {0}")]
    Codec(#[from] QuantError),
    /// A run without fragments.
    #[error("the run has no fragments: it needs at least 1")]
    NoFragments,
    /// A fragment cannot be coded or taken in: the parameters here are no use any more.
    #[error(transparent)]
    Exchange(#[from] ReplicaError),
    /// The device is gone, with all that it held.
    #[error("the device was lost: {reason}")]
    Lost {
        /// What the system says of it.
        reason: String,
    },
    /// The model does not fit into the memory of this machine.
    #[error(
        "the run needs about {needed_mib} MiB of memory and {available_mib} MiB are free: use a larger machine"
    )]
    HostMemory {
        /// Memory needed, in MiB.
        needed_mib: u64,
        /// Memory free, in MiB.
        available_mib: u64,
    },
    /// There is no GPU to train on, or it refused a command.
    #[cfg(feature = "gpu")]
    #[error(transparent)]
    Gpu(GpuError),
    /// The system gives no more threads.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
}

#[cfg(feature = "gpu")]
impl From<GpuError> for EngineError {
    fn from(error: GpuError) -> Self {
        match error {
            GpuError::Lost { reason } => Self::Lost { reason },
            error => Self::Gpu(error),
        }
    }
}
