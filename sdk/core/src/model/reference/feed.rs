//! Feed-forward part of a layer: one dense layer, or a mixture of experts as in Mixtral.
//!
//! Let the router logits be `z = W x`, `[E]`, and `p = softmax(z)`. A token passes through the A experts of the largest
//! p (the first one in a tie). The result is `y = Σ w_e f_e(x)` with `w_e = p_e / Σ p` over these A.
//!
//! The load-balancing loss (Fedus and others 2022, in Mixtral's form) is computed for each window of T tokens in each
//! layer: `E Σ_e f_e P_e`. Here `f_e` is the share of the tokens that pass through e, and `P_e` the mean of their
//! `p_e`; a balanced layer has A. The loss is averaged over layers, and over windows in proportion to their learnt
//! tokens. It therefore does not depend on how a batch is split.

use std::ops::Range;

use super::{Model, ops, sum};
use crate::model::{ExpertSlots, LayerSlots};

/// Values saved for the backward pass.
pub(super) enum Feed {
    Dense(Gated),
    Experts(Mixture),
}

/// Values of one SwiGLU layer; rows are tokens.
pub(super) struct Gated {
    gate: Vec<f64>,
    up: Vec<f64>,
    gated: Vec<f64>,
}

/// Routing of the tokens.
pub(super) struct Mixture {
    /// `[T, E]`.
    probs: Vec<f64>,
    /// `[T, E]`, 0 for experts that the token did not pass through.
    weights: Vec<f64>,
    /// Passes of each token, `[T]`, by expert.
    passes: Vec<Vec<Pass>>,
}

/// Pass of one token through one expert.
struct Pass {
    expert: usize,
    gated: Gated,
    y: Vec<f64>,
}

impl Mixture {
    /// Returns the tokens routed to each expert, `[E]`.
    pub(super) fn seen(&self, experts: usize) -> Vec<u64> {
        ops::seen(&self.weights, experts)
    }
}

impl Model {
    /// Maps the output of the second norm, `[T, C]`, to the change of the residual stream.
    pub(super) fn feed(&self, params: &[f64], slots: &LayerSlots, x: &[f64]) -> (Feed, Vec<f64>) {
        if slots.experts.is_empty() {
            let (gated, y) = self.gated(params, &slots.gate_up, &slots.down, x);
            return (Feed::Dense(gated), y);
        }
        let (c, experts) = (self.dims.width, self.dims.experts);
        let logits = ops::linear(x, &params[slots.router.clone()], c);
        let (probs, weights) = ops::route(&logits, experts, self.dims.active);
        let (mut y, mut passes) = (vec![0.0; x.len()], Vec::new());
        for ((weights, x), y) in weights.chunks(experts).zip(x.chunks(c)).zip(y.chunks_mut(c)) {
            let mut of_token = Vec::new();
            for (expert, &weight) in weights.iter().enumerate().filter(|(_, weight)| **weight > 0.0) {
                let ExpertSlots { gate_up, down } = &slots.experts[expert];
                let (gated, out) = self.gated(params, gate_up, down, x);
                y.iter_mut().zip(&out).for_each(|(y, out)| *y += weight * out);
                of_token.push(Pass { expert, gated, y: out });
            }
            passes.push(of_token);
        }
        (Feed::Experts(Mixture { probs, weights, passes }), y)
    }

    /// Adds to `grad`, and returns dx, `[T, C]`. `aux` is the factor of this layer's load-balancing loss.
    #[expect(clippy::too_many_arguments, reason = "what a layer is, what it saw and what comes back")]
    pub(super) fn feed_back(
        &self,
        params: &[f64],
        slots: &LayerSlots,
        x: &[f64],
        feed: &Feed,
        dy: &[f64],
        aux: f64,
        grad: &mut [f64],
    ) -> Vec<f64> {
        let Mixture { probs, weights, passes } = match feed {
            Feed::Dense(gated) => {
                return self.gated_back(params, &slots.gate_up, &slots.down, x, gated, dy, grad);
            }
            Feed::Experts(mixture) => mixture,
        };
        let (c, experts) = (self.dims.width, self.dims.experts);
        let (mut dx, mut dweights) = (Vec::with_capacity(x.len()), vec![0.0; probs.len()]);
        let tokens = x.chunks(c).zip(dy.chunks(c)).zip(passes);
        for (t, ((x, dy), passes)) in tokens.enumerate() {
            let mut own = vec![0.0; c];
            for Pass { expert, gated, y } in passes {
                let at = t * experts + expert;
                dweights[at] = ops::dot(dy, y);
                let dy: Vec<f64> = dy.iter().map(|dy| weights[at] * dy).collect();
                let ExpertSlots { gate_up, down } = &slots.experts[*expert];
                own = sum(&own, &self.gated_back(params, gate_up, down, x, gated, &dy, grad));
            }
            dx.extend(own);
        }
        let mut slopes = ops::balance_slopes(weights, experts);
        slopes.iter_mut().for_each(|slope| *slope *= aux);
        let dlogits = ops::route_backward(&dweights, probs, weights, &slopes);
        let router = slots.router.clone();
        sum(&dx, &ops::linear_backward(&dlogits, x, &params[router.clone()], &mut grad[router], c))
    }

    /// Returns the load-balancing loss of a layer; 0 for a dense one.
    pub(super) fn balance(&self, feed: &Feed) -> f64 {
        match feed {
            Feed::Dense(_) => 0.0,
            Feed::Experts(Mixture { probs, weights, .. }) => {
                let slopes = ops::balance_slopes(weights, self.dims.experts);
                probs.chunks(self.dims.experts).map(|probs| ops::dot(probs, &slopes)).sum()
            }
        }
    }

    fn gated(
        &self,
        params: &[f64],
        gate_up: &Range<usize>,
        down: &Range<usize>,
        x: &[f64],
    ) -> (Gated, Vec<f64>) {
        let c = self.dims.width;
        let [gate, up] = self.split_gate_up(gate_up).map(|weights| ops::linear(x, &params[weights], c));
        let gated = ops::swiglu(&gate, &up);
        let y = ops::linear(&gated, &params[down.clone()], self.dims.ff);
        (Gated { gate, up, gated }, y)
    }

    #[expect(clippy::too_many_arguments, reason = "what a layer is, what it saw and what comes back")]
    fn gated_back(
        &self,
        params: &[f64],
        gate_up: &Range<usize>,
        down: &Range<usize>,
        x: &[f64],
        saved: &Gated,
        dy: &[f64],
        grad: &mut [f64],
    ) -> Vec<f64> {
        let c = self.dims.width;
        let mut back = |dy: &[f64], x: &[f64], weights: Range<usize>, ins| {
            ops::linear_backward(dy, x, &params[weights.clone()], &mut grad[weights], ins)
        };
        let dgated = back(dy, &saved.gated, down.clone(), self.dims.ff);
        let (dgate, dup) = ops::swiglu_backward(&dgated, &saved.gate, &saved.up);
        let [gate, up] = self.split_gate_up(gate_up);
        sum(&back(&dgate, x, gate, c), &back(&dup, x, up, c))
    }

    /// Returns gate and up as ranges of the flat vector.
    fn split_gate_up(&self, gate_up: &Range<usize>) -> [Range<usize>; 2] {
        let middle = gate_up.start + self.dims.ff * self.dims.width;
        [gate_up.start..middle, middle..gate_up.end]
    }
}
