//! The built-in decoder's settings.

use serde::{Deserialize, Serialize};

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
    /// Added to the mean square in RMSNorm.
    pub norm_eps: f32,
    /// Whether the output head is a matrix of its own; else it is the embedding. Left out where it is false, so that
    /// such a model is written as it was before there were others.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub untied_head: bool,
    /// The experts of each feed-forward layer; `None` for one dense layer, and left out then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
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
}
