//! The whole model, forwards and backwards, in `f64` and one window at a time: the reference for the engines.
//!
//! The feed-forward part of a layer is one dense layer, or a mixture of experts as in Mixtral.
//!
//! Let the router logits be `z = W x`, `[E]`, and `p = softmax(z)`. A token passes through the A experts of the largest
//! p (the first one in a tie). The result is `y = Σ w_e f_e(x)` with `w_e = p_e / Σ p` over these A.
//!
//! The load-balancing loss (Fedus and others 2022, in Mixtral's form) is computed for each window of T tokens in each
//! layer: `E Σ_e f_e P_e`. Here `f_e` is the share of the tokens that pass through e, and `P_e` the mean of their
//! `p_e`; a balanced layer has A. The loss is averaged over layers, and over windows in proportion to their learnt
//! tokens. It therefore does not depend on how a batch is split.

pub mod ops;

use std::ops::Range;

use super::{Dims, LayerSlots, ModelError, ModelSpec, Slots, check_len, check_vocab, layout, windows};
use crate::model::{ExpertSlots, adapters};
use crate::token;
use ops::Heads;

/// Returns the mean loss in nats over the learnt tokens of `tokens`, `[B, T + 1]`, and writes its gradient to `grad`,
/// `[len]`. Both are 0 if no token is learnt; [`crate::token`] defines learnt tokens. With experts the gradient is that
/// of the loss plus the load-balancing loss. The returned loss is that of the text alone, as for held-out text.
///
/// # Errors
/// - as [`layout`] for `spec`;
/// - [`ModelError::Params`]: the length of `params` or `grad` does not match the layout;
/// - [`ModelError::Weightless`]: `spec` has adapters, see [`reference_adapters_loss_and_grad`];
/// - [`ModelError::Tokens`], [`ModelError::Token`]: `tokens` are not windows of this model.
pub fn reference_loss_and_grad(
    spec: &ModelSpec,
    params: &[f32],
    tokens: &[u32],
    grad: &mut [f32],
) -> Result<f64, ModelError> {
    let model = Model::of_weights(spec, params)?;
    check_len(grad.len(), &model.slots)?;
    windows(tokens, &model.dims)?;
    let params: Vec<f64> = params.iter().map(|&p| f64::from(p)).collect();
    let (loss, _, exact) = model.loss_and_grad(&params, tokens);
    for (grad, exact) in grad.iter_mut().zip(exact) {
        *grad = exact as f32;
    }
    Ok(loss)
}

/// Returns the logits `[t, V]` after each of the `t` tokens of one sequence.
///
/// # Errors
/// - as [`layout`] for `spec`;
/// - [`ModelError::Params`]: the length of `params` does not match the layout;
/// - [`ModelError::Weightless`]: `spec` has adapters, see [`reference_adapters_logits`];
/// - [`ModelError::Sequence`], [`ModelError::Token`]: `tokens` is not a sequence of this model.
pub fn reference_logits(spec: &ModelSpec, params: &[f32], tokens: &[u32]) -> Result<Vec<f32>, ModelError> {
    let model = Model::of_weights(spec, params)?;
    check_vocab(tokens, &model.dims)?;
    if tokens.is_empty() || tokens.len() > model.dims.context {
        return Err(ModelError::Sequence { found: tokens.len(), context: model.dims.context });
    }
    let params: Vec<f64> = params.iter().map(|&p| f64::from(p)).collect();
    Ok(model.forward(&params, tokens).logits.into_iter().map(|x| x as f32).collect())
}

/// Returns the input tokens in `tokens`, `[B, T + 1]`, routed to each expert of each layer, `[layers, E]`; empty in a
/// dense model.
///
/// # Errors
/// Those of [`reference_loss_and_grad`].
pub fn reference_seen(spec: &ModelSpec, params: &[f32], tokens: &[u32]) -> Result<Vec<u64>, ModelError> {
    let model = Model::of_weights(spec, params)?;
    windows(tokens, &model.dims)?;
    let params: Vec<f64> = params.iter().map(|&p| f64::from(p)).collect();
    let mut seen = vec![0; model.dims.layers * model.dims.experts];
    for window in tokens.chunks(model.dims.context + 1) {
        let inputs: Vec<u32> = window[..model.dims.context].iter().map(|&token| token::id(token)).collect();
        let layers = model.forward(&params, &inputs).layers;
        let of_window = layers.iter().flat_map(|layer| match &layer.feed {
            Feed::Dense(_) => Vec::new(),
            Feed::Experts(mixture) => mixture.seen(model.dims.experts),
        });
        seen.iter_mut().zip(of_window).for_each(|(seen, more)| *seen += more);
    }
    Ok(seen)
}

