//! Training: the traits [`Trainer`], [`Exchange`] and [`Engine`], and their implementations.

#[cfg(all(feature = "cpu-portable", feature = "gpu"))]
mod backend;
#[cfg(all(feature = "cpu-portable", feature = "gpu"))]
mod builder;
#[cfg(feature = "cpu-portable")]
pub mod cpu;
#[cfg(feature = "cpu-portable")]
mod data_parallel;
mod exchange;
#[cfg(any(feature = "cpu-portable", feature = "gpu"))]
mod frozen;
#[cfg(feature = "gpu")]
pub mod gpu;
mod host;
mod kind;
#[cfg(all(feature = "cpu-portable", feature = "gpu"))]
mod options;
#[cfg(feature = "cpu-portable")]
#[cfg(all(feature = "cpu-portable", feature = "gpu"))]
mod registry;
mod rehearsal;
mod results;

use std::ops::Range;
use std::sync::Arc;

#[cfg(all(feature = "cpu-portable", feature = "gpu"))]
pub use builder::{EngineBuilder, Fallback};
#[cfg(feature = "cpu-portable")]
pub use data_parallel::{DataParallel, Helper, HelperError, Helpers, Part, Task, Working};
pub use exchange::Exchange;
pub use host::HostEngine;
pub use kind::{EngineKind, UnknownEngine};
#[cfg(all(feature = "cpu-portable", feature = "gpu"))]
pub use options::EngineOptions;
#[cfg(feature = "cpu-portable")]
#[cfg(all(feature = "cpu-portable", feature = "gpu"))]
pub use registry::AnyEngine;
#[cfg(feature = "platform")]
pub use rehearsal::batch_like_any;
pub use rehearsal::{Outlook, Rehearsal};
pub use results::{Encoded, OptimiserState, StepStats};

use crate::diloco::{Fragments, Layout, QuantError, ReplicaError};
use crate::model::ModelError;
use crate::wire::{FragmentId, Serial};

/// A model with its inner optimiser, in host memory. Implement this trait to train a model of your own, and let a
/// [`HostEngine`] handle the exchange.
pub trait Trainer {
    /// Returns the layout of the flat parameter vector.
    fn layout(&self) -> &Layout;

    /// Returns the parameters, `[len]`.
    fn params(&self) -> &[f32];

    /// Returns the parameters, `[len]`, to overwrite in part or whole. Moments stay unchanged.
    fn params_mut(&mut self) -> &mut [f32];

    /// Returns [`Self::params`], `[len]`, for a caller that reads only `ranges`; values elsewhere may be outdated.
    /// Useful if fetching parameters is expensive.
    fn params_at(&mut self, ranges: &[Range<usize>]) -> &[f32] {
        let _ = ranges;
        self.params()
    }

    /// Returns [`Self::params_mut`], `[len]`, for a caller that reads and overwrites only `ranges`.
    fn params_mut_at(&mut self, ranges: &[Range<usize>]) -> &mut [f32] {
        let _ = ranges;
        self.params_mut()
    }

    /// Takes one optimiser step on `tokens`, `[batch, context + 1]`, row-major, at rate `lr`. If [`Self::takes_given`]
    /// is true, some tokens may be marked as given: read, but not learnt.
    ///
    /// # Errors
    /// - [`EngineError::Model`]: `tokens` has another shape or a token outside the vocabulary.
    /// - [`EngineError::Windows`]: the number of windows differs from the engine's batch.
    /// - [`EngineError::Rate`]: `lr` is negative or not finite.
    /// - [`EngineError::NotFinite`]: loss or gradient is not finite; the parameters are unchanged.
    fn step(&mut self, tokens: &[u32], lr: f32) -> Result<StepStats, EngineError>;

    /// See [`Engine::rehearse`].
    ///
    /// # Errors
    /// Those of [`Engine::rehearse`].
    fn rehearse(&mut self, tokens: &[u32]) -> Result<bool, EngineError> {
        let _ = tokens;
        Ok(false)
    }

    /// Returns the mean loss of `params`, `[len]`, over `windows`, `[n, context + 1]`, row-major, in nats per token,
    /// for [`Engine::held_out_loss`]. The trainer's own parameters and moments stay unchanged. Returns `None` if it
    /// cannot measure.
    ///
    /// # Errors
    /// [`EngineError::Model`]: `windows` have another shape or a token outside the vocabulary.
    fn held_out_loss(&mut self, params: &[f32], windows: &[u32]) -> Result<Option<f32>, EngineError> {
        let _ = (params, windows);
        Ok(None)
    }

    /// Returns true if the trainer supports tokens that are given and not learnt, as [`crate::token`] marks them. The
    /// marks are not part of token ids, and given tokens count in no loss. A trainer without support never receives
    /// such tokens and cannot train on text that contains them.
    fn takes_given(&self) -> bool {
        false
    }

