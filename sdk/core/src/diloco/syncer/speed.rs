//! How fast a learner is believed to be: what bounds the steps that it may count and the windows that it is leased.
//!
//! Nothing proves that a peer trained, so its own word on its speed is held against the time that has passed and
//! against what the others say of theirs.

use std::ops::RangeInclusive;

use super::Syncer;
use crate::wire::{FragmentId, LearnerId, Millis};

/// Believable times of one step, in milliseconds.
pub(super) const STEP_MS: RangeInclusive<f64> = 0.01..=3_600_000.0;
/// Steps that the first lease of a learner lasts, whose speed is not known yet.
pub(super) const FIRST_LEASE_STEPS: u32 = 256;
/// How much faster than believed a learner may have been.
const SPEED_SLACK: f64 = 2.0;
/// How many times as fast as the median of the others a learner may be. A server's GPU among phones is that far
/// ahead, with [`SPEED_SLACK`] twice as far; who claims more counts as much as one of this speed.
const SPEED_RATIO_MAX: f64 = 1_000.0;
/// However slow the others are, or say they are, a step of so many milliseconds is believed.
const BELIEVED_MS: f64 = 20.0;

/// What a learner was leased and cannot have trained on yet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Supply {
    /// Steps that it lasts.
    steps: f64,
    /// When that was so.
    at: Millis,
}

impl Syncer {
    /// The shortest time in which `learner` is believed to take a step, in milliseconds: the shortest that it
    /// ever claimed in this session, as far as the speed of the others allows. One that claims nothing is taken
    /// to be as fast as anyone may be; one that is alone is taken at its word.
    fn step_ms_least(&self, learner: LearnerId) -> f64 {
        let session = self.connections.get(&learner).and_then(|conn| self.sessions.get(conn));
        let claimed = session.map_or(0.0, |session| session.step_ms_min);
        let others = self.sessions.values().filter(|other| other.live && other.learner != learner);
        let mut times: Vec<f64> =
            others.map(|other| other.step_ms).filter(|&step_ms| step_ms > 0.0).collect();
        times.sort_by(f64::total_cmp);
        let median = times.get(times.len().saturating_sub(1) / 2).copied().unwrap_or(0.0);
        claimed.max((median / SPEED_RATIO_MAX).min(BELIEVED_MS)).max(*STEP_MS.start())
    }

    /// Steps that `learner` can have taken on `fragment` since some of it were last counted.
    ///
    /// After a restart of the syncer nobody knows how long that is; then it is as many as its leases hold.
    pub(super) fn steps_max(&self, now: Millis, learner: LearnerId, fragment: FragmentId) -> u64 {
        let steps = match self.counted.get(&(learner, fragment)) {
            Some(since) => (SPEED_SLACK * now.since(*since) as f64 / self.step_ms_least(learner)) as u64,
            None => self.ledger.countable(learner, fragment, u64::MAX) / self.step_tokens().max(1),
        };
        steps.saturating_add(u64::from(self.spec.exchange.sync_every))
    }

    /// Steps that one lease of `learner` is meant to last, whose steps take `step_ms` by its own word.
    pub(super) fn lease_steps(&self, learner: LearnerId, step_ms: f64) -> u32 {
        if step_ms == 0.0 {
            return FIRST_LEASE_STEPS;
        }
        ((self.config.lease_ms as f64 / step_ms.max(self.step_ms_least(learner))) as u32).max(1)
    }

    /// Whether `learner` can have trained on enough of what it was leased to be leased more, whatever it says is
    /// done: who finishes its leases faster than it can train has to wait.
    pub(super) fn may_lease(&mut self, now: Millis, learner: LearnerId) -> bool {
        let step_ms = self.step_ms_least(learner);
        let supply = self.supplies.entry(learner).or_default();
        let trained = SPEED_SLACK * now.since(supply.at) as f64 / step_ms;
        *supply = Supply { steps: (supply.steps - trained).max(0.0), at: now };
        supply.steps <= f64::from(FIRST_LEASE_STEPS).max(self.config.lease_ms as f64 / step_ms)
    }

    /// Notes that `windows` were leased to `learner`.
    pub(super) fn supply(&mut self, learner: LearnerId, windows: u32) {
        let batch = f64::from(self.spec.inner.batch.max(1));
        self.supplies.entry(learner).or_default().steps += f64::from(windows) / batch;
    }

    /// Notes that `windows` leased to `learner` came back.
    pub(super) fn return_supply(&mut self, learner: LearnerId, windows: u32) {
        let batch = f64::from(self.spec.inner.batch.max(1));
        if let Some(supply) = self.supplies.get_mut(&learner) {
            supply.steps = (supply.steps - f64::from(windows) / batch).max(0.0);
        }
    }

    /// Tokens of one step.
    pub(super) fn step_tokens(&self) -> u64 {
        u64::from(self.spec.inner.batch) * u64::from(self.spec.model.context)
    }
}
