//! Tests of the schedule without rounds, learners or parameters.

use super::*;

const TERMS: ScheduleTerms =
    ScheduleTerms { fragments: 3, sync_every: 6, rounds_in_flight: 2, learners_start: 2, cohort_max: 2 };
const QUIET: Traffic =
    Traffic { in_flight: 0, is_next_busy: false, live: 2, is_measured: true, is_answered: false };

fn schedule() -> Schedule {
    Schedule::new(TERMS, Turn::default())
}

fn none(_: &FragmentId) -> bool {
    false
}

fn learners(ids: impl IntoIterator<Item = u32>) -> BTreeSet<LearnerId> {
    ids.into_iter().map(LearnerId).collect()
}

#[test]
fn the_first_round_waits_for_enough_who_are_measured() {
    let schedule = schedule();
    assert_eq!(schedule.launch_at(&QUIET), Some(Millis(0)));
    assert_eq!(schedule.launch_at(&Traffic { live: 1, ..QUIET }), None);
    assert_eq!(schedule.launch_at(&Traffic { is_measured: false, ..QUIET }), None);
}

#[test]
fn launches_are_a_floor_apart_and_few_are_in_flight() {
    let mut schedule = schedule();
    schedule.note_step(10.0);
    let first = schedule.next(Millis(100), &learners([1, 2]), |_| true);
    assert_eq!((first.round, first.fragment, first.last_of), (Round(1), FragmentId(0), None));
    // H · ξ_step / P = 6 · 10 / 3; a run that has begun goes on with one learner.
    let one = Traffic { in_flight: 1, live: 1, ..QUIET };
    assert_eq!(schedule.launch_at(&one), Some(Millis(120)));
    assert_eq!(schedule.launch_at(&Traffic { in_flight: 2, ..one }), None);
    assert_eq!(schedule.launch_at(&Traffic { is_next_busy: true, ..one }), None);
    assert_eq!(schedule.next_fragment(), FragmentId(1));
    schedule.retune(1);
    assert_eq!(schedule.launch_at(&one), None);
}

#[test]
fn a_cohort_is_a_sample_that_moves_on_each_turn() {
    let mut schedule = schedule();
    let everyone = learners(1..=4);
    let asked = |schedule: &mut Schedule| schedule.next(Millis(0), &everyone, |_| true).invited;
    let first: Vec<_> = (0..3).map(|_| asked(&mut schedule)).collect();
    let second: Vec<_> = (0..3).map(|_| asked(&mut schedule)).collect();
    assert!(first.iter().chain(&second).all(|invited| invited.len() == 2));
    // Round 1 and 2 belong to turn 0, 3 to 5 to turn 1: each turn moves on by two.
    assert_eq!(first[1], learners([1, 2]));
    assert_eq!(second[0], learners([3, 4]));
}

/// Goal: many ready learners that never answer keep no training learner out of a round, and still get their chance.
#[test]
fn who_answers_is_asked_however_many_do_not() {
    let mut schedule = Schedule::new(ScheduleTerms { cohort_max: 8, ..TERMS }, Turn::default());
    let everyone = learners(1..=1_004);
    let honest = learners([7, 501, 502, 1_004]);
    let mut asked = BTreeSet::new();
    for _ in 0..3 * 300 {
        let invited = schedule.next(Millis(0), &everyone, |learner| honest.contains(&learner)).invited;
        assert!(invited.len() == 8 && honest.is_subset(&invited), "{invited:?}");
        asked.extend(invited);
    }
    assert!(asked.len() > 600, "{}: the others are asked now and then", asked.len());
    let all = schedule.next(Millis(0), &everyone, |learner| learner.0 > 4).invited;
    assert_eq!((all.len(), all.iter().filter(|learner| learner.0 <= 4).count()), (8, 2), "a quarter");
}

#[test]
fn a_held_run_launches_nothing() {
    let mut schedule = schedule();
    assert!(schedule.hold(true));
    assert!(!schedule.hold(true), "that is no news");
    assert_eq!(schedule.launch_at(&QUIET), None);
    assert!(schedule.hold(false));
    assert_eq!(schedule.launch_at(&QUIET), Some(Millis(0)));
}

