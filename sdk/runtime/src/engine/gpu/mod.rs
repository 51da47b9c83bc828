//! The GPU engine: hand-written WGSL on wgpu, for Vulkan, Metal and the browser's WebGPU alike.
//!
//! Every shape is known when a run begins, so the list of dispatches of a step is built once; a step is then
//! a write of tokens, a submission of that list, and a read of a few numbers that nobody waits for.

mod arena;
mod attention;
mod batch;
mod blocking;
mod device;
mod error;
mod exchange;
mod frozen;
mod kernels;
mod matmul;
mod moments;
mod network;
mod pace;
mod params;
#[cfg(any(test, feature = "parity"))]
pub mod parity;
mod pipelines;
mod plan;
mod profile;
mod program;
mod ring;
mod step;
mod thrift;
mod trainer;
mod tuning;
mod vectors;
mod workspace;

pub use blocking::{Clock, GpuTrainer, GpuTrainers};
pub use device::{AdapterFacts, Gpu, GpuOptions, adapters};
pub use error::GpuError;
pub use matmul::{Best, Choice, ChoiceError, Form, Matmul, Trial, Variant};
pub use plan::Room;
pub use profile::KernelTime;
pub use thrift::Thrift;
pub use trainer::{GpuEngine, GpuSetup};
pub use tuning::{Tuned, Tuning, tune};
