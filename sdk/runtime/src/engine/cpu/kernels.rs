//! All passes that are not matrix products, each compiled for several instruction sets. The best set that the processor
//! supports is chosen at run time.
//!
//! Kernels use no fused multiply-add, and sums have a fixed number of partial sums, so that each kernel gives the same
//! bits on every instruction set.
//!
//! | pass | formula |
//! |---|---|
//! | RMSNorm | `y = x s ∘ w` with `s = 1 / √(mean(x²) + eps)`, row by row; rows are `[C]` |
//! | rotary positions | pairs of values of each head are rotated by an angle that grows with the position |
//! | SwiGLU | `y = g σ(g) u`, where a row holds gates, then ups: `[2 F]` → `[F]` |
//! | routing | softmax over E logits, choice of the A likeliest, and the gradient of both |
//! | Muon | momentum, scaling and step of a matrix, around the products in `muon.rs` |
//! | attention | softmax over a block of scores: rows are queries, columns the keys that they may see |
//!
//! In attention, the score of key s is `scale · q · k`; the block holds `q · k`. Row i belongs to query `first + i` of
//! its window and sees keys `0..=first + i`. Further keys, up to `keys`, are set to 0.

use std::ops::Range;

use crate::model::{Adjust, MuonAdjust, adjust, rotary_tables};
use crate::platform::lanes;
use crate::token;

/// Compiles functions for AVX-512, AVX2 and the baseline, and dispatches between them.
macro_rules! simd {
    ($($(#[$meta:meta])* $vis:vis fn $name:ident $args:tt $(-> $out:ty)? $body:block)*) => {
        $(
            $(#[$meta])*
            #[multiversion::multiversion(targets("x86_64+avx2+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
            $vis fn $name $args $(-> $out)? $body
        )*
    };
}

/// Returns the name of the instruction set, for people.
pub fn instruction_set() -> &'static str {
    lanes::NAME.unwrap_or_else(chosen)
}

#[multiversion::multiversion(targets("x86_64+avx2+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn chosen() -> &'static str {
    multiversion::target::match_target! {
        "x86_64+avx512f" => "avx512",
        "x86_64+avx2" => "avx2",
        _ => "baseline",
    }
}

/// Number of partial sums of a sum over a row: one AVX-512 vector.
const LANES: usize = 16;

/// Returns `eˣ` within 2.5e-7 of its value; 1e-38 below −87, `e⁸⁸` above 88; NaN stays NaN.
#[inline(always)]
fn exp(x: f32) -> f32 {
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    // ln 2 in two parts; the first has few enough bits that n times it is exact.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    // 1.5 · 2²³: adding it rounds to an integer, which is then in the low bits.
    const ROUND: f32 = 12_582_912.0;

    let x = if x < -87.0 { -87.0 } else { x };
    let x = if x > 88.0 { 88.0 } else { x };
    let shifted = x * LOG2_E + ROUND;
    let n = shifted - ROUND;
    // x = n ln 2 + r with |r| ≤ ln 2 / 2; eʳ by its Taylor series, whose next term is below 1.3e-7.
    let r = x - n * LN_2_HIGH - n * LN_2_LOW;
    let tail = 1.0 / 6.0 + r * (1.0 / 24.0 + r * (1.0 / 120.0 + r * (1.0 / 720.0)));
    let power = 1.0 + (r + r * r * (0.5 + r * tail));
    power * f32::from_bits(shifted.to_bits().wrapping_add(127) << 23)
}

/// Returns `1 / (1 + e⁻ˣ)`.
#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// Returns the sum of `f(aᵢ, bᵢ)` over slices of equal length.
#[inline(always)]
fn sum_with(a: &[f32], b: &[f32], f: impl Fn(f32, f32) -> f32) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut sums = [0.0; LANES];
    for (a, b) in a.iter().zip(b) {
        for i in 0..LANES {
            sums[i] += f(a[i], b[i]);
        }
    }
    for ((sum, &a), &b) in sums.iter_mut().zip(a_rest).zip(b_rest) {
        *sum += f(a, b);
    }
    fold(sums, |a, b| a + b)
}

/// Joins the partial results in a fixed order.
#[inline(always)]
fn fold(mut lanes: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] = f(lanes[i], lanes[i + width]);
        }
        width /= 2;
    }
    lanes[0]
}

/// Returns the largest value of `row`, or −∞ if `row` is empty. Skips NaN.
#[inline(always)]
fn max(row: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let (chunks, rest) = row.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for chunk in chunks {
        for i in 0..LANES {
            lanes[i] = larger(lanes[i], chunk[i]);
        }
    }
    rest.iter().fold(fold(lanes, larger), |a, &b| larger(a, b))
}

