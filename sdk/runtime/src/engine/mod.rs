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
pub use rehearsal::{PresetEstimate, Rehearsal};

/// Model with its inner optimiser, in host memory. To train a model of your own, implement this trait; a [`HostEngine`]
/// adds the exchange.
pub trait Trainer {
    /// Returns the layout of the flat parameter vector.
    fn layout(&self) -> &Layout;

    /// Returns the parameters, `[len]`.
    fn params(&self) -> &[f32];

    /// Returns the parameters, `[len]`, for the caller to change. The moments do not change.
    fn params_mut(&mut self) -> &mut [f32];

    /// Returns [`Self::params`], `[len]`, for a caller that reads only `ranges`. Values outside them may be outdated.
    /// Override it if fetching parameters is expensive.
    fn params_at(&mut self, ranges: &[Range<usize>]) -> &[f32] {
        let _ = ranges;
        self.params()
    }

    /// Returns [`Self::params_mut`], `[len]`, for a caller that reads and changes only `ranges`.
    fn params_mut_at(&mut self, ranges: &[Range<usize>]) -> &mut [f32] {
        let _ = ranges;
        self.params_mut()
    }

    /// Takes one optimiser step on `tokens`, `[batch, context + 1]`, row-major, at learning rate `lr`. If
    /// [`Self::supports_masks`] returns true, tokens may be masked: the model reads them, but they have no loss.
    ///
    /// # Errors
    /// - [`EngineError::Model`]: `tokens` has another shape or a token outside the vocabulary.
    /// - [`EngineError::Windows`]: the number of windows differs from the engine's batch.
    /// - [`EngineError::Rate`]: `lr` is negative or not finite.
    /// - [`EngineError::NotFinite`]: loss or gradient is not finite; the parameters are unchanged.
    fn step(&mut self, tokens: &[u32], lr: f32) -> Result<StepStats, EngineError>;

    /// Does the work of a step without changing anything; see [`Engine::rehearse`].
    ///
    /// # Errors
    /// Those of [`Engine::rehearse`].
    fn rehearse(&mut self, tokens: &[u32]) -> Result<bool, EngineError> {
        let _ = tokens;
        Ok(false)
    }

    /// Returns the mean loss of `params`, `[len]`, over `windows`, `[n, context + 1]`, row-major, in nats per token.
    /// The trainer's own parameters and moments do not change. Returns `None` if the trainer cannot measure it. For
    /// [`Engine::held_out_loss`].
    ///
    /// # Errors
    /// [`EngineError::Model`]: `windows` have another shape or a token outside the vocabulary.
    fn held_out_loss(&mut self, params: &[f32], windows: &[u32]) -> Result<Option<f32>, EngineError> {
        let _ = (params, windows);
        Ok(None)
    }

    /// Returns true if the trainer supports masked tokens, which the model reads and does not predict. [`crate::token`]
    /// marks them with a bit that is not part of the token id. A trainer without support never receives masked tokens
    /// and cannot train on text that contains them.
    fn supports_masks(&self) -> bool {
        false
    }

    /// Returns a copy of the optimiser's state, or `None` if the trainer cannot copy it.
    fn moments(&self) -> Option<OptimiserState> {
        None
    }

    /// Returns the expert token counts; see [`Engine::take_expert_counts`].
    fn take_expert_counts(&mut self) -> Vec<u64> {
        Vec::new()
    }

    /// Returns a description of the hardware in use for display, such as "cpu avx512 2 threads".
    fn describe(&self) -> String;
}

/// Trainer with an exchange of fragments. The learner's loop calls it.
///
/// An implementation provides the computation and its [`Exchange`]; the methods that forward to the exchange are for
/// callers. An engine that wraps another one returns the inner engine's exchange and overrides only what differs.
///
/// After [`EngineError::NotFinite`], [`EngineError::Exchange`] or [`EngineError::Lost`], only [`Self::saved_moments`]
/// may be called. The parameters of a new engine are meaningless until each fragment is loaded.
#[expect(async_fn_in_trait, reason = "the loop is one future on one thread: no bound on Send is wanted")]
pub trait Engine {
    /// Returns the exchange that holds the parameters.
    fn exchange(&self) -> &dyn Exchange;

