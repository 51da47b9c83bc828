//! Changes of settings during a lesson.

use serde::{Deserialize, Serialize};

use super::{Action, LessonError, LessonSpec, Lockstep};
use archipelago_core::diloco::MergeRule;

/// Change of a setting during a lesson.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Change {
    /// Time of the change, in milliseconds since the beginning; a time in the past means now.
    pub at_ms: u32,
    /// Setting with its new value.
    pub to: Setting,
}

/// Setting of a [`LessonSpec`] that may change during a lesson, with the field's name and range. Other settings, such
/// as the number of fragments or the code, cannot change during a run.
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
    /// Returns `spec` with this value.
    ///
    /// # Errors
    /// [`LessonError::Range`] if the value is out of range.
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

/// Scheduled actions and changes of a lesson, sorted by time and then by the order of scheduling.
#[derive(Default)]
pub(super) struct LessonSchedule(Vec<(u32, Due)>);

/// Scheduled action or change.
#[derive(Clone, Copy)]
pub(super) enum Due {
    Act(Action),
    Set(Setting),
}

impl LessonSchedule {
    /// Schedules `due` for the time `at_ms`.
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
mod tests {
    use super::super::*;
    use archipelago_core::diloco::MergeRule;

    fn spec() -> LessonSpec {
        LessonSpec { islands: 3, ..LessonSpec::default() }
    }

    fn both(spec: LessonSpec, changes: &[Change]) -> (Lesson, Twin) {
        let (mut lesson, mut twin) = (Lesson::new(spec).unwrap(), Twin::new(spec).unwrap());
        for &change in changes {
            lesson.change(change).unwrap();
            twin.change(change).unwrap();
        }
        (lesson, twin)
    }

    fn at(at_ms: u32, to: Setting) -> Change {
        Change { at_ms, to }
    }

    /// Advances the lesson to `until_ms`, and returns the number of updates and the relative norm of each merge on the
    /// way.
    fn merges(lesson: &mut Lesson, until_ms: u64) -> Vec<(usize, f64)> {
        lesson.advance(until_ms);
        let marks = lesson.frame().marks;
        let of = |mark| {
            if let Mark::Merged { shares, length, .. } = mark { Some((shares.len(), length)) } else { None }
        };
        marks.into_iter().filter_map(of).collect()
    }

    fn mean(values: impl Iterator<Item = f64>) -> f64 {
        let values: Vec<f64> = values.collect();
        values.iter().sum::<f64>() / values.len() as f64
    }

    #[test]
    fn a_run_goes_on_with_its_new_settings_and_is_the_same_each_time() {
        let changes = [
            at(4_000, Setting::Merge(MergeRule::Mean)),
            at(5_000, Setting::StepMs(200)),
            at(6_000, Setting::KilobytesPerS(400)),
            at(7_000, Setting::Loss(0.2)),
            at(8_000, Setting::RoundsInFlight(1)),
            at(9_000, Setting::Jitter(0.5)),
        ];
        let come = |planned: bool| {
            let (mut lesson, mut twin) = both(spec(), if planned { &changes } else { &[] });
            for change in changes.into_iter().filter(|_| !planned) {
                // A page acts just before the planned time, after many short advances.
                for at_ms in (0..u64::from(change.at_ms)).step_by(37) {
                    lesson.advance(at_ms);
                    twin.advance(at_ms);
                }
                lesson.change(change).unwrap();
                twin.change(change).unwrap();
            }
            lesson.advance(14_000);
            twin.advance(14_000);
            assert!(lesson.frame().run.tokens_merged > 0);
            (lesson.digest(), twin.digest())
        };
        let changed = come(true);
        assert_eq!(changed, come(false));
        let (mut lesson, mut twin) = both(spec(), &[]);
        lesson.advance(14_000);
        twin.advance(14_000);
        assert_ne!(changed.0, lesson.digest());
        assert_ne!(changed.1, twin.digest());
    }

    #[test]
    fn change_of_a_setting_keeps_results() {
        let (mut lesson, _) = both(spec(), &[]);
        lesson.advance(8_000);
        let before = lesson.frame();
        lesson.change(at(0, Setting::Quorum(2))).unwrap();
        let after = lesson.frame();
        assert_eq!((after.now_ms, after.run.held_out), (before.now_ms, before.run.held_out));
        assert_eq!(after.run.tokens_merged, before.run.tokens_merged);
    }

    /// One island is eight times slower, and there is no grace window.
    #[test]
    fn rounds_wait_for_a_new_quorum() {
        let (mut lesson, _) = both(LessonSpec { grace: 0.0, ..spec() }, &[at(12_000, Setting::Quorum(3))]);
        lesson.act(Action { at_ms: 0, island: 2, deed: Deed::Slow, factor: 8.0 }).unwrap();
        merges(&mut lesson, 4_000);
        let before = mean(merges(&mut lesson, 12_000).into_iter().map(|(parts, _)| parts as f64));
        merges(&mut lesson, 14_000);
        let after = mean(merges(&mut lesson, 24_000).into_iter().map(|(parts, _)| parts as f64));
        assert!(before < 2.0 && after > 2.5, "{before} {after}");
    }

