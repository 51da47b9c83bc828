//! Specification of a lesson, as plain data.

use serde::{Deserialize, Serialize};

use archipelago_core::diloco::MergeRule;
use archipelago_core::wire::Code;

/// Largest number of islands in a lesson.
pub const ISLANDS_MAX: u32 = 8;
/// Longest duration of a lesson, in milliseconds of its own time.
pub const LESSON_MS_MAX: u64 = 24 * 3_600_000;

/// All inputs of a lesson except the actions on its islands: see [`Action`].
///
/// The text is already on every island: links carry only the model and its changes, decoupled and in lockstep alike.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LessonSpec {
    /// Seed of the parameters, the text, the order of the data, and all random numbers.
    pub seed: u32,
    /// M, the islands: 1 to 8.
    pub islands: u32,
    /// K, the updates that a merge needs: at least 1.
    pub quorum: u32,
    /// γ, the share of the slack that the syncer waits after the quorum, 0 to 1; 0 means no grace window.
    pub grace: f64,
    /// H, steps between two rounds of the same fragment: 1 to 1,000.
    pub sync_every: u32,
    /// P, the fragments: 1 to 24.
    pub fragments: u16,
    /// τ, rounds in flight: 1 to 8.
    pub rounds_in_flight: u32,
    /// The code of values in both directions.
    pub code: Code,
    /// The merge rule.
    pub merge: MergeRule,
    /// Whether one island's influence on a merge is bounded.
    pub bounds: Bounds,
    /// Treatment of an island's own progress when it applies a merged fragment.
    pub apply: Apply,
    /// Reaction of the lockstep twin to a missing island.
    pub lockstep: Lockstep,
    /// Step time of the fastest island, in milliseconds: 10 to 10,000.
    pub step_ms: u32,
    /// The slowest island's steps take `1 + spread` times as long, with the others spaced evenly between: 0 to 10.
    pub spread: f64,
    /// Random variation of a step's duration, as a share of it: 0 to 1.
    pub jitter: f64,
    /// One-way latency between an island and the syncer, in milliseconds: 0 to 10,000.
    pub latency_ms: u32,
    /// Rate of each direction of an island's link, in kB/s; 0 is unlimited.
    #[serde(rename = "kilobytesPerS")]
    pub kilobytes_per_s: u32,
    /// Share of transmissions that are lost and retransmitted: 0 to 0.5.
    pub loss: f64,
    /// Number of islands, the last ones, that start later: fewer than `islands`.
    pub late: u32,
    /// Their start time, in milliseconds.
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

/// [`archipelago_core::wire::ApplyPolicy`] by name; a blend keeps half.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub enum Apply {
    /// Unmerged progress stays.
    Keep,
    /// Unmerged progress stays, and so does the residue of merged progress.
    KeepResidue,
    /// Unmerged progress on the fragment is dropped, as in the paper.
    Overwrite,
    /// Half of the unmerged progress stays.
    Blend,
}

/// Whether one island's influence on a merge is bounded, as the syncer bounds it by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub enum Bounds {
    /// An update counts up to 3 times the usual norm for its steps, and an island has at most twice the mean share of a
    /// merge.
    On,
    /// Every update counts with its full length and with all reported tokens. Updates beyond anything that training can
    /// reach are still refused.
    Off,
}

/// The two kinds of lockstep training.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub enum Lockstep {
    /// All stop until the island is back.
    Waits,
    /// All stop for 3 s, continue without the island, and stop once more while it fetches the state on its return. The
    /// time is our choice: the paper's elastic runs stop for 22 s, others for 80 s.
    Elastic,
}

/// An action on an island.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Action {
    /// Time, in milliseconds from the beginning; a past time means now.
    pub at_ms: u32,
    /// The island, from 0.
    pub island: u32,
    /// The kind of action.
    pub deed: Deed,
    /// For [`Deed::Slow`]: factor on the duration of steps, 1 to 100; 1 is full speed. For [`Deed::Far`]: the one-way
    /// latency grows by 10 ms for each unit above 1, up to 100; 1 is the original latency. Otherwise unused.
    pub factor: f64,
}

/// The kind of an action on an island.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "camelCase")]
pub enum Deed {
    /// Kills its process and loses its unmerged progress. No effect on an island that has not started.
    Kill,
    /// Starts a new process with the same identity. No effect on an island that has not started.
    Restart,
    /// Slows its steps down.
    Slow,
    /// Raises the latency to the syncer.
    Far,
    /// Cuts its link; it continues to train.
    Partition,
    /// Restores its link.
    Heal,
    /// Makes it send updates of impossible size.
    Poison,
    /// Makes it send the opposite of its progress, five times as large. Its updates are not refused, since an honest
    /// update can be as long.
    Lie,
    /// Makes it honest again, as a new process if the old one was sent away.
    Cure,
}

/// The reason why a lesson or an action is invalid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LessonError {
    /// A number is out of its range.
    #[error("{what} is {found}: choose {range}")]
    Range {
        /// The field.
        what: &'static str,
        /// The value given.
        found: f64,
        /// The allowed values.
        range: &'static str,
    },
    /// An action names an unknown island.
    #[error("there is no island {island}: the lesson has {islands}, counted from 0")]
    NoIsland {
        /// The island named.
        island: u32,
        /// The number of islands.
        islands: u32,
    },
}

impl LessonSpec {
    /// # Errors
    /// [`LessonError::Range`]: a number is out of the range that its field names.
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

    /// Returns the mean step time of island `i`, in milliseconds.
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
    /// Returns true if the action is on the process of an island that has not started at `now_ms`; it has no effect
    /// then.
    pub(super) fn is_too_early(&self, spec: &LessonSpec, now_ms: u64) -> bool {
        matches!(self.deed, Deed::Kill | Deed::Restart) && now_ms < spec.starts_ms_of(self.island)
    }

    /// Returns the one-way latency of the moved island, in milliseconds.
    pub(super) fn latency_ms(&self, spec: &LessonSpec) -> u64 {
        u64::from(spec.latency_ms) + (10.0 * (self.factor - 1.0)).round() as u64
    }

    /// # Errors
    /// - [`LessonError::NoIsland`]: a lesson of `islands` has no such island.
    /// - [`LessonError::Range`]: `factor` is out of its range.
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
