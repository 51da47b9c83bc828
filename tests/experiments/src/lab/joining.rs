//! Initial optimiser state of joiners: zero moments, a rising learning rate, or another learner's moments.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use super::trainers::{Absent, Base, FreeRider};
use super::{JoinerStart, LabError, Recipe};
use archipelago_core::diloco::Layout;
use archipelago_core::model::layout;
use archipelago_core::wire::InnerSpec;
use archipelago_runtime::engine::{EngineError, OptimiserState, StepStats, Trainer};

/// Steps between two copies of the donor's moments; our own constant. It bounds the age of a joiner's moments, in
/// steps.
const COPY_STEPS: u32 = 8;

/// Factory for the trainers of a recipe's machines.
pub(super) struct TrainerFactory {
    recipe: Recipe,
    /// For each machine, true if its learner skips most of its work.
    free_riders: Vec<bool>,
    donated: Rc<RefCell<Option<OptimiserState>>>,
    layout: Layout,
    /// Trainers that are made and not used yet, by machine.
    made: RefCell<BTreeMap<usize, Base>>,
}

impl TrainerFactory {
    /// Creates the factory for `recipe`.
    ///
    /// # Errors
    /// [`LabError::Model`]
    pub(super) fn new(recipe: &Recipe) -> Result<Self, LabError> {
        let free_riders = (0..recipe.learners()).map(|machine| recipe.rides_free(machine)).collect();
        let (recipe, layout) = (recipe.clone(), layout(&recipe.model)?);
        Ok(Self { recipe, free_riders, donated: Rc::default(), layout, made: RefCell::default() })
    }

    /// Checks that the trainers can be made, before machines start and make them. Those of a device are kept, since the
    /// device must hold all of them at once.
    ///
    /// # Errors
    /// [`LabError::Engine`]
    pub(super) fn check(&self) -> Result<(), LabError> {
        for machine in 0..self.recipe.machines.len() {
            let trainer = self.plain(machine)?;
            if self.recipe.trainers.is_some() {
                self.made.borrow_mut().insert(machine, trainer);
            }
        }
        Ok(())
    }

    /// Returns a trainer for a machine; each process of its learner gets a new one.
    pub(super) fn trainer(&self, machine: u32) -> Box<dyn Trainer> {
        let (machine, joining) = (machine as usize, self.recipe.joining);
        let joins = self.recipe.machines[machine].starts_ms > 0;
        let made = self.made.borrow_mut().remove(&machine);
        let trainer = made.map_or_else(|| self.plain(machine), Ok).unwrap_or_else(|error| {
            Base::Other(Box::new(Absent::new(self.layout.clone(), error.to_string())))
        });
        if self.free_riders[machine] {
            return Box::new(FreeRider::new(trainer.boxed()));
        }
        match joining {
            JoinerStart::Ramp { .. } | JoinerStart::Donor if joins || machine == 0 => {
                let donated = Rc::clone(&self.donated);
                Box::new(JoinerTrainer { trainer, joining, joins, steps: 0, donated })
            }
            _ => trainer.boxed(),
        }
    }

    fn plain(&self, machine: usize) -> Result<Base, EngineError> {
        let Recipe { machines, inner, .. } = &self.recipe;
        let batch = machines[machine].batch.map_or(inner.batch, u32::from);
        self.recipe.base(&InnerSpec { batch, ..*inner })
    }
}

/// Trainer of a joiner, or of the first machine's learner, which donates its moments.
struct JoinerTrainer {
    trainer: Base,
    joining: JoinerStart,
    joins: bool,
    steps: u32,
    donated: Rc<RefCell<Option<OptimiserState>>>,
}

impl Trainer for JoinerTrainer {
    fn layout(&self) -> &Layout {
        self.trainer.get().layout()
    }

    fn params(&self) -> &[f32] {
        self.trainer.get().params()
    }

    fn params_mut(&mut self) -> &mut [f32] {
        self.trainer.get_mut().params_mut()
    }

    fn params_at(&mut self, ranges: &[Range<usize>]) -> &[f32] {
        self.trainer.get_mut().params_at(ranges)
    }

    fn params_mut_at(&mut self, ranges: &[Range<usize>]) -> &mut [f32] {
        self.trainer.get_mut().params_mut_at(ranges)
    }

    fn step(&mut self, tokens: &[u32], lr: f32) -> Result<StepStats, EngineError> {
        if self.joins
            && self.steps == 0
            && let Base::Fixed(trainer) = &mut self.trainer
            && let Some(moments) = &*self.donated.borrow()
        {
            trainer.resume(moments)?;
        }
        self.steps = self.steps.saturating_add(1);
        let share = match self.joining {
            JoinerStart::Ramp { steps } if self.joins => (self.steps as f32 / steps.max(1) as f32).min(1.0),
            _ => 1.0,
        };
        let stats = self.trainer.get_mut().step(tokens, lr * share)?;
        if !self.joins && self.joining == JoinerStart::Donor && self.steps.is_multiple_of(COPY_STEPS) {
            *self.donated.borrow_mut() = self.trainer.get().moments();
        }
        Ok(stats)
    }

    fn take_expert_counts(&mut self) -> Vec<u64> {
        self.trainer.get_mut().take_expert_counts()
    }

    fn supports_masks(&self) -> bool {
        self.trainer.get().supports_masks()
    }

    fn moments(&self) -> Option<OptimiserState> {
        self.trainer.get().moments()
    }

    fn describe(&self) -> String {
        self.trainer.get().describe()
    }
}
