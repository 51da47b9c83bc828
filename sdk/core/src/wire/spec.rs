//! Description of a run: plain data with all that a learner must know to take part.

use serde::{Deserialize, Serialize};

use super::Frozen;

/// Complete description of a run, sent in [`crate::wire::Welcome`] and kept in snapshots.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunSpec {
    /// The model's tensors and windows.
    pub model: Model,
    /// Inner optimisation.
    pub inner: InnerSpec,
    /// Exchange of parameters between learners and the syncer.
    pub exchange: ExchangeSpec,
    /// The training tokens.
    pub data: DataSpec,
    /// Seed of the initial parameters and of the order of the data.
    pub seed: u64,
    /// Frozen weights that the model builds on. `None`, and absent from the wire, if all weights are trained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frozen: Option<Frozen>,
}

/// The part of a run's model that the exchange must know: named tensors, and the length of windows. Its computation
/// is described by [`Architecture`], which neither the wire nor the core of a syncer interprets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Longest sequence, in tokens, and the number of inputs of a training window.
    pub context: u32,
    /// Size of the vocabulary; every token id is below it.
    pub vocab: u32,
    /// The tensors, in the order of the flat parameter vector.
    pub tensors: Vec<Tensor>,
    /// Architecture of the model.
    pub architecture: Architecture,
    /// Mixture of experts. `None`, and absent from the wire, in dense models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experts: Option<Mixture>,
}

/// Experts of a model: each token passes through a few of the experts of each layer. A tensor named `….experts.3.…`
/// belongs to expert 3; its updates are weighted by the tokens routed to that expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mixture {
    /// E, the number of experts of a layer.
    pub count: u32,
    /// Number of experts that each token passes through.
    pub per_token: u32,
}

/// Architecture of a model. Only programs that know the name interpret the settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Architecture {
    /// Name known to learners, at most [`ARCHITECTURE_NAME_BYTES_MAX`] bytes; empty if the owner of the run gave
    /// none.
    pub name: String,
    /// Settings in the architecture's own format, at most [`ARCHITECTURE_BYTES_MAX`] bytes.
    #[serde(with = "serde_bytes")]
    pub settings: Vec<u8>,
}

/// Maximum length of the name of an [`Architecture`], in bytes.
pub const ARCHITECTURE_NAME_BYTES_MAX: u32 = 64;

/// Maximum length of the settings of an [`Architecture`], in bytes.
pub const ARCHITECTURE_BYTES_MAX: u32 = 4_096;

/// Maximum length of the name of a [`Tensor`], in bytes.
pub const TENSOR_NAME_BYTES_MAX: u32 = 256;

/// Merge rule of a tensor's updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MergeClass {
    /// Token-weighted mean, for adapters and the embedding, whose outer gradients are not nearly orthogonal.
    Mean,
    /// Radial-directional averaging, for all other tensors.
    Radial,
}

/// A named tensor, `[rows, cols]`, row-major; a vector has one row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tensor {
    /// Name, unique within the model.
    pub name: String,
    /// Rows, at least 1.
    pub rows: u32,
    /// Columns, at least 1.
    pub cols: u32,
    /// Merge rule of its updates.
    pub merge: MergeClass,
}

impl Tensor {
    /// Returns the number of values.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.rows * self.cols
    }

    /// Returns true if the tensor has no values, which never occurs in a layout.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows == 0 || self.cols == 0
    }
}

/// Returns true for the value that serde leaves out.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

/// Optimiser of the learners' steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Optimiser {
    /// AdamW for all tensors.
    #[default]
    AdamW,
    /// Muon for matrices; AdamW for embeddings, heads, routers, adapters and vectors.
    Muon,
}

impl Optimiser {
    /// All optimisers.
    pub const ALL: [Self; 2] = [Self::AdamW, Self::Muon];

    /// Returns its name in settings, reports and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::AdamW => "adamw",
            Self::Muon => "muon",
        }
    }

    /// Returns true if serde can leave the field out.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
    fn is_adamw(&self) -> bool {
        *self == Self::AdamW
    }
}

