//! What a learner reports of itself.

use super::Step;
use crate::wire::{LearnerState, Millis, Progress, RunId};

/// Counts and averages since the process began.
#[derive(Default)]
pub(super) struct Meter {
    pub(super) steps: u64,
    tokens: u64,
    /// What a step took in the mean, of those that a report was of last.
    step_ms: f32,
    /// What those since then took together, and how many they are.
    spent_ms: f64,
    timed: u32,
    loss_sum: f64,
    loss_count: u32,
    pub(super) reported: Option<Millis>,
}

impl Meter {
    pub(super) fn step(&mut self, step: Step) {
        self.steps += 1;
        self.tokens = self.tokens.saturating_add(step.tokens);
        if self.steps == 2 {
            // The first takes longer than others do.
            (self.spent_ms, self.timed) = (0.0, 0);
        }
        // A moving average would weigh the newest step most, and a step that takes long is the likelier one to be the
        // newest when a report is due.
        (self.spent_ms, self.timed) = (self.spent_ms + f64::from(step.step_ms), self.timed + 1);
        self.loss_sum += f64::from(step.loss);
        self.loss_count += 1;
    }

    pub(super) fn report(&mut self, now: Millis, run: RunId, state: LearnerState) -> Progress {
        let loss = (self.loss_sum / f64::from(self.loss_count)) as f32;
        if self.timed > 0 {
            self.step_ms = (self.spent_ms / f64::from(self.timed)) as f32;
        }
        (self.loss_sum, self.loss_count, self.spent_ms, self.timed) = (0.0, 0, 0.0, 0);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a report says what its steps took, however they scatter, and not what the last of them did.
    #[test]
    fn a_report_is_of_the_steps_since_the_one_before() {
        let mut meter = Meter::default();
        let mut said = |steps: &[f32]| {
            let step = |step_ms: &f32| Step { tokens: 1, loss: 1.0, step_ms: *step_ms };
            steps.iter().for_each(|step_ms| meter.step(step(step_ms)));
            meter.report(Millis(0), RunId(1), LearnerState::Training).step_ms
        };
        assert_eq!(said(&[]), 0.0);
        assert_eq!(said(&[900.0]), 900.0, "nothing else is known");
        assert_eq!(said(&[100.0, 200.0]), 150.0);
        assert_eq!(said(&[]), 150.0);
        let mut meter = Meter::default();
        for step_ms in [900.0, 100.0] {
            meter.step(Step { tokens: 1, loss: 1.0, step_ms });
        }
        assert_eq!(meter.report(Millis(0), RunId(1), LearnerState::Training).step_ms, 100.0);
    }
}
