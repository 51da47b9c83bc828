//! One island in lock-step.

use super::super::{Action, Deed, LessonSpec};

/// What was done to an island, and whether it is there.
#[derive(Clone, Copy)]
pub(super) struct State {
    /// It takes part; it may have died since. An elastic run leaves those behind who are gone.
    pub(super) here: bool,
    pub(super) dead: bool,
    pub(super) cut: bool,
    pub(super) poisoned: bool,
    pub(super) lies: bool,
    pub(super) slow: f64,
    /// One way, in milliseconds.
    pub(super) latency_ms: u64,
}

impl State {
    /// One that has not come yet, so far away.
    pub(super) fn at(latency_ms: u64) -> Self {
        Self { here: false, dead: false, cut: false, poisoned: false, lies: false, slow: 1.0, latency_ms }
    }

    /// Whether it is out of reach of the others.
    pub(super) fn is_gone(&self) -> bool {
        self.dead || self.cut
    }

    /// Does `action` to it; whether it has to fetch the state then. One that was not taken in yet does so when it is.
    pub(super) fn perform(&mut self, action: Action, spec: &LessonSpec) -> bool {
        match action.deed {
            Deed::Kill => self.dead = true,
            Deed::Restart => return std::mem::take(&mut self.dead) && self.here,
            Deed::Slow => self.slow = action.factor,
            Deed::Far => self.latency_ms = action.latency_ms(spec),
            Deed::Partition => self.cut = true,
            Deed::Heal => self.cut = false,
            Deed::Poison => (self.poisoned, self.lies) = (true, false),
            Deed::Lie => (self.poisoned, self.lies) = (false, true),
            Deed::Cure => (self.poisoned, self.lies) = (false, false),
        }
        false
    }
}
