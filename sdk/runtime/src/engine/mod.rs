//! Training: the traits [`Trainer`], [`Exchange`] and [`Engine`], and their implementations.

#[cfg(all(feature = "cpu-portable", feature = "gpu"))]
mod backend;
#[cfg(all(feature = "cpu-portable", feature = "gpu"))]
mod builder;
#[cfg(feature = "cpu-portable")]
pub mod cpu;
#[cfg(feature = "cpu-portable")]
mod data_parallel;
#[cfg(feature = "gpu")]
pub mod gpu;
mod host;
#[cfg(feature = "cpu-portable")]
#[cfg(all(feature = "cpu-portable", feature = "gpu"))]
mod registry;
mod rehearsal;

use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

use crate::diloco::{Fragments, Layout, QuantError, ReplicaError};
use crate::model::ModelError;
#[cfg(any(feature = "cpu-portable", feature = "gpu"))]
use crate::model::{FrozenWeights, ModelSpec};
use crate::wire::{FragmentId, Serial};

#[cfg(all(feature = "cpu-portable", feature = "gpu"))]
pub use builder::{EngineBuilder, EngineOptions, Fallback};
#[cfg(feature = "cpu-portable")]
pub use data_parallel::{DataParallel, Helper, HelperError, HelperResult, Helpers, PendingResult, Task};
pub use host::HostEngine;
#[cfg(feature = "cpu-portable")]
#[cfg(all(feature = "cpu-portable", feature = "gpu"))]
pub use registry::AnyEngine;
#[cfg(feature = "platform")]
pub use rehearsal::batch_like_any;
pub use rehearsal::{Outlook, Rehearsal};

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

    /// Returns a copy of the optimiser's moments, or `None` if it has no such state.
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

/// Engine to train with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineKind {
    /// The GPU if there is one that the model fits, otherwise the CPU.
    #[default]
    Auto,
    /// A GPU, even a software one, and nothing else.
    Gpu,
    /// The CPU.
    Cpu,
}

impl EngineKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Gpu, Self::Cpu];

    /// Returns the name in settings.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Gpu => "gpu",
            Self::Cpu => "cpu",
        }
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for EngineKind {
    type Err = UnknownEngine;

    fn from_str(name: &str) -> Result<Self, UnknownEngine> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| UnknownEngine { name: name.into() })
    }
}

/// A name that is no engine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no engine {name:?}; choose auto, gpu or cpu")]
pub struct UnknownEngine {
    /// Requested name.
    pub name: String,
}

/// The coded progress on one fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// Serial of the request.
    pub serial: Serial,
    /// The fragment.
    pub fragment: FragmentId,
    /// The code, see [`crate::diloco::Codec`].
    pub body: Vec<u8>,
    /// Digest of the base Θ̂ of this progress, see [`crate::diloco::halves::digest`].
    pub digest: u64,
}

/// State of an inner optimiser. Code that stores or transfers it need not know the meaning of its vectors.
#[derive(Clone, Debug, PartialEq)]
pub struct OptimiserState {
    /// Steps taken.
    pub steps: u64,
    /// One vector for each value that the optimiser holds per parameter, in the order of the flat parameters, at most
    /// `[len]` each. The first one is `[len]`. With Muon, the second moments of matrices are absent from the second.
    pub vectors: Vec<Vec<f32>>,
}

impl OptimiserState {
    /// Creates AdamW's state after `steps` steps: `m`, the mean of the gradient, and `v`, the mean of its square,
    /// `[len]` each.
    #[must_use]
    pub fn of_adamw(steps: u64, m: Vec<f32>, v: Vec<f32>) -> Self {
        Self { steps, vectors: vec![m, v] }
    }

    /// Returns AdamW's `m` and `v`, if this is a valid state for `len` parameters: matching length, finite, and no
    /// negative `v`.
    #[must_use]
    pub fn adamw(&self, len: usize) -> Option<[&[f32]; 2]> {
        self.pair(len, len)
    }

