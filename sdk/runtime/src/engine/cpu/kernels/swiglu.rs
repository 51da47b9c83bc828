//! SwiGLU: `y = g σ(g) u`, where a row holds gates, then ups: `[2 F]` → `[F]`.

use super::math::{LANES, sigmoid};

simd! {
    /// Writes y, `[rows, F]`, from `gate_up`, `[rows, 2 F]`.
    pub fn swiglu(gate_up: &[f32], y: &mut [f32], ff: usize) {
        for (row, y) in gate_up.chunks_exact(2 * ff).zip(y.chunks_exact_mut(ff)) {
            let (gate, up) = row.split_at(ff);
            for ((y, &g), &u) in y.iter_mut().zip(gate).zip(up) {
                *y = g * sigmoid(g) * u;
            }
        }
    }

    /// Replaces `gate_up` by its gradient, and the gradient `dy`, `[rows, F]`, by y.
    pub fn swiglu_backward(gate_up: &mut [f32], dy: &mut [f32], ff: usize) {
        for (row, dy) in gate_up.chunks_exact_mut(2 * ff).zip(dy.chunks_exact_mut(ff)) {
            let (gate, up) = row.split_at_mut(ff);
            let (mut gate, mut up, mut dy) = (gate, up, dy);
            while let (Some(d), Some(g), Some(u)) =
                (dy.split_off_mut(..LANES), gate.split_off_mut(..LANES), up.split_off_mut(..LANES))
            {
                // Through copies: in place, the compiler must assume that the slices overlap.
                let [d, g, u] = [d, g, u].map(|lanes| <&mut [f32; LANES]>::try_from(lanes).expect("LANES long"));
                (*d, *g, *u) = lanes_backward(*d, *g, *u);
            }
            if !dy.is_empty() {
                let padded = |part: &[f32]| std::array::from_fn(|i| part.get(i).copied().unwrap_or(0.0));
                let (d, g, u) = lanes_backward(padded(dy), padded(gate), padded(up));
                let n = dy.len();
                dy.copy_from_slice(&d[..n]);
                gate.copy_from_slice(&g[..n]);
                up.copy_from_slice(&u[..n]);
            }
        }
    }
}

type Lanes = [f32; LANES];

/// Maps dy, g, u to y, dg, du.
#[inline(always)]
fn lanes_backward(mut d: Lanes, mut g: Lanes, mut u: Lanes) -> (Lanes, Lanes, Lanes) {
    for i in 0..LANES {
        let s = sigmoid(g[i]);
        let gated = g[i] * s;
        let (dy, up) = (d[i], u[i]);
        d[i] = gated * up;
        g[i] = dy * up * (s + gated * (1.0 - s));
        u[i] = dy * gated;
    }
    (d, g, u)
}
