//! The model in plain scalar Rust: presets, parameter layout, initial values, AdamW and Muon, and a reference forward
//! and backward pass against which the engines are tested.
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
mod frozen;
mod init;
mod layout;
pub mod moments;
mod muon;
mod reference;
mod spec;

pub use crate::diloco::learning_rate;
pub use adamw::{AdamW, Adjust, adjust, check_inner};
pub use adapters::{AdapterSlots, RANK_MAX, add_adapters};
pub use frozen::{FROZEN_BLOCK, FrozenError, FrozenWeights};
pub use init::{init, init_within};
pub use layout::{
    CONTEXT_MAX, Dims, EXPERTS_MAX, ExpertSlots, LAYERS_MAX, LayerSlots, Slots, VOCAB_MAX, WIDTH_MAX,
    flops_per_token, layout,
};
pub use muon::{
    MUON_MOMENTUM, MUON_NORM_MIN, MUON_RMS, MUON_START_NORM, MUON_STEPS, Muon, MuonAdjust, MuonMatrix,
    adamw_ranges, muon_matrices, muon_unit, second_moments,
};
pub use reference::{
    ops, reference_adapters_logits, reference_adapters_loss_and_grad, reference_logits,
    reference_loss_and_grad, reference_seen,
};
pub use spec::{
    DECODER, ExpertSpec, LoraSpec, LoraTarget, LoraTargets, ModelSpec, ModelView, Preset, TargetsError,
    UnknownPreset,
};

pub use crate::wire::{FrozenForm, InnerSpec, Optimiser, UnknownForm};

use crate::diloco::LayoutError;
use crate::rng::Rng;
use crate::token;

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

/// Reason why a model cannot be built or run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// The run's architecture is not the built-in decoder.
    #[error(
        "the run trains {}, not the built-in decoder: take part with the program that knows it", named(.name)
    )]
    Foreign {
        /// Name of the architecture; empty if the owner gave none.
        name: String,
    },
    /// The settings of the built-in decoder are invalid.
    #[error("the decoder's settings are invalid: {why}")]
    Settings {
        /// Fault of the settings.
        why: String,
    },
    /// A size is 0 or above its limit.
    #[error("{field} is {value}; it must be between {min} and {max}")]
    Size {
        /// Name of the field in [`ModelSpec`].
        field: &'static str,
        /// Value of the field.
        value: u32,
        /// Minimum value.
        min: u32,
        /// Maximum value.
        max: u32,
    },
    /// The heads do not divide the width into parts of even width.
    #[error("d_model {d_model} does not divide into {heads} heads of even width")]
    Heads {
        /// Width of the residual stream.
        d_model: u32,
        /// Query heads.
        heads: u32,
    },
    /// The query heads do not divide into groups of equal size.
    #[error("{kv_heads} key and value heads do not divide {heads} query heads")]
    KvHeads {
        /// Query heads.
        heads: u32,
        /// Key and value heads.
        kv_heads: u32,
    },
    /// A number is not positive and finite.
    #[error("{field} is {value}; it must be positive and finite")]
    Number {
        /// Name of the field.
        field: &'static str,
        /// Value of the field.
        value: f32,
    },
    /// The factor of the load-balancing loss of a mixture of experts is out of range.
    #[error("the weight of the load-balancing loss is {value}; it must be 0 or positive, and finite")]
    AuxLoss {
        /// Value of the factor.
        value: f32,
    },
    /// Adapters were requested for a mixture of experts.
    #[error(
        "a mixture of experts cannot have adapters here: train a dense model with adapters, or all of the mixture"
    )]
    LoraOfExperts,
    /// Adapters were given without their base weights.
    #[error("these are adapters without the weights that they belong to: give those too")]
    Weightless,
    /// A number of the optimiser is out of range.
    #[error("{field} is {value}; it must be {range}")]
    Inner {
        /// Name of the field in [`crate::wire::InnerSpec`].
        field: &'static str,
        /// Value of the field.
        value: f32,
        /// Permitted range.
        range: &'static str,
    },
    /// The tensors do not form a layout, because there are too many parameters.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The length of the flat vector does not match the layout.
    #[error("{found} parameters given, the layout has {expected}")]
    Params {
        /// Length given.
        found: usize,
        /// Length of the layout.
        expected: usize,
    },
    /// The tokens are not a positive whole number of windows.
    #[error("{found} tokens are not a whole number of windows of context + 1 = {window}")]
    Tokens {
        /// Number of tokens.
        found: usize,
        /// Tokens of a window, including the shifted targets.
        window: usize,
    },
    /// A sequence is empty or longer than the context.
    #[error("a sequence of {found} tokens given; it must have 1 to {context}")]
    Sequence {
        /// Length of the sequence.
        found: usize,
        /// Maximum length of a sequence.
        context: usize,
    },
    /// A token is outside the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocab}")]
    Token {
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
}

