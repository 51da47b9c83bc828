//! What trains: the traits [`Trainer`], [`Exchange`] and [`Engine`], and what implements them.

#[cfg(all(feature = "cpu-portable", feature = "gpu"))]
mod backend;
#[cfg(all(feature = "cpu-portable", feature = "gpu"))]
mod builder;
#[cfg(feature = "cpu-portable")]
pub mod cpu;
mod error;
#[cfg(feature = "gpu")]
pub mod gpu;
mod host;
mod kind;
#[cfg(all(feature = "cpu-portable", feature = "gpu"))]
mod registry;
mod rehearsal;
#[cfg(feature = "cpu-portable")]
mod team;

use std::sync::Arc;

#[cfg(all(feature = "cpu-portable", feature = "gpu"))]
pub use builder::{EngineBuilder, EngineOptions, Fallback};
pub use error::EngineError;
pub use host::HostEngine;
pub use kind::{EngineKind, UnknownEngine};
#[cfg(all(feature = "cpu-portable", feature = "gpu"))]
pub use registry::AnyEngine;
pub use rehearsal::Rehearsal;
#[cfg(feature = "cpu-portable")]
pub use team::{Helper, HelperError, Helpers, Part, Task, Team, Working};

use crate::diloco::{Fragments, Layout};
use crate::wire::{FragmentId, Round};

/// A model with its inner optimiser, in host memory. Implement it to train a model of your own, and let
/// a [`HostEngine`] do the exchange.
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

    /// A copy of the optimiser's moments; `None` if it has none of AdamW's.
    fn moments(&self) -> Option<Moments> {
        None
    }

    /// What it computes with, for people: "cpu avx512 2 threads".
    fn describe(&self) -> String;
}

/// The parameters of an engine as the learner's loop exchanges them: in fragments, coded on the way out and taken in
/// on the way back.
///
/// Operations take effect in the order of the calls, though a device may carry them out later; an error
/// of one may then come out of a later call.
pub trait Exchange {
    /// The tensors of the flat parameter vector.
    fn layout(&self) -> &Layout;

    /// How the parameters are split for the exchange.
    fn fragments(&self) -> &Arc<Fragments>;

    /// Begins to code the progress on `fragment` as of now; the body comes out of [`Self::encoded`].
    /// The reported position is remembered as by [`crate::diloco::Replica::encode`].
    ///
    /// # Errors
    /// [`EngineError::Exchange`] and [`EngineError::Lost`].
    fn encode(&mut self, round: Round, fragment: FragmentId) -> Result<(), EngineError>;

    /// A body that is ready, in the order in which they were begun. Does not wait.
    ///
    /// # Errors
    /// [`EngineError::Exchange`] and [`EngineError::Lost`].
    fn encoded(&mut self) -> Result<Option<Encoded>, EngineError>;

    /// Takes in a merged change, see [`crate::diloco::Replica::apply`].
    ///
    /// # Errors
    /// [`EngineError::Exchange`] and [`EngineError::Lost`].
    fn apply(&mut self, fragment: FragmentId, body: &[u8], included: bool) -> Result<(), EngineError>;

    /// Takes in a whole Θ̂, `[fragment_len]`, see [`crate::diloco::Replica::load`].
    ///
    /// # Errors
    /// [`EngineError::Exchange`] and [`EngineError::Lost`].
    fn load(
        &mut self,
        fragment: FragmentId,
        values: &[f32],
        keep: bool,
        included: bool,
    ) -> Result<(), EngineError>;
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

    /// Takes one optimiser step on `tokens`, `[batch, context + 1]`, row-major, at rate `lr`.
    ///
    /// May return before it is done: then loss and norm are those of the newest step that is; the first
    /// step is waited for. `tokens` are always this step's.
    ///
    /// # Errors
    /// Those of [`Trainer::step`], and [`EngineError::Lost`].
    async fn step(&mut self, tokens: &[u32], lr: f32) -> Result<StepStats, EngineError>;

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
    fn salvage(&mut self) -> Option<Moments> {
        None
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
    fn encode(&mut self, round: Round, fragment: FragmentId) -> Result<(), EngineError> {
        self.exchange_mut().encode(round, fragment)
    }

    /// See [`Exchange::encoded`].
    ///
    /// # Errors
    /// Those of [`Exchange::encoded`].
    fn encoded(&mut self) -> Result<Option<Encoded>, EngineError> {
        self.exchange_mut().encoded()
    }

    /// See [`Exchange::apply`].
    ///
    /// # Errors
    /// Those of [`Exchange::apply`].
    fn apply(&mut self, fragment: FragmentId, body: &[u8], included: bool) -> Result<(), EngineError> {
        self.exchange_mut().apply(fragment, body, included)
    }

    /// See [`Exchange::load`].
    ///
    /// # Errors
    /// Those of [`Exchange::load`].
    fn load(
        &mut self,
        fragment: FragmentId,
        values: &[f32],
        keep: bool,
        included: bool,
    ) -> Result<(), EngineError> {
        self.exchange_mut().load(fragment, values, keep, included)
    }
}

/// The coded progress on one fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// The round that it answers.
    pub round: Round,
    /// The fragment.
    pub fragment: FragmentId,
    /// The code, see [`crate::diloco::Codec`].
    pub body: Vec<u8>,
}

/// The state of AdamW, in the order of the flat parameter vector.
#[derive(Clone, Debug, PartialEq)]
pub struct Moments {
    /// Steps taken, for the correction of the bias.
    pub steps: u64,
    /// Mean of the gradient, `[len]`.
    pub m: Vec<f32>,
    /// Mean of its square, `[len]`.
    pub v: Vec<f32>,
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

/// Most windows in a step.
pub const BATCH_MAX: u32 = 1 << 16;
