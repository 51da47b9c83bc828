//! Tensors of a model under the names and in the order of rows that llama.cpp expects.

use archipelago_core::diloco::{Layout, Tensor};
use archipelago_core::model::ModelSpec;

use super::TensorType;

/// Names of the tensors outside of the layers, without `.weight`.
const OUTER: [(&str, &str); 3] =
    [("model.embed_tokens", "token_embd"), ("model.norm", "output_norm"), ("lm_head", "output")];

/// Names of the tensors of a layer, without `.weight`.
const INNER: [(&str, &str); 10] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("block_sparse_moe.gate", "ffn_gate_inp"),
];

/// Names of the matrices of an expert. llama.cpp stacks the matrices of all experts of a layer.
const EXPERT: [(&str, &str); 3] = [("w1", "ffn_gate_exps"), ("w2", "ffn_down_exps"), ("w3", "ffn_up_exps")];

/// Tensor of a file.
#[derive(Debug)]
pub(super) struct GgufTensor<'a> {
    /// Name in llama.cpp.
    pub(super) name: String,
    /// Sizes, the length of a row first.
    pub(super) dims: Vec<u64>,
    /// Type of the values.
    pub(super) kind: TensorType,
    /// Values of the matrices that are stacked.
    parts: Vec<&'a [f32]>,
    /// Number of heads whose rows are interleaved; `None` if the rows keep their order.
    heads: Option<usize>,
}

impl<'a> GgufTensor<'a> {
    /// Returns the number of bytes of the data.
    pub(super) fn bytes(&self) -> u64 {
        self.kind.bytes(self.dims.iter().product())
    }

    /// Returns the rows in the order of the file.
    pub(super) fn rows(&self) -> impl Iterator<Item = &'a [f32]> {
        let cols = self.dims[0] as usize;
        self.parts.iter().flat_map(move |part| {
            let rows = part.len() / cols;
            (0..rows).map(move |row| {
                let from = self.heads.map_or(row, |heads| interleaved(row, rows / heads));
                &part[from * cols..][..cols]
            })
        })
    }
}

/// Returns the row in the model that becomes the row `row` in the file, for heads of `width` rows. The model rotates
/// row `i` of a head together with row `i + width / 2`; llama.cpp rotates neighbours.
fn interleaved(row: usize, width: usize) -> usize {
    let (head, place) = (row / width, row % width);
    head * width + place % 2 * (width / 2) + place / 2
}

/// Returns the tensors of the model `spec` with the parameters `theta` of `layout`. Vectors and routers are f32, as
/// llama.cpp needs them.
pub(super) fn tensors<'a>(
    spec: &ModelSpec,
    layout: &Layout,
    theta: &'a [f32],
    kind: TensorType,
) -> Vec<GgufTensor<'a>> {
    let mut found: Vec<GgufTensor<'a>> = Vec::new();
    for (start, tensor) in layout.offsets() {
        let values = &theta[start as usize..][..tensor.len() as usize];
        let Some((name, is_expert)) = name(&tensor.name) else { continue };
        if let Some(stacked) = found.iter_mut().rev().take(EXPERT.len()).find(|other| other.name == name) {
            stacked.parts.push(values);
            stacked.dims[2] += 1;
            continue;
        }
        let heads = match name.rsplit('.').nth(1) {
            Some("attn_q") => Some(spec.heads as usize),
            Some("attn_k") => Some(spec.kv_heads as usize),
            _ => None,
        };
        let is_single = tensor.rows == 1 || name.ends_with("ffn_gate_inp.weight");
        let kind = if is_single { TensorType::F32 } else { kind.of_rows(tensor.cols as usize) };
        found.push(GgufTensor { name, dims: dims(tensor, is_expert), kind, parts: vec![values], heads });
    }
    found
}

/// Returns the sizes of `tensor` in a file. Vectors have one, and stacked matrices have three.
fn dims(tensor: &Tensor, is_expert: bool) -> Vec<u64> {
    let (rows, cols) = (tensor.rows.into(), tensor.cols.into());
    match (is_expert, tensor.rows) {
        (true, _) => vec![cols, rows, 1],
        (false, 1) => vec![cols],
        (false, _) => vec![cols, rows],
    }
}

/// Returns the name of the tensor `name` in llama.cpp, and true if it is one of several experts.
fn name(name: &str) -> Option<(String, bool)> {
    let module = name.strip_suffix(".weight")?;
    let of = |names: &[(&str, &'static str)], module: &str| {
        names.iter().find(|(own, _)| *own == module).map(|(_, other)| *other)
    };
    if let Some(other) = of(&OUTER, module) {
        return Some((format!("{other}.weight"), false));
    }
    let (layer, module) = module.strip_prefix("model.layers.")?.split_once('.')?;
    let expert = module.strip_prefix("block_sparse_moe.experts.").and_then(|rest| rest.split_once('.'));
    let (other, is_expert) = match expert {
        Some((_, matrix)) => (of(&EXPERT, matrix)?, true),
        None => (of(&INNER, module)?, false),
    };
    Some((format!("blk.{layer}.{other}.weight"), is_expert))
}

#[cfg(test)]
mod tests {
    use archipelago_core::model::{ExpertSpec, Preset, layout};

    use super::*;

    #[test]
    fn pairs_of_a_head_become_neighbours() {
        let order: Vec<usize> = (0..12).map(|row| interleaved(row, 6)).collect();
        assert_eq!(order, [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]);
    }

    /// Goal: no tensor of a model is left out, whatever its parts are.
    #[test]
    fn each_tensor_has_a_name() {
        let tiny = Preset::Tiny.model(256);
        let experts = ExpertSpec { count: 3, per_token: 2, aux_loss: 0.0 };
        for spec in [tiny, ModelSpec { untied_head: true, experts: Some(experts), ..tiny }] {
            let layout = layout(&spec).unwrap();
            let theta: Vec<f32> = (0..layout.len()).map(|value| value as f32).collect();
            let found = tensors(&spec, &layout, &theta, TensorType::Q8_0);
            let values = found.iter().map(|tensor| tensor.dims.iter().product::<u64>());
            assert_eq!(values.sum::<u64>(), layout.len() as u64);
            let stacked = found.iter().find(|tensor| tensor.name == "blk.1.ffn_down_exps.weight");
            let sizes = [spec.d_ff, spec.d_model, 3].map(u64::from);
            assert_eq!(stacked.map(|tensor| &*tensor.dims), spec.experts.map(|_| &sizes[..]));
            let of_heads = found.iter().filter(|tensor| tensor.heads.is_some()).count();
            assert_eq!(of_heads as u32, 2 * spec.layers);
        }
    }
}
