//! Trainers of a lab.

use std::fmt::Debug;

use archipelago_core::diloco::Layout;
use archipelago_core::model::ModelSpec;
use archipelago_core::wire::InnerSpec;
use archipelago_runtime::engine::cpu::CpuTrainer;
use archipelago_runtime::engine::{EngineError, OptimiserState, StepStats, Trainer};

/// A free rider computes one step out of this many.
const ONE_IN: u32 = 10;

/// A source of trainers that replaces [`CpuTrainer::fixed`], for example a GPU.
pub trait Trainers: Debug + Send + Sync {
    /// Creates a trainer with arbitrary parameters and zero moments, whose batch is that of `inner`. It accepts masked
    /// tokens, and its [`Trainer::held_out_loss`] measures.
    ///
    /// # Errors
    /// [`EngineError`]: the model is invalid, or there is no memory for it.
    fn trainer(&self, model: &ModelSpec, inner: &InnerSpec) -> Result<Box<dyn Trainer>, EngineError>;

    /// Checks that the device is present and works. If it is not, a failed run is not the fault of its recipe.
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

/// Substitute for a trainer that cannot be made. Each of its steps fails with the reason.
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

    fn supports_masks(&self) -> bool {
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

/// Trainer of a free rider: computes one step in ten and reports that step's statistics for the others.
pub(super) struct FreeRider {
    trainer: Box<dyn Trainer>,
    steps: u32,
    last: StepStats,
}

impl FreeRider {
    pub(super) fn new(trainer: Box<dyn Trainer>) -> Self {
        Self { trainer, steps: 0, last: StepStats { loss: 0.0, grad_norm: 0.0, tokens: 0 } }
    }
}

impl Trainer for FreeRider {
    fn layout(&self) -> &Layout {
        self.trainer.layout()
    }

    fn params(&self) -> &[f32] {
        self.trainer.params()
    }

    fn params_mut(&mut self) -> &mut [f32] {
        self.trainer.params_mut()
    }

    fn step(&mut self, tokens: &[u32], lr: f32) -> Result<StepStats, EngineError> {
        if self.steps.is_multiple_of(ONE_IN) {
            self.last = self.trainer.step(tokens, lr)?;
        }
        self.steps = self.steps.wrapping_add(1);
        Ok(self.last)
    }

    fn take_expert_counts(&mut self) -> Vec<u64> {
        self.trainer.take_expert_counts()
    }

    fn supports_masks(&self) -> bool {
        self.trainer.supports_masks()
    }

    fn moments(&self) -> Option<OptimiserState> {
        self.trainer.moments()
    }

    fn describe(&self) -> String {
        self.trainer.describe()
    }
}
