//! GPU errors and their remedies.

use crate::wire::{Code, Optimiser};

/// Reason why no GPU is available for training.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GpuError {
    /// No computing device was found.
    #[error("no GPU was found: install its Vulkan driver, or use the CPU engine")]
    NoAdapter,
    /// No GPU has the requested name.
    #[error("no GPU has {wanted:?} in its name; choose from: {}", found.join(", "))]
    NotNamed {
        /// Requested part of a name.
        wanted: String,
        /// Names of the available GPUs.
        found: Vec<String>,
    },
    /// The only GPU is a software one.
    #[error("the only GPU is {adapter}, a software GPU on the CPU: the CPU engine is faster")]
    SoftwareOnly {
        /// Name of the adapter.
        adapter: String,
    },
    /// The adapter cannot do what the kernels need.
    #[error("{adapter} allows {limit} = {found}, but {needed} are needed: use the CPU engine")]
    Limit {
        /// Name of the adapter.
        adapter: String,
        /// Name of the limit in WebGPU.
        limit: &'static str,
        /// Value that the adapter allows.
        found: u64,
        /// Value that the kernels need.
        needed: u64,
    },
    /// The adapter provided no device.
    #[error("cannot open {adapter}: {reason}")]
    NoDevice {
        /// Name of the adapter.
        adapter: String,
        /// Reason from the adapter.
        reason: String,
    },
    /// A size that is not a multiple of four, which the kernels require.
    #[error("{field} is {value}, but the GPU engine needs a multiple of 4: use the CPU engine")]
    Shape {
        /// Field of the model.
        field: &'static str,
        /// Value of the field.
        value: u32,
    },
    /// A code of the exchange without kernels.
    #[error(
        "the run exchanges in {code:?}, but the GPU engine supports Int4, E3m0 or F32: use the CPU engine"
    )]
    Code {
        /// The run's code.
        code: Code,
    },
    /// The run trains with an optimiser that has no kernels.
    #[error("the run trains with {}, but the GPU engine supports adamw: use the CPU engine", .optimiser.name())]
    Optimiser {
        /// The run's optimiser.
        optimiser: Optimiser,
    },
    /// Heads that are too wide for a workgroup.
    #[error("a head is {width} wide, but the GPU engine supports at most {width_max}: use the CPU engine")]
    Head {
        /// D.
        width: u32,
        /// Maximum width.
        width_max: u32,
    },
    /// A matrix that exceeds the binding limit.
    #[error("{tensor} takes {bytes} bytes, but {adapter} binds at most {bytes_max}: use the CPU engine")]
    TensorTooLarge {
        /// Name of the matrix.
        tensor: String,
        /// Size of the matrix.
        bytes: u64,
        /// Maximum size of a binding.
        bytes_max: u64,
        /// Name of the adapter.
        adapter: String,
    },
    /// The model does not fit.
    #[error(
        "{adapter} has less than {needed_mib} MiB of memory free: choose a smaller preset, or use the CPU engine"
    )]
    Memory {
        /// Name of the adapter.
        adapter: String,
        /// Memory needed, in MiB.
        needed_mib: u64,
    },
    /// The device is gone: reset, unplugged, or taken by the system.
    #[error("the GPU was lost: {reason}")]
    Lost {
        /// Reason from the driver.
        reason: String,
    },
    /// A command was refused, because of a mistake in this program or in the driver.
    #[error("the GPU refused a command: {reason}")]
    Refused {
        /// Reason for the refusal.
        reason: String,
    },
}
