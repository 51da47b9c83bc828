//! Low-rank adapters: their positions in the flat vector of a run that trains only adapters, their initial values, and
//! the changes of matrices that they stand for, `ΔW = α / r · B A`.

use std::ops::Range;

use super::{Dims, LayerSlots, LoraSpec, LoraTarget, ModelError, ModelSpec, Slots, check_len, layout};
use crate::diloco::{MergeClass, Tensor};

/// Maximum rank of adapters.
pub const RANK_MAX: u32 = 256;

/// Position of one matrix's adapter in the flat vector of adapters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterSlots {
    /// Matrix with the adapter.
    pub target: LoraTarget,
    /// A, `[r, ins]`.
    pub a: Range<usize>,
    /// B, `[outs, r]`.
    pub b: Range<usize>,
    /// Number of inputs of the matrix.
    pub ins: usize,
    /// Number of outputs of the matrix.
    pub outs: usize,
    /// First column of its outputs in the rows shared with neighbouring matrices: queries, keys and values, or gates
    /// and ups.
    pub column: usize,
}

/// Sizes that determine the shapes of adapters, as in [`super::Dims`].
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Decoder layers.
    pub layers: usize,
    /// Width of the residual stream, C.
    pub width: usize,
    /// Width of the keys, and of the values, of all heads: K · D.
    pub kv_width: usize,
    /// Inner width of the feed-forward layer, F.
    pub ff: usize,
}

impl Sizes {
    pub(super) fn of(spec: &ModelSpec) -> Self {
        let kv_width = (spec.d_model / spec.heads * spec.kv_heads) as usize;
        let (layers, width, ff) = (spec.layers as usize, spec.d_model as usize, spec.d_ff as usize);
        Self { layers, width, kv_width, ff }
    }
}

/// Returns `(outs, ins, column)` of a matrix: see [`AdapterSlots`].
fn shape(sizes: Sizes, target: LoraTarget) -> (usize, usize, usize) {
    let Sizes { width, kv_width, ff, .. } = sizes;
    match target {
        LoraTarget::Q => (width, width, 0),
        LoraTarget::K => (kv_width, width, width),
        LoraTarget::V => (kv_width, width, width + kv_width),
        LoraTarget::O => (width, width, 0),
        LoraTarget::Gate => (ff, width, 0),
        LoraTarget::Up => (ff, width, ff),
        LoraTarget::Down => (width, ff, 0),
    }
}

/// Returns the adapters of each layer, in the order of [`tensors`], and the length of their flat vector.
pub fn of_layers(sizes: Sizes, lora: &LoraSpec) -> (Vec<Vec<AdapterSlots>>, usize) {
    let (rank, mut next) = (lora.rank as usize, 0);
    let mut take = |len: usize| {
        let start = next;
        next += len;
        start..next
    };
    let mut of_layer = || {
        let adapter = |target| {
            let (outs, ins, column) = shape(sizes, target);
            AdapterSlots { target, a: take(rank * ins), b: take(outs * rank), ins, outs, column }
        };
        lora.targets.iter().map(adapter).collect()
    };
    ((0..sizes.layers).map(|_| of_layer()).collect(), next)
}

/// Returns the tensors of the adapters of a valid `spec`, layer by layer, A and B of each target in turn. Their names
/// are those of the matrices with `.lora_A.weight`, `[r, ins]`, and `.lora_B.weight`, `[outs, r]`.
///
/// They are merged by the mean. At learning rates that suit adapters, those of different learners diverge widely.
/// Radial merging keeps updates as long as the learners' own, which leads beyond the region of low loss:
/// `tests/evidence/TUNING.md`.
pub fn tensors(spec: &ModelSpec, lora: &LoraSpec) -> Vec<Tensor> {
    let mut tensors = Vec::new();
    for (layer, adapters) in of_layers(Sizes::of(spec), lora).0.iter().enumerate() {
        for AdapterSlots { target, ins, outs, .. } in adapters {
            let mut add = |part: &str, rows, cols| {
                let name = format!("model.layers.{layer}.{}.lora_{part}.weight", target.module());
                tensors.push(Tensor { name, rows, cols, merge: MergeClass::Mean });
            };
            add("A", lora.rank, *ins as u32);
            add("B", *outs as u32, lora.rank);
        }
    }
    tensors
}

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
    use crate::diloco::MergeClass;
    use crate::model::{Dims, LoraSpec, LoraTargets, ModelSpec, Preset, Slots, layout};

    #[test]
    fn adapters_follow_their_layout() {
        let lora = Some(LoraSpec { rank: 3, alpha: 8.0, targets: "up,q,v,down".parse().unwrap() });
        let spec = ModelSpec { heads: 4, kv_heads: 2, lora, ..Preset::Tiny.model(100) };
        let (layout, weights) = (layout(&spec).unwrap(), layout(&spec.base()).unwrap());
        let slots = Slots::new(&Dims::new(&spec));
        assert_eq!((slots.trained, slots.len), (layout.len(), weights.len()));
        assert_eq!(Slots::new(&Dims::new(&spec.base())).trained, weights.len());
        let mut tensors = layout.offsets();
        for (i, layer) in slots.layers.iter().enumerate() {
            let names = ["self_attn.q_proj", "self_attn.v_proj", "mlp.up_proj", "mlp.down_proj"];
            for (name, adapter) in names.iter().zip(&layer.adapters) {
                let module = format!("model.layers.{i}.{name}");
                let matrix = weights.tensors().iter().find(|t| t.name == format!("{module}.weight")).unwrap();
                for (part, slot, shape) in
                    [("A", &adapter.a, (3, matrix.cols)), ("B", &adapter.b, (matrix.rows, 3))]
                {
                    let (start, tensor) = tensors.next().unwrap();
                    assert_eq!(tensor.name, format!("{module}.lora_{part}.weight"));
                    assert_eq!(
                        (tensor.rows, tensor.cols, tensor.merge),
                        (shape.0, shape.1, MergeClass::Mean)
                    );
                    assert_eq!(*slot, start as usize..(start + tensor.len()) as usize);
                }
            }
            assert_eq!(layer.adapters.len(), names.len());
        }
        assert_eq!(tensors.next(), None);
    }

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
