//! The passes of the optimiser over the flat vector: AdamW, sums of gradients and of their squares.

use super::math::LANES;
use crate::model::{Adjust, adjust};

simd! {
    /// Takes one AdamW step, see [`adjust`].
    pub fn adamw(params: &mut [f32], grad: &[f32], m: &mut [f32], v: &mut [f32], numbers: &Adjust) {
        adjust(params, grad, m, v, numbers);
    }

    /// Computes `a += b`.
    pub fn add(a: &mut [f32], b: &[f32]) {
        for (a, b) in a.iter_mut().zip(b) {
            *a += b;
        }
    }

    /// Returns the sum of squares in `f64`.
    pub fn squares(x: &[f32]) -> f64 {
        let (chunks, rest) = x.as_chunks::<LANES>();
        let mut sums = [0.0_f64; LANES];
        for chunk in chunks {
            for i in 0..LANES {
                sums[i] += f64::from(chunk[i]) * f64::from(chunk[i]);
            }
        }
        for (sum, &x) in sums.iter_mut().zip(rest) {
            *sum += f64::from(x) * f64::from(x);
        }
        sums.iter().sum()
    }
}
