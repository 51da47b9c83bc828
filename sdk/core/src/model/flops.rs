//! Amount of arithmetic in training, for comparing devices.

use super::ModelSpec;
use super::{ModelError, layout};

/// Returns the floating-point operations of a training step, forwards and backwards, for each token.
///
/// `6 · P + 6 · L · T · C`. P counts the values of the matrices, with the output head once. It omits the embedding,
/// which is only looked up (they are one matrix unless the head is separate). A value costs a product and a sum
/// forwards, and twice that backwards. A token attends to T / 2 others on average, with two products of width C in each
/// of L layers. Only the experts that a token passes through count, since the others compute nothing for it. If
/// adapters are trained, their values cost the same, and frozen values a third less, because they need no gradient.
///
/// # Errors
/// Those of [`layout`].
pub fn flops_per_token(model: &ModelSpec) -> Result<u64, ModelError> {
    let trained = layout(model)?;
    let layout = layout(&model.base())?;
    let matrices = layout.tensors().iter().filter(|tensor| tensor.rows > 1);
    let idle = model.experts.map_or(0, |experts| {
        let each = 3 * u64::from(model.d_model) * u64::from(model.d_ff);
        u64::from(model.layers) * u64::from(experts.count - experts.per_token) * each
    });
    let looked_up = if model.untied_head { u64::from(model.vocab) * u64::from(model.d_model) } else { 0 };
    let values = matrices.map(|tensor| u64::from(tensor.len())).sum::<u64>() - looked_up - idle;
    let attention = [model.layers, model.context, model.d_model].map(u64::from).iter().product::<u64>();
    Ok(match model.lora {
        Some(_) => 6 * (trained.len() as u64 + attention) + 4 * values,
        None => 6 * (values + attention),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ExpertSpec, LoraSpec, LoraTargets, Preset};

    #[test]
    fn counts_products_of_matrices() {
        // q, k, v, out and three of width 344, in 4 layers; the head over 256 tokens.
        let matrices = 4 * (4 * 128 * 128 + 3 * 128 * 344) + 256 * 128;
        assert_eq!(flops_per_token(&Preset::Small.model(256)), Ok(6 * matrices + 6 * 4 * 128 * 128));
        let grouped = ModelSpec { kv_heads: 1, ..Preset::Small.model(256) };
        let saved = 4 * 2 * (128 - 32) * 128;
        assert_eq!(flops_per_token(&grouped), Ok(6 * (matrices - saved) + 6 * 4 * 128 * 128));
        // The embedding is looked up, whether it is the head too or not.
        let untied = ModelSpec { untied_head: true, ..Preset::Small.model(256) };
        assert_eq!(flops_per_token(&untied), flops_per_token(&Preset::Small.model(256)));
        // Two of eight experts, and the router.
        let experts = Some(ExpertSpec { count: 8, per_token: 2, aux_loss: 0.01 });
        let mixture = ModelSpec { experts, ..Preset::Small.model(256) };
        let more = 4 * (3 * 128 * 344 + 8 * 128);
        assert_eq!(flops_per_token(&mixture), Ok(6 * (matrices + more) + 6 * 4 * 128 * 128));
        // Adapters of rank 2 on all seven matrices.
        let lora = Some(LoraSpec { rank: 2, alpha: 4.0, targets: LoraTargets::ALL });
        let adapted = ModelSpec { lora, ..Preset::Small.model(256) };
        let adapters = 4 * 2 * (4 * 2 * 128 + 3 * (128 + 344));
        let attention = 4 * 128 * 128;
        assert_eq!(flops_per_token(&adapted), Ok(4 * matrices + 6 * (adapters + attention)));
        assert!(flops_per_token(&ModelSpec { heads: 0, ..Preset::Small.model(256) }).is_err());
    }
}
