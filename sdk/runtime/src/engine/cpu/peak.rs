//! Peak rate of matrix products on this machine, the yardstick for a whole training step.

use std::num::NonZeroUsize;

use super::THREADS_MAX;
use super::buffer::Buffer;
use super::matmul::{Mat, MatMut, Products, Store};
use super::pool::Pool;
use crate::engine::EngineError;

/// Rows and columns of the matrices. Three of them fit a core's L2 cache.
const SIDE: usize = 256;
/// Products per round on each thread, and number of rounds.
const PRODUCTS: usize = 16;
const ROUNDS: usize = 20;

/// Returns the floating-point operations per second of square matrix products, `[256, 256]`, on `threads` threads at
/// once: the best of several rounds. This is the rate that the engine would reach if a step consisted of nothing else.
/// `now_us` returns microseconds since an arbitrary time.
///
/// # Errors
/// - [`EngineError::Thread`]: the system provides no more threads.
pub fn matmul_flops_per_s(threads: NonZeroUsize, now_us: &dyn Fn() -> u64) -> Result<f64, EngineError> {
    let mut pool = Pool::new(threads.min(THREADS_MAX))?;
    let matrix = || Buffer::zeros(SIDE * SIDE);
    let mut jobs: Vec<_> = (0..pool.threads()).map(|_| [matrix(), matrix(), matrix()]).collect();
    let mut best_us = u64::MAX;
    for _ in 0..ROUNDS {
        let start_us = now_us();
        pool.each(&mut jobs, |[a, b, c]| {
            for _ in 0..PRODUCTS {
                let (a, b) = (Mat::new(a, SIDE, SIDE), Mat::new(b, SIDE, SIDE));
                Products::FASTEST.multiply(MatMut::new(c, SIDE, SIDE), Store::Set, 1.0, a, b);
            }
        });
        best_us = best_us.min((now_us() - start_us).max(1));
    }
    Ok(2e6 * (SIDE as f64).powi(3) * (PRODUCTS * jobs.len()) as f64 / best_us as f64)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn counts_every_thread_and_takes_the_best_round() {
        // Each reading of the clock advances by half a second more: the first round takes one second.
        let (now_us, step_us) = (Cell::new(0), Cell::new(0));
        let clock = || {
            step_us.set(step_us.get() + 500_000);
            now_us.set(now_us.get() + step_us.get());
            now_us.get()
        };
        let flops_per_s = matmul_flops_per_s(NonZeroUsize::new(3).unwrap(), &clock).unwrap();
        assert_eq!(flops_per_s, 3.0 * 16.0 * 2.0 * 256_f64.powi(3));
    }
}