/// Replaces each value x by `exp(scale · x − offset)` and returns the sum.
#[inline(always)]
fn exp_and_sum(row: &mut [f32], scale: f32, offset: f32) -> f32 {
    let (chunks, rest) = row.as_chunks_mut::<LANES>();
    let mut sums = [0.0; LANES];
    for chunk in chunks {
        for i in 0..LANES {
            chunk[i] = exp(chunk[i] * scale - offset);
            sums[i] += chunk[i];
        }
    }
    for (value, sum) in rest.iter_mut().zip(&mut sums) {
        *value = exp(*value * scale - offset);
        *sum += *value;
    }
    fold(sums, |a, b| a + b)
}

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
    use super::kernels::{LANES, fold};
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

/// Cosines and sines of the rotary positions, `[T, D / 2]` each.
pub struct Rotary {
    cos: Vec<f32>,
    sin: Vec<f32>,
    half: usize,
}

/// Direction of the rotation: values forwards, gradients backwards.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// By the angle.
    Forward,
    /// By minus the angle.
    Backward,
}

impl Rotary {
    /// Computes the angles `t / theta^(2i/D)` for positions below `context` and heads of width `head`.
    pub fn new(context: usize, head: usize, theta: f32) -> Self {
        let (cos, sin) = rotary_tables(context, head, theta);
        Self { cos, sin, half: head / 2 }
    }

    /// Returns the bytes of the tables.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.cos) + size_of_val(&*self.sin)
    }

    /// Rotates the first `width` values, whole heads, of each row of `x`, `[n · at.len(), stride]`: `n` windows at the
    /// positions `at`.
    pub fn turn(&self, x: &mut [f32], stride: usize, width: usize, at: Range<usize>, direction: Direction) {
        let rows = at.start * self.half..at.end * self.half;
        let tables = (&self.cos[rows.clone()], &self.sin[rows]);
        for window in x.chunks_exact_mut(at.len() * stride) {
            match direction {
                Direction::Forward => turn(window, stride, width, tables.0, tables.1, self.half, 1.0),
                Direction::Backward => turn(window, stride, width, tables.0, tables.1, self.half, -1.0),
            }
        }
    }
}

simd! {
    /// Computes `(a, b) ← (a cos − b sin, b cos + a sin)` for values i and i + D/2 of a head.
    fn turn(
        x: &mut [f32], stride: usize, width: usize, cos: &[f32], sin: &[f32], half: usize, sign: f32,
    ) {
        let tables = cos.chunks_exact(half).zip(sin.chunks_exact(half));
        for (row, (cos, sin)) in x.chunks_exact_mut(stride).zip(tables) {
            for head in row[..width].chunks_exact_mut(2 * half) {
                let (a, b) = head.split_at_mut(half);
                for (((a, b), cos), sin) in a.iter_mut().zip(b).zip(cos).zip(sin) {
                    let (from_a, from_b, sin) = (*a, *b, sin * sign);
                    *a = from_a * cos - from_b * sin;
                    *b = from_b * cos + from_a * sin;
                }
            }
        }
    }
}

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

/// Load-balancing loss of the windows of a microbatch.
pub struct Balance<'a> {
    /// Tokens in a window.
    pub len: usize,
    /// Weight of each window in the loss of one layer, `[windows]`.
    pub counts: &'a [f32],
}

/// Replaces logits, `[R, E]`, by their softmax.
pub fn route(logits: &mut [f32], experts: usize) {
    for row in logits.chunks_exact_mut(experts) {
        let top = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let inverse = 1.0 / exp_and_sum(row, 1.0, top);
        row.iter_mut().for_each(|p| *p *= inverse);
    }
}

/// Passes each of the `active` likeliest experts of a row of probabilities to `take`, with its share of their sum. The
/// likeliest comes first; of two equal ones, the lower index.
pub fn likeliest(probs: &[f32], active: usize, mut take: impl FnMut(usize, usize, f32)) {
    let mut chosen = [0; crate::model::EXPERTS_MAX as usize];
    let chosen = &mut chosen[..probs.len()];
    chosen.iter_mut().zip(0..).for_each(|(chosen, expert)| *chosen = expert);
    // Both numbers are small: select the best for each slot.
    for slot in 0..active {
        let mut best = slot;
        for at in slot + 1..probs.len() {
            let (p, top) = (probs[chosen[at]], probs[chosen[best]]);
            if p > top || (p == top && chosen[at] < chosen[best]) {
                best = at;
            }
        }
        chosen.swap(slot, best);
    }
    let total: f32 = chosen[..active].iter().map(|&expert| probs[expert]).sum();
    for (slot, &expert) in chosen[..active].iter().enumerate() {
        take(slot, expert, probs[expert] / total);
    }
}

