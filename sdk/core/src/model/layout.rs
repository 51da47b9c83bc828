//! Positions of tensors in the flat vector of parameters, and the sizes that follow from a specification.

use std::ops::Range;

use super::{AdapterSlots, LoraSpec, ModelError, ModelSpec, RANK_MAX, adapters};
use crate::diloco::{Layout, MergeClass, Tensor};

/// Maximum number of layers.
pub const LAYERS_MAX: u32 = 1 << 10;
/// Maximum `d_model`, `heads` and `d_ff`.
pub const WIDTH_MAX: u32 = 1 << 17;
/// Maximum size of the vocabulary.
pub const VOCAB_MAX: u32 = 1 << 24;
/// Maximum length of the context, in tokens.
pub const CONTEXT_MAX: u32 = 1 << 16;
/// Maximum number of experts of a layer.
pub const EXPERTS_MAX: u32 = 1 << 8;

/// Returns the trained tensors of the model, named as in Hugging Face's Llama, in the order of the flat vector.
///
/// With [`ModelSpec::lora`] they are only the adapters, A and B of each target in each layer, named as PEFT names them
/// within the model: `model.layers.0.self_attn.q_proj.lora_A.weight`. The tensors of [`ModelSpec::base`] are the
/// weights.
///
/// Matrices are `[out, in]`. `q`, `k`, `v` of a layer are neighbours, as are `gate` and `up`, so that each group is one
/// matrix to an engine. With experts, the tensors of a feed-forward layer are named as in Mixtral: the router, then
/// `w1` (gate), `w3` (up) and `w2` (down) of each expert. A separate head comes last. It is merged like other matrices,
/// since the paper excepts only the embedding (arXiv 2604.21428, section on radial averaging).
///
/// # Errors
/// - [`ModelError::Size`], [`ModelError::Heads`], [`ModelError::KvHeads`], [`ModelError::Number`],
///   [`ModelError::AuxLoss`], [`ModelError::LoraOfExperts`]: `spec` is invalid.
/// - [`ModelError::Layout`]: the model has more than 2³² − 1 parameters, with or without adapters.
pub fn layout(spec: &ModelSpec) -> Result<Layout, ModelError> {
    check(spec)?;
    let weights = Layout::new(weights(spec))?;
    Ok(match &spec.lora {
        Some(lora) => Layout::new(adapters::tensors(spec, lora))?,
        None => weights,
    })
}

/// Returns the weights of a valid model.
fn weights(spec: &ModelSpec) -> Vec<Tensor> {
    let (c, f) = (spec.d_model, spec.d_ff);
    let kv = c / spec.heads * spec.kv_heads;
    let mut tensors = vec![tensor("model.embed_tokens".into(), spec.vocab, c, MergeClass::Mean)];
    for layer in 0..spec.layers {
        let mut add = |name: &str, rows, cols| {
            tensors.push(tensor(format!("model.layers.{layer}.{name}"), rows, cols, MergeClass::Radial));
        };
        add("input_layernorm", 1, c);
        add("self_attn.q_proj", c, c);
        add("self_attn.k_proj", kv, c);
        add("self_attn.v_proj", kv, c);
        add("self_attn.o_proj", c, c);
        add("post_attention_layernorm", 1, c);
        match spec.experts {
            None => {
                add("mlp.gate_proj", f, c);
                add("mlp.up_proj", f, c);
                add("mlp.down_proj", c, f);
            }
            Some(experts) => {
                add("block_sparse_moe.gate", experts.count, c);
                for expert in 0..experts.count {
                    add(&format!("block_sparse_moe.experts.{expert}.w1"), f, c);
                    add(&format!("block_sparse_moe.experts.{expert}.w3"), f, c);
                    add(&format!("block_sparse_moe.experts.{expert}.w2"), c, f);
                }
            }
        }
    }
    tensors.push(tensor("model.norm".into(), 1, c, MergeClass::Radial));
    if spec.untied_head {
        tensors.push(tensor("lm_head".into(), spec.vocab, c, MergeClass::Radial));
    }
    tensors
}

fn tensor(module: String, rows: u32, cols: u32, merge: MergeClass) -> Tensor {
    Tensor { name: module + ".weight", rows, cols, merge }
}

