//! The whole model, forwards and backwards, in `f64` and one window at a time: the oracle of the engines.

pub mod ops;

use std::ops::Range;

use super::{Dims, LayerSlots, ModelError, ModelSpec, Slots, check_len, check_vocab, layout, windows};
use crate::token;
use ops::Heads;

/// Mean loss in nats over the learnt ones of `tokens`, `[B, T + 1]`, and its gradient into `grad`, `[len]`; both are 0
/// if none is learnt. [`crate::token`] says which are.
///
/// # Errors
/// - as [`layout`] for `spec`;
/// - [`ModelError::Params`]: `params` or `grad` is not as long as the layout;
/// - [`ModelError::Tokens`], [`ModelError::Token`]: `tokens` are no windows of this model.
pub fn reference_loss_and_grad(
    spec: &ModelSpec,
    params: &[f32],
    tokens: &[u32],
    grad: &mut [f32],
) -> Result<f64, ModelError> {
    layout(spec)?;
    let model = Model::new(spec);
    check_len(params.len(), &model.slots)?;
    check_len(grad.len(), &model.slots)?;
    windows(tokens, &model.dims)?;
    let params: Vec<f64> = params.iter().map(|&p| f64::from(p)).collect();
    let (loss, exact) = model.loss_and_grad(&params, tokens);
    for (grad, exact) in grad.iter_mut().zip(exact) {
        *grad = exact as f32;
    }
    Ok(loss)
}

/// Logits `[t, V]` after each of the `t` tokens of one sequence.
///
/// # Errors
/// - as [`layout`] for `spec`;
/// - [`ModelError::Params`]: `params` is not as long as the layout;
/// - [`ModelError::Sequence`], [`ModelError::Token`]: `tokens` is no sequence of this model.
pub fn reference_logits(spec: &ModelSpec, params: &[f32], tokens: &[u32]) -> Result<Vec<f32>, ModelError> {
    layout(spec)?;
    let model = Model::new(spec);
    check_len(params.len(), &model.slots)?;
    check_vocab(tokens, &model.dims)?;
    if tokens.is_empty() || tokens.len() > model.dims.context {
        return Err(ModelError::Sequence { found: tokens.len(), context: model.dims.context });
    }
    let params: Vec<f64> = params.iter().map(|&p| f64::from(p)).collect();
    Ok(model.forward(&params, tokens).logits.into_iter().map(|x| x as f32).collect())
}

struct Model {
    dims: Dims,
    slots: Slots,
}

/// What the backward pass of one layer needs again; rows are tokens.
struct Layer {
    x: Vec<f64>,
    normed1: Vec<f64>,
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    attended: Vec<f64>,
    middle: Vec<f64>,
    normed2: Vec<f64>,
    gate: Vec<f64>,
    up: Vec<f64>,
    gated: Vec<f64>,
}

struct Activations {
    layers: Vec<Layer>,
    x: Vec<f64>,
    normed: Vec<f64>,
    logits: Vec<f64>,
}

impl Model {
    fn new(spec: &ModelSpec) -> Self {
        let dims = Dims::new(spec);
        Self { dims, slots: Slots::new(&dims) }
    }

    fn heads(&self) -> Heads {
        Heads { heads: self.dims.heads, kv_heads: self.dims.kv_heads, head: self.dims.head }
    }

    /// Queries, keys and values, as ranges of the flat vector.
    fn split_qkv(&self, slots: &LayerSlots) -> [Range<usize>; 3] {
        let (q, kv) = (self.dims.width * self.dims.width, self.dims.kv_width * self.dims.width);
        let start = slots.qkv.start;
        [start..start + q, start + q..start + q + kv, start + q + kv..slots.qkv.end]
    }

    /// Gate and up, as ranges of the flat vector.
    fn split_gate_up(&self, slots: &LayerSlots) -> [Range<usize>; 2] {
        let middle = slots.gate_up.start + self.dims.ff * self.dims.width;
        [slots.gate_up.start..middle, middle..slots.gate_up.end]
    }

    fn loss_and_grad(&self, params: &[f64], tokens: &[u32]) -> (f64, Vec<f64>) {
        let window = self.dims.context + 1;
        // Where nothing is learnt, nothing is shared out.
        let share = 1.0 / token::learnt(tokens, self.dims.context).max(1) as f64;
        let (mut loss, mut grad) = (0.0, vec![0.0; params.len()]);
        for window in tokens.chunks(window) {
            let targets = &window[1..];
            let inputs: Vec<u32> =
                window[..self.dims.context].iter().map(|&token| token::id(token)).collect();
            let saved = self.forward(params, &inputs);
            let (sum, mut dlogits) = ops::cross_entropy(&saved.logits, targets, self.dims.vocab);
            loss += sum * share;
            dlogits.iter_mut().for_each(|d| *d *= share);
            self.backward(params, &inputs, &saved, &dlogits, &mut grad);
        }
        (loss, grad)
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
        let [gate, up] = self.split_gate_up(slots).map(|weights| ops::linear(&normed2, &params[weights], c));
        let gated = ops::swiglu(&gate, &up);
        let next = sum(&middle, &ops::linear(&gated, &params[slots.down.clone()], self.dims.ff));
        (Layer { x, normed1, q, k, v, attended, middle, normed2, gate, up, gated }, next)
    }

