//! Schedule of rounds: their order, their launch times, and the learners that they invite.
//!
//! [`Schedule`] owns the order and the numbers of the rounds of all fragments, the measured times on which launch times
//! depend, and the owner's orders to pause or finish. It does not depend on connections, parameters or leases.

use std::collections::BTreeSet;

use super::speed::average;
use super::{Launch, Timing};
use crate::wire::{FragmentId, LearnerId, Millis, Round};

/// Number of a run's first round.
const FIRST_ROUND: u64 = 1;

/// Settings of the schedule of a run.
#[derive(Clone, Copy, Debug)]
pub struct ScheduleTerms {
    /// P, at least 1.
    pub fragments: u16,
    /// H, in steps, at least 1.
    pub sync_every: u32,
    /// τ, the largest number of rounds in flight.
    pub rounds_in_flight: u32,
    /// Number of live learners that the first round of a run needs.
    pub learners_start: u32,
    /// Maximum number of learners invited to one round. If more are live, a rotating sample is invited.
    pub cohort_max: u32,
}

/// Current facts on which the next launch depends.
#[derive(Clone, Copy, Debug)]
pub struct Traffic {
    /// Number of fragments with a round in flight.
    pub in_flight: usize,
    /// Whether [`Schedule::next_fragment`] has a round in flight.
    pub is_next_busy: bool,
    /// Number of learners that take part in rounds.
    pub live: usize,
    /// Whether the step time of any live learner is known.
    pub is_measured: bool,
    /// Whether updates wait for a round on any fragment.
    pub is_answered: bool,
}

/// State of a schedule that outlives the process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Turn {
    /// Moving averages of measured times.
    pub timing: Timing,
    /// Number of the next round, and of the version that it produces.
    pub next_round: u64,
    /// Fragment of the next round.
    pub next_fragment: FragmentId,
    /// Number of merged rounds.
    pub rounds_merged: u64,
    /// Number of rounds that ended without a version.
    pub rounds_abandoned: u64,
    /// Whether the owner has paused the run. If so, no round is launched and no text is leased.
    pub is_held: bool,
    /// Whether the last rounds of the run have begun. If so, no learner is admitted.
    pub is_ending: bool,
    /// Whether the run is over: all connections are closed, and no learner is admitted.
    pub is_over: bool,
}

/// State machine of the order and the times of rounds.
#[derive(Debug)]
pub struct Schedule {
    terms: ScheduleTerms,
    turn: Turn,
    /// Time of the last launch.
    launched: Option<Millis>,
    /// State of the last rounds; `None` before [`Self::finish`].
    ending: Option<FinalRounds>,
    /// Whether decisions cannot be stored now.
    is_stalled: bool,
}

/// Last rounds of a run.
#[derive(Debug)]
struct FinalRounds {
    /// Fragments whose last round was not launched yet.
    todo: Vec<FragmentId>,
}

impl Default for Turn {
    /// Returns the state at the start of a run.
    fn default() -> Self {
        Self {
            timing: Timing::default(),
            next_round: FIRST_ROUND,
            next_fragment: FragmentId(0),
            rounds_merged: 0,
            rounds_abandoned: 0,
            is_held: false,
            is_ending: false,
            is_over: false,
        }
    }
}

impl Turn {
    /// Returns the state with round numbers from a fresh range. Merges after a snapshot may be lost, and their version
    /// numbers must not be used for other parameters.
    ///
    /// The upper 32 bits of a round number are the run's incarnation, 0 at first. After a restart it is
    /// `max(previous + 1, started_s)`, where `started_s` is the Unix time at which the process started, in seconds. Two
    /// restarts from the same snapshot therefore get different incarnations.
    #[must_use]
    pub(crate) fn after_restart(self, started_s: u32) -> Self {
        let previous = u32::try_from(self.next_round >> 32).expect("32 bits are left");
        Self { next_round: u64::from(previous.saturating_add(1).max(started_s)) << 32, ..self }
    }
}

