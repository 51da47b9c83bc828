//! The passes of attention over a block of scores. Rows are queries, columns the keys that they may see.
//!
//! The score of key s is `scale · q · k`; the block holds `q · k`. Row i belongs to query `first + i` of its window and
//! sees keys `0..=first + i`. Further keys, up to `keys`, are set to 0.

use super::math::{exp_and_sum, max, sum_with};

simd! {
    /// Replaces products by `exp(score − max)`; writes `1 / Σ` and `ln Σ + max` of each row.
    pub fn softmax(
        block: &mut [f32],
        stride: usize,
        first: usize,
        keys: usize,
        scale: f32,
        inverse: &mut [f32],
        lse: &mut [f32],
    ) {
        let rows = block.chunks_mut(stride).zip(inverse).zip(lse);
        for (i, ((row, inverse), lse)) in rows.enumerate() {
            let (seen, hidden) = row[..keys].split_at_mut(first + i + 1);
            let top = max(seen) * scale;
            let sum = exp_and_sum(seen, scale, top);
            hidden.fill(0.0);
            *inverse = 1.0 / sum;
            *lse = libm::logf(sum) + top;
        }
    }

    /// Replaces products by the probabilities that [`softmax`] found, `exp(score − lse)`.
    pub fn probabilities(
        block: &mut [f32], stride: usize, first: usize, keys: usize, scale: f32, lse: &[f32],
    ) {
        for (i, (row, &lse)) in block.chunks_mut(stride).zip(lse).enumerate() {
            let (seen, hidden) = row[..keys].split_at_mut(first + i + 1);
            exp_and_sum(seen, scale, lse);
            hidden.fill(0.0);
        }
    }

    /// Replaces gradients of probabilities by gradients of products: `dp ← scale · p (dp − dot)`.
    pub fn score_gradient(
        dp: &mut [f32], p: &[f32], stride: usize, keys: usize, scale: f32, dots: &[f32],
    ) {
        for ((dp, p), dot) in dp.chunks_mut(stride).zip(p.chunks(stride)).zip(dots) {
            for (dp, p) in dp[..keys].iter_mut().zip(p) {
                *dp = scale * p * (*dp - dot);
            }
        }
    }

    /// Multiplies the first `width` values of each row by the row's factor.
    pub fn scale_rows(x: &mut [f32], stride: usize, width: usize, factors: &[f32]) {
        for (row, factor) in x.chunks_mut(stride).zip(factors) {
            for value in &mut row[..width] {
                *value *= factor;
            }
        }
    }

    /// Computes the dot products of the first `width` values of each row of a and b.
    pub fn dots(a: &[f32], b: &[f32], stride: usize, width: usize, dots: &mut [f32]) {
        for ((a, b), dot) in a.chunks(stride).zip(b.chunks(stride)).zip(dots) {
            *dot = sum_with(&a[..width], &b[..width], |a, b| a * b);
        }
    }
}
