//! What a lab trains and measures with.

use std::fmt::Debug;

use super::{Corpus, LabError};
use archipelago_core::diloco::Layout;
use archipelago_core::model::ModelSpec;
use archipelago_core::wire::InnerSpec;
use archipelago_runtime::engine::cpu::CpuTrainer;
use archipelago_runtime::engine::{EngineError, StepStats, Trainer};

/// Windows of a batch of those that measure.
const MEASURED_WINDOWS: u32 = 32;

/// Where a lab's trainers come from in place of [`CpuTrainer::fixed`]: a GPU of the program's.
pub trait Trainers: Debug + Send + Sync {
    /// A trainer with parameters of any value and moments of 0, whose batch is that of `inner`. It takes tokens that
    /// are given, and its [`Trainer::held_out_loss`] measures.
    ///
    /// # Errors
    /// [`EngineError`]: the model is none, or there is no room for it.
    fn trainer(&self, model: &ModelSpec, inner: &InnerSpec) -> Result<Box<dyn Trainer>, EngineError>;

    /// Whether what they run on is there and works: where it does not, what failed says nothing of the recipe.
    ///
    /// # Errors
    /// [`EngineError::Lost`] and others: it is of no use any more.
    fn check(&self) -> Result<(), EngineError>;
}

/// A trainer of a recipe's.
pub(super) enum Base {
    /// One whose moments can be replaced.
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

/// The place of a trainer for which there is no room any more, or no device: each of its steps says so.
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

/// A trainer of `trainers`, or of the CPU where there are none.
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

/// Measures losses on text that is not trained on, with what a recipe trains with.
pub(super) struct Meter {
    model: ModelSpec,
    seed: u64,
    /// `None` for [`Corpus::held_out_loss`].
    trainer: Option<Box<dyn Trainer>>,
}

impl Meter {
    /// Of the model of a run with this seed; `inner` is the run's.
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

    /// Held-out loss of `params`, `[len]`, in nats per token.
    ///
    /// # Errors
    /// [`LabError::NotFinite`], and those of [`Corpus::held_out_loss`].
    pub(super) fn measure(&mut self, corpus: &Corpus, params: &[f32]) -> Result<f32, LabError> {
        let loss = self.held_out(corpus, params)?;
        if loss.is_finite() { Ok(loss) } else { Err(LabError::NotFinite { seed: self.seed, loss }) }
    }

    /// The same, whatever it is.
    ///
    /// # Errors
    /// Those of [`Corpus::held_out_loss`].
    pub(super) fn held_out(&mut self, corpus: &Corpus, params: &[f32]) -> Result<f32, LabError> {
        match &mut self.trainer {
            None => corpus.held_out_loss(&self.model, params),
            Some(trainer) => Corpus::loss_with(&mut **trainer, &self.model, params, &corpus.held_out),
        }
    }

    /// Loss of `params`, `[len]`, on [`Corpus::test`], in nats per token.
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
