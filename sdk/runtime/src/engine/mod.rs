//! What trains: the traits [`Trainer`], [`Exchange`] and [`Engine`], and what implements them.

#[cfg(all(feature = "cpu-portable", feature = "gpu"))]
mod backend;
#[cfg(all(feature = "cpu-portable", feature = "gpu"))]
mod builder;
#[cfg(feature = "cpu-portable")]
pub mod cpu;
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
#[cfg(feature = "cpu-portable")]
mod team;

use std::ops::Range;
use std::sync::Arc;

#[cfg(all(feature = "cpu-portable", feature = "gpu"))]
pub use builder::{EngineBuilder, Fallback};
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
#[cfg(feature = "cpu-portable")]
pub use team::{Helper, HelperError, Helpers, Part, Task, Team, Working};

use crate::diloco::{Fragments, Layout, QuantError, ReplicaError};
use crate::model::ModelError;
use crate::wire::{FragmentId, Serial};

/// A model with its inner optimiser, in host memory. Implement it to train a model of your own, and let
/// a [`HostEngine`] do the exchange.
pub trait Trainer {
    /// The tensors of the flat parameter vector.
    fn layout(&self) -> &Layout;

    /// The parameters, `[len]`.
    fn params(&self) -> &[f32];

    /// The parameters, `[len]`, to overwrite in part or whole. Moments stay as they are.
    fn params_mut(&mut self) -> &mut [f32];

    /// [`Self::params`], `[len]`, for who looks at those in `ranges` only: elsewhere they may be older. It is of use
    /// where parameters come from afar.
    fn params_at(&mut self, ranges: &[Range<usize>]) -> &[f32] {
        let _ = ranges;
        self.params()
    }

    /// [`Self::params_mut`], `[len]`, for who looks at those in `ranges` only, and overwrites none but those.
    fn params_mut_at(&mut self, ranges: &[Range<usize>]) -> &mut [f32] {
        let _ = ranges;
        self.params_mut()
    }

    /// One optimiser step on `tokens`, `[batch, context + 1]`, row-major, at rate `lr`. Some of them are given and not
    /// learnt where [`Self::takes_given`].
    ///
    /// # Errors
    /// - [`EngineError::Model`]: `tokens` has another shape or a token outside the vocabulary.
    /// - [`EngineError::Windows`]: another number of windows than the batch of the engine.
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

    /// Mean loss of `params`, `[len]`, over `windows`, `[n, context + 1]`, row-major, in nats per token: what
    /// [`Engine::held_out_loss`] gives. Its own parameters and moments stay as they are. `None` if it cannot measure.
    ///
    /// # Errors
    /// [`EngineError::Model`]: `windows` have another shape or a token outside the vocabulary.
    fn held_out_loss(&mut self, params: &[f32], windows: &[u32]) -> Result<Option<f32>, EngineError> {
        let _ = (params, windows);
        Ok(None)
    }

    /// Whether it knows tokens that are given and not learnt, as [`crate::token`] marks them: their marks are no part
    /// of their ids, and they count in no loss. One that does not is never shown any, and cannot train on a text that
    /// has some.
    fn takes_given(&self) -> bool {
        false
    }

    /// A copy of the optimiser's moments; `None` if it has none of AdamW's.
    fn moments(&self) -> Option<OptimiserState> {
        None
    }

    /// See [`Engine::take_seen`].
    fn take_seen(&mut self) -> Vec<u64> {
        Vec::new()
    }

    /// What it computes with, for people: "cpu avx512 2 threads".
    fn describe(&self) -> String;
}

/// What the learner's loop drives: it trains, and exchanges fragments of what it trains.
///
/// An engine says how it computes and what its [`Exchange`] is; the methods of that are there for callers. An engine
/// around another one passes the inner one's exchange on and overrides only what it changes.
///
/// After [`EngineError::NotFinite`], [`EngineError::Exchange`] or [`EngineError::Lost`] an engine is of no further
/// use except for [`Self::salvage`]. The parameters mean nothing until each fragment was loaded.
#[expect(async_fn_in_trait, reason = "the loop is one future on one thread: no bound on Send is wanted")]
pub trait Engine {
    /// What holds the parameters.
    fn exchange(&self) -> &dyn Exchange;

    /// What holds the parameters, to code them and to take changes in.
    fn exchange_mut(&mut self) -> &mut dyn Exchange;

    /// What it computes with, for people: "cpu avx512 2 threads".
    fn describe(&self) -> String;

