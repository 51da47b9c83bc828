//! The GPU engine: hand-written WGSL on wgpu, for Vulkan, Metal and the browser's WebGPU alike.
//!
//! Every shape is known when a run begins, so the list of dispatches of a step is built once. A step is then a write of
//! tokens, a submission of that list, and a read of a few numbers through `ring`, which blocks no step.
//!
//! - **Structure.** `arena` lays parameters out in chunks that can be bound, `network` writes the operations of a step
//!   as dispatches, `program` compiles and binds them, and `pace` cuts submissions so that none keeps the device longer
//!   than 100 ms.
//! - **Kernels** are `.wgsl` files with one row each in `kernels.rs`. Sizes that change code are `override`s, all
//!   others are in a uniform. Each kernel is compared with its scalar twin at awkward sizes (`parity`).
//! - **Matrix products** hold tiles in registers and workgroup memory, or use the matrix units of the device (natively
//!   only), which round factors to 16-bit floats; gradients are scaled by a power of two for that. When a learner
//!   starts, the files `proof.rs` compare these units with 32-bit kernels, and `matmul/trial.rs` measures which kind is
//!   fastest.
//! - **Order.** There are no atomics on floats, so the same steps give the same bits on the same device.
//! - **Exchange.** Fragments are coded, decoded and digested on the device. Θ̂ equals the host's to the bit.
//! - **Memory.** If the device is too small, `thrift` recomputes activations, keeps Θ̂ on the host, and last stores
//!   moments in 16 bits. `plan` predicts the memory of each choice, and tests compare that with what was allocated.
//! - **Device loss.** Moments are read back a piece after each step, all within 128 steps. After a loss the learner
//!   joins again, fetches Θ̂ and resumes with them.

mod arena;
mod attention;
mod blocking;
mod device;
mod error;
mod exchange;
mod frozen;
mod kernels;
mod matmul;
mod network;
mod params;
#[cfg(any(test, feature = "parity"))]
pub mod parity;
mod plan;
mod program;
mod ring;
mod step;
mod trainer;
mod tuning;
mod vectors;
mod workspace;

pub use blocking::{Clock, GpuTrainer, GpuTrainers};
pub use device::{AdapterFacts, Gpu, GpuOptions, adapters};
pub use error::GpuError;
pub use matmul::{Best, Choice, ChoiceError, Form, Matmul, Trial, Variant};
pub(in crate::engine) use plan::check_optimiser;
pub use plan::{MemoryPlan, Room};
pub use program::KernelTime;
pub use trainer::{GpuEngine, GpuSetup};
pub use tuning::{TunedKernels, Tuning, tune};
