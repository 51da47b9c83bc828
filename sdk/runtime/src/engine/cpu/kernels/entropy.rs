//! Cross-entropy, the loss, together with its gradient.

use super::math::{exp_and_sum, max};
use crate::token;

simd! {
    /// Computes the cross-entropy of logits `[rows, V]` against `targets`, `[rows]`; returns the sum in nats.
    ///
    /// Replaces the logits by their gradient, `share · (softmax − onehot(target))`. Rows whose target is given and not
    /// learnt get gradient 0 and add nothing to the loss.
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