fn check(spec: &ModelSpec) -> Result<(), ModelError> {
    let size = |field, value, min, max| {
        if (min..=max).contains(&value) { Ok(()) } else { Err(ModelError::Size { field, value, min, max }) }
    };
    size("vocab", spec.vocab, 2, VOCAB_MAX)?;
    size("d_model", spec.d_model, 2, WIDTH_MAX)?;
    size("layers", spec.layers, 1, LAYERS_MAX)?;
    size("heads", spec.heads, 1, WIDTH_MAX)?;
    size("kv_heads", spec.kv_heads, 1, WIDTH_MAX)?;
    size("d_ff", spec.d_ff, 2, WIDTH_MAX)?;
    size("context", spec.context, 1, CONTEXT_MAX)?;
    if !spec.d_model.is_multiple_of(2 * spec.heads) {
        return Err(ModelError::Heads { d_model: spec.d_model, heads: spec.heads });
    }
    if !spec.heads.is_multiple_of(spec.kv_heads) {
        return Err(ModelError::KvHeads { heads: spec.heads, kv_heads: spec.kv_heads });
    }
    for (field, value) in [("rope_theta", spec.rope_theta), ("norm_eps", spec.norm_eps)] {
        if !(value.is_finite() && value > 0.0) {
            return Err(ModelError::Number { field, value });
        }
    }
    if let Some(experts) = spec.experts {
        size("experts.count", experts.count, 2, EXPERTS_MAX)?;
        size("experts.per_token", experts.per_token, 1, experts.count)?;
        if !(experts.aux_loss.is_finite() && experts.aux_loss >= 0.0) {
            return Err(ModelError::AuxLoss { value: experts.aux_loss });
        }
    }
    if let Some(lora) = spec.lora {
        size("lora.rank", lora.rank, 1, RANK_MAX)?;
        if !(lora.alpha.is_finite() && lora.alpha > 0.0) {
            return Err(ModelError::Number { field: "lora.alpha", value: lora.alpha });
        }
        if spec.experts.is_some() {
            return Err(ModelError::LoraOfExperts);
        }
    }
    Ok(())
}

/// Sizes of a valid [`ModelSpec`], as indices.
#[derive(Clone, Copy, Debug)]
pub struct Dims {
    /// Tokens in the vocabulary, V.
    pub vocab: usize,
    /// Width of the residual stream, C.
    pub width: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Attention heads, H.
    pub heads: usize,
    /// Heads of keys and values, K.
    pub kv_heads: usize,
    /// Width of a head, D = C / H.
    pub head: usize,
    /// Width of the keys, and of the values, of all heads: K · D.
    pub kv_width: usize,
    /// Inner width of the feed-forward layer, F.
    pub ff: usize,
    /// Tokens in a window, T.
    pub context: usize,
    /// Base of the rotary frequencies.
    pub rope_theta: f32,
    /// Term added to the mean square in RMSNorm.
    pub eps: f32,
    /// Whether the output head is a separate matrix.
    pub untied_head: bool,
    /// E, the experts of a layer; 0 for a dense layer.
    pub experts: usize,
    /// A, the experts that each token passes through; 0 in a dense model.
    pub active: usize,
    /// Factor of the load-balancing loss relative to the loss of the text.
    pub aux_loss: f32,
    /// Settings of the trained adapters; `None` if the weights are trained.
    pub lora: Option<LoraSpec>,
}

impl Dims {
    /// Returns the sizes of a spec that [`layout`] accepts.
    pub fn new(spec: &ModelSpec) -> Self {
        let head = spec.d_model / spec.heads;
        Self {
            vocab: spec.vocab as usize,
            width: spec.d_model as usize,
            layers: spec.layers as usize,
            heads: spec.heads as usize,
            kv_heads: spec.kv_heads as usize,
            head: head as usize,
            kv_width: (head * spec.kv_heads) as usize,
            ff: spec.d_ff as usize,
            context: spec.context as usize,
            rope_theta: spec.rope_theta,
            eps: spec.norm_eps,
            untied_head: spec.untied_head,
            experts: spec.experts.map_or(0, |experts| experts.count as usize),
            active: spec.experts.map_or(0, |experts| experts.per_token as usize),
            aux_loss: spec.experts.map_or(0.0, |experts| experts.aux_loss),
            lora: spec.lora,
        }
    }

    fn sizes(&self) -> adapters::Sizes {
        let Self { layers, width, kv_width, ff, .. } = *self;
        adapters::Sizes { layers, width, kv_width, ff }
    }

    /// Returns r, the rank of adapters; 0 without adapters.
    pub fn rank(&self) -> usize {
        self.lora.map_or(0, |lora| lora.rank as usize)
    }

    /// Returns the factor of an adapter's product; 0 without adapters.
    pub fn lora_scale(&self) -> f64 {
        self.lora.map_or(0.0, |lora| f64::from(lora.scale()))
    }

