//! GPU errors and their remedies.

use crate::wire::Code;

/// Error of a GPU or of its choice.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GpuError {
    /// The system lists no GPU.
    #[error("no GPU was found: install its Vulkan driver, or use the CPU engine")]
    NoAdapter,
    /// No GPU has the requested name.
    #[error("no GPU has {wanted:?} in its name; choose from: {}", found.join(", "))]
    NotNamed {
        /// Requested substring of a name.
        wanted: String,
        /// Names of the available GPUs.
        found: Vec<String>,
    },
    /// Only software GPUs are available, and the options do not accept one.
    #[error("the only GPU is {adapter}, a software GPU on the CPU: the CPU engine is faster")]
    SoftwareOnly {
        /// Name of the adapter.
        adapter: String,
    },
    /// A limit of the adapter is too low for the kernels.
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
    /// The adapter did not open a device.
    #[error("cannot open {adapter}: {reason}")]
    NoDevice {
        /// Name of the adapter.
        adapter: String,
        /// Error message of the adapter.
        reason: String,
    },
    /// A size of the model is not a multiple of four.
    #[error("{field} is {value}, but the GPU engine needs a multiple of 4: use the CPU engine")]
    Shape {
        /// Field of the model.
        field: &'static str,
        /// Value of the field.
        value: u32,
    },
    /// There are no kernels for the code that the run exchanges.
    #[error(
        "the run exchanges in {code:?}, but the GPU engine supports Int4, E3m0 or F32: use the CPU engine"
    )]
    Code {
        /// The run's code.
        code: Code,
    },
    /// Attention heads are too wide for a workgroup.
    #[error("a head is {width} wide, but the GPU engine supports at most {width_max}: use the CPU engine")]
    Head {
        /// Values in a head, D.
        width: u32,
        /// Maximum width.
        width_max: u32,
    },
    /// A matrix or body exceeds the binding limit.
    #[error("{tensor} takes {bytes} bytes, but {adapter} binds at most {bytes_max}: use the CPU engine")]
    TensorTooLarge {
        /// Name of the matrix or body.
        tensor: String,
        /// Its size, in bytes.
        bytes: u64,
        /// Maximum size of a binding, in bytes.
        bytes_max: u64,
        /// Name of the adapter.
        adapter: String,
    },
    /// The device lacks free memory for the model.
    #[error(
        "{adapter} has less than {needed_mib} MiB of memory free: choose a smaller preset, or use the CPU engine"
    )]
    Memory {
        /// Name of the adapter.
        adapter: String,
        /// Memory needed, in MiB.
        needed_mib: u64,
    },
    /// The device is gone: it was reset, unplugged, or taken by the system.
    #[error("the GPU was lost: {reason}")]
    Lost {
        /// Reason from the driver.
        reason: String,
    },
    /// The device rejected a command because of a mistake in this program or in the driver.
    #[error("the GPU refused a command: {reason}")]
    Refused {
        /// Error message of the device.
        reason: String,
    },
}