/// Settings of the inner optimiser: AdamW or Muon with decoupled weight decay, global gradient clipping, and a schedule
/// with warm-up and cosine decay over the run's merged tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InnerSpec {
    /// Windows in one step of one learner.
    pub batch: u32,
    /// Highest learning rate.
    pub lr_max: f32,
    /// Lowest learning rate as a fraction of `lr_max`, reached at `total_tokens` and constant afterwards.
    pub lr_min_ratio: f32,
    /// Merged tokens during which the learning rate rises from 0 to `lr_max`.
    pub warmup_tokens: u64,
    /// Merged tokens at the end of the cosine schedule.
    pub total_tokens: u64,
    /// Decay of AdamW's first moment.
    pub beta1: f32,
    /// Decay of AdamW's second moment.
    pub beta2: f32,
    /// Term added to the square root of AdamW's second moment.
    pub eps: f32,
    /// Decoupled weight decay, applied to matrices only.
    pub weight_decay: f32,
    /// Maximum global gradient norm; 0 disables clipping.
    pub clip_norm: f32,
    /// The optimiser. Absent from the wire if it is AdamW, so that descriptions of such runs keep their old bytes.
    #[serde(default, skip_serializing_if = "Optimiser::is_adamw")]
    pub optimiser: Optimiser,
}

/// Settings of the parameter exchange.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExchangeSpec {
    /// P, the number of fragments.
    pub fragments: u16,
    /// H, the inner steps of the median learner between two rounds of the same fragment.
    pub sync_every: u32,
    /// Values that share one scale: a multiple of 8, of 16 for 2-bit codes, of 32 for 1-bit codes.
    pub block: u32,
    /// Code of values, in both directions.
    pub code: Code,
    /// Rule for a learner's own parameters when a fragment is merged.
    pub apply: ApplyPolicy,
}

/// Code of one value within its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// 4 bits: −7…7 times a bfloat16 scale.
    Int4,
    /// 4 bits: sign and a power of two, 2⁻⁶…1 times a bfloat16 scale, or 0.
    E3m0,
    /// 2 bits: ±1 or ±3 times a bfloat16 scale, for comparison.
    Int2,
    /// 1 bit: ±1 times a bfloat16 scale, for comparison.
    Int1,
    /// 32 bits, for comparison.
    F32,
}

impl Code {
    /// Returns its name in settings, reports and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Int4 => "int4",
            Self::E3m0 => "e3m0",
            Self::Int2 => "int2",
            Self::Int1 => "int1",
            Self::F32 => "f32",
        }
    }
}

/// Rule for a learner's parameters θ when Θ̂ changes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApplyPolicy {
    /// Θ̂ plus the local progress that is not merged yet, including the residue if `residue` is set.
    Keep {
        /// Keep the residue of the merged update.
        residue: bool,
    },
    /// θ becomes Θ̂, as in the paper, and unmerged progress on the fragment is dropped.
    Overwrite,
    /// Θ̂ plus `alpha` of the unmerged progress; the rest is dropped (Streaming DiLoCo).
    Blend {
        /// Part of the unmerged progress that is kept, 0 to 1.
        alpha: f32,
    },
}

impl ApplyPolicy {
    /// Returns true if unmerged progress on a fragment, including the residue, stays the same when updates of other
    /// learners are merged. An update then represents the same progress regardless of such merges, and can be merged
    /// late.
    #[must_use]
    pub fn is_additive(self) -> bool {
        self == Self::Keep { residue: true }
    }
}

/// Training tokens, in shards. A window is `context` tokens and its shifted targets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataSpec {
    /// Bytes of a token in a shard, little endian: 2 or 4.
    pub token_bytes: u8,
    /// The shards, in order.
    pub shards: Vec<ShardSpec>,
    /// Whether each shard has a mask after its tokens, one bit for each token: 1 if the token is masked, that is read
    /// and not predicted. Absent from the wire if false, so that descriptions without masks keep their old bytes.
    #[serde(default, skip_serializing_if = "is_false")]
    pub masks: bool,
}

/// One shard of training tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardSpec {
    /// Tokens in the shard.
    pub tokens: u64,
    /// SHA-256 of the shard's bytes.
    #[serde(with = "serde_bytes")]
    pub sha256: [u8; 32],
}
