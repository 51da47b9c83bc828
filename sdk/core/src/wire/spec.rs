//! What a run is: everything a learner must know to take part, as plain data.

use serde::{Deserialize, Serialize};

use super::Frozen;

/// The whole description of a run, sent in [`crate::wire::Welcome`] and kept in snapshots.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunSpec {
    /// The model's tensors and windows.
    pub model: Model,
    /// Inner optimisation.
    pub inner: InnerSpec,
    /// How learners and syncer exchange parameters.
    pub exchange: ExchangeSpec,
    /// The training tokens.
    pub data: DataSpec,
    /// Seed of the initial parameters and of the order of the data.
    pub seed: u64,
    /// Weights that the model builds on and nobody trains; `None` where all are trained, and left out then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frozen: Option<Frozen>,
}

/// The model of a run, as far as the exchange must know it: named tensors, and the windows that it reads. What it
/// computes with them its [`Architecture`] says, into which neither the wire nor the core of a syncer looks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Longest sequence, in tokens; also the length of a training window.
    pub context: u32,
    /// Tokens that there are: each of the text is below it.
    pub vocab: u32,
    /// The tensors, in the order of the flat parameter vector.
    pub tensors: Vec<Tensor>,
    /// What the model is.
    pub architecture: Architecture,
    /// How tokens are shared among experts; `None` where all of them go through each tensor, and left out then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experts: Option<Mixture>,
}

/// Experts of a model: of each layer that has some, a token goes through a part of them. A tensor is an expert's by its
/// name, `….experts.3.…`, and is merged by the tokens that it saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mixture {
    /// E, the experts of a layer.
    pub count: u32,
    /// Experts that each token goes through.
    pub per_token: u32,
}

/// What a model computes: for whoever knows the name, and for nobody else.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Architecture {
    /// The name that its learners know it by, at most [`ARCHITECTURE_NAME_BYTES_MAX`] bytes; empty if the owner gave
    /// none.
    pub name: String,
    /// Its settings in a form of its own, at most [`ARCHITECTURE_BYTES_MAX`] bytes.
    #[serde(with = "serde_bytes")]
    pub settings: Vec<u8>,
}

/// Longest name of an [`Architecture`], in bytes.
pub const ARCHITECTURE_NAME_BYTES_MAX: u32 = 64;

/// Longest settings of an [`Architecture`], in bytes.
pub const ARCHITECTURE_BYTES_MAX: u32 = 4_096;

/// Longest name of a [`Tensor`], in bytes.
pub const TENSOR_NAME_BYTES_MAX: u32 = 256;

/// How the updates of a tensor are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MergeClass {
    /// Token-weighted mean: the embedding, whose outer gradients are not near-orthogonal, and adapters.
    Mean,
    /// Radial-directional averaging: everything else.
    Radial,
}

/// A named tensor, `[rows, cols]`, row-major; a vector has one row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tensor {
    /// Unique within the model.
    pub name: String,
    /// Rows, at least 1.
    pub rows: u32,
    /// Columns, at least 1.
    pub cols: u32,
    /// How its updates are merged.
    pub merge: MergeClass,
}

impl Tensor {
    /// Values in the tensor.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.rows * self.cols
    }

    /// Never true in a layout.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows == 0 || self.cols == 0
    }
}

/// What serde asks for: whether a field can be left out.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

/// AdamW with decoupled decay, global clipping, warm-up and cosine by the run's merged tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InnerSpec {
    /// Windows in one step of one learner.
    pub batch: u32,
    /// Highest learning rate.
    pub lr_max: f32,
    /// Lowest learning rate as a share of `lr_max`, reached at `total_tokens` and kept.
    pub lr_min_ratio: f32,
    /// Merged tokens over which the rate climbs from 0.
    pub warmup_tokens: u64,
    /// Merged tokens at which the cosine ends.
    pub total_tokens: u64,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub eps: f32,
    /// Decoupled weight decay, on matrices only.
    pub weight_decay: f32,
    /// Largest global gradient norm; 0 switches clipping off.
    pub clip_norm: f32,
}

/// How parameters travel.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExchangeSpec {
    /// P, the number of fragments.
    pub fragments: u16,
    /// H: steps of the median learner between two rounds of the same fragment.
    pub sync_every: u32,
    /// Values that share one scale; a multiple of 8, with codes of 2 bits of 16, of 1 bit of 32.
    pub block: u32,
    /// How values are coded, both ways.
    pub code: Code,
    /// What a learner does with a merged fragment.
    pub apply: ApplyPolicy,
}

/// The code of one value within its block.
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
    /// Its name in settings, reports and JSON.
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

/// What a learner's parameters θ become when Θ̂ of a fragment arrives.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApplyPolicy {
    /// Θ̂ plus the local progress not yet merged, what the code rounded away included if `residue`.
    Keep {
        /// Keep what rounding took from the update that was merged.
        residue: bool,
    },
    /// Θ̂, as in the paper; unmerged progress on the fragment is dropped.
    Overwrite,
    /// `alpha` of the kept progress, `1 − alpha` dropped (Streaming DiLoCo).
    Blend {
        /// Share of unmerged progress that stays, 0 to 1.
        alpha: f32,
    },
}

impl ApplyPolicy {
    /// Whether unmerged progress on a fragment, what rounding took included, outlives the versions of others. Then an
    /// update stands for the same progress whatever was merged since it was coded, and can be merged later.
    #[must_use]
    pub fn is_additive(self) -> bool {
        self == Self::Keep { residue: true }
    }
}

/// The training tokens, in shards; a window is `context` tokens and its shifted targets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataSpec {
    /// Bytes of a token in a shard, little endian: 2 or 4.
    pub token_bytes: u8,
    /// The shards, in order.
    pub shards: Vec<ShardSpec>,
    /// Whether each shard says of each token whether it is given and not learnt: a bit each, after the tokens. Left out
    /// where it is false, so that texts that are learnt whole are described as they were before there were others.
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
