//! A trainer that skips most of its work.

use archipelago_core::diloco::Layout;
use archipelago_runtime::engine::{EngineError, OptimiserState, StepStats, Trainer};

/// Number of steps of which only one is computed.
const ONE_IN: u32 = 10;

/// A trainer that computes one step in ten and reports that step's statistics for the others.
pub(super) struct Idler {
    trainer: Box<dyn Trainer>,
    steps: u32,
    last: StepStats,
}

impl Idler {
    pub(super) fn new(trainer: Box<dyn Trainer>) -> Self {
        Self { trainer, steps: 0, last: StepStats { loss: 0.0, grad_norm: 0.0, tokens: 0 } }
    }
}

impl Trainer for Idler {
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

    fn take_seen(&mut self) -> Vec<u64> {
        self.trainer.take_seen()
    }

    fn takes_given(&self) -> bool {
        self.trainer.takes_given()
    }

    fn moments(&self) -> Option<OptimiserState> {
        self.trainer.moments()
    }

    fn describe(&self) -> String {
        self.trainer.describe()
    }
}
