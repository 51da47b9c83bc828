//! What trains: the [`Trainer`] trait, and the engines that implement it.

#[cfg(feature = "cpu-portable")]
pub mod cpu;

use crate::diloco::Layout;
use crate::model::ModelError;

/// A model with its inner optimiser, on some device. Implement it to train a model of your own.
pub trait Trainer {
    /// The tensors of the flat parameter vector.
    fn layout(&self) -> &Layout;

    /// The parameters, `[len]`.
    fn params(&self) -> &[f32];

    /// The parameters, `[len]`, to overwrite in part or whole. Moments stay as they are.
    fn params_mut(&mut self) -> &mut [f32];

    /// One optimiser step on `tokens`, `[batch, context + 1]`, row-major, at rate `lr`.
    ///
    /// # Errors
    /// - [`EngineError::Model`]: `tokens` has another shape or a token outside the vocabulary.
    /// - [`EngineError::Windows`]: another number of windows than the batch of the engine.
    /// - [`EngineError::Rate`]: `lr` is negative or not finite.
    /// - [`EngineError::NotFinite`]: loss or gradient is not finite; the parameters are unchanged.
    fn step(&mut self, tokens: &[u32], lr: f32) -> Result<StepStats, EngineError>;

    /// What it computes with, for people: "cpu avx512 2 threads".
    fn describe(&self) -> String;
}

/// What one step did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepStats {
    /// Mean loss before the step, in nats per token.
    pub loss: f32,
    /// Norm of the gradient before clipping.
    pub grad_norm: f32,
    /// Tokens trained on.
    pub tokens: u64,
}

/// Why an engine cannot be built or cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The model or its input is wrong.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A batch of no windows, or too many.
    #[error("a batch of {batch} windows; it must be between 1 and {max}", max = BATCH_MAX)]
    Batch {
        /// What it was set to.
        batch: u32,
    },
    /// The number of windows is not the batch that the engine was built for.
    #[error("{found} windows given, the batch is {batch}")]
    Windows {
        /// Number given.
        found: usize,
        /// Number expected.
        batch: usize,
    },
    /// A learning rate that is negative or not finite.
    #[error("the learning rate is {lr}; it must be 0 or positive, and finite")]
    Rate {
        /// What it was set to.
        lr: f32,
    },
    /// Training has blown up: lower the learning rate, or look at the data.
    #[error("loss {loss} or gradient norm {grad_norm} is not finite; lower the learning rate")]
    NotFinite {
        /// Mean loss, in nats per token.
        loss: f32,
        /// Norm of the gradient.
        grad_norm: f32,
    },
    /// The system gives no more threads.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// Most windows in a step.
pub const BATCH_MAX: u32 = 1 << 16;
