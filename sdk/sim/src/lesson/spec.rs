//! Specification of a lesson as plain data.

use serde::{Deserialize, Serialize};

use archipelago_core::diloco::MergeRule;
use archipelago_core::wire::Code;

/// Maximum number of islands in a lesson.
pub const ISLANDS_MAX: u32 = 8;
/// Maximum duration of a lesson, in milliseconds of virtual time.
pub const LESSON_MS_MAX: u64 = 24 * 3_600_000;

/// Settings of a lesson, without the actions on its islands (see [`Action`]).
///
/// Every island already has the text. Links transfer only parameters and changes, or gradients in lockstep.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LessonSpec {
    /// Seed of the parameters, the text, the order of the data, and all random numbers.
    pub seed: u32,
    /// Number of islands, M: 1 to 8.
    pub islands: u32,
    /// Number of updates that a merge needs, K: at least 1.
    pub quorum: u32,
    /// Fraction of the slack that the syncer waits after the quorum, γ: 0 to 1; 0 means no grace window.
    pub grace: f64,
    /// Number of steps between two rounds of the same fragment, H: 1 to 1,000.
    pub sync_every: u32,
    /// Number of fragments, P: 1 to 24.
    pub fragments: u16,
    /// Maximum number of rounds in flight, τ: 1 to 8.
    pub rounds_in_flight: u32,
    /// Code of updates and changes.
    pub code: Code,
    /// Merge rule.
    pub merge: MergeRule,
    /// Whether one island's influence on a merge is bounded.
    pub bounds: Bounds,
    /// Treatment of an island's unmerged progress when it applies a merged change.
    pub apply: Apply,
    /// Reaction of the lockstep twin to a missing island.
    pub lockstep: Lockstep,
    /// Mean step time of the fastest island, in milliseconds: 10 to 10,000.
    pub step_ms: u32,
    /// Additional step time of the slowest island, as a fraction of the fastest island's: 0 to 10. The others are
    /// spaced evenly.
    pub spread: f64,
    /// Random variation of a step's duration, as a fraction of it: 0 to 1.
    pub jitter: f64,
    /// One-way latency between an island and the syncer, in milliseconds: 0 to 10,000.
    pub latency_ms: u32,
    /// Rate of an island's link in each direction, in kB/s; 0 means unlimited.
    #[serde(rename = "kilobytesPerS")]
    pub kilobytes_per_s: u32,
    /// Probability that a transmission is lost and repeated: 0 to 0.5.
    pub loss: f64,
    /// Number of islands that start later, the last ones: fewer than `islands`.
    pub late: u32,
    /// Start time of these islands, in milliseconds.
    pub late_ms: u32,
}

impl Default for LessonSpec {
    fn default() -> Self {
        Self {
            seed: 1,
            islands: 5,
            quorum: 1,
            grace: 0.8,
            sync_every: 24,
            fragments: 8,
            rounds_in_flight: 2,
            code: Code::Int4,
            merge: MergeRule::Radial,
            bounds: Bounds::On,
            apply: Apply::KeepResidue,
            lockstep: Lockstep::Waits,
            step_ms: 100,
            spread: 0.3,
            jitter: 0.1,
            latency_ms: 30,
            kilobytes_per_s: 0,
            loss: 0.0,
            late: 0,
            late_ms: 20_000,
        }
    }
}

/// Variants of [`archipelago_core::wire::ApplyPolicy`] by name. `Blend` keeps half.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub enum Apply {
    /// Unmerged progress is kept.
    Keep,
    /// Unmerged progress is kept, and so is the rounding error of merged updates.
    KeepResidue,
    /// Unmerged progress on the fragment is discarded, as in the paper.
    Overwrite,
    /// Half of the unmerged progress is kept.
    Blend,
}

/// Whether an island's influence on a merge is bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub enum Bounds {
    /// The syncer's default bounds: an update counts with at most 3 times the usual norm for its steps, and an island's
    /// weight is at most twice the mean.
    On,
    /// No bounds: every update counts with its whole length and all claimed tokens. Updates longer than any training
    /// can reach are still refused.
    Off,
}

/// Reaction of lockstep training to a missing island.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub enum Lockstep {
    /// All islands wait until the missing one is back.
    Waits,
    /// All islands wait for 3 s and then continue without the missing one. They wait again while it fetches the state
    /// on its return. The 3 s are our choice; in the paper's elastic runs it is 22 s, in others 80 s.
    Elastic,
}

/// Action on an island.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Action {
    /// Time of the action, in milliseconds since the beginning; a time in the past means now.
    pub at_ms: u32,
    /// Number of the island, from 0.
    pub island: u32,
    /// Kind of action.
    pub deed: Deed,
    /// Strength of the action. For [`Deed::Slow`], factor on the duration of steps, 1 to 100; 1 is full speed. For
    /// [`Deed::Far`], each unit above 1 adds 10 ms to the one-way latency, 1 to 100; 1 is the original latency.
    /// Otherwise unused.
    pub factor: f64,
}

/// Kind of action on an island.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub enum Deed {
    /// Stops the island's process. Unmerged progress is lost. Has no effect before the island's start time.
    Kill,
    /// Starts a new process with the same key. Has no effect before the island's start time.
    Restart,
    /// Slows the island's steps down.
    Slow,
    /// Raises the latency between the island and the syncer.
    Far,
    /// Disconnects the island, which continues to train.
    Partition,
    /// Reconnects the island.
    Heal,
    /// Makes the island send updates of impossible size.
    Poison,
    /// Makes the island send the opposite of its progress, five times as long. Such updates are not refused, because an
    /// honest update can be as long.
    Lie,
    /// Makes the island honest again. If the syncer has excluded it, it starts a new process.
    Cure,
}