/// Describes an architecture by its name.
fn named(name: &str) -> String {
    if name.is_empty() {
        "an architecture without a name".into()
    } else {
        format!("the architecture {name:?}")
    }
}

/// Chooses tokens from logits; the same seed gives the same tokens.
#[derive(Clone, Debug)]
pub struct Sampler {
    temperature: f32,
    rng: Rng,
}

impl Sampler {
    /// Returns a sampler. With a `temperature` of 0 or below, or NaN, it takes the most likely token each time.
    #[must_use]
    pub fn new(temperature: f32, seed: u64) -> Self {
        Self { temperature, rng: Rng::new(seed) }
    }

    /// Draws a token from `softmax(logits / temperature)`; 0 if there are no logits.
    ///
    /// Tokens with NaN logits are never drawn.
    pub fn choose(&mut self, logits: &[f32]) -> u32 {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weight = |x: f32| {
            let scaled = f64::from(x - max) / f64::from(self.temperature);
            if self.temperature > 0.0 { libm::exp(scaled) } else { f64::from(u8::from(x == max)) }
        };
        let weights = || logits.iter().map(|&x| weight(x)).map(|w| if w.is_nan() { 0.0 } else { w });
        let total: f64 = weights().sum();
        let mut left = self.rng.unit() * total;
        let drawn = weights().position(|w| {
            left -= w;
            left < 0.0
        });
        drawn.unwrap_or(0) as u32
    }
}

/// Returns cosines and sines of the angles `t / theta^(2i/D)`, `[context, head / 2]` each (RoPE, Su et al. 2021).
pub fn rotary_tables(context: usize, head: usize, theta: f32) -> (Vec<f32>, Vec<f32>) {
    let half = head / 2;
    let angle = |t: usize, i: usize| t as f64 / libm::pow(f64::from(theta), i as f64 / half as f64);
    let table = |f: fn(f64) -> f64| -> Vec<f32> {
        (0..context).flat_map(|t| (0..half).map(move |i| f(angle(t, i)) as f32)).collect()
    };
    (table(libm::cos), table(libm::sin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_the_distribution() {
        let logits = [0.0, 2_f32.ln(), f32::NEG_INFINITY, f32::NAN];
        let mut sampler = Sampler::new(1.0, 5);
        let mut counts = [0_u32; 4];
        for _ in 0..30_000 {
            counts[sampler.choose(&logits) as usize] += 1;
        }
        assert!(counts[0].abs_diff(10_000) < 300, "{counts:?}");
        assert!(counts[1].abs_diff(20_000) < 300, "{counts:?}");
    }

    #[test]
    fn is_greedy_when_cold() {
        for temperature in [0.0, -1.0, f32::NAN, 1e-9] {
            assert_eq!(Sampler::new(temperature, 1).choose(&[1.0, 3.0, 2.0]), 1);
        }
        assert_eq!(Sampler::new(1.0, 1).choose(&[]), 0);
    }
}