#[test]
fn an_ending_run_asks_everyone_once_on_each_fragment() {
    let mut schedule = schedule();
    schedule.finish();
    assert_eq!(schedule.launch_at(&QUIET), None);
    let everyone = learners(1..=3);
    let busy = |fragment: &FragmentId| fragment.0 == 1;
    let last = schedule.last(Millis(0), busy, none, &everyone);
    let fragments: Vec<_> = last.iter().map(|launch| launch.fragment.0).collect();
    assert_eq!(fragments, [0, 2]);
    assert!(last.iter().all(|launch| launch.last_of == Some(2) && launch.invited == everyone));
    assert!(!schedule.end(true), "one fragment is still to come");
    assert_eq!(schedule.last(Millis(0), none, none, &everyone).len(), 1);
    assert!(!schedule.end(false), "its round is under way");
    assert!(schedule.end(true));
    assert!(!schedule.end(true), "it says so once");

    // A later process that continues from here does not repeat it or begin another last round.
    let mut later = Schedule::new(schedule.terms, *schedule.turn());
    later.finish();
    assert!(later.is_over() && later.is_ending() && !later.end(true));
    assert_eq!(later.last(Millis(0), none, none, &everyone), []);
}

#[test]
fn an_ending_run_without_learners_waits_only_for_what_is_under_way() {
    let mut schedule = schedule();
    schedule.finish();
    assert_eq!(schedule.last(Millis(0), |fragment| fragment.0 == 1, none, &learners([])), []);
    assert!(!schedule.end(true));
    assert_eq!(schedule.last(Millis(0), none, none, &learners([])), []);
    assert!(schedule.end(true));
}

/// Goal: pending updates of learners that left are merged without any connected learner.
#[test]
fn what_was_handed_in_is_merged_without_learners() {
    let mut schedule = schedule();
    let left = Traffic { live: 0, is_measured: false, is_answered: true, ..QUIET };
    assert_eq!(schedule.launch_at(&left), None, "nobody ever said how long a step takes");
    schedule.note_step(10.0);
    assert_eq!(schedule.launch_at(&left), Some(Millis(0)));
    assert_eq!(schedule.launch_at(&Traffic { is_answered: false, ..left }), None);
    schedule.finish();
    let last = schedule.last(Millis(0), none, |fragment| fragment.0 == 2, &learners([]));
    assert_eq!(last.iter().map(|launch| launch.fragment.0).collect::<Vec<_>>(), [2]);
    assert!(schedule.end(true));
}

#[test]
fn the_next_round_on_each_fragment_is_foreseen() {
    let mut schedule = schedule();
    schedule.note_step(10.0);
    assert_eq!(schedule.expected(FragmentId(0)), None);
    schedule.next(Millis(100), &learners([1]), |_| true);
    let expected = [0, 1, 2].map(|p| schedule.expected(FragmentId(p)));
    assert_eq!(expected, [160, 120, 140].map(|at| Some(Millis(at))));
    assert_eq!(schedule.in_time_ms(), 40.0, "two rounds in flight, 20 ms apart");
    schedule.hold(true);
    assert_eq!(schedule.expected(FragmentId(1)), None);
}

#[test]
fn times_are_averaged() {
    let mut schedule = schedule();
    schedule.note_answer(40);
    schedule.note_answer(80);
    assert_eq!(schedule.timing().answer_ms, 60.0);
    schedule.note_quorum(10);
    schedule.note_merged(4);
    schedule.note_merged(8);
    schedule.note_abandoned();
    let turn = schedule.turn();
    assert_eq!((turn.timing.quorum_ms, turn.timing.sync_ms), (10.0, 6.0));
    assert_eq!((turn.rounds_merged, turn.rounds_abandoned), (2, 1));
}

#[test]
fn numbers_after_a_restart_are_new() {
    let mut schedule = schedule();
    (0..5).for_each(|_| drop(schedule.next(Millis(0), &learners([1]), |_| true)));
    let mut again = Schedule::new(TERMS, schedule.turn().after_restart(0));
    let round = again.next(Millis(0), &learners([1]), |_| true).round;
    assert_eq!(round, Round(1 << 32));
    assert_eq!(again.turn().after_restart(1).next_round, 2 << 32);
}

/// Goal: two restarts from one old snapshot, after a newer one was damaged, give no name twice.
#[test]
fn two_restarts_from_one_snapshot_have_numbers_of_their_own() {
    let snapshot = Turn { next_round: (1_795_000_000 << 32) + 77, ..Turn::default() };
    let restarts =
        [1_795_354_000, 1_795_354_001].map(|started_s| snapshot.after_restart(started_s).next_round);
    assert_eq!(restarts, [1_795_354_000 << 32, 1_795_354_001 << 32]);
    // A clock that was set back.
    assert_eq!(snapshot.after_restart(0).next_round, 1_795_000_001 << 32);
}
