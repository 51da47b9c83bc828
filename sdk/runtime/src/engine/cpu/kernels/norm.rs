//! RMSNorm: `y = x s ∘ w` with `s = 1 / √(mean(x²) + eps)`, row by row; rows are `[C]`.

use super::math::sum_with;

simd! {
    /// Writes y, `[rows, C]`, and s, `[rows]`.
    pub fn norm(x: &[f32], weight: &[f32], eps: f32, y: &mut [f32], scales: &mut [f32]) {
        let width = weight.len();
        for ((x, y), scale) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)).zip(scales) {
            *scale = normed(x, weight, eps, y);
        }
    }

    /// Writes `x = a + b`, `[rows, C]`, then y and s as [`norm`] does.
    pub fn add_norm(
        a: &[f32], b: &[f32], weight: &[f32], eps: f32, x: &mut [f32], y: &mut [f32], scales: &mut [f32],
    ) {
        let width = weight.len();
        let rows = a.chunks_exact(width).zip(b.chunks_exact(width));
        let outs = x.chunks_exact_mut(width).zip(y.chunks_exact_mut(width)).zip(scales);
        for ((a, b), ((x, y), scale)) in rows.zip(outs) {
            for ((x, a), b) in x.iter_mut().zip(a).zip(b) {
                *x = a + b;
            }
            *scale = normed(x, weight, eps, y);
        }
    }

    /// Recomputes y from x and the scales that [`norm`] found.
    pub fn norm_again(x: &[f32], weight: &[f32], scales: &[f32], y: &mut [f32]) {
        let width = weight.len();
        for ((x, y), &scale) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)).zip(scales) {
            scaled(x, weight, scale, y);
        }
    }

    /// Adds the gradient of x to dx, `[rows, C]`, and the gradient of the weight to dw, `[C]`.
    ///
    /// With `g = dy ∘ w`: `dx += s g − s³ mean(g ∘ x) x`, `dw += Σ_rows s dy ∘ x`.
    pub fn norm_backward(
        dy: &[f32], x: &[f32], weight: &[f32], scales: &[f32], dx: &mut [f32], dw: &mut [f32],
    ) {
        let width = weight.len();
        let ins = dy.chunks_exact(width).zip(x.chunks_exact(width)).zip(scales);
        for (((dy, x), &s), dx) in ins.zip(dx.chunks_exact_mut(width)) {
            for ((dw, dy), x) in dw.iter_mut().zip(dy).zip(x) {
                *dw += s * dy * x;
            }
            let mean = weighted(dy, x, weight) / width as f32;
            let along = s * s * s * mean;
            for (((dx, dy), x), w) in dx.iter_mut().zip(dy).zip(x).zip(weight) {
                *dx += s * dy * w - along * x;
            }
        }
    }
}

/// Returns `Σ dy w x`.
#[inline(always)]
fn weighted(dy: &[f32], x: &[f32], weight: &[f32]) -> f32 {
    use super::math::{LANES, fold};
    let ((dy, dy_rest), (x, x_rest)) = (dy.as_chunks::<LANES>(), x.as_chunks::<LANES>());
    let (weight, weight_rest) = weight.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for ((dy, x), w) in dy.iter().zip(x).zip(weight) {
        for i in 0..LANES {
            sums[i] += dy[i] * w[i] * x[i];
        }
    }
    for (((sum, dy), x), w) in sums.iter_mut().zip(dy_rest).zip(x_rest).zip(weight_rest) {
        *sum += dy * w * x;
    }
    fold(sums, |a, b| a + b)
}

#[inline(always)]
fn normed(x: &[f32], weight: &[f32], eps: f32, y: &mut [f32]) -> f32 {
    let mean = sum_with(x, x, |a, b| a * b) / x.len() as f32;
    let scale = 1.0 / (mean + eps).sqrt();
    scaled(x, weight, scale, y);
    scale
}

#[inline(always)]
fn scaled(x: &[f32], weight: &[f32], scale: f32, y: &mut [f32]) {
    for ((y, x), w) in y.iter_mut().zip(x).zip(weight) {
        *y = x * scale * w;
    }
}