    /// Goal: an open round that waits for all islands ends as soon as the quorum is lowered.
    #[test]
    fn a_round_under_way_ends_by_a_smaller_quorum() {
        let (mut lesson, _) = both(LessonSpec { quorum: 3, grace: 0.0, ..spec() }, &[]);
        lesson.advance(4_000);
        lesson.act(Action { at_ms: 0, island: 2, deed: Deed::Slow, factor: 100.0 }).unwrap();
        lesson.advance(6_000);
        let rounds = lesson.frame().run.rounds;
        lesson.change(at(0, Setting::Quorum(1))).unwrap();
        lesson.advance(6_010);
        assert!(lesson.frame().run.rounds > rounds);
    }

    /// A round takes one round trip of 2 s, and rounds do not overlap in other ways. So the number of rounds shows how
    /// many are in flight.
    #[test]
    fn fewer_rounds_are_in_flight_from_then_on() {
        let far = LessonSpec {
            latency_ms: 1_000,
            quorum: 3,
            apply: Apply::Overwrite,
            rounds_in_flight: 4,
            ..spec()
        };
        let (mut lesson, _) = both(far, &[at(20_000, Setting::RoundsInFlight(1))]);
        merges(&mut lesson, 10_000);
        let before = merges(&mut lesson, 20_000).len();
        merges(&mut lesson, 24_000);
        let after = merges(&mut lesson, 34_000).len();
        assert!(before >= 8 && (3..=5).contains(&after), "{before} {after}");
    }

    /// With radial averaging a merged change is as long as an island's update; with a mean it is shorter.
    #[test]
    fn merges_follow_a_new_rule() {
        let (mut lesson, _) = both(spec(), &[at(8_000, Setting::Merge(MergeRule::Mean))]);
        merges(&mut lesson, 3_000);
        let before = mean(merges(&mut lesson, 8_000).into_iter().map(|(_, length)| length));
        let after = mean(merges(&mut lesson, 13_000).into_iter().map(|(_, length)| length));
        assert!(before > 0.95 && after < 0.9 * before, "{before} {after}");
    }

    #[test]
    fn islands_follow_a_new_pace_and_goodput_counts_both() {
        let changes = [at(10_000, Setting::StepMs(200)), at(10_000, Setting::Spread(1.0))];
        let (mut lesson, mut twin) = both(LessonSpec { jitter: 0.0, spread: 0.0, ..spec() }, &changes);
        let steps = |lesson: &mut Lesson, ms| {
            lesson.advance(ms);
            lesson.frame().islands.iter().map(|island| island.steps).collect::<Vec<_>>()
        };
        let (first, second) = (steps(&mut lesson, 10_000), steps(&mut lesson, 20_000));
        let taken: Vec<u64> = first.iter().zip(&second).map(|(first, second)| second - first).collect();
        for (taken, expected) in taken.iter().zip([50, 33, 25]) {
            assert!(taken.abs_diff(expected) <= 2, "{taken} steps instead of {expected}");
        }
        let frame = lesson.frame();
        let possible: Vec<f64> = frame.islands.iter().map(|island| island.possible_steps).collect();
        assert_eq!(possible, [150.0, 100.0 + 10_000.0 / 300.0, 125.0]);
        assert!((0.95..=1.0).contains(&frame.run.goodput), "{}", frame.run.goodput);
        // In lockstep, all islands wait for the slowest one from then on.
        twin.advance(10_000);
        let before = twin.frame().steps;
        twin.advance(20_000);
        assert!((20..=25).contains(&(twin.frame().steps - before)));
    }

    #[test]
    fn an_island_sent_far_away_stays_as_much_farther_away() {
        let (mut lesson, _) = both(spec(), &[at(3_000, Setting::LatencyMs(100))]);
        lesson.act(Action { at_ms: 1_000, island: 1, deed: Deed::Far, factor: 21.0 }).unwrap();
        let latencies = |lesson: &mut Lesson, ms| {
            lesson.advance(ms);
            lesson.frame().islands.iter().map(|island| island.latency_ms).collect::<Vec<_>>()
        };
        assert_eq!(latencies(&mut lesson, 2_000), [30, 230, 30]);
        assert_eq!(latencies(&mut lesson, 4_000), [100, 300, 100]);
        assert_eq!(lesson.frame().islands[1].state, IslandState::Training);
    }

    #[test]
    fn elastic_run_removes_an_island_that_was_missing_before() {
        let (_, mut twin) = both(spec(), &[at(9_000, Setting::Lockstep(Lockstep::Elastic))]);
        twin.act(Action { at_ms: 2_000, island: 0, deed: Deed::Kill, factor: 1.0 }).unwrap();
        twin.advance(8_900);
        assert_eq!(twin.frame().stalled_by, [0]);
        twin.advance(12_000);
        assert!(twin.frame().stalled_by.is_empty());
    }

    #[test]
    fn a_value_out_of_its_range_changes_nothing() {
        let (mut lesson, mut twin) = both(spec(), &[]);
        let wrong = at(0, Setting::Grace(2.0));
        assert_eq!(lesson.change(wrong).unwrap_err().to_string(), "grace is 2: choose 0 to 1");
        assert!(twin.change(wrong).is_err());
        assert!(lesson.change(at(0, Setting::Quorum(0))).is_err());
        lesson.advance(100);
    }
}
