//! Results of engines: coded progress, the optimiser's state, and step statistics.

use crate::wire::{FragmentId, Serial};

/// The coded progress on one fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// Serial of the request.
    pub serial: Serial,
    /// The fragment.
    pub fragment: FragmentId,
    /// The code, see [`crate::diloco::Codec`].
    pub body: Vec<u8>,
    /// Digest of the base Θ̂ of this progress, see [`crate::diloco::halves::digest`].
    pub digest: u64,
}

/// State of an inner optimiser. Code that stores or transfers it need not know the meaning of its vectors.
#[derive(Clone, Debug, PartialEq)]
pub struct OptimiserState {
    /// Steps taken.
    pub steps: u64,
    /// One vector for each value that the optimiser holds per parameter, `[len]` each, in the order of the flat
    /// parameters.
    pub vectors: Vec<Vec<f32>>,
}

impl OptimiserState {
    /// Creates AdamW's state after `steps` steps: `m`, the mean of the gradient, and `v`, the mean of its square,
    /// `[len]` each.
    #[must_use]
    pub fn of_adamw(steps: u64, m: Vec<f32>, v: Vec<f32>) -> Self {
        Self { steps, vectors: vec![m, v] }
    }

    /// Returns AdamW's `m` and `v`, if this is a valid state for `len` parameters: matching length, finite, and no
    /// negative `v`.
    #[must_use]
    pub fn adamw(&self, len: usize) -> Option<[&[f32]; 2]> {
        let [m, v] = self.vectors.as_slice() else { return None };
        let fits = |values: &[f32]| values.len() == len && values.iter().all(|value| value.is_finite());
        (fits(m) && fits(v) && v.iter().all(|&v| v >= 0.0)).then_some([m, v])
    }
}

/// Statistics of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepStats {
    /// Mean loss of the learnt tokens before the step, in nats per token. For a step without learnt tokens, it is the
    /// loss of the newest step that had some, or 0 before the first.
    pub loss: f32,
    /// Norm of the gradient before clipping.
    pub grad_norm: f32,
    /// Tokens trained on, including given ones.
    pub tokens: u64,
}
