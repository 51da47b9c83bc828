//! Trainers and meters of a lab.

use std::fmt::Debug;

use super::{Corpus, LabError};
use archipelago_core::diloco::Layout;
use archipelago_core::model::ModelSpec;
use archipelago_core::wire::InnerSpec;
use archipelago_runtime::engine::cpu::CpuTrainer;
use archipelago_runtime::engine::{EngineError, StepStats, Trainer};

/// Windows in a batch of a measurement.
const MEASURED_WINDOWS: u32 = 32;

/// A source of trainers that replaces [`CpuTrainer::fixed`], for example a GPU.
pub trait Trainers: Debug + Send + Sync {
    /// Creates a trainer with arbitrary parameters and zero moments, whose batch is that of `inner`. It accepts masked
    /// tokens, and its [`Trainer::held_out_loss`] measures.
    ///
    /// # Errors
    /// [`EngineError`]: the model is invalid, or there is no memory for it.
    fn trainer(&self, model: &ModelSpec, inner: &InnerSpec) -> Result<Box<dyn Trainer>, EngineError>;

    /// Checks that the device is present and works. If it does not, a failure is not the recipe's fault.
    ///
    /// # Errors
    /// [`EngineError::Lost`] and others: the device is unusable.
    fn check(&self) -> Result<(), EngineError>;
}

/// A trainer of a recipe.
pub(super) enum Base {
    /// A trainer whose moments can be replaced.
    Fixed(Box<CpuTrainer>),
    Other(Box<dyn Trainer>),
}

impl Base {
    pub(super) fn boxed(self) -> Box<dyn Trainer> {
        match self {
            Self::Fixed(trainer) => trainer,
            Self::Other(trainer) => trainer,
        }
    }

    pub(super) fn get(&self) -> &dyn Trainer {
        match self {
            Self::Fixed(trainer) => &**trainer,
            Self::Other(trainer) => &**trainer,
        }
    }

    pub(super) fn get_mut(&mut self) -> &mut dyn Trainer {
        match self {
            Self::Fixed(trainer) => &mut **trainer,
            Self::Other(trainer) => &mut **trainer,
        }
    }
}

/// A substitute for a trainer without memory or device; each of its steps fails with the reason.
pub(super) struct Absent {
    layout: Layout,
    params: Vec<f32>,
    reason: String,
}

impl Absent {
    pub(super) fn new(layout: Layout, reason: String) -> Self {
        Self { params: vec![0.0; layout.len()], layout, reason }
    }
}

impl Trainer for Absent {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn params(&self) -> &[f32] {
        &self.params
    }

    fn params_mut(&mut self) -> &mut [f32] {
        &mut self.params
    }

    fn step(&mut self, _: &[u32], _: f32) -> Result<StepStats, EngineError> {
        Err(EngineError::Lost { reason: self.reason.clone() })
    }

    fn takes_given(&self) -> bool {
        true
    }

    fn describe(&self) -> String {
        "none".to_owned()
    }
}

/// Creates a trainer from `trainers`, or on the CPU without them.
///
/// # Errors
/// [`EngineError`]
pub(super) fn base(
    trainers: Option<&dyn Trainers>,
    model: &ModelSpec,
    inner: &InnerSpec,
) -> Result<Base, EngineError> {
    match trainers {
        None => Ok(Base::Fixed(Box::new(CpuTrainer::fixed(model, inner)?))),
        Some(trainers) => Ok(Base::Other(trainers.trainer(model, inner)?)),
    }
}

/// A meter of held-out losses, with the recipe's kind of trainer.
pub(super) struct Meter {
    model: ModelSpec,
    seed: u64,
    /// `None` uses [`Corpus::held_out_loss`].
    trainer: Option<Box<dyn Trainer>>,
}

impl Meter {
    /// Creates a meter for the model of a run with this seed; `inner` is the run's.
    ///
    /// # Errors
    /// [`LabError::Engine`]
    pub(super) fn new(
        trainers: Option<&dyn Trainers>,
        model: &ModelSpec,
        inner: &InnerSpec,
        seed: u64,
    ) -> Result<Self, LabError> {
        let inner = InnerSpec { batch: MEASURED_WINDOWS, ..*inner };
        let trainer = trainers.map(|trainers| trainers.trainer(model, &inner)).transpose()?;
        Ok(Self { model: *model, seed, trainer })
    }

    /// Returns the held-out loss of `params`, `[len]`, in nats per token.
    ///
    /// # Errors
    /// [`LabError::NotFinite`], and those of [`Corpus::held_out_loss`].
    pub(super) fn measure(&mut self, corpus: &Corpus, params: &[f32]) -> Result<f32, LabError> {
        let loss = self.held_out(corpus, params)?;
        if loss.is_finite() { Ok(loss) } else { Err(LabError::NotFinite { seed: self.seed, loss }) }
    }

    /// Returns the same loss, even if it is not finite.
    ///
    /// # Errors
    /// Those of [`Corpus::held_out_loss`].
    pub(super) fn held_out(&mut self, corpus: &Corpus, params: &[f32]) -> Result<f32, LabError> {
        match &mut self.trainer {
            None => corpus.held_out_loss(&self.model, params),
            Some(trainer) => Corpus::loss_with(&mut **trainer, &self.model, params, &corpus.held_out),
        }
    }

    /// Returns the loss of `params`, `[len]`, on [`Corpus::test`], in nats per token.
    ///
    /// # Errors
    /// Those of [`Corpus::test_loss`].
    pub(super) fn test(&mut self, corpus: &Corpus, params: &[f32]) -> Result<f32, LabError> {
        match &mut self.trainer {
            None => corpus.test_loss(&self.model, params),
            Some(trainer) => Corpus::loss_with(&mut **trainer, &self.model, params, &corpus.test),
        }
    }
}