    /// Returns the width of the fused query, key and value rows, C + 2 K D.
    pub fn qkv_width(&self) -> usize {
        self.width + 2 * self.kv_width
    }
}

/// Positions of the tensors in the flat vector of weights, and of the adapters in a flat vector of their own.
#[derive(Clone, Debug)]
pub struct Slots {
    /// `[V, C]`.
    pub embed: Range<usize>,
    /// Positions in each layer.
    pub layers: Vec<LayerSlots>,
    /// `[C]`.
    pub norm: Range<usize>,
    /// Output head, `[V, C]`; the same as the embedding unless it is a separate matrix.
    pub head: Range<usize>,
    /// Length of the flat vector of the weights.
    pub len: usize,
    /// Length of the trained vector: of the adapters if there are any, otherwise of the weights.
    pub trained: usize,
}

/// Positions of the tensors of one layer in the flat vector.
#[derive(Clone, Debug)]
pub struct LayerSlots {
    /// `[C]`, before attention.
    pub norm1: Range<usize>,
    /// `[C + 2 K D, C]`: queries, keys, values.
    pub qkv: Range<usize>,
    /// `[C, C]`.
    pub out: Range<usize>,
    /// `[C]`, before the feed-forward layer.
    pub norm2: Range<usize>,
    /// `[2 F, C]`: gate, up of a dense layer; empty with experts.
    pub gate_up: Range<usize>,
    /// `[C, F]`: down of a dense layer; empty with experts.
    pub down: Range<usize>,
    /// Router, `[E, C]`; empty in a dense layer.
    pub router: Range<usize>,
    /// Experts, `[E]`; empty in a dense layer.
    pub experts: Vec<ExpertSlots>,
    /// Adapters, in their own flat vector; empty if the weights are trained.
    pub adapters: Vec<AdapterSlots>,
}

/// Positions of the tensors of one expert in the flat vector.
#[derive(Clone, Debug)]
pub struct ExpertSlots {
    /// `[2 F, C]`: gate, up.
    pub gate_up: Range<usize>,
    /// `[C, F]`.
    pub down: Range<usize>,
}

impl Slots {
    /// Returns the positions in the layouts that [`layout`] makes for these sizes.
    pub fn new(dims: &Dims) -> Self {
        let adapters = dims.lora.map(|lora| adapters::of_layers(dims.sizes(), &lora));
        let (mut adapters, adapters_len) = adapters.map_or((Vec::new(), None), |(all, len)| (all, Some(len)));
        adapters.resize(dims.layers, Vec::new());
        let mut next = 0;
        let mut take = |len: usize| {
            let start = next;
            next += len;
            start..next
        };
        let (c, f) = (dims.width, dims.ff);
        let dense = usize::from(dims.experts == 0);
        let embed = take(dims.vocab * c);
        let layers = adapters
            .into_iter()
            .map(|adapters| LayerSlots {
                norm1: take(c),
                qkv: take(dims.qkv_width() * c),
                out: take(c * c),
                norm2: take(c),
                gate_up: take(2 * f * c * dense),
                down: take(c * f * dense),
                router: take(dims.experts * c),
                experts: (0..dims.experts)
                    .map(|_| ExpertSlots { gate_up: take(2 * f * c), down: take(c * f) })
                    .collect(),
                adapters,
            })
            .collect();
        let norm = take(c);
        let head = if dims.untied_head { take(dims.vocab * c) } else { embed.clone() };
        Self { embed, layers, norm, head, len: next, trained: adapters_len.unwrap_or(next) }
    }

    /// Returns true if adapters are trained instead of the weights.
    pub fn has_adapters(&self) -> bool {
        self.layers.iter().any(|layer| !layer.adapters.is_empty())
    }

