//! Each operation forwards, then backwards, in plain loops over `f64` without any optimisation for speed.
//!
//! Backward functions add to the gradients of weights, and return those of inputs.

use crate::token;

/// Looks up `x[t] = table[tokens[t]]`; table `[V, width]`, x `[T, width]`.
pub fn embed(table: &[f64], tokens: &[u32], width: usize) -> Vec<f64> {
    tokens.iter().flat_map(|&token| &table[token as usize * width..][..width]).copied().collect()
}

/// Adds to dtable.
pub fn embed_backward(dx: &[f64], tokens: &[u32], dtable: &mut [f64], width: usize) {
    for (&token, dx) in tokens.iter().zip(dx.chunks(width)) {
        for (sum, dx) in dtable[token as usize * width..].iter_mut().zip(dx) {
            *sum += dx;
        }
    }
}

/// Computes `y[r, o] = Σ_i x[r, i] · w[o, i]`; x `[rows, ins]`, w `[outs, ins]`, y `[rows, outs]`.
pub fn linear(x: &[f64], w: &[f64], ins: usize) -> Vec<f64> {
    x.chunks(ins).flat_map(|row| w.chunks(ins).map(|w| dot(row, w))).collect()
}

/// Adds `dyᵀ x` to dw, and returns `dx = dy w`, `[rows, ins]`.
pub fn linear_backward(dy: &[f64], x: &[f64], w: &[f64], dw: &mut [f64], ins: usize) -> Vec<f64> {
    let outs = w.len() / ins;
    let mut dx = vec![0.0; x.len()];
    for ((dx, x), dy) in dx.chunks_mut(ins).zip(x.chunks(ins)).zip(dy.chunks(outs)) {
        for ((&dy, w), dw) in dy.iter().zip(w.chunks(ins)).zip(dw.chunks_mut(ins)) {
            for i in 0..ins {
                dx[i] += dy * w[i];
                dw[i] += dy * x[i];
            }
        }
    }
    dx
}

/// Computes RMSNorm, `y = x / √(mean(x²) + eps) · w`; x and y `[rows, C]`, w `[C]`.
pub fn norm(x: &[f64], w: &[f64], eps: f64) -> Vec<f64> {
    let normed = |row| {
        let scale = inverse_rms(row, eps);
        row.iter().zip(w).map(move |(x, w)| x * scale * w)
    };
    x.chunks(w.len()).flat_map(normed).collect()
}

/// Adds to dw, and returns dx, `[rows, C]`.
///
/// With `s = 1 / rms` and `g = dy ∘ w`: `dx = s g − s³ x · mean(g ∘ x)`, `dw = Σ_rows dy ∘ x s`.
pub fn norm_backward(dy: &[f64], x: &[f64], w: &[f64], dw: &mut [f64], eps: f64) -> Vec<f64> {
    let width = w.len();
    let mut dx = Vec::with_capacity(x.len());
    for (dy, x) in dy.chunks(width).zip(x.chunks(width)) {
        let s = inverse_rms(x, eps);
        let mean = (0..width).map(|i| dy[i] * w[i] * x[i]).sum::<f64>() / width as f64;
        for i in 0..width {
            dw[i] += dy[i] * x[i] * s;
            dx.push(s * dy[i] * w[i] - s * s * s * x[i] * mean);
        }
    }
    dx
}

fn inverse_rms(row: &[f64], eps: f64) -> f64 {
    1.0 / (dot(row, row) / row.len() as f64 + eps).sqrt()
}

/// Rotates x `[T, heads · D]` in place by the angle `t / theta^(2i/D)`, with values i and i + D/2 of a head as one pair
/// (the order of Hugging Face). `direction` is 1 forwards; the backward pass is the same with −1.
pub fn rotate(x: &mut [f64], width: usize, head: usize, theta: f64, direction: f64) {
    for (t, row) in x.chunks_mut(width).enumerate() {
        for pair in row.chunks_mut(head) {
            for i in 0..head / 2 {
                let angle = direction * t as f64 / theta.powf(2.0 * i as f64 / head as f64);
                let (sin, cos) = angle.sin_cos();
                let (a, b) = (pair[i], pair[i + head / 2]);
                pair[i] = a * cos - b * sin;
                pair[i + head / 2] = b * cos + a * sin;
            }
        }
    }
}