/// Replaces probabilities, `[R, E]`, by the gradient of the load-balancing loss with respect to the logits. With `s_e =
/// E n_e / T²`, where n of T tokens in a window went through e, `dz_e = count · p_e (s_e − Σ p s)`. `seen` holds the n
/// of each window, `[windows, E]`.
pub fn balance_back(probs: &mut [f32], experts: usize, seen: &[u32], balance: &Balance<'_>) {
    let tokens = balance.len as f32;
    let windows = probs.chunks_mut(balance.len * experts).zip(seen.chunks_exact(experts));
    for ((rows, seen), &count) in windows.zip(balance.counts) {
        for row in rows.chunks_exact_mut(experts) {
            let slope = |seen: u32| experts as f32 * (seen as f32 / tokens) / tokens;
            let mean: f32 = row.iter().zip(seen).map(|(p, &seen)| p * slope(seen)).sum();
            for (p, &seen) in row.iter_mut().zip(seen) {
                *p = count * *p * (slope(seen) - mean);
            }
        }
    }
}

/// Adds to `dlogits` of one row, `[E]`, the gradient through the weights of the chosen experts: `w (dw − Σ w dw)`. Each
/// item of `chosen` is an expert's index, its weight and the gradient of the weight.
pub fn weights_back(dlogits: &mut [f32], chosen: impl Iterator<Item = (usize, f32, f32)> + Clone) {
    let mean: f32 = chosen.clone().map(|(_, weight, dweight)| weight * dweight).sum();
    for (expert, weight, dweight) in chosen {
        dlogits[expert] += weight * (dweight - mean);
    }
}

simd! {
    /// Computes the cross-entropy of logits `[rows, V]` against `targets`, `[rows]`; returns the sum in nats.
    ///
    /// Replaces the logits by their gradient, `share · (softmax − onehot(target))`. Rows whose target is given and not
    /// learnt get gradient 0 and add nothing to the loss.
    pub fn cross_entropy(logits: &mut [f32], targets: &[u32], vocab: usize, share: f32) -> f64 {
        let mut loss = 0.0;
        for (row, &target) in logits.chunks_exact_mut(vocab).zip(targets) {
            if !token::is_target(target) {
                row.fill(0.0);
                continue;
            }
            let target = target as usize;
            let at_target = row[target];
            let top = max(row);
            let sum = exp_and_sum(row, 1.0, top);
            // A NaN among the logits appears in the sum, an infinity in the difference.
            loss += libm::log(f64::from(sum)) + f64::from(top) - f64::from(at_target);
            let factor = share / sum;
            for value in row.iter_mut() {
                *value *= factor;
            }
            row[target] -= share;
        }
        loss
    }
}

simd! {
    /// Takes one AdamW step, see [`adjust`].
    pub fn adamw(params: &mut [f32], grad: &[f32], m: &mut [f32], v: &mut [f32], numbers: &Adjust) {
        adjust(params, grad, m, v, numbers);
    }

    /// Adds `grad` to the momentum of Muon and writes the update before its polar factor: `m ← µ m + g`, `out = g + µ
    /// m`. Returns the sum of the squares of `out`, in `f64`.
    pub fn nesterov(out: &mut [f32], grad: &[f32], m: &mut [f32], a: &MuonAdjust) -> f64 {
        for ((out, &g), m) in out.iter_mut().zip(grad).zip(m) {
            let g = g * a.scale;
            *m = a.momentum * *m + g;
            *out = g + a.momentum * *m;
        }
        squares(out)
    }

    /// Computes `x ← factor · x`.
    pub fn scale(x: &mut [f32], factor: f32) {
        for x in x {
            *x *= factor;
        }
    }

    /// Computes `squared ← b · x + c · squared`.
    pub fn polynomial(squared: &mut [f32], x: &[f32], b: f32, c: f32) {
        for (squared, &x) in squared.iter_mut().zip(x) {
            *squared = b * x + c * *squared;
        }
    }

    /// Computes `params ← keep · params − rate · along`.
    pub fn step_along(params: &mut [f32], along: &[f32], keep: f32, rate: f32) {
        for (p, &along) in params.iter_mut().zip(along) {
            *p = keep * *p - rate * along;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close() {
        let mut worst = 0.0_f64;
        for i in -87_000..88_000 {
            let x = i as f32 / 1000.0;
            let exact = f64::from(x).exp();
            worst = worst.max((f64::from(exp(x)) - exact).abs() / exact);
        }
        assert!(worst < 2.5e-7, "{worst:e}");
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NAN).is_nan());
        assert!(exp(f32::NEG_INFINITY) < 1.7e-38);
        assert!(exp(f32::INFINITY).is_finite());
    }

    #[test]
    fn sums_and_maxima_see_every_value() {
        for len in [1, 15, 16, 17, 50] {
            let row: Vec<f32> = (0..len).map(|i| i as f32 - 3.0).collect();
            assert_eq!(sum_with(&row, &row, |a, _| a), row.iter().sum::<f32>());
            for i in 0..len {
                let mut row = vec![-5.0; len];
                row[i] = -1.0;
                assert_eq!(max(&row), -1.0);
            }
        }
    }
}
