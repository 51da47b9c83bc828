//! Everything that can be wrong with a model, its parameters or its tokens.

use crate::diloco::LayoutError;

/// Why a model cannot be built or run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// A run of another architecture than the built-in decoder's.
    #[error(
        "the run trains {}, not the built-in decoder: take part with the program that knows it", named(.name)
    )]
    Foreign {
        /// The name of the architecture; empty if the owner gave none.
        name: String,
    },
    /// The settings of the built-in decoder make no sense.
    #[error("the decoder's settings cannot be used: {why}")]
    Settings {
        /// What is wrong.
        why: String,
    },
    /// A size is 0 or above its limit.
    #[error("{field} is {value}; it must be between {min} and {max}")]
    Size {
        /// Name of the field in [`super::ModelSpec`].
        field: &'static str,
        /// What it was set to.
        value: u32,
        /// Smallest value allowed.
        min: u32,
        /// Largest value allowed.
        max: u32,
    },
    /// The heads do not divide the width into even parts.
    #[error("d_model {d_model} does not divide into {heads} heads of even width")]
    Heads {
        /// Width of the residual stream.
        d_model: u32,
        /// Query heads.
        heads: u32,
    },
    /// The query heads do not fall into groups of equal size.
    #[error("{kv_heads} key and value heads do not divide {heads} query heads")]
    KvHeads {
        /// Query heads.
        heads: u32,
        /// Key and value heads.
        kv_heads: u32,
    },
    /// A number that must be positive and finite is not.
    #[error("{field} is {value}; it must be positive and finite")]
    Number {
        /// Name of the field.
        field: &'static str,
        /// What it was set to.
        value: f32,
    },
    /// What the load-balancing loss of a mixture of experts counts is out of range.
    #[error("the load-balancing loss counts {value}; it must be 0 or positive, and finite")]
    AuxLoss {
        /// What it was set to.
        value: f32,
    },
    /// Adapters of a mixture of experts.
    #[error("experts have no adapters here: train a dense model with adapters, or all of the mixture")]
    LoraOfExperts,
    /// Adapters without the weights that they belong to.
    #[error("these are adapters alone: the weights that they belong to are needed too")]
    Weightless,
    /// A number of the optimiser is out of range.
    #[error("{field} is {value}; it must be {range}")]
    Inner {
        /// Name of the field in [`crate::wire::InnerSpec`].
        field: &'static str,
        /// What it was set to.
        value: f32,
        /// What it may be.
        range: &'static str,
    },
    /// The tensors make no layout: too many parameters.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The flat vector has another length than the layout.
    #[error("{found} parameters given, the layout has {expected}")]
    Params {
        /// Length given.
        found: usize,
        /// Length of the layout.
        expected: usize,
    },
    /// The tokens are no whole number of windows, or none.
    #[error("{found} tokens are no whole number of windows of context + 1 = {window}")]
    Tokens {
        /// Number given.
        found: usize,
        /// Tokens in a window with its shifted targets.
        window: usize,
    },
    /// A sequence is empty or longer than the context.
    #[error("a sequence of {found} tokens given; it must have 1 to {context}")]
    Sequence {
        /// Number given.
        found: usize,
        /// Longest sequence allowed.
        context: usize,
    },
    /// A token outside the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocab}")]
    Token {
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
}

/// An architecture in words.
fn named(name: &str) -> String {
    if name.is_empty() {
        "an architecture without a name".into()
    } else {
        format!("the architecture {name:?}")
    }
}