/// Reason why a lesson or an action is invalid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LessonError {
    /// A number is out of range.
    #[error("{what} is {found}: choose {range}")]
    Range {
        /// Name of the field.
        what: &'static str,
        /// Value of the field.
        found: f64,
        /// Allowed values.
        range: &'static str,
    },
    /// An action is on an island that does not exist.
    #[error("there is no island {island}: the lesson has {islands}, counted from 0")]
    NoIsland {
        /// Number of the island in the action.
        island: u32,
        /// Number of islands in the lesson.
        islands: u32,
    },
}

impl LessonSpec {
    /// Checks the range of each number.
    ///
    /// # Errors
    /// [`LessonError::Range`]: a number is out of range.
    pub fn check(&self) -> Result<(), LessonError> {
        let within = |what, found: f64, low: f64, high: f64, range| {
            if (low..=high).contains(&found) {
                Ok(())
            } else {
                Err(LessonError::Range { what, found, range })
            }
        };
        within("islands", self.islands.into(), 1.0, ISLANDS_MAX.into(), "1 to 8")?;
        within("quorum", self.quorum.into(), 1.0, f64::INFINITY, "at least 1")?;
        within("grace", self.grace, 0.0, 1.0, "0 to 1")?;
        within("syncEvery", self.sync_every.into(), 1.0, 1_000.0, "1 to 1,000")?;
        within("fragments", self.fragments.into(), 1.0, 24.0, "1 to 24")?;
        within("roundsInFlight", self.rounds_in_flight.into(), 1.0, 8.0, "1 to 8")?;
        within("stepMs", self.step_ms.into(), 10.0, 10_000.0, "10 to 10,000")?;
        within("spread", self.spread, 0.0, 10.0, "0 to 10")?;
        within("jitter", self.jitter, 0.0, 1.0, "0 to 1")?;
        within("latencyMs", self.latency_ms.into(), 0.0, 10_000.0, "0 to 10,000")?;
        within("loss", self.loss, 0.0, 0.5, "0 to 0.5")?;
        within("late", self.late.into(), 0.0, f64::from(self.islands) - 1.0, "fewer than the islands")
    }

    /// Returns the mean step time of island `i` at full speed, in milliseconds.
    pub(super) fn step_ms_of(&self, i: u32) -> u64 {
        let place = if self.islands < 2 { 0.0 } else { f64::from(i) / f64::from(self.islands - 1) };
        (f64::from(self.step_ms) * (1.0 + self.spread * place)).round() as u64
    }

    /// Returns the start time of island `i`, in milliseconds.
    pub(super) fn starts_ms_of(&self, i: u32) -> u64 {
        if i + self.late >= self.islands { self.late_ms.into() } else { 0 }
    }
}

impl Action {
    /// Returns true if the action stops or starts the process of an island before the island's start time. Such an
    /// action has no effect.
    pub(super) fn is_too_early(&self, spec: &LessonSpec, now_ms: u64) -> bool {
        matches!(self.deed, Deed::Kill | Deed::Restart) && now_ms < spec.starts_ms_of(self.island)
    }

    /// Returns the one-way latency of an island after [`Deed::Far`], in milliseconds.
    pub(super) fn latency_ms(&self, spec: &LessonSpec) -> u64 {
        u64::from(spec.latency_ms) + (10.0 * (self.factor - 1.0)).round() as u64
    }

    /// # Errors
    /// - [`LessonError::NoIsland`]: a lesson of `islands` islands does not have this one.
    /// - [`LessonError::Range`]: `factor` is out of range.
    pub(super) fn check(&self, islands: u32) -> Result<(), LessonError> {
        if self.island >= islands {
            return Err(LessonError::NoIsland { island: self.island, islands });
        }
        let wrong = matches!(self.deed, Deed::Slow | Deed::Far) && !(1.0..=100.0).contains(&self.factor);
        let range = |found| LessonError::Range { what: "factor", found, range: "1 to 100" };
        if wrong { Err(range(self.factor)) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_kept() {
        let check = |what: &str, spec: LessonSpec| {
            let error = spec.check().unwrap_err().to_string();
            assert!(error.starts_with(what), "{error}");
        };
        LessonSpec::default().check().unwrap();
        let spec = LessonSpec::default();
        check("islands is 9", LessonSpec { islands: 9, ..spec });
        check("islands is 0", LessonSpec { islands: 0, ..spec });
        check("grace is NaN", LessonSpec { grace: f64::NAN, ..spec });
        check("late is 5", LessonSpec { late: 5, ..spec });
        check("loss is 0.6", LessonSpec { loss: 0.6, ..spec });
        check("fragments is 25", LessonSpec { fragments: 25, ..spec });
    }

    #[test]
    fn actions_name_what_is_there() {
        let slow = Action { at_ms: 0, island: 4, deed: Deed::Slow, factor: 0.5 };
        assert!(slow.check(4).unwrap_err().to_string().contains("no island 4"));
        assert!(slow.check(5).unwrap_err().to_string().contains("factor is 0.5"));
        Action { deed: Deed::Kill, ..slow }.check(5).unwrap();
    }

    #[test]
    fn the_slowest_island_is_the_last() {
        let spec = LessonSpec {
            islands: 3,
            step_ms: 100,
            spread: 1.0,
            late: 1,
            late_ms: 7,
            ..LessonSpec::default()
        };
        assert_eq!([0, 1, 2].map(|i| spec.step_ms_of(i)), [100, 150, 200]);
        assert_eq!([0, 1, 2].map(|i| spec.starts_ms_of(i)), [0, 0, 7]);
        assert_eq!(LessonSpec { islands: 1, ..spec }.step_ms_of(0), 100);
    }
}
