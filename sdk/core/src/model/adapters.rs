//! Low-rank adapters: their positions in the flat vector of a run that trains only adapters, and their initial values.

use std::ops::Range;

use super::{LoraSpec, LoraTarget, ModelSpec};
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
    /// C.
    pub width: usize,
    /// K · D.
    pub kv_width: usize,
    /// F.
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

#[cfg(test)]
mod tests {
    use crate::diloco::MergeClass;
    use crate::model::{Dims, LoraSpec, ModelSpec, Preset, Slots, layout};

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
}