    /// Takes one optimiser step on `tokens`, `[batch, context + 1]`, row-major, at rate `lr`. Those that
    /// [`crate::token`] marks as given are read and not learnt; the loss is the mean over the others, and a step in
    /// which nothing is learnt has no gradient.
    ///
    /// May return before it is done: then loss and norm are those of the newest step that is; the first
    /// step is waited for. `tokens` are always this step's.
    ///
    /// # Errors
    /// Those of [`Trainer::step`], [`EngineError::Given`] and [`EngineError::Lost`].
    async fn step(&mut self, tokens: &[u32], lr: f32) -> Result<StepStats, EngineError>;

    /// Does the work of a step on `tokens`, `[batch, context + 1]`, row-major, waits until it is done, and leaves
    /// parameters, optimiser and exchange as they were: so the time of a step is known before any is taken. False if
    /// this engine cannot do that; nothing was done then. Not to be called while steps are on their way.
    ///
    /// # Errors
    /// Those of [`Trainer::step`] but [`EngineError::NotFinite`], since parameters may mean nothing yet; and
    /// [`EngineError::Lost`].
    async fn rehearse(&mut self, tokens: &[u32]) -> Result<bool, EngineError> {
        let _ = tokens;
        Ok(false)
    }

    /// Mean loss of Θ̂, as it is held here, over `windows`, `[n, context + 1]`, row-major, in nats per token, where
    /// tokens that [`crate::token`] marks as given count for nothing. Parameters, optimiser and exchange stay as they
    /// are. `None` if this engine cannot measure, and then nothing was done.
    ///
    /// # Errors
    /// Those of [`Trainer::held_out_loss`], and [`EngineError::Lost`].
    async fn held_out_loss(&mut self, windows: &[u32]) -> Result<Option<f32>, EngineError> {
        let _ = windows;
        Ok(None)
    }

    /// Waits until all that was begun is done; every body is ready then.
    ///
    /// # Errors
    /// [`EngineError::NotFinite`], [`EngineError::Exchange`] and [`EngineError::Lost`].
    async fn settle(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    /// Whether something begun is not done; never, if everything is done when a call returns.
    fn is_busy(&self) -> bool {
        false
    }

    /// A copy of the optimiser's moments as last known in host memory, to go on with after the device was
    /// lost, or in another process; those that it was built with, if it never came to more. `None` where there
    /// are none.
    fn salvage(&mut self) -> Option<OptimiserState> {
        None
    }

    /// How many tokens went through each expert since it was last asked, in the order of the experts in the layout, as
    /// far as it knows by now; empty where there is nothing to tell, as in a dense model.
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
    /// The model does not know tokens that are given and not learnt.
    #[error(
        "only a part of the run's text is to be learnt, and this model learns all that it is given: implement \
         `Trainer::takes_given`, or train on plain text"
    )]
    Given,
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
    /// The code of the exchange.
    #[error("the run's exchange makes no sense: {0}")]
    Codec(#[from] QuantError),
    /// A run without fragments.
    #[error("the run has no fragments: it needs at least 1")]
    NoFragments,
    /// A fragment cannot be coded or taken in: the parameters here are no use any more.
    #[error(transparent)]
    Exchange(#[from] ReplicaError),
    /// The device is gone, with all that it held.
    #[error("the device was lost: {reason}")]
    Lost {
        /// What the system says of it.
        reason: String,
    },
    /// The model does not fit into the memory of this machine.
    #[error(
        "the run needs about {needed_mib} MiB of memory and {available_mib} MiB are free: use a larger machine"
    )]
    HostMemory {
        /// Memory needed, in MiB.
        needed_mib: u64,
        /// Memory free, in MiB.
        available_mib: u64,
    },
    /// Adapters without the weights that they belong to.
    #[error(
        "the run trains adapters of weights that were not given: fetch them, and build with them \
         (`EngineBuilder::frozen`)"
    )]
    Frozen,
    /// Weights of another model than the adapters are for.
    #[error("the frozen weights are not of the model that the run trains adapters for: fetch the run's own")]
    FrozenUnfit,
    /// There is no GPU to train on, or it refused a command.
    #[cfg(feature = "gpu")]
    #[error(transparent)]
    Gpu(gpu::GpuError),
    /// The model is not the one that the run trains.
    #[error("this model does not fit the run: {0}")]
    Unfit(String),
    /// The system gives no more threads.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
}

impl EngineError {
    /// Whether there is too little memory, so that a smaller batch may do. (A tensor that is too large to be bound is
    /// so with any batch.)
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

/// Most windows in a step.
pub const BATCH_MAX: u32 = 1 << 16;
