//! The CPU engine: `gemm-f32` for the matrix products, fused passes for the rest, threads over windows.

mod adapters;
mod attention;
mod buffer;
mod by_tensor;
mod experts;
mod forward;
mod frozen;
mod gradient;
pub(in crate::engine) mod kernels;
mod linear;
mod matmul;
mod network;
mod peak;
mod pool;
mod routes;
mod trainer;
mod turns;
mod workspace;
mod writer;

#[cfg(test)]
mod tests;

use std::num::NonZeroUsize;

pub use forward::CpuModel;
pub use gradient::{CpuGradient, Sums};
pub(in crate::engine) use kernels::instruction_set;
pub use peak::matmul_flops_per_s;
pub use trainer::CpuTrainer;
pub use writer::Writer;

/// Most threads of an engine; more are not started.
const THREADS_MAX: NonZeroUsize = NonZeroUsize::new(256).expect("256 > 0");

fn describe(pool: &pool::Pool) -> String {
    let threads = pool.threads();
    let plural = if threads == 1 { "" } else { "s" };
    format!("cpu {} {threads} thread{plural}", instruction_set())
}
