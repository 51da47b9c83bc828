//! The GPU engine: hand-written WGSL on wgpu, for Vulkan, Metal and the browser's WebGPU alike.
//!
//! Every shape is known when a run begins, so the list of dispatches of a step is built once. A step writes its tokens,
//! submits that list, and reads a few numbers through `ring`, without waiting for them.
//!
//! - **Structure.** `arena` lays out parameters in chunks that can be bound. `network` describes the operations of a
//!   step as dispatches. `program` compiles, binds and submits them, in several submissions if a step is long.
//! - **Kernels** are `.wgsl` files with one row each in `kernels.rs`. Sizes that change code are `override`s, all
//!   others are in a uniform. `parity` compares each kernel with a scalar function on the CPU, at sizes that fit no
//!   tile.
//! - **Matrix products** hold tiles in registers and workgroup memory, or use the matrix units of the device (in native
//!   programs only). Matrix units round factors to 16-bit floats, so gradients are scaled by a power of two. When a
//!   learner starts, `matmul/trial.rs` and `attention` compare the results of matrix units with those of 32-bit
//!   kernels, and measure which kernels are fastest.
//! - **Order.** There are no atomics on floats, so the same steps give the same bits on the same device.
//! - **Exchange.** Fragments are coded, decoded and digested on the device. Θ̂ has the same bits as in host memory.
//! - **Memory.** If the device lacks memory, a `MemoryPlan` recomputes activations, keeps Θ̂ in host memory, and as a
//!   last resort stores moments in 16 bits. `plan` predicts the memory of each plan, and tests compare it with the
//!   allocated memory.
//! - **Device loss.** A part of the moments is read back after each step, all of them within 128 steps. After a loss
//!   the learner joins again, fetches Θ̂, and restores the moments that were read back.

mod arena;
mod attention;
mod blocking;
mod device;
mod error;
mod exchange;
mod frozen;
mod kernels;
mod matmul;
mod muon;
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
pub use plan::{MemoryPlan, Room};
pub use program::KernelTime;
pub use trainer::{GpuEngine, GpuSetup};
pub use tuning::{TunedKernels, Tuning, tune};
