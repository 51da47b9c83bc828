//! Adapters as changes of matrices: `ΔW = α / r · B A`.

use super::{AdapterSlots, Dims, LayerSlots, LoraTarget, ModelError, ModelSpec, Slots, check_len, layout};

/// Adds `α / r · B A` to each matrix that has an adapter. `weights`, `[len]` in the layout of [`ModelSpec::base`],
/// become those of a model without adapters that computes the same as `spec` with `adapters`, `[len]` in the layout of
/// `spec`. Has no effect if `spec` has no adapters. Sums are taken in `f64` and rounded once.
///
/// # Errors
/// - as [`layout`] for `spec`;
/// - [`ModelError::Params`]: the length of `weights` or `adapters` does not match its layout.
pub fn add_adapters(spec: &ModelSpec, weights: &mut [f32], adapters: &[f32]) -> Result<(), ModelError> {
    layout(spec)?;
    let dims = Dims::new(spec);
    let slots = Slots::new(&dims);
    if weights.len() != slots.len {
        return Err(ModelError::Params { found: weights.len(), expected: slots.len });
    }
    if spec.lora.is_none() {
        return Ok(());
    }
    check_len(adapters.len(), &slots)?;
    deltas(&dims, &slots, adapters, |at, delta| weights[at] = (f64::from(weights[at]) + delta) as f32);
    Ok(())
}

/// Calls `each` with the index of a weight, in the layout of the weights, and the change by the adapters.
pub fn deltas<T: Copy + Into<f64>>(
    dims: &Dims,
    slots: &Slots,
    adapters: &[T],
    mut each: impl FnMut(usize, f64),
) {
    for (layer, adapter) in all(slots) {
        let (start, rank) = (start(dims, layer, adapter), adapter.a.len() / adapter.ins);
        let (a, b) = (&adapters[adapter.a.clone()], &adapters[adapter.b.clone()]);
        let mut row = vec![0.0; adapter.ins];
        for (out, b) in b.chunks(rank).enumerate() {
            row.fill(0.0);
            for (&b, a) in b.iter().zip(a.chunks(adapter.ins)) {
                let b: f64 = b.into();
                row.iter_mut().zip(a).for_each(|(sum, &a)| *sum += b * a.into());
            }
            for (i, sum) in row.iter().enumerate() {
                each(start + out * adapter.ins + i, dims.lora_scale() * sum);
            }
        }
    }
}

/// Converts the gradient of the sums of weights and [`deltas`], in the layout of the weights, to that of `adapters`:
/// `dA = α / r · Bᵀ dW`, `dB = α / r · dW Aᵀ`.
pub fn gradients(dims: &Dims, slots: &Slots, adapters: &[f64], dweights: &[f64]) -> Vec<f64> {
    let mut grad = vec![0.0; adapters.len()];
    for (layer, adapter) in all(slots) {
        let (start, rank) = (start(dims, layer, adapter), adapter.a.len() / adapter.ins);
        for out in 0..adapter.outs {
            for i in 0..adapter.ins {
                let dw = dims.lora_scale() * dweights[start + out * adapter.ins + i];
                for r in 0..rank {
                    let (a, b) = (adapter.a.start + r * adapter.ins + i, adapter.b.start + out * rank + r);
                    grad[a] += adapters[b] * dw;
                    grad[b] += adapters[a] * dw;
                }
            }
        }
    }
    grad
}

fn all(slots: &Slots) -> impl Iterator<Item = (&LayerSlots, &AdapterSlots)> {
    slots.layers.iter().flat_map(|layer| layer.adapters.iter().map(move |adapter| (layer, adapter)))
}

/// Returns the start of an adapter's matrix in the layout of the weights.
fn start(dims: &Dims, layer: &LayerSlots, adapter: &AdapterSlots) -> usize {
    let group = match adapter.target {
        LoraTarget::Q | LoraTarget::K | LoraTarget::V => &layer.qkv,
        LoraTarget::O => &layer.out,
        LoraTarget::Gate | LoraTarget::Up => &layer.gate_up,
        LoraTarget::Down => &layer.down,
    };
    debug_assert!(adapter.ins == dims.width || adapter.ins == dims.ff, "rows of a group are of one width");
    group.start + adapter.column * adapter.ins
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{LoraSpec, LoraTargets, Preset};

    fn spec() -> ModelSpec {
        let lora = Some(LoraSpec { rank: 3, alpha: 6.0, targets: LoraTargets::ALL });
        ModelSpec { heads: 4, kv_heads: 2, lora, ..Preset::Tiny.model(40) }
    }

    /// Each matrix gets the product of its own two factors, and nothing else changes.
    #[test]
    fn each_matrix_gets_its_own_product() {
        let (spec, base) = (spec(), layout(&spec().base()).unwrap());
        let adapters: Vec<f32> = (0..layout(&spec).unwrap().len()).map(|i| (i % 13) as f32 - 6.0).collect();
        let mut weights = vec![0.5; base.len()];
        add_adapters(&spec, &mut weights, &adapters).unwrap();
        let tensor = |name: String| {
            let layout = layout(&spec).unwrap();
            let (start, _) = layout.offsets().find(|(_, tensor)| tensor.name == name)?;
            Some(start as usize)
        };
        for (start, found) in base.offsets() {
            let module = found.name.trim_end_matches(".weight");
            let a = tensor(format!("{module}.lora_A.weight"));
            let b = tensor(format!("{module}.lora_B.weight"));
            for row in 0..found.rows as usize {
                for col in 0..found.cols as usize {
                    let cols = found.cols as usize;
                    let product = |(a, b): (usize, usize)| -> f32 {
                        (0..3).map(|r| adapters[a + r * cols + col] * adapters[b + row * 3 + r]).sum()
                    };
                    let sum = a.zip(b).map_or(0.0, product);
                    let at = start as usize + row * found.cols as usize + col;
                    assert_eq!(weights[at], 0.5 + 2.0 * sum, "{} {row} {col}", found.name);
                }
            }
        }
    }

    #[test]
    fn refuses_vectors_of_another_length() {
        let (spec, base) = (spec(), layout(&spec().base()).unwrap().len());
        let adapters = layout(&spec).unwrap().len();
        let add = |spec: &ModelSpec, weights, adapters| {
            add_adapters(spec, &mut vec![0.0; weights], &vec![0.0; adapters])
        };
        assert_eq!(add(&spec, base, adapters), Ok(()));
        assert!(matches!(add(&spec, base - 1, adapters), Err(ModelError::Params { .. })));
        assert!(matches!(add(&spec, base, adapters + 1), Err(ModelError::Params { .. })));
        assert_eq!(add(&spec.base(), base, 0), Ok(()));
    }
}