impl Schedule {
    /// Creates the schedule of a run from its state. If last rounds had begun, they begin again.
    #[must_use]
    pub(crate) fn new(terms: ScheduleTerms, turn: Turn) -> Self {
        let mut schedule = Self { terms, turn, launched: None, ending: None, is_stalled: false };
        if turn.is_ending {
            schedule.finish();
        }
        schedule
    }

    /// Sets τ, the largest number of rounds in flight.
    pub(crate) fn retune(&mut self, rounds_in_flight: u32) {
        self.terms.rounds_in_flight = rounds_in_flight;
    }

    /// Sets the maximum number of learners invited to one round.
    pub(crate) fn limit(&mut self, cohort_max: u32) {
        self.terms.cohort_max = cohort_max;
    }

    /// Returns the state that outlives the process.
    #[must_use]
    pub(crate) fn turn(&self) -> &Turn {
        &self.turn
    }

    /// Takes the next round number for a round outside the schedule, such as a rollback.
    pub fn take_round(&mut self) -> Round {
        self.turn.next_round += 1;
        Round(self.turn.next_round - 1)
    }

    /// Returns the moving averages of measured times.
    #[must_use]
    pub(crate) fn timing(&self) -> &Timing {
        &self.turn.timing
    }

    /// Returns the fragment of the next round.
    #[must_use]
    pub(crate) fn next_fragment(&self) -> FragmentId {
        self.turn.next_fragment
    }

    /// Returns true if the owner has paused the run.
    #[must_use]
    pub(crate) fn is_held(&self) -> bool {
        self.turn.is_held
    }

    /// Returns true if no text is leased and no round is launched, because the owner has paused the run or decisions
    /// cannot be stored.
    #[must_use]
    pub(crate) fn is_still(&self) -> bool {
        self.is_held() || self.is_stalled
    }

    /// Sets whether decisions cannot be stored. If so, no round is launched, not even a last round.
    pub(crate) fn stall(&mut self, is_stalled: bool) {
        self.is_stalled = is_stalled;
    }

    /// Returns true if the last rounds have begun or the run is over.
    #[must_use]
    pub(crate) fn is_ending(&self) -> bool {
        self.turn.is_ending || self.is_over()
    }

    /// Returns true if [`Self::last`] and [`Self::end`] may end the run at once: the last rounds have begun, and
    /// `is_idle`, so that no round is in flight. A process that resumes such a run has no learner to wait for.
    #[must_use]
    pub(crate) fn may_end(&self, is_idle: bool) -> bool {
        self.ending.is_some() && is_idle && !self.is_stalled && !self.is_over()
    }

    /// Returns true if the run is over.
    #[must_use]
    pub(crate) fn is_over(&self) -> bool {
        self.turn.is_over
    }

    /// Pauses or resumes the run. Returns true if that changed anything.
    pub(crate) fn hold(&mut self, is_held: bool) -> bool {
        std::mem::replace(&mut self.turn.is_held, is_held) != is_held
    }

    /// Begins the end of the run: from now on only the last round of each fragment is launched.
    pub(crate) fn finish(&mut self) {
        self.turn.is_ending = true;
        if !self.is_over() {
            let todo = (0..self.terms.fragments).map(FragmentId).collect();
            self.ending.get_or_insert(FinalRounds { todo });
        }
    }

    /// Records that another process has ended the last round of `fragment`.
    pub(crate) fn close(&mut self, fragment: FragmentId) {
        if let Some(ending) = &mut self.ending {
            ending.todo.retain(|todo| *todo != fragment);
        }
    }

    /// Returns the time at which the next round may be launched; `None` if the launch must first wait for an input.
    ///
    /// At most τ rounds are in flight, and launches are at least `H · ξ_step / P` apart.
    #[must_use]
    pub(crate) fn launch_at(&self, traffic: &Traffic) -> Option<Millis> {
        // Once a run has begun, a single learner is enough, also after a restart.
        let has_begun = self.turn.next_round != FIRST_ROUND;
        let needed = if has_begun { 1 } else { self.terms.learners_start.max(1) as usize };
        let is_full = traffic.in_flight >= self.terms.rounds_in_flight.max(1) as usize;
        // Waiting updates are merged even if all learners have left.
        let is_left = traffic.live == 0 && traffic.is_answered && self.timing().step_ms > 0.0;
        let too_few = !is_left && (traffic.live < needed || !traffic.is_measured);
        if self.is_ending() || self.is_still() || is_full || traffic.is_next_busy || too_few {
            return None;
        }
        let Some(launched) = self.launched else { return Some(Millis(0)) };
        Some(launched.after(self.floor_ms().ceil() as u64))
    }