    /// Returns the first moments or momentum, `[m_len]`, and the second moments, `[v_len]`, if this is a valid state of
    /// these lengths: finite, and no negative second moment.
    #[must_use]
    pub(crate) fn pair(&self, m_len: usize, v_len: usize) -> Option<[&[f32]; 2]> {
        let [m, v] = self.vectors.as_slice() else { return None };
        let fits = |values: &[f32], len| values.len() == len && values.iter().all(|value| value.is_finite());
        (fits(m, m_len) && fits(v, v_len) && v.iter().all(|&v| v >= 0.0)).then_some([m, v])
    }
}

/// Statistics of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepStats {
    /// Mean loss of the learnt tokens before the step, in nats per token. For a step without learnt tokens, it is the
    /// loss of the newest step that had some, or 0 before the first.
    pub loss: f32,
    /// Norm of the gradient before clipping.
    pub grad_norm: f32,
    /// Tokens trained on, including given ones.
    pub tokens: u64,
}

/// The parameters of an engine as the learner's loop exchanges them: in fragments, encoded on the way out and applied
/// on the way back.
///
/// Operations take effect in call order, but a device may execute them later. An error of one operation may then come
/// out of a later call.
pub trait Exchange {
    /// Returns the layout of the flat parameter vector.
    fn layout(&self) -> &Layout;

    /// Returns the fragments into which the exchange splits the parameters.
    fn fragments(&self) -> &Arc<Fragments>;

    /// Begins to encode the current progress on `fragment`. [`Self::encoded`] returns the body later. Reported progress
    /// is recorded as in [`crate::diloco::Replica::encode`].
    ///
    /// # Errors
    /// [`EngineError::Exchange`] and [`EngineError::Lost`].
    fn encode(&mut self, serial: Serial, fragment: FragmentId) -> Result<(), EngineError>;

    /// Returns the next finished body, in the order in which encoding began. Does not wait.
    ///
    /// # Errors
    /// [`EngineError::Exchange`] and [`EngineError::Lost`].
    fn encoded(&mut self) -> Result<Option<Encoded>, EngineError>;

    /// Records that the most recently encoded update was merged, see [`crate::diloco::Replica::include`].
    ///
    /// # Errors
    /// [`EngineError::Exchange`] and [`EngineError::Lost`].
    fn include(&mut self, fragment: FragmentId) -> Result<(), EngineError>;

    /// Applies a merged change, see [`crate::diloco::Replica::apply`].
    ///
    /// # Errors
    /// [`EngineError::Exchange`] and [`EngineError::Lost`].
    fn apply(&mut self, fragment: FragmentId, body: &[u8]) -> Result<(), EngineError>;

    /// Loads a whole Θ̂, `[fragment_len]`, see [`crate::diloco::Replica::load`].
    ///
    /// # Errors
    /// [`EngineError::Exchange`] and [`EngineError::Lost`].
    fn load(&mut self, fragment: FragmentId, values: &[f32], keep: bool) -> Result<(), EngineError>;
}

/// Returns the frozen weights under the adapters of `model`: `given`, or `None` if the whole model is trained.
///
/// # Errors
/// - [`EngineError::Frozen`]: the model has adapters, and no weights were given.
/// - [`EngineError::FrozenUnfit`]: the given weights belong to another model.
#[cfg(any(feature = "cpu-portable", feature = "gpu"))]
fn frozen_for(
    model: &ModelSpec,
    given: Option<Arc<FrozenWeights>>,
) -> Result<Option<Arc<FrozenWeights>>, EngineError> {
    if model.lora.is_none() {
        return Ok(None);
    }
    let frozen = given.ok_or(EngineError::Frozen)?;
    if frozen.fits(model) { Ok(Some(frozen)) } else { Err(EngineError::FrozenUnfit) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_found_by_its_name_only() {
        for kind in EngineKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        let error = "GPU".parse::<EngineKind>().unwrap_err().to_string();
        assert!(EngineKind::ALL.iter().all(|kind| error.contains(kind.name())), "{error}");
    }
}