struct Model {
    dims: Dims,
    slots: Slots,
}

/// Values of one layer saved for the backward pass; rows are tokens.
struct Layer {
    x: Vec<f64>,
    normed1: Vec<f64>,
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    attended: Vec<f64>,
    middle: Vec<f64>,
    normed2: Vec<f64>,
    feed: Feed,
}

struct Activations {
    layers: Vec<Layer>,
    x: Vec<f64>,
    normed: Vec<f64>,
    logits: Vec<f64>,
}

impl Model {
    /// Returns a model with the weights `params`.
    fn of_weights(spec: &ModelSpec, params: &[f32]) -> Result<Self, ModelError> {
        layout(spec)?;
        if spec.lora.is_some() {
            return Err(ModelError::Weightless);
        }
        let model = Self::new(spec);
        check_len(params.len(), &model.slots)?;
        Ok(model)
    }

    fn new(spec: &ModelSpec) -> Self {
        let dims = Dims::new(spec);
        Self { dims, slots: Slots::new(&dims) }
    }

    fn heads(&self) -> Heads {
        Heads { heads: self.dims.heads, kv_heads: self.dims.kv_heads, head: self.dims.head }
    }

    /// Returns queries, keys and values as ranges of the flat vector.
    fn split_qkv(&self, slots: &LayerSlots) -> [Range<usize>; 3] {
        let (q, kv) = (self.dims.width * self.dims.width, self.dims.kv_width * self.dims.width);
        let start = slots.qkv.start;
        [start..start + q, start + q..start + q + kv, start + q + kv..slots.qkv.end]
    }

    /// Returns the loss of the text, the weighted load-balancing loss, and the gradient of their sum.
    fn loss_and_grad(&self, params: &[f64], tokens: &[u32]) -> (f64, f64, Vec<f64>) {
        let window = self.dims.context + 1;
        // If no token is learnt, the divisor does not matter.
        let share = 1.0 / token::target_count(tokens, self.dims.context).max(1) as f64;
        let (mut loss, mut balance, mut grad) = (0.0, 0.0, vec![0.0; params.len()]);
        for window in tokens.chunks(window) {
            let targets = &window[1..];
            let inputs: Vec<u32> =
                window[..self.dims.context].iter().map(|&token| token::id(token)).collect();
            let saved = self.forward(params, &inputs);
            let (sum, mut dlogits) = ops::cross_entropy(&saved.logits, targets, self.dims.vocab);
            loss += sum * share;
            dlogits.iter_mut().for_each(|d| *d *= share);
            let target_count = token::target_count(window, self.dims.context) as f64 * share;
            let aux = f64::from(self.dims.aux_loss) * target_count / self.dims.layers as f64;
            balance += aux * saved.layers.iter().map(|layer| self.balance(&layer.feed)).sum::<f64>();
            self.backward(params, &inputs, &saved, &dlogits, aux, &mut grad);
        }
        (loss, balance, grad)
    }

    fn forward(&self, params: &[f64], inputs: &[u32]) -> Activations {
        let (c, eps) = (self.dims.width, f64::from(self.dims.eps));
        let embed = &params[self.slots.embed.clone()];
        let mut x = ops::embed(embed, inputs, c);
        let mut layers = Vec::new();
        for slots in &self.slots.layers {
            let (layer, next) = self.layer(params, slots, x);
            layers.push(layer);
            x = next;
        }
        let normed = ops::norm(&x, &params[self.slots.norm.clone()], eps);
        let logits = ops::linear(&normed, &params[self.slots.head.clone()], c);
        Activations { layers, x, normed, logits }
    }

    fn layer(&self, params: &[f64], slots: &LayerSlots, x: Vec<f64>) -> (Layer, Vec<f64>) {
        let (c, d, eps) = (self.dims.width, self.dims.head, f64::from(self.dims.eps));
        let theta = f64::from(self.dims.rope_theta);
        let normed1 = ops::norm(&x, &params[slots.norm1.clone()], eps);
        let [mut q, mut k, v] =
            self.split_qkv(slots).map(|weights| ops::linear(&normed1, &params[weights], c));
        ops::rotate(&mut q, c, d, theta, 1.0);
        ops::rotate(&mut k, self.dims.kv_width, d, theta, 1.0);
        let attended = ops::attention(&q, &k, &v, self.heads());
        let middle = sum(&x, &ops::linear(&attended, &params[slots.out.clone()], c));
        let normed2 = ops::norm(&middle, &params[slots.norm2.clone()], eps);
        let (feed, y) = self.feed(params, slots, &normed2);
        let next = sum(&middle, &y);
        (Layer { x, normed1, q, k, v, attended, middle, normed2, feed }, next)
    }

