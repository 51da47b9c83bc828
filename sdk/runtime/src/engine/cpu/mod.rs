//! The CPU engine: `gemm-f32` for matrix products, fused passes for the rest, and threads over windows.
//!
//! `CpuTrainer::fixed` and `CpuModel::fixed` give the same bits on every machine and in browsers, for simulations. They
//! use one thread and the portable product (`matmul/portable.rs`), which sums in the order of terms without fused
//! multiply-adds. All other passes have a fixed number of partial sums, and transcendental functions come from the
//! crate `libm`. Native tests and tests in browsers compare with the digests in `tests/golden/lesson.json`.

mod attention;
mod experts;
mod gradient;
pub(in crate::engine) mod kernels;
mod linear;
mod matmul;
mod muon;
mod network;
mod pool;
mod trainer;
mod workspace;
mod writer;

#[cfg(test)]
mod tests;

use std::num::NonZeroUsize;

pub use gradient::{CpuGradient, Sums};
pub(in crate::engine) use kernels::instruction_set;
pub use matmul::matmul_flops_per_s;
pub use network::CpuModel;
pub use trainer::CpuTrainer;
pub use writer::Writer;

/// Maximum number of threads of an engine.
const THREADS_MAX: NonZeroUsize = NonZeroUsize::new(256).expect("256 > 0");

fn describe(pool: &pool::ThreadPool) -> String {
    let threads = pool.threads();
    let plural = if threads == 1 { "" } else { "s" };
    format!("cpu {} {threads} thread{plural}", instruction_set())
}
