//! SwiGLU: `y = g σ(g) u`, where a row holds gates and then ups: `[2 F]` → `[F]`.

use super::math::sigmoid;

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

    /// Puts the gradient of `gate_up` in its place, and y in the place of its gradient `dy`, `[rows, F]`.
    ///
    /// `dg = dy u σ (1 + g (1 − σ))`, `du = dy g σ`.
    pub fn swiglu_backward(gate_up: &mut [f32], dy: &mut [f32], ff: usize) {
        for (row, dy) in gate_up.chunks_exact_mut(2 * ff).zip(dy.chunks_exact_mut(ff)) {
            let (gate, up) = row.split_at_mut(ff);
            for ((dy, gate), up) in dy.iter_mut().zip(gate).zip(up) {
                let (d, g, u) = (*dy, *gate, *up);
                let s = sigmoid(g);
                let gated = g * s;
                *dy = gated * u;
                *gate = d * u * (s + gated * (1.0 - s));
                *up = d * gated;
            }
        }
    }
}