    /// Returns the time of the next round on `fragment` if no launch is delayed; `None` before the first launch, while
    /// the run is paused or stalled, and at its end.
    #[must_use]
    pub(crate) fn expected(&self, fragment: FragmentId) -> Option<Millis> {
        let launched = self.launched.filter(|_| !self.is_ending() && !self.is_still())?;
        let ahead = (fragment.0 + self.terms.fragments - self.turn.next_fragment.0) % self.terms.fragments;
        Some(launched.after((self.floor_ms() * f64::from(ahead + 1)) as u64))
    }

    /// Returns the answer time above which a learner is asked ahead of the round, in milliseconds. It is the time that
    /// a round may last without delaying a launch.
    #[must_use]
    pub(crate) fn in_time_ms(&self) -> f64 {
        f64::from(self.terms.rounds_in_flight) * self.timing().launch_ms
    }

    /// Returns the minimum time between launches, `H · ξ_step / P`, in milliseconds.
    fn floor_ms(&self) -> f64 {
        let ScheduleTerms { sync_every, fragments, .. } = self.terms;
        f64::from(sync_every) * self.timing().step_ms / f64::from(fragments)
    }

    /// Launches the next round. Call it at [`Self::launch_at`]. `live` are the learners that take part in rounds, and
    /// `answers` returns true for those that answer requests.
    pub(crate) fn next(
        &mut self,
        now: Millis,
        live: &BTreeSet<LearnerId>,
        answers: impl Fn(LearnerId) -> bool,
    ) -> Launch {
        let fragment = self.turn.next_fragment;
        self.turn.next_fragment = FragmentId((fragment.0 + 1) % self.terms.fragments);
        let turn = self.turn.next_round / u64::from(self.terms.fragments);
        let invited = cohort(live, self.terms.cohort_max, turn, answers);
        self.launch(now, fragment, invited, None)
    }

    /// Launches the last round of each idle fragment, if the end of the run has begun. `is_busy` returns true for
    /// fragments with a round in flight, `is_answered` for those with waiting updates.
    pub(crate) fn last(
        &mut self,
        now: Millis,
        is_busy: impl Fn(&FragmentId) -> bool,
        is_answered: impl Fn(&FragmentId) -> bool,
        live: &BTreeSet<LearnerId>,
    ) -> Vec<Launch> {
        let Some(ending) = self.ending.as_mut().filter(|ending| !ending.todo.is_empty() && !self.is_stalled)
        else {
            return Vec::new();
        };
        if live.is_empty() {
            // Without learners, only waiting updates can still be merged.
            ending.todo.retain(|fragment| is_busy(fragment) || is_answered(fragment));
        }
        let (todo, free): (Vec<_>, Vec<_>) = std::mem::take(&mut ending.todo).into_iter().partition(is_busy);
        ending.todo = todo;
        let together = u32::try_from(free.len()).unwrap_or(u32::MAX);
        let last = |fragment| self.launch(now, fragment, live.clone(), Some(together));
        free.into_iter().map(last).collect()
    }

    /// Ends the run if its last rounds are over. Returns true once in the life of a run. `is_idle` is true if no round
    /// is in flight.
    pub(crate) fn end(&mut self, is_idle: bool) -> bool {
        let is_done = self.ending.as_ref().is_some_and(|ending| is_idle && ending.todo.is_empty());
        is_done && !std::mem::replace(&mut self.turn.is_over, true)
    }

