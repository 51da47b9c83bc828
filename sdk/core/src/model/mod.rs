//! The model in plain scalar Rust: presets, parameter layout, initial values, AdamW, and a reference forward and
//! backward pass against which the engines are tested.
//!
//! A Llama-shaped decoder. Letters, here and in the engines:
//!
//! | letter | meaning | | letter | meaning |
//! |---|---|---|---|---|
//! | B | windows in a batch | | H | query heads |
//! | T | tokens in a window | | K | key and value heads |
//! | C | width of the residual stream | | D | width of a head, C / H |
//! | V | vocabulary | | F | width of the feed-forward layer |
//! | E | experts of a layer | | A | experts that a token goes through |
//! | r | rank of adapters | | | |

mod adamw;
mod adapters;
mod decoder;
mod delta;
mod error;
mod flops;
mod frozen;
mod init;
mod layout;
pub mod moments;
mod preset;
mod reference;
mod rotary;
mod sampler;
mod spec;
mod targets;

pub use crate::diloco::learning_rate;
pub use adamw::decayed_ranges;
pub use adamw::{AdamW, Adjust, adjust, check_inner};
pub use adapters::{AdapterSlots, RANK_MAX};
pub use decoder::DECODER;
pub use delta::add_adapters;
pub use error::ModelError;
pub use flops::flops_per_token;
pub use frozen::{FROZEN_BLOCK, FrozenError, FrozenWeights};
pub use init::{init, init_within};
pub use layout::{CONTEXT_MAX, EXPERTS_MAX, LAYERS_MAX, VOCAB_MAX, WIDTH_MAX, layout};
pub use layout::{Dims, ExpertSlots, LayerSlots, Slots};
pub use preset::{Preset, UnknownPreset};
pub use reference::ops;
pub use reference::{
    reference_adapters_logits, reference_adapters_loss_and_grad, reference_logits, reference_loss_and_grad,
    reference_seen,
};
pub use rotary::rotary_tables;
pub use sampler::Sampler;
pub use spec::{ExpertSpec, LoraSpec, ModelSpec, ModelView};
pub use targets::{LoraTarget, LoraTargets, TargetsError};

use crate::token;
pub use crate::wire::{FrozenForm, InnerSpec, UnknownForm};

/// Splits `tokens`, `[n, context + 1]`, into its `n` windows.
///
/// # Errors
/// - [`ModelError::Tokens`]: the length is 0 or not a multiple of `context + 1`.
/// - [`ModelError::Token`]: a token, given or learnt, is not below `vocab`.
pub fn windows(tokens: &[u32], dims: &Dims) -> Result<usize, ModelError> {
    let window = dims.context + 1;
    if tokens.is_empty() || !tokens.len().is_multiple_of(window) {
        return Err(ModelError::Tokens { found: tokens.len(), window });
    }
    match tokens.iter().map(|&token| token::id(token)).find(|&id| id as usize >= dims.vocab) {
        Some(token) => Err(ModelError::Token { token, vocab: dims.vocab }),
        None => Ok(tokens.len() / window),
    }
}

/// Checks that each of `tokens` is in the vocabulary, and that none is marked as given.
///
/// # Errors
/// - [`ModelError::Token`]: a token is not below `vocab`.
pub fn check_vocab(tokens: &[u32], dims: &Dims) -> Result<(), ModelError> {
    match tokens.iter().find(|&&token| token as usize >= dims.vocab) {
        Some(&token) => Err(ModelError::Token { token, vocab: dims.vocab }),
        None => Ok(()),
    }
}

/// Checks that `found` is the number of trained parameters.
///
/// # Errors
/// - [`ModelError::Params`]: `found` is not the number of parameters.
pub fn check_len(found: usize, slots: &Slots) -> Result<(), ModelError> {
    if found == slots.trained { Ok(()) } else { Err(ModelError::Params { found, expected: slots.trained }) }
}
