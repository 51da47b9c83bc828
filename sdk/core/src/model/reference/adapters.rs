//! The model with adapters: the whole pass at `W + α / r · B A`, with its gradient propagated to A and B.

use super::Model;
use crate::model::{ModelError, ModelSpec, check_len, check_vocab, delta, layout, windows};

/// Returns the loss as [`super::reference_loss_and_grad`] does, for `adapters`, `[len]` in the layout of `spec`, on the
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

/// Returns logits as [`super::reference_logits`] does, for `adapters` on the weights `frozen`.
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
        delta::deltas(&self.dims, &self.slots, adapters, |at, delta| weights[at] += delta);
        weights
    }

    fn adapters_loss_and_grad(&self, frozen: &[f64], adapters: &[f64], tokens: &[u32]) -> (f64, Vec<f64>) {
        let (loss, _, dweights) = self.loss_and_grad(&self.with_adapters(frozen, adapters), tokens);
        (loss, delta::gradients(&self.dims, &self.slots, adapters, &dweights))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{spec, tokens};
    use super::*;
    use crate::model::{LoraSpec, LoraTargets, init, reference_logits, reference_loss_and_grad};

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
