//! The feed-forward part of a layer: one dense layer, or a mixture of experts as Mixtral has it.
//!
//! With router logits `z = W x`, `[E]`, and `p = softmax(z)`, a token goes through the A experts of the largest p (of
//! two equal ones the first), and comes out as `y = Σ w_e f_e(x)` with `w_e = p_e / Σ p` over these A.
//!
//! The load-balancing loss (Fedus and others 2022, as Mixtral counts it) is that of each window of T tokens in each
//! layer: `E Σ_e f_e P_e`, where `f_e` is the share of the tokens that go through e and `P_e` the mean of their `p_e`;
//! where all is balanced it is A. Of these the mean over layers counts, a window's as much as it has of the tokens that
//! are learnt. So it does not depend on how a batch is shared out.

use std::ops::Range;

use super::{Model, ops, sum};
use crate::model::{ExpertSlots, LayerSlots};

/// What the backward pass needs again.
pub(super) enum Feed {
    Dense(Gated),
    Experts(Mixture),
}

/// What one SwiGLU layer came to; rows are tokens.
pub(super) struct Gated {
    gate: Vec<f64>,
    up: Vec<f64>,
    gated: Vec<f64>,
}

/// Where each token went.
pub(super) struct Mixture {
    /// `[T, E]`.
    probs: Vec<f64>,
    /// `[T][A]`, the likeliest first.
    chosen: Vec<Vec<Pass>>,
}

/// One token in one expert.
struct Pass {
    expert: usize,
    weight: f64,
    gated: Gated,
    y: Vec<f64>,
}

impl Mixture {
    /// Tokens that went through each expert, `[E]`.
    pub(super) fn seen(&self, experts: usize) -> Vec<u64> {
        let mut seen = vec![0; experts];
        self.chosen.iter().flatten().for_each(|pass| seen[pass.expert] += 1);
        seen
    }

    /// `E Σ f P`, and its gradient in each p of a token, which is the same for all, `[E]`.
    fn balance(&self, experts: usize) -> (f64, Vec<f64>) {
        let tokens = self.chosen.len() as f64;
        let slopes =
            self.seen(experts).into_iter().map(|seen| experts as f64 * seen as f64 / tokens / tokens);
        let slopes: Vec<f64> = slopes.collect();
        let loss = self.probs.chunks(experts).map(|probs| ops::dot(probs, &slopes)).sum();
        (loss, slopes)
    }
}

impl Model {
    /// From the output of the second norm, `[T, C]`, to what is added to the residual stream.
    pub(super) fn feed(&self, params: &[f64], slots: &LayerSlots, x: &[f64]) -> (Feed, Vec<f64>) {
        if slots.experts.is_empty() {
            let (gated, y) = self.gated(params, &slots.gate_up, &slots.down, x);
            return (Feed::Dense(gated), y);
        }
        let (c, experts) = (self.dims.width, self.dims.experts);
        let logits = ops::linear(x, &params[slots.router.clone()], c);
        let mut y = vec![0.0; x.len()];
        let (mut probs, mut chosen) = (Vec::with_capacity(logits.len()), Vec::new());
        for ((logits, x), y) in logits.chunks(experts).zip(x.chunks(c)).zip(y.chunks_mut(c)) {
            let p = ops::softmax(logits.to_vec());
            let mut order: Vec<usize> = (0..experts).collect();
            order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
            order.truncate(self.dims.active);
            let total: f64 = order.iter().map(|&expert| p[expert]).sum();
            let passes: Vec<Pass> = order
                .into_iter()
                .map(|expert| {
                    let ExpertSlots { gate_up, down } = &slots.experts[expert];
                    let (gated, y) = self.gated(params, gate_up, down, x);
                    Pass { expert, weight: p[expert] / total, gated, y }
                })
                .collect();
            for pass in &passes {
                y.iter_mut().zip(&pass.y).for_each(|(y, out)| *y += pass.weight * out);
            }
            probs.extend(p);
            chosen.push(passes);
        }
        (Feed::Experts(Mixture { probs, chosen }), y)
    }

    /// Adds to `grad`, and returns dx, `[T, C]`. `aux` is what the load-balancing loss of this layer counts.
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
        let mixture = match feed {
            Feed::Dense(gated) => {
                return self.gated_back(params, &slots.gate_up, &slots.down, x, gated, dy, grad);
            }
            Feed::Experts(mixture) => mixture,
        };
        let (c, experts) = (self.dims.width, self.dims.experts);
        let (_, slopes) = mixture.balance(experts);
        let (mut dx, mut dlogits) = (Vec::with_capacity(x.len()), Vec::with_capacity(mixture.probs.len()));
        let tokens = x.chunks(c).zip(dy.chunks(c)).zip(mixture.probs.chunks(experts));
        for (((x, dy), p), passes) in tokens.zip(&mixture.chosen) {
            // Through p, all of them.
            let mean = ops::dot(p, &slopes);
            let mut dz: Vec<f64> = p.iter().zip(&slopes).map(|(p, slope)| aux * p * (slope - mean)).collect();
            // Through the weights of those chosen, which are a softmax over these.
            let dweight = |pass: &Pass| ops::dot(dy, &pass.y);
            let mean: f64 = passes.iter().map(|pass| pass.weight * dweight(pass)).sum();
            let mut own = vec![0.0; c];
            for pass in passes {
                dz[pass.expert] += pass.weight * (dweight(pass) - mean);
                let dy: Vec<f64> = dy.iter().map(|dy| pass.weight * dy).collect();
                let ExpertSlots { gate_up, down } = &slots.experts[pass.expert];
                own = sum(&own, &self.gated_back(params, gate_up, down, x, &pass.gated, &dy, grad));
            }
            dx.extend(own);
            dlogits.extend(dz);
        }
        let router = slots.router.clone();
        sum(&dx, &ops::linear_backward(&dlogits, x, &params[router.clone()], &mut grad[router], c))
    }

    /// The load-balancing loss of a layer; 0 of a dense one.
    pub(super) fn balance(&self, feed: &Feed) -> f64 {
        match feed {
            Feed::Dense(_) => 0.0,
            Feed::Experts(mixture) => mixture.balance(self.dims.experts).0,
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

    /// Gate and up, as ranges of the flat vector.
    fn split_gate_up(&self, gate_up: &Range<usize>) -> [Range<usize>; 2] {
        let middle = gate_up.start + self.dims.ff * self.dims.width;
        [gate_up.start..middle, middle..gate_up.end]
    }
}
