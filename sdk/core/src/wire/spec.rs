//! What a run is: everything a learner must know to take part, as plain data.

use serde::ser::SerializeStruct;
use serde::{Deserialize, Serialize, Serializer};

/// The whole description of a run, sent in [`crate::wire::Welcome`] and kept in snapshots.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunSpec {
    /// Shape of the model.
    pub model: ModelSpec,
    /// Inner optimisation.
    pub inner: InnerSpec,
    /// How learners and syncer exchange parameters.
    pub exchange: ExchangeSpec,
    /// The training tokens.
    pub data: DataSpec,
    /// Seed of the initial parameters and of the order of the data.
    pub seed: u64,
}

/// A Llama-shaped decoder: RMSNorm, rotary positions, SwiGLU, grouped-query attention; with experts, Mixtral-shaped.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSpec {
    /// Size of the vocabulary, in tokens.
    pub vocab: u32,
    /// Width of the residual stream.
    pub d_model: u32,
    /// Decoder layers.
    pub layers: u32,
    /// Query heads; divides `d_model` into an even head width.
    pub heads: u32,
    /// Key and value heads; divides `heads`.
    pub kv_heads: u32,
    /// Width of the feed-forward layer.
    pub d_ff: u32,
    /// Longest sequence, in tokens; also the length of a training window.
    pub context: u32,
    /// Base of the rotary frequencies.
    pub rope_theta: f32,
    /// Added to the mean square in RMSNorm.
    pub norm_eps: f32,
    /// Whether the output head is a matrix of its own; else it is the embedding.
    #[serde(default)]
    pub untied_head: bool,
    /// The experts of each feed-forward layer; `None` for one dense layer.
    #[serde(default)]
    pub experts: Option<ExpertSpec>,
}

/// A mixture of experts in each feed-forward layer, as Mixtral has it: a router gives each token to some of them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertSpec {
    /// E, the experts of a layer, each of the width `d_ff`; at least 2.
    pub count: u32,
    /// Experts that each token goes through, at least 1 and at most `count`.
    pub per_token: u32,
    /// What the load-balancing loss counts beside the loss of the text, 0 or more.
    pub aux_loss: f32,
}

/// The last fields are left out where they say nothing, so that a model is written as it was before there were others.
/// In MessagePack's compact form fields go by their place, so one that is there has all before it.
impl Serialize for ModelSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let experts = self.experts.is_some();
        let untied_head = self.untied_head || experts;
        let len = 9 + usize::from(untied_head) + usize::from(experts);
        let mut fields = serializer.serialize_struct("ModelSpec", len)?;
        fields.serialize_field("vocab", &self.vocab)?;
        fields.serialize_field("d_model", &self.d_model)?;
        fields.serialize_field("layers", &self.layers)?;
        fields.serialize_field("heads", &self.heads)?;
        fields.serialize_field("kv_heads", &self.kv_heads)?;
        fields.serialize_field("d_ff", &self.d_ff)?;
        fields.serialize_field("context", &self.context)?;
        fields.serialize_field("rope_theta", &self.rope_theta)?;
        fields.serialize_field("norm_eps", &self.norm_eps)?;
        if untied_head {
            fields.serialize_field("untied_head", &self.untied_head)?;
        }
        if experts {
            fields.serialize_field("experts", &self.experts)?;
        }
        fields.end()
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