    /// Returns the exchange that holds the parameters, for encoding updates and applying changes.
    fn exchange_mut(&mut self) -> &mut dyn Exchange;

    /// Returns a description of the hardware in use for display, such as "cpu avx512 2 threads".
    fn describe(&self) -> String;

    /// Takes one optimiser step on `tokens`, `[batch, context + 1]`, row-major, at learning rate `lr`. The model reads
    /// tokens that [`crate::token`] marks as masked, but they have no loss. The loss is the mean over the other
    /// (target) tokens. A step without target tokens has a zero gradient.
    ///
    /// The call may return before the step is done. Loss and norm are then those of the newest finished step. The first
    /// call waits for its step. The result's `tokens` is always the number of this step's tokens.
    ///
    /// # Errors
    /// Those of [`Trainer::step`], [`EngineError::Masked`] and [`EngineError::Lost`].
    async fn step(&mut self, tokens: &[u32], lr: f32) -> Result<StepStats, EngineError>;

    /// Does the work of a step on `tokens`, `[batch, context + 1]`, row-major, and waits until it is done. Parameters,
    /// optimiser and exchange do not change, so it can measure a step before training begins. Returns false, without
    /// doing anything, if this engine cannot rehearse. Must not be called while steps are pending.
    ///
    /// # Errors
    /// Those of [`Self::step`] except [`EngineError::NotFinite`], because parameters may still be meaningless.
    async fn rehearse(&mut self, tokens: &[u32]) -> Result<bool, EngineError> {
        let _ = tokens;
        Ok(false)
    }

    /// Returns the mean loss of the engine's Θ̂ over the target tokens in `windows`, `[n, context + 1]`, row-major, in
    /// nats per token. Parameters, optimiser and exchange do not change. Returns `None`, without doing anything, if
    /// this engine cannot measure it.
    ///
    /// # Errors
    /// Those of [`Trainer::held_out_loss`], [`EngineError::Masked`] and [`EngineError::Lost`].
    async fn held_out_loss(&mut self, windows: &[u32]) -> Result<Option<f32>, EngineError> {
        let _ = windows;
        Ok(None)
    }