    /// Adds to `grad`, `[len]`. `aux` is the factor of a layer's load-balancing loss.
    fn backward(
        &self,
        params: &[f64],
        inputs: &[u32],
        saved: &Activations,
        dlogits: &[f64],
        aux: f64,
        grad: &mut [f64],
    ) {
        let (c, eps) = (self.dims.width, f64::from(self.dims.eps));
        let (head, norm) = (self.slots.head.clone(), self.slots.norm.clone());
        let dnormed = ops::linear_backward(dlogits, &saved.normed, &params[head.clone()], &mut grad[head], c);
        let mut dx = ops::norm_backward(&dnormed, &saved.x, &params[norm.clone()], &mut grad[norm], eps);
        for (slots, layer) in self.slots.layers.iter().zip(&saved.layers).rev() {
            dx = self.layer_backward(params, slots, layer, &dx, aux, grad);
        }
        ops::embed_backward(&dx, inputs, &mut grad[self.slots.embed.clone()], c);
    }

    fn layer_backward(
        &self,
        params: &[f64],
        slots: &LayerSlots,
        layer: &Layer,
        dy: &[f64],
        aux: f64,
        grad: &mut [f64],
    ) -> Vec<f64> {
        let (c, d, eps) = (self.dims.width, self.dims.head, f64::from(self.dims.eps));
        let theta = f64::from(self.dims.rope_theta);
        let dnormed = self.feed_back(params, slots, &layer.normed2, &layer.feed, dy, aux, grad);
        let norm = slots.norm2.clone();
        let dmiddle =
            ops::norm_backward(&dnormed, &layer.middle, &params[norm.clone()], &mut grad[norm], eps);
        let dmiddle = sum(dy, &dmiddle);

        let mut back = |dy: &[f64], x: &[f64], weights: Range<usize>| {
            ops::linear_backward(dy, x, &params[weights.clone()], &mut grad[weights], c)
        };
        let dattended = back(&dmiddle, &layer.attended, slots.out.clone());
        let (mut dq, mut dk, dv) =
            ops::attention_backward(&dattended, &layer.q, &layer.k, &layer.v, self.heads());
        ops::rotate(&mut dq, c, d, theta, -1.0);
        ops::rotate(&mut dk, self.dims.kv_width, d, theta, -1.0);
        let [q, k, v] = self.split_qkv(slots);
        let dnormed = sum(&back(&dq, &layer.normed1, q), &back(&dk, &layer.normed1, k));
        let dnormed = sum(&dnormed, &back(&dv, &layer.normed1, v));
        let norm = slots.norm1.clone();
        let dx = ops::norm_backward(&dnormed, &layer.x, &params[norm.clone()], &mut grad[norm], eps);
        sum(&dmiddle, &dx)
    }
}

