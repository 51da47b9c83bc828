//! Errors of a model, its parameters and its tokens.

use crate::diloco::LayoutError;

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
        /// Name of the field in [`super::ModelSpec`].
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