    /// Waits until all pending work is done. [`Self::encoded`] then returns every body without waiting.
    ///
    /// # Errors
    /// [`EngineError::NotFinite`], [`EngineError::Exchange`] and [`EngineError::Lost`].
    async fn synchronise(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    /// Returns true if work is pending. An engine that completes its work in each call returns false.
    fn is_busy(&self) -> bool {
        false
    }

    /// Returns the optimiser's state as last copied to host memory, for use after a device loss or in another process.
    /// It is the initial state if the engine has not copied a newer one, and `None` if there is no copy.
    fn saved_moments(&mut self) -> Option<OptimiserState> {
        None
    }

    /// Returns the number of tokens routed to each expert since the last call, in the layout's order of experts.
    /// Pending steps are not included. The list is empty if there is nothing to report, as in a dense model.
    fn take_expert_counts(&mut self) -> Vec<u64> {
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

/// Error that prevents an engine from being built or from training on.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The model or its input is invalid.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The batch size is 0 or above [`BATCH_MAX`].
    #[error("a batch of {batch} windows; it must be between 1 and {max}", max = BATCH_MAX)]
    Batch {
        /// Batch size in the run's spec.
        batch: u32,
    },
    /// The number of windows differs from the batch size for which the engine was built.
    #[error("{found} windows given, the batch is {batch}")]
    Windows {
        /// Number of windows received.
        found: usize,
        /// Batch size of the engine.
        batch: usize,
    },
    /// The text has masked tokens, and the model does not support them.
    #[error(
        "only a part of the run's text is to be learnt, but this model learns all of it: implement \
         `Trainer::supports_masks`, or train on plain text"
    )]
    Masked,
    /// The learning rate is negative or not finite.
    #[error("the learning rate is {lr}; it must be 0 or positive, and finite")]
    Rate {
        /// Learning rate of the step.
        lr: f32,
    },
    /// Training diverged: the learning rate is too high, or the data is faulty.
    #[error("loss {loss} or gradient norm {grad_norm} is not finite; lower the learning rate")]
    NotFinite {
        /// Mean loss, in nats per token.
        loss: f32,
        /// Norm of the gradient.
        grad_norm: f32,
    },
    /// The codec settings of the exchange are invalid.
    #[error("the run's exchange settings are invalid: {0}")]
    Codec(#[from] QuantError),
    /// The run has no fragments.
    #[error("the run has no fragments: it needs at least 1")]
    NoFragments,
    /// A fragment cannot be encoded or applied. The engine's parameters are no longer usable.
    #[error(transparent)]
    Exchange(#[from] ReplicaError),
    /// The device is gone, with all its contents.
    #[error("the device was lost: {reason}")]
    Lost {
        /// Error message of the system.
        reason: String,
    },
    /// The model does not fit into the memory of this machine.
    #[error(
        "the run needs about {needed_mib} MiB of memory, but {available_mib} MiB are free: use a larger machine"
    )]
    HostMemory {
        /// Required memory, in MiB.
        needed_mib: u64,
        /// Available memory, in MiB.
        available_mib: u64,
    },
    /// The run trains adapters, and the frozen weights under them were not set.
    #[error(
        "the run trains adapters of weights that are missing: fetch them, and build with them \
         (`EngineBuilder::frozen`)"
    )]
    Frozen,
    /// The frozen weights belong to another model than the adapters.
    #[error("the frozen weights do not belong to the run's model: fetch the run's own")]
    FrozenUnfit,
    /// There is no suitable GPU, or the GPU rejected a command.
    #[cfg(feature = "gpu")]
    #[error(transparent)]
    Gpu(gpu::GpuError),
    /// The model differs from the model of the run.
    #[error("this model does not fit the run: {0}")]
    Unfit(String),
    /// The system cannot start another thread.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
}

impl EngineError {
    /// Returns true if the device or machine lacks memory, so that a smaller batch may help. A tensor above the binding
    /// limit does not count, because a smaller batch does not help there.
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

/// Maximum number of windows in a batch.
pub const BATCH_MAX: u32 = 1 << 16;

/// Choice of the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineKind {
    /// The GPU, if there is one that the model fits; otherwise the CPU.
    #[default]
    Auto,
    /// A GPU, even if it is a software GPU. There is no fallback to the CPU.
    Gpu,
    /// The CPU.
    Cpu,
}

impl EngineKind {
    /// All kinds.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Gpu, Self::Cpu];

    /// Returns the kind's name, as it is used in settings.
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

/// Error for a name that is no engine kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no engine {name:?}; choose auto, gpu or cpu")]
pub struct UnknownEngine {
    /// Requested name.
    pub name: String,
}

/// Encoded progress on one fragment, the body of an update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// Serial number of the request that it answers.
    pub serial: Serial,
    /// Fragment of the progress.
    pub fragment: FragmentId,
    /// Encoded progress; see [`crate::diloco::Codec`].
    pub body: Vec<u8>,
    /// Digest of Θ̂ on which the progress is based; see [`crate::diloco::binary16::digest`].
    pub digest: u64,
}

/// State of an inner optimiser. Code that stores or transfers it does not interpret its vectors.
#[derive(Clone, Debug, PartialEq)]
pub struct OptimiserState {
    /// Number of steps taken.
    pub steps: u64,
    /// Vectors with at most one value per parameter, in the order of the flat parameters. The first one has `[len]`
    /// values. With Muon, the second moments of matrices are absent from the second vector.
    pub vectors: Vec<Vec<f32>>,
}

impl OptimiserState {
    /// Creates AdamW's state after `steps` steps. `m` is the moving mean of the gradient, and `v` that of its square,
    /// `[len]` each.
    #[must_use]
    pub fn of_adamw(steps: u64, m: Vec<f32>, v: Vec<f32>) -> Self {
        Self { steps, vectors: vec![m, v] }
    }