fn sum(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

/// Returns the loss as [`reference_loss_and_grad`] does, for `adapters`, `[len]` in the layout of `spec`, on the
/// weights `frozen`, `[len]` in that of [`ModelSpec::base`]. The gradient is that of the adapters.
///
/// # Errors
/// - as [`layout`] for `spec`;
/// - [`ModelError::Params`]: the length of `frozen`, `adapters` or `grad` does not match its layout;
/// - [`ModelError::Tokens`], [`ModelError::Token`]: `tokens` are not windows of this model.
pub fn reference_adapters_loss_and_grad(
    spec: &ModelSpec,
    frozen: &[f32],
    adapters: &[f32],
    tokens: &[u32],
    grad: &mut [f32],
) -> Result<f64, ModelError> {
    let model = checked(spec, frozen, adapters)?;
    check_len(grad.len(), &model.slots)?;
    windows(tokens, &model.dims)?;
    let adapters = exact(adapters);
    let (loss, exact) = model.adapters_loss_and_grad(&exact(frozen), &adapters, tokens);
    grad.iter_mut().zip(exact).for_each(|(grad, exact)| *grad = exact as f32);
    Ok(loss)
}

/// Returns logits as [`reference_logits`] does, for `adapters` on the weights `frozen`.
///
/// # Errors
/// Those of [`reference_adapters_loss_and_grad`], and [`ModelError::Sequence`].
pub fn reference_adapters_logits(
    spec: &ModelSpec,
    frozen: &[f32],
    adapters: &[f32],
    tokens: &[u32],
) -> Result<Vec<f32>, ModelError> {
    let model = checked(spec, frozen, adapters)?;
    check_vocab(tokens, &model.dims)?;
    if tokens.is_empty() || tokens.len() > model.dims.context {
        return Err(ModelError::Sequence { found: tokens.len(), context: model.dims.context });
    }
    let weights = model.with_adapters(&exact(frozen), &exact(adapters));
    Ok(model.forward(&weights, tokens).logits.into_iter().map(|x| x as f32).collect())
}

fn checked(spec: &ModelSpec, frozen: &[f32], adapters: &[f32]) -> Result<Model, ModelError> {
    layout(spec)?;
    let model = Model::new(spec);
    check_len(adapters.len(), &model.slots)?;
    if frozen.len() != model.slots.len {
        return Err(ModelError::Params { found: frozen.len(), expected: model.slots.len });
    }
    Ok(model)
}

fn exact(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}

impl Model {
    fn with_adapters(&self, frozen: &[f64], adapters: &[f64]) -> Vec<f64> {
        let mut weights = frozen.to_vec();
        adapters::deltas(&self.dims, &self.slots, adapters, |at, delta| weights[at] += delta);
        weights
    }

    fn adapters_loss_and_grad(&self, frozen: &[f64], adapters: &[f64], tokens: &[u32]) -> (f64, Vec<f64>) {
        let (loss, _, dweights) = self.loss_and_grad(&self.with_adapters(frozen, adapters), tokens);
        (loss, adapters::gradients(&self.dims, &self.slots, adapters, &dweights))
    }
}

/// Values saved for the backward pass.
enum Feed {
    Dense(Gated),
    Experts(Mixture),
}

/// Values of one SwiGLU layer; rows are tokens.
struct Gated {
    gate: Vec<f64>,
    up: Vec<f64>,
    gated: Vec<f64>,
}

/// Routing of the tokens.
struct Mixture {
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
    fn seen(&self, experts: usize) -> Vec<u64> {
        ops::seen(&self.weights, experts)
    }
}

impl Model {
    /// Maps the output of the second norm, `[T, C]`, to the change of the residual stream.
    fn feed(&self, params: &[f64], slots: &LayerSlots, x: &[f64]) -> (Feed, Vec<f64>) {
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
    fn feed_back(
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
    fn balance(&self, feed: &Feed) -> f64 {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ExpertSpec, LoraSpec, LoraTargets, init, reference_logits, reference_loss_and_grad};

    pub(super) fn spec() -> ModelSpec {
        ModelSpec {
            vocab: 11,
            d_model: 8,
            layers: 2,
            heads: 2,
            kv_heads: 1,
            d_ff: 6,
            context: 5,
            rope_theta: 100.0,
            norm_eps: 1e-5,
            untied_head: false,
            experts: None,
            lora: None,
        }
    }

    pub(super) fn tokens() -> Vec<u32> {
        (0..12).map(|i| i * i % 11).collect()
    }

    /// Central differences of the loss in each parameter.
    #[test]
    fn whole_model_differentiates() {
        for untied_head in [false, true] {
            differentiates(&ModelSpec { untied_head, ..spec() }, &tokens());
            differentiates(&ModelSpec { untied_head, ..spec() }, &partly_given());
        }
    }

    /// Includes router, experts and load-balancing loss: with many experts and with two, and tokens through one, some
    /// and all of them.
    #[test]
    fn a_mixture_of_experts_differentiates() {
        for (count, per_token, aux_loss) in [(4, 2, 0.3), (5, 1, 0.0), (2, 2, 0.1)] {
            let mixture = ModelSpec { experts: Some(ExpertSpec { count, per_token, aux_loss }), ..spec() };
            differentiates(&mixture, &tokens());
            differentiates(&mixture, &partly_given());
        }
    }

    /// With equal probabilities a balanced mixture has a loss equal to the experts of a token. A mixture that routes
    /// all tokens to a few has a larger one.
    #[test]
    fn a_lopsided_router_loses_more() {
        let experts = Some(ExpertSpec { count: 4, per_token: 2, aux_loss: 1.0 });
        let model = Model::new(&ModelSpec { experts, ..spec() });
        let balance = |push: f32| {
            let mut params = init(&ModelSpec { experts, ..spec() }, 3).unwrap();
            for slots in &model.slots.layers {
                // The second norm's weight sets the spread of the router's logits.
                params[slots.norm2.clone()].fill(push);
            }
            let params: Vec<f64> = params.into_iter().map(f64::from).collect();
            model.loss_and_grad(&params, &tokens()).1
        };
        assert!((balance(0.0) - 2.0).abs() < 1e-9, "{}", balance(0.0));
        assert!(balance(100.0) > 2.2, "{}", balance(100.0));
    }

    #[test]
    fn every_token_is_seen_by_as_many_experts_as_it_has() {
        let experts = Some(ExpertSpec { count: 4, per_token: 3, aux_loss: 0.0 });
        let mixture = ModelSpec { experts, ..spec() };
        let seen = reference_seen(&mixture, &init(&mixture, 3).unwrap(), &partly_given()).unwrap();
        assert_eq!(seen.len(), 2 * 4);
        assert!(seen.chunks(4).all(|layer| layer.iter().sum::<u64>() == 3 * 10), "{seen:?}");
        assert!(seen.iter().all(|&seen| seen <= 10), "{seen:?}");
        assert_eq!(reference_seen(&spec(), &init(&spec(), 3).unwrap(), &tokens()).unwrap(), [0; 0]);
    }

    /// One target of the first window is given, and all but one of the second.
    fn partly_given() -> Vec<u32> {
        let given = |at: usize| if [2, 6, 8, 9, 10, 11].contains(&at) { token::MASKED } else { 0 };
        tokens().into_iter().enumerate().map(|(at, token)| token | given(at)).collect()
    }

    #[test]
    fn only_what_is_learnt_counts() {
        let mut params = init(&spec(), 3).unwrap();
        params.iter_mut().for_each(|p| *p *= 10.0);
        let found = |tokens: &[u32]| {
            let mut grad = vec![0.0; params.len()];
            (reference_loss_and_grad(&spec(), &params, tokens, &mut grad).unwrap(), grad)
        };
        // A window with a single learnt target has the loss of that target.
        let one = |at: usize| {
            let given = |i: usize| if i == at { 0 } else { token::MASKED };
            let tokens: Vec<u32> = tokens()[..6].iter().enumerate().map(|(i, t)| t | given(i)).collect();
            found(&tokens).0
        };
        let mean = (1..6).map(one).sum::<f64>() / 5.0;
        assert!((found(&tokens()[..6]).0 - mean).abs() < 1e-12);

        let nothing: Vec<u32> = tokens().iter().map(|token| token | token::MASKED).collect();
        let (loss, grad) = found(&nothing);
        assert!(loss == 0.0 && grad.iter().all(|&g| g == 0.0));
        // A window without learnt tokens has no weight next to another.
        let beside = found(&[&tokens()[..6], &nothing[6..]].concat());
        let alone = found(&tokens()[..6]);
        assert_eq!(beside, alone);
    }

    fn differentiates(spec: &ModelSpec, tokens: &[u32]) {
        let model = Model::new(spec);
        // Ten times the usual spread of matrices, so that no path through the model is negligible.
        let spread = |p: f32| if p == 1.0 { 1.0 } else { f64::from(p) * 10.0 };
        let params: Vec<f64> = init(spec, 3).unwrap().into_iter().map(spread).collect();
        let (.., grad) = model.loss_and_grad(&params, tokens);
        let step = 1e-5;
        for i in 0..params.len() {
            let at = |offset| {
                let mut params = params.clone();
                params[i] += offset;
                let (loss, balance, _) = model.loss_and_grad(&params, tokens);
                loss + balance
            };
            let expected = (at(step) - at(-step)) / (2.0 * step);
            assert!((grad[i] - expected).abs() < 1e-8, "{i}: {} instead of {expected}", grad[i]);
        }
    }

    #[test]
    fn starts_at_the_entropy_of_guessing() {
        let params = init(&spec(), 3).unwrap();
        let loss =
            reference_loss_and_grad(&spec(), &params, &tokens(), &mut vec![0.0; params.len()]).unwrap();
        assert!((loss - 11_f64.ln()).abs() < 0.05, "{loss}");
    }

    #[test]
    fn refuses_bad_input() {
        let params = init(&spec(), 3).unwrap();
        let mut grad = vec![0.0; params.len()];
        let mut run = |params: &[f32], tokens: &[u32]| {
            reference_loss_and_grad(&spec(), params, tokens, &mut grad).unwrap_err()
        };
        assert!(matches!(run(&params[1..], &tokens()), ModelError::Params { .. }));
        assert!(matches!(run(&params, &tokens()[1..]), ModelError::Tokens { found: 11, window: 6 }));
        assert!(matches!(run(&params, &[]), ModelError::Tokens { found: 0, .. }));
        assert!(matches!(run(&params, &[11; 6]), ModelError::Token { token: 11, vocab: 11 }));
        let logits = |tokens: &[u32]| reference_logits(&spec(), &params, tokens);
        assert!(matches!(logits(&[]), Err(ModelError::Sequence { found: 0, .. })));
        assert!(matches!(logits(&[0; 6]), Err(ModelError::Sequence { found: 6, .. })));
        assert_eq!(logits(&[1, 2]).unwrap().len(), 22);
    }

    fn adapted(rank: u32, targets: LoraTargets) -> ModelSpec {
        ModelSpec { lora: Some(LoraSpec { rank, alpha: 6.0, targets }), ..spec() }
    }

    /// Ten times the usual spread of matrices, and B as wide as A.
    fn params(spec: &ModelSpec) -> [Vec<f64>; 2] {
        let frozen = exact(&init(&spec.base(), 3).unwrap());
        let frozen = frozen.into_iter().map(|p| if p == 1.0 { 1.0 } else { p * 10.0 }).collect();
        let len = layout(spec).unwrap().len();
        [frozen, (0..len).map(|i| ((i * 7919 + 13) % 101) as f64 / 400.0 - 0.125).collect()]
    }

    /// Central differences of the loss in each value of the adapters.
    #[test]
    fn adapters_differentiate() {
        let some = "q,v,down".parse().unwrap();
        for (rank, targets, untied_head) in [(2, LoraTargets::ALL, false), (3, some, true)] {
            let spec = ModelSpec { untied_head, ..adapted(rank, targets) };
            let (model, [frozen, adapters]) = (Model::new(&spec), params(&spec));
            let (_, grad) = model.adapters_loss_and_grad(&frozen, &adapters, &tokens());
            let step = 1e-5;
            for i in 0..adapters.len() {
                let at = |offset| {
                    let mut adapters = adapters.clone();
                    adapters[i] += offset;
                    model.loss_and_grad(&model.with_adapters(&frozen, &adapters), &tokens()).0
                };
                let expected = (at(step) - at(-step)) / (2.0 * step);
                assert!((grad[i] - expected).abs() < 1e-8, "{i}: {} instead of {expected}", grad[i]);
            }
        }
    }

    #[test]
    fn adapters_change_nothing_at_first_and_then_what_the_model_says() {
        let spec = adapted(2, LoraTargets::ALL);
        let [frozen, adapters] = params(&spec).map(|p| p.into_iter().map(|p| p as f32).collect::<Vec<_>>());
        let plain = reference_logits(&spec.base(), &frozen, &[1, 2, 3]).unwrap();
        let logits = |adapters: &[f32]| reference_adapters_logits(&spec, &frozen, adapters, &[1, 2, 3]);
        assert_eq!(logits(&init(&spec, 1).unwrap()).unwrap(), plain);
        assert_ne!(logits(&adapters).unwrap(), plain);
    }

    #[test]
    fn refuses_vectors_of_another_length() {
        let spec = adapted(2, LoraTargets::ALL);
        let [frozen, adapters] = params(&spec).map(|p| p.into_iter().map(|p| p as f32).collect::<Vec<_>>());
        let mut grad = vec![0.0; adapters.len()];
        let mut run = |frozen: &[f32], adapters: &[f32]| {
            reference_adapters_loss_and_grad(&spec, frozen, adapters, &tokens(), &mut grad)
        };
        assert!(run(&frozen, &adapters).is_ok());
        assert!(matches!(run(&frozen[1..], &adapters), Err(ModelError::Params { .. })));
        assert!(matches!(run(&frozen, &adapters[1..]), Err(ModelError::Params { .. })));
        let alone = reference_loss_and_grad(&spec, &adapters, &tokens(), &mut grad);
        assert_eq!(alone, Err(ModelError::Weightless));
    }
}
