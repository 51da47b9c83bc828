//! Everything that can go wrong with a GPU, and what to do about it.

use crate::wire::Code;

/// Why there is no GPU to train on, or no longer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GpuError {
    /// Nothing that computes was found.
    #[error("no GPU was found: install its Vulkan driver, or use the CPU engine")]
    NoAdapter,
    /// None is called so.
    #[error("no GPU has {wanted:?} in its name; there are: {}", found.join(", "))]
    NotNamed {
        /// Part of a name that was asked for.
        wanted: String,
        /// The names of those that are there.
        found: Vec<String>,
    },
    /// Only a program that pretends to be a GPU is there.
    #[error("the only GPU is {adapter}, a program on the CPU: the CPU engine is faster")]
    SoftwareOnly {
        /// Its name.
        adapter: String,
    },
    /// The adapter cannot do what the kernels need.
    #[error("{adapter} allows {limit} = {found}, and {needed} are needed: use the CPU engine")]
    Limit {
        /// Its name.
        adapter: String,
        /// The limit, as WebGPU calls it.
        limit: &'static str,
        /// What it allows.
        found: u64,
        /// What is needed.
        needed: u64,
    },
    /// The adapter would not give a device.
    #[error("{adapter} gives no device: {reason}")]
    NoDevice {
        /// Its name.
        adapter: String,
        /// What it said.
        reason: String,
    },
    /// A size that the kernels cannot read in fours.
    #[error("{field} is {value}, and the GPU engine needs a multiple of 4: use the CPU engine")]
    Shape {
        /// Field of the model.
        field: &'static str,
        /// What it is.
        value: u32,
    },
    /// A code of the exchange that has no kernels.
    #[error("the run exchanges in {code:?}, and the GPU engine takes Int4, E3m0 or F32: use the CPU engine")]
    Code {
        /// The run's code.
        code: Code,
    },
    /// Heads that are too wide for a workgroup.
    #[error("a head is {width} wide, and the GPU engine takes at most {width_max}: use the CPU engine")]
    Head {
        /// D.
        width: u32,
        /// Widest.
        width_max: u32,
    },
    /// A matrix that is larger than one binding.
    #[error("{tensor} takes {bytes} bytes, and {adapter} binds at most {bytes_max}: use the CPU engine")]
    TensorTooLarge {
        /// Its name.
        tensor: String,
        /// Its size.
        bytes: u64,
        /// Largest binding.
        bytes_max: u64,
        /// The adapter's name.
        adapter: String,
    },
    /// The model does not fit.
    #[error(
        "{adapter} has no {needed_mib} MiB of memory free: choose a smaller preset, or use the CPU engine"
    )]
    Memory {
        /// The adapter's name.
        adapter: String,
        /// Memory needed, in MiB.
        needed_mib: u64,
    },
    /// The device went away: reset, unplugged, or taken by the system.
    #[error("the GPU was lost: {reason}")]
    Lost {
        /// What the driver said.
        reason: String,
    },
    /// A command was refused: a mistake of ours or of the driver.
    #[error("the GPU refused a command: {reason}")]
    Refused {
        /// What it said.
        reason: String,
    },
}