    /// Records the step time of the median learner, in milliseconds.
    pub(crate) fn note_step(&mut self, step_ms: f64) {
        let steps = f64::from(self.terms.sync_every) / f64::from(self.terms.fragments);
        self.turn.timing.step_ms = step_ms;
        self.turn.timing.launch_ms = step_ms * steps.max(1.0);
    }

    /// Records that an update arrived `after_ms` after the request.
    pub(crate) fn note_answer(&mut self, after_ms: u64) {
        let timing = &mut self.turn.timing;
        timing.answer_ms = average(timing.answer_ms, after_ms as f64);
    }

    /// Records that a round reached its quorum `after_ms` after its launch.
    pub(crate) fn note_quorum(&mut self, after_ms: u64) {
        let timing = &mut self.turn.timing;
        timing.quorum_ms = average(timing.quorum_ms, after_ms as f64);
    }

    /// Records that a round produced a version, `sync_ms` after its collection ended.
    pub(crate) fn note_merged(&mut self, sync_ms: u64) {
        self.turn.rounds_merged += 1;
        let timing = &mut self.turn.timing;
        timing.sync_ms = average(timing.sync_ms, sync_ms as f64);
    }

    /// Records that a round ended without a version.
    pub(crate) fn note_abandoned(&mut self) {
        self.turn.rounds_abandoned += 1;
    }

    fn launch(
        &mut self,
        now: Millis,
        fragment: FragmentId,
        invited: BTreeSet<LearnerId>,
        last_of: Option<u32>,
    ) -> Launch {
        let round = Round(self.turn.next_round);
        self.turn.next_round += 1;
        self.launched = Some(now);
        Launch { round, fragment, invited, last_of }
    }
}

/// Returns the learners to invite to a round: all in `live`, or a sample of `cohort_max`. `turn` is the number of
/// passes over all fragments so far.
///
/// The sample rotates with each turn. If it rotated with each round, it could invite the same learners to the same
/// fragment in every turn. A quarter of the sample, and more if others are too few, is for learners that do not answer
/// requests. Any number of these therefore cannot exclude learners that train.
pub(crate) fn cohort(
    live: &BTreeSet<LearnerId>,
    cohort_max: u32,
    turn: u64,
    answers: impl Fn(LearnerId) -> bool,
) -> BTreeSet<LearnerId> {
    let size = (cohort_max.max(1) as usize).min(live.len());
    let (known, mute): (Vec<_>, Vec<_>) = live.iter().copied().partition(|&learner| answers(learner));
    // If `size` is below four, a quarter is one learner in some turns and none in others.
    let quarter = (size + (turn % 4) as usize) / 4;
    let mute_seats = mute.len().min(quarter.max(size.saturating_sub(known.len())));
    let seats = size - mute_seats;
    // The quarter repeats with a period of four turns, so this sample must not depend on `turn` modulo four.
    let known = known.iter().cycle().skip((turn as usize).wrapping_mul(seats) % known.len().max(1));
    let mute = mute.iter().cycle().skip((scatter(turn) % mute.len().max(1) as u64) as usize);
    known.take(seats).chain(mute.take(mute_seats)).copied().collect()
}

