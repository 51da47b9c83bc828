//! What engines give back: coded progress, the optimiser's state, and what a step did.

use crate::wire::{FragmentId, Serial};

/// The coded progress on one fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// As it was asked for.
    pub serial: Serial,
    /// The fragment.
    pub fragment: FragmentId,
    /// The code, see [`crate::diloco::Codec`].
    pub body: Vec<u8>,
    /// The digest of the Θ̂ that this is progress from, see [`crate::diloco::halves::digest`].
    pub digest: u64,
}

/// The state of an inner optimiser. Whoever keeps it or carries it about need not know what its vectors mean.
#[derive(Clone, Debug, PartialEq)]
pub struct OptimiserState {
    /// Steps taken.
    pub steps: u64,
    /// One vector for each number that it holds of a parameter, `[len]` each, in the order of the flat parameters.
    pub vectors: Vec<Vec<f32>>,
}

impl OptimiserState {
    /// AdamW's after `steps` steps: `m`, the mean of the gradient, and `v`, the mean of its square, `[len]` each.
    #[must_use]
    pub fn of_adamw(steps: u64, m: Vec<f32>, v: Vec<f32>) -> Self {
        Self { steps, vectors: vec![m, v] }
    }

    /// `m` and `v` of AdamW, if this is its state for `len` parameters: as long as they are, finite, no `v` below 0.
    #[must_use]
    pub fn adamw(&self, len: usize) -> Option<[&[f32]; 2]> {
        let [m, v] = self.vectors.as_slice() else { return None };
        let fits = |values: &[f32]| values.len() == len && values.iter().all(|value| value.is_finite());
        (fits(m) && fits(v) && v.iter().all(|&v| v >= 0.0)).then_some([m, v])
    }
}

/// What one step did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepStats {
    /// Mean loss of the learnt tokens before the step, in nats per token. Where none was learnt it is that of the
    /// newest step in which one was, and 0 before there is one.
    pub loss: f32,
    /// Norm of the gradient before clipping.
    pub grad_norm: f32,
    /// Tokens trained on, given ones among them.
    pub tokens: u64,
}
