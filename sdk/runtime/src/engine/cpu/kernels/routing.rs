//! The router of a mixture of experts: softmax over E logits, choice of the A likeliest, and the gradient of both.

use super::math::exp_and_sum;

/// Load-balancing loss of the windows of a microbatch.
pub struct Balance<'a> {
    /// Tokens in a window.
    pub len: usize,
    /// Weight of one layer's loss in each window, `[windows]`.
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
