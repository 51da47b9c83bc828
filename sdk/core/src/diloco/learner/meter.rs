//! What a learner reports of itself.

use super::Step;
use crate::wire::{LearnerState, Millis, Progress, RunId};

/// Weight of the newest step in the moving average of step times.
const STEP_WEIGHT: f32 = 0.2;

/// Counts and averages since the process began.
#[derive(Default)]
pub(super) struct Meter {
    pub(super) steps: u64,
    tokens: u64,
    step_ms: f32,
    loss_sum: f64,
    loss_count: u32,
    pub(super) reported: Option<Millis>,
}

impl Meter {
    pub(super) fn step(&mut self, step: Step) {
        self.steps += 1;
        self.tokens = self.tokens.saturating_add(step.tokens);
        self.step_ms = match self.step_ms {
            0.0 => step.step_ms,
            old => old + STEP_WEIGHT * (step.step_ms - old),
        };
        self.loss_sum += f64::from(step.loss);
        self.loss_count += 1;
    }

    pub(super) fn report(&mut self, now: Millis, run: RunId, state: LearnerState) -> Progress {
        let loss = (self.loss_sum / f64::from(self.loss_count)) as f32;
        (self.loss_sum, self.loss_count) = (0.0, 0);
        self.reported = Some(now);
        Progress {
            run,
            leases: Vec::new(),
            steps: self.steps,
            tokens: self.tokens,
            step_ms: self.step_ms,
            loss,
            state,
        }
    }
}