    /// Returns a copy of the optimiser's moments, or `None` if it has no AdamW moments.
    fn moments(&self) -> Option<OptimiserState> {
        None
    }

    /// See [`Engine::take_seen`].
    fn take_seen(&mut self) -> Vec<u64> {
        Vec::new()
    }

    /// Returns a description of the hardware in use, for people: "cpu avx512 2 threads".
    fn describe(&self) -> String;
}

/// Trainer with an exchange of fragments, driven by the learner's loop.
///
/// An engine implements the computation and names its [`Exchange`]; the methods that forward to the exchange are for
/// callers. An engine that wraps another returns the inner engine's exchange and overrides only what it changes.
///
/// After [`EngineError::NotFinite`], [`EngineError::Exchange`] or [`EngineError::Lost`], an engine can only be used for
/// [`Self::salvage`]. The parameters are meaningless until each fragment has been loaded.
#[expect(async_fn_in_trait, reason = "the loop is one future on one thread: no bound on Send is wanted")]
pub trait Engine {
    /// Returns the exchange that holds the parameters.
    fn exchange(&self) -> &dyn Exchange;

    /// Returns the exchange that holds the parameters, to encode them and to apply changes.
    fn exchange_mut(&mut self) -> &mut dyn Exchange;

    /// Returns a description of the hardware in use, for people: "cpu avx512 2 threads".
    fn describe(&self) -> String;

    /// Takes one optimiser step on `tokens`, `[batch, context + 1]`, row-major, at rate `lr`. Tokens that
    /// [`crate::token`] marks as given are read and not learnt. The loss is the mean over the other tokens, and a step
    /// without learnt tokens has no gradient.
    ///
    /// The call may return before the step is done. Loss and norm are then those of the newest finished step; the call
    /// waits for the first step. `tokens` in the result always counts this step's tokens.
    ///
    /// # Errors
    /// Those of [`Trainer::step`], [`EngineError::Given`] and [`EngineError::Lost`].
    async fn step(&mut self, tokens: &[u32], lr: f32) -> Result<StepStats, EngineError>;

    /// Does the work of a step on `tokens`, `[batch, context + 1]`, row-major, and waits until it is done. Parameters,
    /// optimiser and exchange stay unchanged, so this measures a step before any is taken. Returns false, without doing
    /// anything, if this engine cannot rehearse. Must not be called while steps are in flight.
    ///
    /// # Errors
    /// Those of [`Trainer::step`] except [`EngineError::NotFinite`], because parameters may still be meaningless; and
    /// [`EngineError::Lost`].
    async fn rehearse(&mut self, tokens: &[u32]) -> Result<bool, EngineError> {
        let _ = tokens;
        Ok(false)
    }

    /// Returns the mean loss of this engine's Θ̂ over `windows`, `[n, context + 1]`, row-major, in nats per token.
    /// Tokens that [`crate::token`] marks as given do not count. Parameters, optimiser and exchange stay unchanged.
    /// Returns `None`, without doing anything, if this engine cannot measure.
    ///
    /// # Errors
    /// Those of [`Trainer::held_out_loss`], and [`EngineError::Lost`].
    async fn held_out_loss(&mut self, windows: &[u32]) -> Result<Option<f32>, EngineError> {
        let _ = windows;
        Ok(None)
    }

