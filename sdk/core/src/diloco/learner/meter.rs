//! Statistics that a learner reports.

use super::Step;
use crate::wire::{LearnerState, Millis, Progress, RunId};

/// Counts since the learner began or restarted, and averages since the last report.
#[derive(Default)]
pub(super) struct Meter {
    steps: u64,
    tokens: u64,
    /// Steps with tokens.
    trained: u64,
    /// Mean step time of the last report that had one.
    step_ms: f32,
    /// Total time of the steps since then, and their number.
    spent_ms: f64,
    timed: u32,
    /// Sum of token losses since the last report, and the number of these tokens.
    loss_sum: f64,
    loss_tokens: u64,
    pub(super) reported: Option<Millis>,
}

impl Meter {
    /// Records a step. Returns true for the first one with a meaningful time.
    ///
    /// The time of a step without tokens is unknown: an engine that prepares a batch while it trains on the previous
    /// one returns from its second step at once. That time is part of the next step.
    pub(super) fn step(&mut self, step: Step) -> bool {
        self.steps += 1;
        self.tokens = self.tokens.saturating_add(step.tokens);
        if self.trained == 1 && self.timed == 1 {
            // The first step takes longer than others, so its time is dropped.
            (self.spent_ms, self.timed) = (0.0, 0);
        }
        // A moving average would weight the newest step most. A slow step is more likely than others to be the newest
        // when a report is due.
        self.spent_ms += f64::from(step.step_ms);
        if step.tokens == 0 {
            return false;
        }
        self.loss_sum += f64::from(step.loss) * step.tokens as f64;
        self.loss_tokens = self.loss_tokens.saturating_add(step.tokens);
        (self.trained, self.timed) = (self.trained + 1, self.timed + 1);
        self.trained == 2
    }

    pub(super) fn report(&mut self, now: Millis, run: RunId, state: LearnerState) -> Progress {
        let loss = (self.loss_sum / self.loss_tokens as f64) as f32;
        if self.timed > 0 {
            self.step_ms = (self.spent_ms / f64::from(self.timed)) as f32;
            (self.spent_ms, self.timed) = (0.0, 0);
        }
        (self.loss_sum, self.loss_tokens) = (0.0, 0);
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

    /// Goal: a report has the mean time of its steps, however they scatter, and not that of the last one.
    #[test]
    fn a_report_is_of_the_steps_since_the_one_before() {
        let mut meter = Meter::default();
        let mut said = |steps: &[f32]| {
            let step = |step_ms: &f32| Step { tokens: 1, loss: 1.0, step_ms: *step_ms };
            for step_ms in steps {
                meter.step(step(step_ms));
            }
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

    /// Goal: an engine that trains asynchronously reports true step times, and never a time of zero.
    #[test]
    fn a_step_of_no_tokens_is_none_whose_time_is_known() {
        let step = |tokens, step_ms| Step { tokens, loss: 1.0, step_ms };
        let mut meter = Meter::default();
        let told = |meter: &mut Meter| meter.report(Millis(0), RunId(1), LearnerState::Training).step_ms;
        assert!(!meter.step(step(64, 300.0)), "the first takes longer than others do");
        assert_eq!(told(&mut meter), 300.0);
        assert!(!meter.step(step(0, 0.5)));
        assert_eq!(told(&mut meter), 300.0);
        assert!(meter.step(step(64, 12.0)), "it is known for the first time what a step takes");
        assert_eq!(told(&mut meter), 12.5);
        for (tokens, step_ms) in [(128, 10.0), (0, 2.0), (64, 12.0)] {
            assert!(!meter.step(step(tokens, step_ms)));
        }
        let progress = meter.report(Millis(0), RunId(1), LearnerState::Training);
        assert_eq!((progress.step_ms, progress.steps, progress.tokens), (12.0, 6, 320));
        // An engine that waits for its second batch before training takes the time of that batch.
        let mut meter = Meter::default();
        for (tokens, step_ms) in [(64, 300.0), (0, 0.0), (0, 8.0), (64, 12.0)] {
            meter.step(step(tokens, step_ms));
        }
        assert_eq!(told(&mut meter), 20.0);
    }

    /// Goal: a loss is weighted by its tokens, however often an engine reports it.
    #[test]
    fn a_loss_is_that_of_tokens() {
        let mut meter = Meter::default();
        let told = |meter: &mut Meter| meter.report(Millis(0), RunId(1), LearnerState::Training).loss;
        for (tokens, loss) in [(64, 3.0), (0, 3.0), (192, 2.0)] {
            meter.step(Step { tokens, loss, step_ms: 1.0 });
        }
        assert_eq!(told(&mut meter), 2.25);
        meter.step(Step { tokens: 0, loss: 2.0, step_ms: 1.0 });
        assert!(told(&mut meter).is_nan(), "nothing was trained on since");
    }
}
