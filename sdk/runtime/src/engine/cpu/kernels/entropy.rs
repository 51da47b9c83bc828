//! Cross-entropy, the loss, together with its gradient.

use super::math::{exp_and_sum, max};
use crate::token;

simd! {
    /// Cross-entropy of logits `[rows, V]` against `targets`, `[rows]`; returns the sum in nats.
    ///
    /// Puts the gradient in the place of the logits: `share · (softmax − onehot(target))`, and 0 in rows whose target
    /// is given and not learnt, which add nothing to the loss.
    pub fn cross_entropy(logits: &mut [f32], targets: &[u32], vocab: usize, share: f32) -> f64 {
        let mut loss = 0.0;
        for (row, &target) in logits.chunks_exact_mut(vocab).zip(targets) {
            if !token::is_learnt(target) {
                row.fill(0.0);
                continue;
            }
            let target = target as usize;
            let at_target = row[target];
            let top = max(row);
            let sum = exp_and_sum(row, 1.0, top);
            // NaN among the logits shows in the sum, infinities in the difference.
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