    /// Returns true if the embedding is also the output head.
    pub fn is_tied(&self) -> bool {
        self.head == self.embed
    }
}

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

    fn spec() -> ModelSpec {
        ModelSpec { heads: 4, kv_heads: 2, ..Preset::Tiny.model(100) }
    }

    #[test]
    fn slots_follow_the_layout() {
        for untied_head in [false, true] {
            follow_the_layout(&ModelSpec { untied_head, ..spec() });
            let experts = Some(ExpertSpec { count: 3, per_token: 2, aux_loss: 0.01 });
            follow_the_layout(&ModelSpec { untied_head, experts, ..spec() });
        }
    }

    fn follow_the_layout(spec: &ModelSpec) {
        let (layout, dims) = (layout(spec).unwrap(), Dims::new(spec));
        let slots = Slots::new(&dims);
        let start = |name: &str| {
            let names = [format!("model.{name}.weight"), format!("{name}.weight")];
            let found = layout.offsets().find(|(_, tensor)| names.contains(&tensor.name));
            found.unwrap_or_else(|| panic!("no {name}")).0 as usize
        };
        assert_eq!(slots.len, layout.len());
        assert_eq!(slots.embed.start, start("embed_tokens"));
        assert_eq!(slots.norm.start, start("norm"));
        assert_eq!(slots.is_tied(), !spec.untied_head);
        assert_eq!(slots.head.start, start(if spec.untied_head { "lm_head" } else { "embed_tokens" }));
        assert_eq!(slots.head.len(), dims.vocab * dims.width);
        for (i, layer) in slots.layers.iter().enumerate() {
            let at = |name: &str| start(&format!("layers.{i}.{name}"));
            assert_eq!(layer.norm1.start, at("input_layernorm"));
            assert_eq!(layer.qkv.start, at("self_attn.q_proj"));
            assert_eq!(layer.qkv.start + dims.width * dims.width, at("self_attn.k_proj"));
            assert_eq!(layer.qkv.end - dims.kv_width * dims.width, at("self_attn.v_proj"));
            assert_eq!(layer.out.start, at("self_attn.o_proj"));
            assert_eq!(layer.norm2.start, at("post_attention_layernorm"));
            if spec.experts.is_none() {
                assert_eq!(layer.gate_up.start, at("mlp.gate_proj"));
                assert_eq!(layer.gate_up.start + dims.ff * dims.width, at("mlp.up_proj"));
                assert_eq!(layer.down.start, at("mlp.down_proj"));
                continue;
            }
            assert!(layer.gate_up.is_empty() && layer.down.is_empty());
            assert_eq!(layer.router.start, at("block_sparse_moe.gate"));
            for (e, expert) in layer.experts.iter().enumerate() {
                let at = |name| at(&format!("block_sparse_moe.experts.{e}.{name}"));
                assert_eq!(expert.gate_up.start, at("w1"));
                assert_eq!(expert.gate_up.start + dims.ff * dims.width, at("w3"));
                assert_eq!(expert.down.start, at("w2"));
            }
        }
    }

    #[test]
    fn only_the_embedding_is_averaged_plainly() {
        let layout = layout(&ModelSpec { untied_head: true, ..spec() }).unwrap();
        let mean: Vec<_> = layout.tensors().iter().filter(|t| t.merge == MergeClass::Mean).collect();
        assert_eq!(mean.len(), 1);
        assert_eq!(mean[0].name, "model.embed_tokens.weight");
    }

    #[test]
    fn refuses_what_is_no_model() {
        let check = |change: &dyn Fn(&mut ModelSpec), text: &str| {
            let mut bad = spec();
            change(&mut bad);
            let error = layout(&bad).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        };
        check(&|s| s.vocab = 0, "vocab is 0");
        check(&|s| s.layers = u32::MAX, "layers is 4294967295");
        check(&|s| s.context = 0, "context is 0");
        check(&|s| s.kv_heads = 3, "3 key and value heads do not divide 4");
        check(&|s| s.heads = 64, "64 does not divide into 64 heads");
        check(&|s| s.norm_eps = f32::NAN, "norm_eps is NaN");
        check(&|s| s.rope_theta = -1.0, "rope_theta is -1");
        let experts = |count, per_token, aux_loss| Some(ExpertSpec { count, per_token, aux_loss });
        check(&|s| s.experts = experts(1, 1, 0.0), "experts.count is 1; it must be between 2 and 256");
        check(&|s| s.experts = experts(4, 5, 0.0), "experts.per_token is 5; it must be between 1 and 4");
        check(&|s| s.experts = experts(4, 2, -1.0), "the weight of the load-balancing loss is -1");
        let lora = |rank, alpha| Some(LoraSpec { rank, alpha, targets: LoraTargets::ALL });
        check(&|s| s.lora = lora(0, 1.0), "lora.rank is 0; it must be between 1 and 256");
        check(&|s| s.lora = lora(8, -1.0), "lora.alpha is -1");
        check(&|s| (s.lora, s.experts) = (lora(8, 16.0), experts(4, 2, 0.0)), "cannot have adapters");
        check(&|s| (s.vocab, s.d_model, s.lora) = (VOCAB_MAX, WIDTH_MAX, lora(1, 1.0)), "more than 42949");
        check(&|s| (s.vocab, s.d_model) = (VOCAB_MAX, WIDTH_MAX), "more than 4294967295 parameters");
    }

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
