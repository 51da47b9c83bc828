//! Stock of windows by learner, which bounds further leases.

use std::collections::BTreeMap;

use crate::diloco::speed::SPEED_SLACK;
use crate::wire::{LearnerId, Millis};

/// Steps in the first lease of a learner, whose speed is not known yet.
const FIRST_LEASE_STEPS: u32 = 256;

/// Speed of a learner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// Claimed time of one step, in milliseconds; 0 without a claim.
    pub step_ms: f64,
    /// Shortest believed time of one step, in milliseconds, above 0.
    pub step_ms_least: f64,
    /// Windows in one step, at least 1.
    pub batch: u32,
}

impl Speed {
    /// Returns the steps that one lease of `lease_ms` should last.
    pub(super) fn lease_steps(&self, lease_ms: u64) -> u32 {
        if self.step_ms == 0.0 {
            return FIRST_LEASE_STEPS;
        }
        ((lease_ms as f64 / self.step_ms.max(self.step_ms_least)) as u32).max(1)
    }
}

/// Leased windows that each learner cannot have trained on yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Supplies(BTreeMap<LearnerId, Supply>);

#[derive(Clone, Copy, Debug, Default)]
struct Supply {
    /// Steps that the stock lasts.
    steps: f64,
    /// Windows in one step.
    batch: u32,
    /// Time of this measurement.
    at: Millis,
}

impl Supplies {
    /// Returns true if `learner` can have trained on enough of its leased windows to get more, regardless of its
    /// reports. A learner that reports leases as done faster than it can train has to wait.
    pub(super) fn may_lease(
        &mut self,
        now: Millis,
        learner: LearnerId,
        speed: &Speed,
        lease_ms: u64,
    ) -> bool {
        let supply = self.0.entry(learner).or_default();
        let trained = SPEED_SLACK * now.since(supply.at) as f64 / speed.step_ms_least;
        *supply = Supply { steps: (supply.steps - trained).max(0.0), batch: speed.batch, at: now };
        supply.steps <= f64::from(FIRST_LEASE_STEPS).max(lease_ms as f64 / speed.step_ms_least)
    }

    /// Adds `windows` leased to `learner`.
    pub(super) fn add(&mut self, learner: LearnerId, windows: u32) {
        let supply = self.0.entry(learner).or_default();
        supply.steps += f64::from(windows) / f64::from(supply.batch.max(1));
    }

    /// Removes `windows` that `learner` returned.
    pub(super) fn take_back(&mut self, learner: LearnerId, windows: u32) {
        if let Some(supply) = self.0.get_mut(&learner) {
            supply.steps = (supply.steps - f64::from(windows) / f64::from(supply.batch.max(1))).max(0.0);
        }
    }

    /// Forgets `learner`.
    pub(super) fn forget(&mut self, learner: LearnerId) {
        self.0.remove(&learner);
    }
}
