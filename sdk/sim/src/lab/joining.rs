//! What those begin with who join a run that goes on: nothing, a rate that rises, or another's moments.

use std::cell::RefCell;
use std::rc::Rc;

use super::idler::Idler;
use super::{Joining, LabError, Recipe};
use crate::world::MachineSpec;
use archipelago_core::diloco::Layout;
use archipelago_core::model::ModelSpec;
use archipelago_core::wire::InnerSpec;
use archipelago_runtime::engine::cpu::CpuTrainer;
use archipelago_runtime::engine::{EngineError, OptimiserState, StepStats, Trainer};

/// Steps between two copies of the donor's moments; constant of ours. A joiner's are at most so many steps old.
const COPY_STEPS: u32 = 8;

/// Makes the trainers of a recipe's machines.
pub(super) struct Newcomers {
    model: ModelSpec,
    inner: InnerSpec,
    machines: Vec<MachineSpec>,
    joining: Joining,
    /// By machine: whether it does a part of its work.
    idles: Vec<bool>,
    shelf: Rc<RefCell<Option<OptimiserState>>>,
}

impl Newcomers {
    pub(super) fn new(recipe: &Recipe) -> Self {
        let (model, inner, joining) = (recipe.model, recipe.inner, recipe.joining);
        let idles = (0..recipe.learners()).map(|machine| recipe.idles(machine)).collect();
        Self { model, inner, machines: recipe.machines.clone(), joining, idles, shelf: Rc::default() }
    }

    /// Trainers are made as machines start; whether they can be is found out here.
    ///
    /// # Errors
    /// [`LabError::Engine`]
    pub(super) fn check(&self) -> Result<(), LabError> {
        for machine in 0..self.machines.len() {
            self.plain(machine)?;
        }
        Ok(())
    }

    /// The trainer of a machine; one is made for each life of its learner.
    pub(super) fn trainer(&self, machine: u32) -> Box<dyn Trainer> {
        let joins = self.machines[machine as usize].starts_ms > 0;
        let trainer = self.plain(machine as usize).expect("the same was made before");
        if self.idles[machine as usize] {
            return Box::new(Idler::new(trainer));
        }
        match self.joining {
            Joining::Ramp { .. } | Joining::Donor if joins || machine == 0 => {
                let (joining, shelf) = (self.joining, Rc::clone(&self.shelf));
                Box::new(Newcomer { trainer, joining, joins, steps: 0, shelf })
            }
            _ => Box::new(trainer),
        }
    }

    fn plain(&self, machine: usize) -> Result<CpuTrainer, EngineError> {
        let batch = self.machines[machine].batch.map_or(self.inner.batch, u32::from);
        CpuTrainer::fixed(&self.model, &InnerSpec { batch, ..self.inner })
    }
}

/// A joiner, or the first machine's learner, who gives its moments to joiners.
struct Newcomer {
    trainer: CpuTrainer,
    joining: Joining,
    joins: bool,
    steps: u32,
    shelf: Rc<RefCell<Option<OptimiserState>>>,
}

impl Trainer for Newcomer {
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
        if self.joins
            && self.steps == 0
            && let Some(moments) = &*self.shelf.borrow()
        {
            self.trainer.resume(moments)?;
        }
        self.steps = self.steps.saturating_add(1);
        let share = match self.joining {
            Joining::Ramp { steps } if self.joins => (self.steps as f32 / steps.max(1) as f32).min(1.0),
            _ => 1.0,
        };
        let stats = self.trainer.step(tokens, lr * share)?;
        if !self.joins && self.joining == Joining::Donor && self.steps.is_multiple_of(COPY_STEPS) {
            *self.shelf.borrow_mut() = self.trainer.moments();
        }
        Ok(stats)
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