    /// Waits until all pending work is done. Every body is ready then.
    ///
    /// # Errors
    /// [`EngineError::NotFinite`], [`EngineError::Exchange`] and [`EngineError::Lost`].
    async fn settle(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    /// Returns true if work is pending. Always false for an engine that completes its work in each call.
    fn is_busy(&self) -> bool {
        false
    }

    /// Returns a copy of the optimiser's moments as last known in host memory, to resume after a device loss or in
    /// another process. These are the initial moments if the engine never saved newer ones. Returns `None` if there are
    /// no moments.
    fn salvage(&mut self) -> Option<OptimiserState> {
        None
    }

    /// Returns the number of tokens routed to each expert since the last call, in the layout's expert order, as far as
    /// known. It is empty if there is nothing to report, as in a dense model.
    fn take_seen(&mut self) -> Vec<u64> {
        Vec::new()
    }

    /// See [`Exchange::layout`].
    fn layout(&self) -> &Layout {
        self.exchange().layout()
    }

    /// See [`Exchange::fragments`].
    fn fragments(&self) -> &Arc<Fragments> {
        self.exchange().fragments()
    }

    /// See [`Exchange::encode`].
    ///
    /// # Errors
    /// Those of [`Exchange::encode`].
    fn encode(&mut self, serial: Serial, fragment: FragmentId) -> Result<(), EngineError> {
        self.exchange_mut().encode(serial, fragment)
    }

    /// See [`Exchange::encoded`].
    ///
    /// # Errors
    /// Those of [`Exchange::encoded`].
    fn encoded(&mut self) -> Result<Option<Encoded>, EngineError> {
        self.exchange_mut().encoded()
    }

    /// See [`Exchange::include`].
    ///
    /// # Errors
    /// Those of [`Exchange::include`].
    fn include(&mut self, fragment: FragmentId) -> Result<(), EngineError> {
        self.exchange_mut().include(fragment)
    }

    /// See [`Exchange::apply`].
    ///
    /// # Errors
    /// Those of [`Exchange::apply`].
    fn apply(&mut self, fragment: FragmentId, body: &[u8]) -> Result<(), EngineError> {
        self.exchange_mut().apply(fragment, body)
    }

    /// See [`Exchange::load`].
    ///
    /// # Errors
    /// Those of [`Exchange::load`].
    fn load(&mut self, fragment: FragmentId, values: &[f32], keep: bool) -> Result<(), EngineError> {
        self.exchange_mut().load(fragment, values, keep)
    }
}

/// Error that prevents an engine from being built or from continuing.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The model or its input is invalid.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A batch without windows, or with too many.
    #[error("a batch of {batch} windows; it must be between 1 and {max}", max = BATCH_MAX)]
    Batch {
        /// Configured batch.
        batch: u32,
    },
    /// The number of windows differs from the batch that the engine was built for.
    #[error("{found} windows given, the batch is {batch}")]
    Windows {
        /// Number given.
        found: usize,
        /// Number expected.
        batch: usize,
    },
    /// The model does not support tokens that are given and not learnt.
    #[error(
        "only a part of the run's text is to be learnt, but this model learns all of it: implement \
         `Trainer::takes_given`, or train on plain text"
    )]
    Given,
    /// A learning rate that is negative or not finite.
    #[error("the learning rate is {lr}; it must be 0 or positive, and finite")]
    Rate {
        /// Configured rate.
        lr: f32,
    },
    /// Training diverged: lower the learning rate, or check the data.
    #[error("loss {loss} or gradient norm {grad_norm} is not finite; lower the learning rate")]
    NotFinite {
        /// Mean loss, in nats per token.
        loss: f32,
        /// Norm of the gradient.
        grad_norm: f32,
    },
    /// The code of the exchange is invalid.
    #[error("the run's exchange settings are invalid: {0}")]
    Codec(#[from] QuantError),
    /// A run without fragments.
    #[error("the run has no fragments: it needs at least 1")]
    NoFragments,
    /// A fragment cannot be encoded or applied. The parameters of this engine are no longer usable.
    #[error(transparent)]
    Exchange(#[from] ReplicaError),
    /// The device is gone, with all its contents.
    #[error("the device was lost: {reason}")]
    Lost {
        /// Reason from the system.
        reason: String,
    },
    /// The model does not fit into the memory of this machine.
    #[error(
        "the run needs about {needed_mib} MiB of memory, but {available_mib} MiB are free: use a larger machine"
    )]
    HostMemory {
        /// Memory needed, in MiB.
        needed_mib: u64,
        /// Memory free, in MiB.
        available_mib: u64,
    },
    /// The run trains adapters, and their frozen weights were not given.
    #[error(
        "the run trains adapters of weights that are missing: fetch them, and build with them \
         (`EngineBuilder::frozen`)"
    )]
    Frozen,
    /// The frozen weights belong to another model than the adapters.
    #[error("the frozen weights do not belong to the run's model: fetch the run's own")]
    FrozenUnfit,
    /// There is no GPU to train on, or it refused a command.
    #[cfg(feature = "gpu")]
    #[error(transparent)]
    Gpu(gpu::GpuError),
    /// The model differs from the model of the run.
    #[error("this model does not fit the run: {0}")]
    Unfit(String),
    /// The system provides no more threads.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
}

impl EngineError {
    /// Returns true if memory is short, so that a smaller batch may help. A tensor that exceeds the binding limit does
    /// so with any batch.
    #[must_use]
    pub fn is_of_memory(&self) -> bool {
        match self {
            Self::HostMemory { .. } => true,
            #[cfg(feature = "gpu")]
            Self::Gpu(gpu::GpuError::Memory { .. }) => true,
            _ => false,
        }
    }
}

#[cfg(feature = "gpu")]
impl From<gpu::GpuError> for EngineError {
    fn from(error: gpu::GpuError) -> Self {
        match error {
            gpu::GpuError::Lost { reason } => Self::Lost { reason },
            error => Self::Gpu(error),
        }
    }
}

/// Maximum number of windows in a step.
pub const BATCH_MAX: u32 = 1 << 16;
