//! One island in lockstep.

use super::super::{Action, Deed, LessonSpec};

/// Faults of an island, and its participation.
#[derive(Clone, Copy)]
pub(super) struct State {
    /// Whether it takes part; it may have died since. An elastic run drops missing islands.
    pub(super) here: bool,
    pub(super) dead: bool,
    pub(super) cut: bool,
    pub(super) poisoned: bool,
    pub(super) lies: bool,
    pub(super) slow: f64,
    /// One-way latency, in milliseconds.
    pub(super) latency_ms: u64,
}

impl State {
    /// Creates an island that has not started, at this latency.
    pub(super) fn at(latency_ms: u64) -> Self {
        Self { here: false, dead: false, cut: false, poisoned: false, lies: false, slow: 1.0, latency_ms }
    }

    /// Returns true if the other islands cannot reach it.
    pub(super) fn is_gone(&self) -> bool {
        self.dead || self.cut
    }

    /// Applies `action`. Returns true if the island must fetch the state; an island that has not been admitted fetches
    /// it on admission.
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