/// Sizes of an attention: q `[T, H · D]`, k and v `[T, K · D]`.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    /// H.
    pub heads: usize,
    /// K.
    pub kv_heads: usize,
    /// D.
    pub head: usize,
}

impl Heads {
    /// Returns the first columns of query head `h` and of the key head that it uses.
    fn columns(self, h: usize) -> (usize, usize) {
        (h * self.head, h / (self.heads / self.kv_heads) * self.head)
    }

    /// Computes `softmax_s(q_t · k_s / √D)` over `s ≤ t`, for query head `h`.
    fn weights(self, q: &[f64], k: &[f64], h: usize, t: usize) -> Vec<f64> {
        let (at, kv) = self.columns(h);
        let q = &q[t * self.heads * self.head + at..][..self.head];
        let stride = self.kv_heads * self.head;
        let scale = 1.0 / (self.head as f64).sqrt();
        softmax((0..=t).map(|s| dot(q, &k[s * stride + kv..][..self.head]) * scale).collect())
    }
}

/// Computes causal attention, `y_t = Σ_{s ≤ t} softmax_s(q_t · k_s / √D) v_s`, for each head; y `[T, H · D]`.
pub fn attention(q: &[f64], k: &[f64], v: &[f64], heads: Heads) -> Vec<f64> {
    let (width, stride) = (heads.heads * heads.head, heads.kv_heads * heads.head);
    let mut y = vec![0.0; q.len()];
    for (t, y) in y.chunks_mut(width).enumerate() {
        for h in 0..heads.heads {
            let (at, kv) = heads.columns(h);
            for (s, p) in heads.weights(q, k, h, t).into_iter().enumerate() {
                for i in 0..heads.head {
                    y[at + i] += p * v[s * stride + kv + i];
                }
            }
        }
    }
    y
}

/// Returns dq, dk and dv, shaped as q, k and v.
///
/// With weights p: `dp_s = dy · v_s`, `ds = p ∘ (dp − Σ p dp)`, then through the scaled dot product.
pub fn attention_backward(
    dy: &[f64],
    q: &[f64],
    k: &[f64],
    v: &[f64],
    heads: Heads,
) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let (width, stride) = (heads.heads * heads.head, heads.kv_heads * heads.head);
    let scale = 1.0 / (heads.head as f64).sqrt();
    let (mut dq, mut dk, mut dv) = (vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()]);
    for t in 0..q.len() / width {
        for h in 0..heads.heads {
            let (at, kv) = heads.columns(h);
            let row = t * width + at;
            let dy = &dy[row..][..heads.head];
            let p = heads.weights(q, k, h, t);
            let dp: Vec<f64> = (0..=t).map(|s| dot(dy, &v[s * stride + kv..][..heads.head])).collect();
            let mean = dot(&p, &dp);
            for s in 0..=t {
                let column = s * stride + kv;
                let ds = p[s] * (dp[s] - mean) * scale;
                for i in 0..heads.head {
                    dq[row + i] += ds * k[column + i];
                    dk[column + i] += ds * q[row + i];
                    dv[column + i] += p[s] * dy[i];
                }
            }
        }
    }
    (dq, dk, dv)
}

/// Computes `y = gate · σ(gate) · up`, value by value.
pub fn swiglu(gate: &[f64], up: &[f64]) -> Vec<f64> {
    gate.iter().zip(up).map(|(g, u)| g * sigmoid(*g) * u).collect()
}

