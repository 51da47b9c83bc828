//! Measurements of worlds with toy models, in which only bytes and time matter.

use archipelago_core::diloco::syncer::SyncerError;
use archipelago_core::diloco::{Layout, MergeClass, Tensor};
use archipelago_runtime::engine::{EngineError, StepStats, Trainer};
use archipelago_sim::world::{Violation, World};

use crate::SimulateError;

/// Each step of [`Drift`] moves one in this many parameters.
const STRIDE: usize = 16;

/// The reason why a world could not be measured.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TrialError {
    /// The syncer rejects the run.
    #[error("the run cannot be: {0}")]
    Syncer(#[from] SyncerError),
    /// A broken invariant, which is a bug.
    #[error("the simulated run broke a rule: {0}")]
    Broken(#[from] Violation),
    /// The trial did not finish.
    #[error("after {ms} ms of virtual time {what}: give shorter steps or faster links")]
    Unfinished {
        /// Progress of the trial.
        what: &'static str,
        /// Virtual time that was allowed, in milliseconds.
        ms: u64,
    },
}

impl From<TrialError> for SimulateError {
    /// Creates `Broken` if the program is at fault, and `Refused` if the settings are.
    fn from(error: TrialError) -> Self {
        match error {
            TrialError::Unfinished { .. } | TrialError::Syncer(_) => Self::refused(error),
            TrialError::Broken(_) => Self::Broken { what: error.to_string() },
        }
    }
}

/// Returns the tokens merged so far.
pub fn merged(world: &World) -> u64 {
    world.status().map_or(0, |status| status.tokens_merged)
}

/// Returns the time at which `tokens` tokens were merged, in milliseconds, checked every `every_ms`.
///
/// # Errors
/// - [`TrialError::Unfinished`]: the time exceeds `ms_max`.
/// - [`TrialError::Broken`]: an invariant was broken.
pub fn merged_at_ms(world: &mut World, tokens: u64, every_ms: u64, ms_max: u64) -> Result<u64, TrialError> {
    let reached = world.run_until(ms_max, every_ms, |world| merged(world) >= tokens);
    world.check()?;
    let what = "the tokens were not merged yet";
    if reached { Ok(world.now().0) } else { Err(TrialError::Unfinished { what, ms: ms_max }) }
}

/// Model of equal tensors whose values drift upwards at the learning rate.
#[derive(Clone, Debug)]
pub struct Drift {
    layout: Layout,
    params: Vec<f32>,
    steps: usize,
}

impl Drift {
    pub fn new(layout: Layout) -> Self {
        Self { params: vec![0.0; layout.len()], layout, steps: 0 }
    }

    /// Returns `tensors` tensors of one row of `values` values each.
    pub fn layout(tensors: u16, values: u32) -> Layout {
        let tensor = |i| Tensor { name: format!("t{i}"), rows: 1, cols: values, merge: MergeClass::Radial };
        Layout::new((0..tensors).map(tensor).collect()).expect("tensors with names of their own")
    }
}

impl Trainer for Drift {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn params(&self) -> &[f32] {
        &self.params
    }

    fn params_mut(&mut self) -> &mut [f32] {
        &mut self.params
    }

    fn step(&mut self, tokens: &[u32], lr: f32) -> Result<StepStats, EngineError> {
        let first = self.steps % STRIDE;
        self.params.iter_mut().skip(first).step_by(STRIDE).for_each(|param| *param += lr);
        self.steps += 1;
        // Windows of 8 tokens and a target each, as in the toys' data.
        Ok(StepStats { loss: 1.0, grad_norm: 1.0, tokens: 8 * (tokens.len() / 9) as u64 })
    }

    fn describe(&self) -> String {
        "drift".into()
    }
}