    /// Adds to `grad`, `[len]`.
    fn backward(
        &self,
        params: &[f64],
        inputs: &[u32],
        saved: &Activations,
        dlogits: &[f64],
        grad: &mut [f64],
    ) {
        let (c, eps) = (self.dims.width, f64::from(self.dims.eps));
        let (head, norm) = (self.slots.head.clone(), self.slots.norm.clone());
        let dnormed = ops::linear_backward(dlogits, &saved.normed, &params[head.clone()], &mut grad[head], c);
        let mut dx = ops::norm_backward(&dnormed, &saved.x, &params[norm.clone()], &mut grad[norm], eps);
        for (slots, layer) in self.slots.layers.iter().zip(&saved.layers).rev() {
            dx = self.layer_backward(params, slots, layer, &dx, grad);
        }
        ops::embed_backward(&dx, inputs, &mut grad[self.slots.embed.clone()], c);
    }

    fn layer_backward(
        &self,
        params: &[f64],
        slots: &LayerSlots,
        layer: &Layer,
        dy: &[f64],
        grad: &mut [f64],
    ) -> Vec<f64> {
        let (c, d, eps) = (self.dims.width, self.dims.head, f64::from(self.dims.eps));
        let theta = f64::from(self.dims.rope_theta);
        let mut back = |dy: &[f64], x: &[f64], weights: Range<usize>, ins| {
            ops::linear_backward(dy, x, &params[weights.clone()], &mut grad[weights], ins)
        };
        let dgated = back(dy, &layer.gated, slots.down.clone(), self.dims.ff);
        let (dgate, dup) = ops::swiglu_backward(&dgated, &layer.gate, &layer.up);
        let [gate, up] = self.split_gate_up(slots);
        let dnormed = sum(&back(&dgate, &layer.normed2, gate, c), &back(&dup, &layer.normed2, up, c));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::init;

    fn spec() -> ModelSpec {
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
        }
    }

    fn tokens() -> Vec<u32> {
        (0..12).map(|i| i * i % 11).collect()
    }

    /// Central differences of the loss in every single parameter.
    #[test]
    fn whole_model_differentiates() {
        for untied_head in [false, true] {
            differentiates(&ModelSpec { untied_head, ..spec() }, &tokens());
            differentiates(&ModelSpec { untied_head, ..spec() }, &partly_given());
        }
    }

    /// One target of the first window is given, and all of the second but one.
    fn partly_given() -> Vec<u32> {
        let given = |at: usize| if [2, 6, 8, 9, 10, 11].contains(&at) { token::GIVEN } else { 0 };
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
        // Targets beside their losses: a window of which one target is learnt has that target's loss.
        let one = |at: usize| {
            let given = |i: usize| if i == at { 0 } else { token::GIVEN };
            let tokens: Vec<u32> = tokens()[..6].iter().enumerate().map(|(i, t)| t | given(i)).collect();
            found(&tokens).0
        };
        let mean = (1..6).map(one).sum::<f64>() / 5.0;
        assert!((found(&tokens()[..6]).0 - mean).abs() < 1e-12);

        let nothing: Vec<u32> = tokens().iter().map(|token| token | token::GIVEN).collect();
        let (loss, grad) = found(&nothing);
        assert!(loss == 0.0 && grad.iter().all(|&g| g == 0.0));
        // A window of nothing weighs nothing beside another.
        let beside = found(&[&tokens()[..6], &nothing[6..]].concat());
        let alone = found(&tokens()[..6]);
        assert_eq!(beside, alone);
    }

    fn differentiates(spec: &ModelSpec, tokens: &[u32]) {
        let model = Model::new(spec);
        // Ten times the usual spread of matrices, so that no path through the model is negligible.
        let spread = |p: f32| if p == 1.0 { 1.0 } else { f64::from(p) * 10.0 };
        let params: Vec<f64> = init(spec, 3).unwrap().into_iter().map(spread).collect();
        let (_, grad) = model.loss_and_grad(&params, tokens);
        let step = 1e-5;
        for i in 0..params.len() {
            let at = |offset| {
                let mut params = params.clone();
                params[i] += offset;
                model.loss_and_grad(&params, tokens).0
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
}
