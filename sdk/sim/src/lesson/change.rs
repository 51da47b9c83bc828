//! Changes of settings while a lesson runs.

use serde::{Deserialize, Serialize};

use super::{Action, LessonError, LessonSpec, Lockstep};
use archipelago_core::diloco::MergeRule;

/// A change of a setting while a lesson runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Change {
    /// Time of the change, in milliseconds from the beginning; a past time means now.
    pub at_ms: u32,
    /// The setting and its new value.
    pub to: Setting,
}

/// A setting of a [`LessonSpec`] that may change while a lesson runs, with the same name and range. The other settings,
/// such as the fragments or the code, are fixed when the run begins, or belong to its history.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "each is described where the lesson begins")]
pub enum Setting {
    Quorum(u32),
    Grace(f64),
    RoundsInFlight(u32),
    Merge(MergeRule),
    Lockstep(Lockstep),
    StepMs(u32),
    Spread(f64),
    Jitter(f64),
    LatencyMs(u32),
    #[serde(rename = "kilobytesPerS")]
    KilobytesPerS(u32),
    Loss(f64),
}

impl Setting {
    /// Returns `spec` with this setting.
    ///
    /// # Errors
    /// [`LessonError::Range`]: the value is out of its range.
    pub(super) fn put(self, mut spec: LessonSpec) -> Result<LessonSpec, LessonError> {
        match self {
            Self::Quorum(value) => spec.quorum = value,
            Self::Grace(value) => spec.grace = value,
            Self::RoundsInFlight(value) => spec.rounds_in_flight = value,
            Self::Merge(value) => spec.merge = value,
            Self::Lockstep(value) => spec.lockstep = value,
            Self::StepMs(value) => spec.step_ms = value,
            Self::Spread(value) => spec.spread = value,
            Self::Jitter(value) => spec.jitter = value,
            Self::LatencyMs(value) => spec.latency_ms = value,
            Self::KilobytesPerS(value) => spec.kilobytes_per_s = value,
            Self::Loss(value) => spec.loss = value,
        }
        spec.check()?;
        Ok(spec)
    }
}

/// Planned actions and changes of a lesson, by time; equal times keep the order of planning.
#[derive(Default)]
pub(super) struct Plan(Vec<(u32, Due)>);

/// A planned action or change.
#[derive(Clone, Copy)]
pub(super) enum Due {
    Act(Action),
    Set(Setting),
}

impl Plan {
    /// Plans `due` for `at_ms`.
    pub(super) fn add(&mut self, at_ms: u32, due: Due) {
        let place = self.0.partition_point(|&(planned_ms, _)| planned_ms <= at_ms);
        self.0.insert(place, (at_ms, due));
    }

    /// Returns the time of the next entry.
    pub(super) fn next_ms(&self) -> Option<u64> {
        self.0.first().map(|&(at_ms, _)| at_ms.into())
    }

    /// Removes and returns the entries up to `now_ms`.
    pub(super) fn take_due(&mut self, now_ms: u64) -> Vec<Due> {
        let due = self.0.partition_point(|&(at_ms, _)| u64::from(at_ms) <= now_ms);
        self.0.drain(..due).map(|(_, due)| due).collect()
    }
}

#[cfg(test)]
mod tests;