/// Returns dgate and dup.
pub fn swiglu_backward(dy: &[f64], gate: &[f64], up: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let each = dy.iter().zip(gate).zip(up).map(|((dy, g), u)| {
        let s = sigmoid(*g);
        (dy * u * s * (1.0 + g * (1.0 - s)), dy * g * s)
    });
    each.unzip()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Routes tokens to experts: returns the softmax of logits `[T, E]` and the weight of each expert for each token, both
/// `[T, E]`. The `active` most likely experts (the first one in a tie) have weights in proportion to their
/// probabilities, which sum to 1. All others have weight 0.
pub fn route(logits: &[f64], experts: usize, active: usize) -> (Vec<f64>, Vec<f64>) {
    let (mut probs, mut weights) = (Vec::with_capacity(logits.len()), vec![0.0; logits.len()]);
    for (logits, weights) in logits.chunks(experts).zip(weights.chunks_mut(experts)) {
        let p = softmax(logits.to_vec());
        let mut order: Vec<usize> = (0..experts).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        let total: f64 = order[..active].iter().map(|&expert| p[expert]).sum();
        order[..active].iter().for_each(|&expert| weights[expert] = p[expert] / total);
        probs.extend(p);
    }
    (probs, weights)
}

/// Returns the number of the T tokens routed to each expert, `[E]`, from their weights `[T, E]`.
pub fn seen(weights: &[f64], experts: usize) -> Vec<u64> {
    let of =
        |expert: usize| weights.iter().skip(expert).step_by(experts).filter(|&&weight| weight > 0.0).count();
    (0..experts).map(|expert| of(expert) as u64).collect()
}

/// Returns the derivative of a window's load-balancing loss in each probability of an expert, the same for all its
/// tokens: `E n_e / T²`, `[E]`, where n of the T tokens pass through it.
pub fn balance_slopes(weights: &[f64], experts: usize) -> Vec<f64> {
    let tokens = (weights.len() / experts) as f64;
    seen(weights, experts).into_iter().map(|seen| experts as f64 * seen as f64 / tokens / tokens).collect()
}

/// Returns dlogits, `[T, E]`, from the results of [`route`], the gradient of its weights and the slopes of its
/// probabilities, `[E]`: `p_e (s_e − Σ p s)`, plus `w_e (dw_e − Σ w dw)` for the chosen experts.
pub fn route_backward(dweights: &[f64], probs: &[f64], weights: &[f64], slopes: &[f64]) -> Vec<f64> {
    let experts = slopes.len();
    let rows = dweights.chunks(experts).zip(probs.chunks(experts)).zip(weights.chunks(experts));
    rows.flat_map(|((dweights, probs), weights)| {
        let (slope, dweight) = (dot(probs, slopes), dot(weights, dweights));
        (0..experts).map(move |e| probs[e] * (slopes[e] - slope) + weights[e] * (dweights[e] - dweight))
    })
    .collect()
}

/// Returns the sum of `−ln softmax(logits_t)[target_t]` over the rows of logits `[T, V]`, and its gradient, `[T, V]`.
/// Rows whose target is given and not learnt contribute nothing.
pub fn cross_entropy(logits: &[f64], targets: &[u32], vocab: usize) -> (f64, Vec<f64>) {
    let mut loss = 0.0;
    let mut dlogits = Vec::with_capacity(logits.len());
    for (row, &target) in logits.chunks(vocab).zip(targets) {
        if !token::is_target(target) {
            dlogits.resize(dlogits.len() + vocab, 0.0);
            continue;
        }
        let mut p = softmax(row.to_vec());
        loss -= p[target as usize].ln();
        p[target as usize] -= 1.0;
        dlogits.extend(p);
    }
    (loss, dlogits)
}

/// Returns the exponentials of `row`, divided by their sum.
pub(super) fn softmax(mut row: Vec<f64>) -> Vec<f64> {
    let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    row.iter_mut().for_each(|x| *x = (*x - max).exp());
    let sum: f64 = row.iter().sum();
    row.iter_mut().for_each(|x| *x /= sum);
    row
}

/// Returns the sum of the products.
pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    fn noise(seed: u64, len: usize) -> Vec<f64> {
        let mut rng = Rng::new(seed);
        (0..len).map(|_| 2.0 * rng.unit() - 1.0).collect()
    }

    /// Compares `gradient` with the central difference of `⟨y(x), dy⟩` in each value of x.
    fn check(name: &str, x: &[f64], gradient: &[f64], dy: &[f64], y: impl Fn(&[f64]) -> Vec<f64>) {
        assert_eq!(x.len(), gradient.len(), "{name}");
        let step = 1e-5;
        for i in 0..x.len() {
            let at = |offset| {
                let mut x = x.to_vec();
                x[i] += offset;
                dot(&y(&x), dy)
            };
            let expected = (at(step) - at(-step)) / (2.0 * step);
            let error = (gradient[i] - expected).abs();
            assert!(error < 1e-8, "{name}[{i}]: {} instead of {expected}", gradient[i]);
        }
    }

    #[test]
    fn embedding_differentiates() {
        let (table, dy, tokens) = (noise(1, 4 * 3), noise(2, 5 * 3), [2, 0, 2, 3, 2]);
        let mut dtable = vec![0.0; table.len()];
        embed_backward(&dy, &tokens, &mut dtable, 3);
        check("dtable", &table, &dtable, &dy, |table| embed(table, &tokens, 3));
    }

    #[test]
    fn linear_differentiates() {
        let (x, w, dy) = (noise(1, 3 * 5), noise(2, 4 * 5), noise(3, 3 * 4));
        let mut dw = vec![0.0; w.len()];
        let dx = linear_backward(&dy, &x, &w, &mut dw, 5);
        check("dx", &x, &dx, &dy, |x| linear(x, &w, 5));
        check("dw", &w, &dw, &dy, |w| linear(&x, w, 5));
    }

    #[test]
    fn norm_differentiates() {
        let (x, w, dy) = (noise(1, 3 * 6), noise(2, 6), noise(3, 3 * 6));
        let mut dw = vec![0.0; w.len()];
        let dx = norm_backward(&dy, &x, &w, &mut dw, 1e-2);
        check("dx", &x, &dx, &dy, |x| norm(x, &w, 1e-2));
        check("dw", &w, &dw, &dy, |w| norm(&x, w, 1e-2));
    }

    #[test]
    fn rotation_differentiates() {
        let (x, dy) = (noise(1, 5 * 12), noise(2, 5 * 12));
        let turned = |x: &[f64], direction| {
            let mut x = x.to_vec();
            rotate(&mut x, 12, 6, 100.0, direction);
            x
        };
        check("dx", &x, &turned(&dy, -1.0), &dy, |x| turned(x, 1.0));
    }

    #[test]
    fn attention_differentiates() {
        let heads = Heads { heads: 4, kv_heads: 2, head: 3 };
        let (q, k, v, dy) = (noise(1, 5 * 12), noise(2, 5 * 6), noise(3, 5 * 6), noise(4, 5 * 12));
        let (dq, dk, dv) = attention_backward(&dy, &q, &k, &v, heads);
        check("dq", &q, &dq, &dy, |q| attention(q, &k, &v, heads));
        check("dk", &k, &dk, &dy, |k| attention(&q, k, &v, heads));
        check("dv", &v, &dv, &dy, |v| attention(&q, &k, v, heads));
    }

    #[test]
    fn swiglu_differentiates() {
        let (gate, up, dy) = (noise(1, 9), noise(2, 9), noise(3, 9));
        let (dgate, dup) = swiglu_backward(&dy, &gate, &up);
        check("dgate", &gate, &dgate, &dy, |gate| swiglu(gate, &up));
        check("dup", &up, &dup, &dy, |up| swiglu(&gate, up));
    }

    #[test]
    fn routing_differentiates() {
        let (logits, dy) = (noise(1, 5 * 4), noise(2, 5 * 4));
        let (probs, weights) = route(&logits, 4, 2);
        let none = [0.0; 4];
        let dlogits = route_backward(&dy, &probs, &weights, &none);
        check("dlogits by weights", &logits, &dlogits, &dy, |logits| route(logits, 4, 2).1);
        let slopes = balance_slopes(&weights, 4);
        let dlogits = route_backward(&[0.0; 20], &probs, &weights, &slopes);
        let balance = |logits: &[f64]| route(logits, 4, 2).0.chunks(4).map(|p| dot(p, &slopes)).sum();
        check("dlogits by balance", &logits, &dlogits, &[1.0], |logits| vec![balance(logits)]);
        assert_eq!(seen(&weights, 4).iter().sum::<u64>(), 10);
    }

    #[test]
    fn of_equal_experts_the_first_is_taken() {
        assert_eq!(route(&[1.0, 2.0, 2.0, 2.0], 4, 2).1, [0.0, 0.5, 0.5, 0.0]);
    }

    #[test]
    fn cross_entropy_differentiates() {
        let (logits, targets) = (noise(1, 4 * 7), [6, 0, 3 | token::MASKED, 2]);
        let (_, dlogits) = cross_entropy(&logits, &targets, 7);
        check("dlogits", &logits, &dlogits, &[1.0], |x| vec![cross_entropy(x, &targets, 7).0]);
    }
}
