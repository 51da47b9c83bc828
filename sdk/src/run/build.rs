//! Why a run cannot be trained here.

use crate::engine::EngineError;

/// Why a run cannot be trained here.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The run, the engine or the machine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The model does not fit.
    #[error(
        "the run needs about {needed_mib} MiB of memory and {available_mib} MiB are free: use a larger machine"
    )]
    Memory {
        /// Memory needed, in MiB.
        needed_mib: u64,
        /// Memory free, in MiB.
        available_mib: u64,
    },
}