    /// Returns AdamW's `m` and `v`, or `None` unless they have `len` finite values each and no negative `v`.
    #[must_use]
    pub fn adamw(&self, len: usize) -> Option<[&[f32]; 2]> {
        self.pair(len, len)
    }

    /// Returns the state of a run that trains `adamw` with AdamW, with a second moment for each of `len` parameters: 0
    /// outside these ranges. Returns `None` unless it is a valid state of such a run.
    #[cfg(feature = "gpu")]
    pub(crate) fn padded(&self, len: usize, adamw: &[(Range<usize>, bool)]) -> Option<Self> {
        let [m, v] = self.pair(len, adamw.iter().map(|(range, _)| range.len()).sum())?;
        let (mut padded, mut rest) = (vec![0.0; len], v);
        for (range, _) in adamw {
            let (own, others) = rest.split_at(range.len());
            padded[range.clone()].copy_from_slice(own);
            rest = others;
        }
        Some(Self::of_adamw(self.steps, m.to_vec(), padded))
    }

    /// Returns the reverse of [`Self::padded`].
    #[cfg(feature = "gpu")]
    pub(crate) fn unpadded(mut self, adamw: &[(Range<usize>, bool)]) -> Self {
        if let [_, v] = &mut self.vectors[..] {
            *v = adamw.iter().flat_map(|(range, _)| v[range.clone()].iter().copied()).collect();
        }
        self
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
    /// Mean loss of the target tokens before the step, in nats per token. For a step without target tokens, it is the
    /// loss of the latest step with target tokens, or 0 before such a step.
    pub loss: f32,
    /// Norm of the gradient before clipping.
    pub grad_norm: f32,
    /// Number of predicted tokens in the step, masked ones included.
    pub tokens: u64,
}

/// Exchange of an engine's parameters with the syncer, in fragments: progress is encoded, and changes are applied.
///
/// Operations take effect in call order, but a device may execute them later. A later call may then return the error of
/// an earlier operation.
pub trait Exchange {
    /// Returns the layout of the flat parameter vector.
    fn layout(&self) -> &Layout;

    /// Returns the fragments into which the parameters are divided.
    fn fragments(&self) -> &Arc<Fragments>;

    /// Begins to encode the current progress on `fragment`. [`Self::encoded`] returns the body later. The progress
    /// counts as reported, as after [`crate::diloco::Replica::encode`].
    ///
    /// # Errors
    /// [`EngineError::Exchange`] and [`EngineError::Lost`].
    fn encode(&mut self, serial: Serial, fragment: FragmentId) -> Result<(), EngineError>;

    /// Returns the next finished body, in the order of [`Self::encode`] calls, or `None` without waiting.
    ///
    /// # Errors
    /// [`EngineError::Exchange`] and [`EngineError::Lost`].
    fn encoded(&mut self) -> Result<Option<Encoded>, EngineError>;

    /// Records that the most recent update of `fragment` was merged; see [`crate::diloco::Replica::include`].
    ///
    /// # Errors
    /// [`EngineError::Exchange`] and [`EngineError::Lost`].
    fn include(&mut self, fragment: FragmentId) -> Result<(), EngineError>;

    /// Applies a merged change in `body`; see [`crate::diloco::Replica::apply`].
    ///
    /// # Errors
    /// [`EngineError::Exchange`] and [`EngineError::Lost`].
    fn apply(&mut self, fragment: FragmentId, body: &[u8]) -> Result<(), EngineError>;

    /// Sets Θ̂ of `fragment` to `values`, `[fragment_len]`; see [`crate::diloco::Replica::load`].
    ///
    /// # Errors
    /// [`EngineError::Exchange`] and [`EngineError::Lost`].
    fn load(&mut self, fragment: FragmentId, values: &[f32], keep: bool) -> Result<(), EngineError>;
}

/// Returns the frozen weights for `model`: `given` if it has adapters, or `None` if the whole model is trained.
///
/// # Errors
/// - [`EngineError::Frozen`]: the model has adapters, and `given` is `None`.
/// - [`EngineError::FrozenUnfit`]: `given` are the weights of another model.
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
