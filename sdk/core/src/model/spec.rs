//! Settings of the built-in decoder.

use serde::{Deserialize, Serialize};

use super::LoraTargets;

/// A Llama-shaped decoder: RMSNorm, rotary positions, SwiGLU, grouped-query attention; with experts, Mixtral-shaped.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
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
    /// Term added to the mean square in RMSNorm.
    pub norm_eps: f32,
    /// Whether the output head is a separate matrix; otherwise it is the embedding. Absent from the encoding if false,
    /// so that models with a tied head keep their old bytes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub untied_head: bool,
    /// Experts of each feed-forward layer. `None`, and absent from the encoding, for a dense layer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experts: Option<ExpertSpec>,
    /// Trained adapters on frozen weights. `None`, and absent from the encoding, if the weights are trained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora: Option<LoraSpec>,
}

impl ModelSpec {
    /// Returns the model without adapters; [`crate::model::layout`] of it is the layout of the weights.
    #[must_use]
    pub fn base(&self) -> Self {
        Self { lora: None, ..*self }
    }
}

/// A mixture of experts in each feed-forward layer, as in Mixtral: a router sends each token to some of them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertSpec {
    /// E, the experts of a layer, each of the width `d_ff`; at least 2.
    pub count: u32,
    /// Number of experts that each token passes through, at least 1 and at most `count`.
    pub per_token: u32,
    /// Factor of the load-balancing loss relative to the loss of the text, 0 or more.
    pub aux_loss: f32,
}

/// Low-rank adapters on frozen matrices (Hu and others 2021, arXiv 2106.09685): `y = x Wᵀ + α / r · (x Aᵀ) Bᵀ`, where
/// only A and B are trained.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoraSpec {
    /// r, the rank of an adapter; 1 to [`crate::model::RANK_MAX`].
    pub rank: u32,
    /// α, the weight of adapters; positive.
    pub alpha: f32,
    /// Matrices that have adapters.
    pub targets: LoraTargets,
}

impl LoraSpec {
    /// Returns α / r, the factor of an adapter's output.
    #[must_use]
    pub fn scale(&self) -> f32 {
        self.alpha / self.rank as f32
    }
}

/// What [`crate::wire::http::MODEL`] answers: the model as whoever writes with it must know it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
pub struct ModelView {
    /// The shape, for an engine; a page need not look into it.
    #[cfg_attr(feature = "ts", ts(type = "unknown"))]
    pub model: ModelSpec,
    /// Fragments that the parameters are fetched in.
    pub fragments: u16,
    /// Whether a token is a byte, so that nobody need be asked what it means.
    pub token_is_byte: bool,
    /// Tokens at which the model stops writing; they are no part of the text.
    #[serde(default)]
    pub stops: Vec<u32>,
}
