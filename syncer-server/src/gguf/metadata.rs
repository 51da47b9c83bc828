//! Metadata of a model: its shape, and what its card says.

use archipelago_core::model::ModelSpec;

use super::{TensorType, Value};

/// Version of ggml's quantized types.
const QUANTIZATION: u32 = 2;

/// Metadata of a model without its vocabulary.
#[derive(Clone, Copy, Debug)]
pub struct Description<'a> {
    /// Display name of the model.
    pub name: &'a str,
    /// Licence of the model, if any.
    pub licence: Option<&'a str>,
    /// Shape of the model.
    pub spec: &'a ModelSpec,
    /// Longest text that the model supports, in tokens.
    pub context: u64,
    /// Type of its matrices.
    pub kind: TensorType,
}

impl Description<'_> {
    /// Returns the entries of a file.
    #[must_use]
    pub fn entries(&self) -> Vec<(String, Value)> {
        let spec = self.spec;
        let text = |text: &str| Value::Text(text.to_owned());
        let mut entries = vec![
            ("general.architecture", text("llama")),
            ("general.type", text("model")),
            ("general.name", text(self.name)),
            ("general.file_type", Value::U32(self.kind.file_type())),
            ("general.quantization_version", Value::U32(QUANTIZATION)),
        ];
        entries.extend(self.licence.map(|licence| ("general.license", text(licence))));
        let context = u32::try_from(self.context).unwrap_or(u32::MAX);
        let shape = [
            ("llama.vocab_size", spec.vocab),
            ("llama.context_length", context),
            ("llama.embedding_length", spec.d_model),
            ("llama.block_count", spec.layers),
            ("llama.feed_forward_length", spec.d_ff),
            ("llama.rope.dimension_count", spec.d_model / spec.heads),
            ("llama.attention.head_count", spec.heads),
            ("llama.attention.head_count_kv", spec.kv_heads),
        ];
        entries.extend(shape.map(|(key, value)| (key, Value::U32(value))));
        entries.push(("llama.attention.layer_norm_rms_epsilon", Value::F32(spec.norm_eps)));
        entries.push(("llama.rope.freq_base", Value::F32(spec.rope_theta)));
        if let Some(experts) = spec.experts {
            entries.push(("llama.expert_count", Value::U32(experts.count)));
            entries.push(("llama.expert_used_count", Value::U32(experts.per_token)));
        }
        entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }
}