/// Returns a pseudo-random number for `turn`: the upper 32 bits of Knuth's multiplicative hash.
fn scatter(turn: u64) -> u64 {
    turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

#[cfg(test)]
mod tests {
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
    fn first_round_waits_for_measured_learners() {
        let schedule = schedule();
        assert_eq!(schedule.launch_at(&QUIET), Some(Millis(0)));
        assert_eq!(schedule.launch_at(&Traffic { live: 1, ..QUIET }), None);
        assert_eq!(schedule.launch_at(&Traffic { is_measured: false, ..QUIET }), None);
    }

    #[test]
    fn launches_keep_their_distance_and_rounds_in_flight_are_limited() {
        let mut schedule = schedule();
        schedule.note_step(10.0);
        let first = schedule.next(Millis(100), &learners([1, 2]), |_| true);
        assert_eq!((first.round, first.fragment, first.last_of), (Round(1), FragmentId(0), None));
        // H · ξ_step / P = 6 · 10 / 3 ms, and a run that has begun needs only one learner.
        let one = Traffic { in_flight: 1, live: 1, ..QUIET };
        assert_eq!(schedule.launch_at(&one), Some(Millis(120)));
        assert_eq!(schedule.launch_at(&Traffic { in_flight: 2, ..one }), None);
        assert_eq!(schedule.launch_at(&Traffic { is_next_busy: true, ..one }), None);
        assert_eq!(schedule.next_fragment(), FragmentId(1));
        schedule.retune(1);
        assert_eq!(schedule.launch_at(&one), None);
    }

    #[test]
    fn cohort_rotates_with_each_turn() {
        let mut schedule = schedule();
        let everyone = learners(1..=4);
        let asked = |schedule: &mut Schedule| schedule.next(Millis(0), &everyone, |_| true).invited;
        let first: Vec<_> = (0..3).map(|_| asked(&mut schedule)).collect();
        let second: Vec<_> = (0..3).map(|_| asked(&mut schedule)).collect();
        assert!(first.iter().chain(&second).all(|invited| invited.len() == 2));
        // Rounds 1 and 2 belong to turn 0, rounds 3 to 5 to turn 1. The sample moves by two learners per turn.
        assert_eq!(first[1], learners([1, 2]));
        assert_eq!(second[0], learners([3, 4]));
    }

    /// Goal: live learners that never answer exclude no training learner from a round, and are still invited at times.
    #[test]
    fn answering_learners_are_invited_despite_many_that_do_not_answer() {
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
    fn paused_run_launches_no_round() {
        let mut schedule = schedule();
        assert!(schedule.hold(true));
        assert!(!schedule.hold(true), "that is no news");
        assert_eq!(schedule.launch_at(&QUIET), None);
        assert!(schedule.hold(false));
        assert_eq!(schedule.launch_at(&QUIET), Some(Millis(0)));
    }

    #[test]
    fn ending_run_launches_one_last_round_per_fragment() {
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

        // A later process that resumes from here neither ends the run again nor launches another last round.
        let mut later = Schedule::new(schedule.terms, *schedule.turn());
        later.finish();
        assert!(later.is_over() && later.is_ending() && !later.end(true));
        assert_eq!(later.last(Millis(0), none, none, &everyone), []);
    }

    #[test]
    fn ending_run_without_learners_waits_only_for_rounds_in_flight() {
        let mut schedule = schedule();
        schedule.finish();
        assert_eq!(schedule.last(Millis(0), |fragment| fragment.0 == 1, none, &learners([])), []);
        assert!(!schedule.end(true));
        assert_eq!(schedule.last(Millis(0), none, none, &learners([])), []);
        assert!(schedule.end(true));
    }

    /// Goal: waiting updates of learners that left are merged without any connected learner.
    #[test]
    fn waiting_updates_are_merged_without_learners() {
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
    fn expected_time_of_the_next_round_on_each_fragment() {
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
    fn round_numbers_after_a_restart_are_new() {
        let mut schedule = schedule();
        (0..5).for_each(|_| drop(schedule.next(Millis(0), &learners([1]), |_| true)));
        let mut again = Schedule::new(TERMS, schedule.turn().after_restart(0));
        let round = again.next(Millis(0), &learners([1]), |_| true).round;
        assert_eq!(round, Round(1 << 32));
        assert_eq!(again.turn().after_restart(1).next_round, 2 << 32);
    }

    /// Goal: two restarts from the same snapshot use different round numbers.
    #[test]
    fn restarts_from_one_snapshot_use_different_numbers() {
        let snapshot = Turn { next_round: (1_795_000_000 << 32) + 77, ..Turn::default() };
        let restarts =
            [1_795_354_000, 1_795_354_001].map(|started_s| snapshot.after_restart(started_s).next_round);
        assert_eq!(restarts, [1_795_354_000 << 32, 1_795_354_001 << 32]);
        // The clock was set back.
        assert_eq!(snapshot.after_restart(0).next_round, 1_795_000_001 << 32);
    }
}
