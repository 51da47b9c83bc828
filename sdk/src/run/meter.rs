//! Measurement of a learner's time and token rate.

use std::collections::VecDeque;
use std::mem;

/// Span over which the token rate is averaged, in microseconds.
const RATE_US: u64 = 10_000_000;

/// Purpose of a span of a learner's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimeUse {
    /// Training steps.
    Training,
    /// Messages, and encoding and applying parameters.
    Exchange,
    /// Waiting without training data.
    Starved,
    /// Time before the first step, or sleep requested by the owner.
    Other,
}

/// Sums of time and tokens.
#[derive(Clone, Debug, Default)]
pub(super) struct Meter {
    pub(super) train_us: u64,
    pub(super) exchange_us: u64,
    pub(super) starved_us: u64,
    pub(super) steps: u64,
    pub(super) tokens: u64,
    pub(super) step_us: u64,
    loss_sum: f64,
    loss_tokens: u64,
    /// End time of each recent step in microseconds, and its tokens.
    recent: VecDeque<(u64, u64)>,
    first_step_us: Option<u64>,
    /// Time up to which all time is accounted for, in microseconds.
    accounted_us: u64,
    /// Steps whose calls have returned since the last wait for the device.
    pending_steps: u64,
    /// Device time after the calls of steps that is not part of a step time yet, in microseconds.
    carried_us: u64,
}

impl Meter {
    /// Accounts the time since the last call to `on` and returns it in microseconds.
    pub(super) fn account(&mut self, now_us: u64, on: TimeUse) -> u64 {
        let us = now_us - mem::replace(&mut self.accounted_us, now_us);
        self.spend(on, us);
        us
    }

    /// Returns the duration of a step's call and the additional device time of earlier steps, in microseconds. The
    /// caller passes their sum to [`Self::step`].
    pub(super) fn returned(&mut self, now_us: u64) -> (u64, u64) {
        self.pending_steps += 1;
        let call_us = now_us - mem::replace(&mut self.accounted_us, now_us);
        (call_us, mem::take(&mut self.carried_us))
    }

    /// Handles the end of a wait for the device. Returns the wait in microseconds if steps were pending; it becomes
    /// part of the next step's time. Otherwise returns 0.
    pub(super) fn finish_pending_steps(&mut self, now_us: u64) -> u64 {
        if mem::take(&mut self.pending_steps) == 0 {
            self.account(now_us, TimeUse::Other);
            return 0;
        }
        let us = now_us - mem::replace(&mut self.accounted_us, now_us);
        self.carried_us += us;
        us
    }

    /// Forgets pending steps, because their engine was dropped.
    pub(super) fn forget_steps(&mut self) {
        self.pending_steps = 0;
    }

    /// Returns the time up to which all time is accounted for, in microseconds.
    pub(super) fn accounted_us(&self) -> u64 {
        self.accounted_us
    }

    /// Adds a span of time to a sum. Before the first step, only training time is added.
    fn spend(&mut self, on: TimeUse, us: u64) {
        match on {
            TimeUse::Training => self.train_us += us,
            TimeUse::Exchange if self.steps > 0 => self.exchange_us += us,
            TimeUse::Starved if self.steps > 0 => self.starved_us += us,
            TimeUse::Exchange | TimeUse::Starved | TimeUse::Other => {}
        }
    }

    /// Accounts for a step of `step_us` microseconds that ended at `now_us`.
    pub(super) fn step(&mut self, now_us: u64, step_us: u64, tokens: u64, loss: f32) {
        self.spend(TimeUse::Training, step_us);
        self.first_step_us.get_or_insert(now_us.saturating_sub(step_us));
        self.steps += 1;
        self.tokens += tokens;
        self.step_us = step_us;
        // A step without tokens repeats the previous loss.
        if tokens > 0 {
            self.loss_sum += f64::from(loss) * tokens as f64;
            self.loss_tokens += tokens;
        }
        self.recent.push_back((now_us, tokens));
        self.forget(now_us);
    }

    /// Returns the mean loss over the tokens since the last call, or `None` without tokens.
    pub(super) fn take_loss(&mut self) -> Option<f32> {
        let mean = (self.loss_tokens > 0).then(|| (self.loss_sum / self.loss_tokens as f64) as f32);
        (self.loss_sum, self.loss_tokens) = (0.0, 0);
        mean
    }

    /// Returns the tokens per second over the last 10 s, or since the start of the first step if that is less.
    pub(super) fn tokens_per_s(&mut self, now_us: u64) -> f64 {
        self.forget(now_us);
        let Some(first_us) = self.first_step_us else { return 0.0 };
        let span_us = now_us.saturating_sub(first_us).clamp(1, RATE_US);
        let tokens: u64 = self.recent.iter().map(|(_, tokens)| tokens).sum();
        tokens as f64 * 1e6 / span_us as f64
    }

    /// Returns the time for exchange and without data as a fraction of that time plus training; 0 before the first
    /// step.
    pub(super) fn sync_ratio(&self) -> f64 {
        let lost_us = self.exchange_us + self.starved_us;
        let all_us = lost_us + self.train_us;
        if all_us == 0 { 0.0 } else { lost_us as f64 / all_us as f64 }
    }

    fn forget(&mut self, now_us: u64) {
        while self.recent.front().is_some_and(|(at_us, _)| at_us + RATE_US < now_us) {
            self.recent.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_covers_the_last_ten_seconds() {
        let mut meter = Meter::default();
        assert_eq!(meter.tokens_per_s(5), 0.0);
        for second in 1..=20 {
            meter.step(second * 1_000_000, 1_000_000, 100, 1.0);
        }
        assert!((meter.tokens_per_s(20_000_000) - 110.0).abs() < 1e-9, "eleven ends of steps lie in 10 s");
        assert!((meter.tokens_per_s(26_000_000) - 50.0).abs() < 1e-9);
        assert_eq!(meter.tokens_per_s(40_000_000), 0.0);
    }

    #[test]
    fn joining_is_no_exchange() {
        let mut meter = Meter::default();
        meter.spend(TimeUse::Exchange, 900);
        meter.spend(TimeUse::Starved, 900);
        assert_eq!(meter.sync_ratio(), 0.0);
        meter.step(2_000, 980, 1, 0.5);
        meter.spend(TimeUse::Exchange, 15);
        meter.spend(TimeUse::Starved, 5);
        meter.spend(TimeUse::Other, 500);
        assert!((meter.sync_ratio() - 0.02).abs() < 1e-12);
        assert_eq!((meter.take_loss(), meter.take_loss()), (Some(0.5), None));
    }

    #[test]
    fn mean_loss_is_weighted_by_tokens() {
        let mut meter = Meter::default();
        for (tokens, loss) in [(64, 3.0), (0, 3.0), (192, 2.0)] {
            meter.step(1_000, 1_000, tokens, loss);
        }
        assert_eq!(meter.take_loss(), Some(2.25));
        meter.step(1_000, 1_000, 0, 2.0);
        assert_eq!(meter.take_loss(), None);
    }
}
