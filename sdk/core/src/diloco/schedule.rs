//! When the next round is launched, on which fragment, and whom it asks.
//!
//! [`Schedule`] owns the order of the rounds of all fragments, their numbers, the measured times that pace them, and
//! the owner's word to hold or to finish. It knows nothing of connections, parameters or leases.

use std::collections::BTreeSet;

use super::speed::average;
use super::{Launch, Timing};
use crate::wire::{FragmentId, LearnerId, Millis, Round};

/// The number of a run's first round.
const FIRST_ROUND: u64 = 1;

/// What decides the schedule of a run.
#[derive(Clone, Copy, Debug)]
pub struct ScheduleTerms {
    /// P, at least 1.
    pub fragments: u16,
    /// H, in steps, at least 1.
    pub sync_every: u32,
    /// τ, the rounds that may be in flight.
    pub rounds_in_flight: u32,
    /// Live learners before the first round of a run.
    pub learners_start: u32,
    /// Learners invited to one round; above it a rotating sample is.
    pub cohort_max: u32,
}

/// What a schedule needs to know of the moment.
#[derive(Clone, Copy, Debug)]
pub struct Traffic {
    /// Fragments with a round under way.
    pub in_flight: usize,
    /// Whether [`Schedule::next_fragment`] is one of them.
    pub is_next_busy: bool,
    /// Learners that take part in rounds.
    pub live: usize,
    /// Whether one of them has said how long its steps take.
    pub is_measured: bool,
    /// Whether answers wait for a round on any fragment.
    pub is_answered: bool,
}

/// The part of a schedule that outlives the process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Turn {
    /// Measured times.
    pub timing: Timing,
    /// The number of the next round and of the version that it leads to.
    pub next_round: u64,
    /// Whose turn it is.
    pub next_fragment: FragmentId,
    /// Rounds that led to a version.
    pub rounds_merged: u64,
    /// Rounds that led to nothing.
    pub rounds_abandoned: u64,
    /// The owner holds the run: nothing is launched or leased.
    pub is_held: bool,
    /// The last collection has begun: nobody is taken in any more.
    pub is_ending: bool,
    /// The run is over for good: everyone was sent home, and nobody is taken in.
    pub is_over: bool,
}

/// The order of the rounds of a run.
#[derive(Debug)]
pub struct Schedule {
    terms: ScheduleTerms,
    turn: Turn,
    /// When the last round was launched.
    launched: Option<Millis>,
    ending: Option<Ending>,
    /// Decisions cannot be kept at present.
    is_stalled: bool,
}

/// The last collection, before everyone is sent home.
#[derive(Debug)]
struct Ending {
    /// Fragments whose last round is still to come.
    todo: Vec<FragmentId>,
}

impl Default for Turn {
    /// That of a run that begins.
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
    /// The same with round numbers from a fresh range, so that no version names two contents: what was merged after
    /// the snapshot is lost.
    ///
    /// The upper 32 bits of a round's number are the run's incarnation, 0 at first. That after a restart is
    /// `max(previous + 1, started_s)`, where `started_s` says when the process started, in seconds since 1970: who
    /// goes on from the same old snapshot twice, in two processes, has two.
    #[must_use]
    pub(crate) fn after_restart(self, started_s: u32) -> Self {
        let previous = u32::try_from(self.next_round >> 32).expect("32 bits are left");
        Self { next_round: u64::from(previous.saturating_add(1).max(started_s)) << 32, ..self }
    }
}

impl Schedule {
    /// The schedule of a run whose turn this is. One whose last collection had begun goes on with it.
    #[must_use]
    pub(crate) fn new(terms: ScheduleTerms, turn: Turn) -> Self {
        let mut schedule = Self { terms, turn, launched: None, ending: None, is_stalled: false };
        if turn.is_ending {
            schedule.finish();
        }
        schedule
    }

    /// From now on so many rounds may be in flight.
    pub(crate) fn retune(&mut self, rounds_in_flight: u32) {
        self.terms.rounds_in_flight = rounds_in_flight;
    }

    /// From now on so many learners are asked in one round.
    pub(crate) fn limit(&mut self, cohort_max: u32) {
        self.terms.cohort_max = cohort_max;
    }

    /// The part that outlives the process.
    #[must_use]
    pub(crate) fn turn(&self) -> &Turn {
        &self.turn
    }

    /// The number of a round that is none of the schedule's own.
    pub fn take_round(&mut self) -> Round {
        self.turn.next_round += 1;
        Round(self.turn.next_round - 1)
    }

    /// Measured times.
    #[must_use]
    pub(crate) fn timing(&self) -> &Timing {
        &self.turn.timing
    }

    /// The fragment whose turn it is.
    #[must_use]
    pub(crate) fn next_fragment(&self) -> FragmentId {
        self.turn.next_fragment
    }

    /// Whether the owner holds the run.
    #[must_use]
    pub(crate) fn is_held(&self) -> bool {
        self.turn.is_held
    }

    /// Whether nothing is launched or leased: the owner holds the run, or decisions cannot be kept.
    #[must_use]
    pub(crate) fn is_still(&self) -> bool {
        self.is_held() || self.is_stalled
    }

    /// Launches nothing while decisions cannot be kept, not even a last round.
    pub(crate) fn stall(&mut self, is_stalled: bool) {
        self.is_stalled = is_stalled;
    }

    /// Whether the last collection has begun, or is over.
    #[must_use]
    pub(crate) fn is_ending(&self) -> bool {
        self.turn.is_ending || self.is_over()
    }

    /// Whether everyone may be sent home at once, which [`Self::last`] and [`Self::end`] do: a process that goes on
    /// with a last collection finds nobody to collect from.
    #[must_use]
    pub(crate) fn may_end(&self, is_idle: bool) -> bool {
        self.ending.is_some() && is_idle && !self.is_stalled && !self.is_over()
    }

    /// Whether everyone was sent home.
    #[must_use]
    pub(crate) fn is_over(&self) -> bool {
        self.turn.is_over
    }

    /// Holds the run or lets it go on; whether that is news.
    pub(crate) fn hold(&mut self, is_held: bool) -> bool {
        std::mem::replace(&mut self.turn.is_held, is_held) != is_held
    }

    /// From now on only the last round of each fragment is launched.
    pub(crate) fn finish(&mut self) {
        self.turn.is_ending = true;
        if !self.is_over() {
            let todo = (0..self.terms.fragments).map(FragmentId).collect();
            self.ending.get_or_insert(Ending { todo });
        }
    }

    /// In a run that ends, the last round of `fragment` was led elsewhere and is over.
    pub(crate) fn close(&mut self, fragment: FragmentId) {
        if let Some(ending) = &mut self.ending {
            ending.todo.retain(|todo| *todo != fragment);
        }
    }

    /// When the next round may be launched; `None` if only an arrival can bring that about.
    ///
    /// At most τ rounds are in flight, at least `H · ξ_step / P` apart.
    #[must_use]
    pub(crate) fn launch_at(&self, traffic: &Traffic) -> Option<Millis> {
        // Once a run has begun, whoever is there carries it on, also after a restart.
        let has_begun = self.turn.next_round != FIRST_ROUND;
        let needed = if has_begun { 1 } else { self.terms.learners_start.max(1) as usize };
        let is_full = traffic.in_flight >= self.terms.rounds_in_flight.max(1) as usize;
        // What those who left handed in is merged, too, when nobody else is there.
        let is_left = traffic.live == 0 && traffic.is_answered && self.timing().step_ms > 0.0;
        let too_few = !is_left && (traffic.live < needed || !traffic.is_measured);
        if self.is_ending() || self.is_still() || is_full || traffic.is_next_busy || too_few {
            return None;
        }
        let Some(launched) = self.launched else { return Some(Millis(0)) };
        Some(launched.after(self.floor_ms().ceil() as u64))
    }

    /// When the next round on `fragment` is to be expected, if nothing holds up a launch; `None` while nothing is
    /// launched.
    #[must_use]
    pub(crate) fn expected(&self, fragment: FragmentId) -> Option<Millis> {
        let launched = self.launched.filter(|_| !self.is_ending() && !self.is_still())?;
        let ahead = (fragment.0 + self.terms.fragments - self.turn.next_fragment.0) % self.terms.fragments;
        Some(launched.after((self.floor_ms() * f64::from(ahead + 1)) as u64))
    }

    /// An answer that takes longer than this, in milliseconds, is asked for ahead of its round: so long may a round
    /// last without holding up a launch.
    #[must_use]
    pub(crate) fn in_time_ms(&self) -> f64 {
        f64::from(self.terms.rounds_in_flight) * self.timing().launch_ms
    }

    /// `H · ξ_step / P`, in milliseconds.
    fn floor_ms(&self) -> f64 {
        let ScheduleTerms { sync_every, fragments, .. } = self.terms;
        f64::from(sync_every) * self.timing().step_ms / f64::from(fragments)
    }

    /// Launches the next round; to be called when [`Self::launch_at`] has come. `live` are the learners that take part
    /// in rounds, `answers` says which of them answer when they are asked.
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

    /// Launches the last round of each fragment on which none is under way, once a run ends.
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
            // Nobody has anything to hand in any more.
            ending.todo.retain(|fragment| is_busy(fragment) || is_answered(fragment));
        }
        let (todo, free): (Vec<_>, Vec<_>) = std::mem::take(&mut ending.todo).into_iter().partition(is_busy);
        ending.todo = todo;
        let together = u32::try_from(free.len()).unwrap_or(u32::MAX);
        let last = |fragment| self.launch(now, fragment, live.clone(), Some(together));
        free.into_iter().map(last).collect()
    }

    /// Whether everyone may be sent home now; says so once in the life of a run. `is_idle`: no round is under way.
    pub(crate) fn end(&mut self, is_idle: bool) -> bool {
        let is_done = self.ending.as_ref().is_some_and(|ending| is_idle && ending.todo.is_empty());
        is_done && !std::mem::replace(&mut self.turn.is_over, true)
    }

    /// The time of a step of the median learner, in milliseconds.
    pub(crate) fn note_step(&mut self, step_ms: f64) {
        let steps = f64::from(self.terms.sync_every) / f64::from(self.terms.fragments);
        self.turn.timing.step_ms = step_ms;
        self.turn.timing.launch_ms = step_ms * steps.max(1.0);
    }

    /// An update came in, `after_ms` after it was asked for.
    pub(crate) fn note_answer(&mut self, after_ms: u64) {
        let timing = &mut self.turn.timing;
        timing.answer_ms = average(timing.answer_ms, after_ms as f64);
    }

    /// A round reached its quorum `after_ms` after its launch.
    pub(crate) fn note_quorum(&mut self, after_ms: u64) {
        let timing = &mut self.turn.timing;
        timing.quorum_ms = average(timing.quorum_ms, after_ms as f64);
    }

    /// A round led to a version, `sync_ms` after it ended collecting.
    pub(crate) fn note_merged(&mut self, sync_ms: u64) {
        self.turn.rounds_merged += 1;
        let timing = &mut self.turn.timing;
        timing.sync_ms = average(timing.sync_ms, sync_ms as f64);
    }

    /// A round led to nothing.
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

/// The live learners, or a sample of `cohort_max` that moves on with each `turn` of all fragments: a step for each
/// round could ask the same learners for the same fragment every time. Those who have not answered have a quarter of
/// the seats, and what the others leave: however many they are, who trains is asked.
pub(crate) fn cohort(
    live: &BTreeSet<LearnerId>,
    cohort_max: u32,
    turn: u64,
    answers: impl Fn(LearnerId) -> bool,
) -> BTreeSet<LearnerId> {
    let size = (cohort_max.max(1) as usize).min(live.len());
    let (known, mute): (Vec<_>, Vec<_>) = live.iter().copied().partition(|&learner| answers(learner));
    // Of fewer than four seats a quarter is one now and then.
    let quarter = (size + (turn % 4) as usize) / 4;
    let mute_seats = mute.len().min(quarter.max(size.saturating_sub(known.len())));
    let seats = size - mute_seats;
    // A quarter comes in a rhythm of its own, which must not be that of the sample.
    let known = known.iter().cycle().skip((turn as usize).wrapping_mul(seats) % known.len().max(1));
    let mute = mute.iter().cycle().skip((scatter(turn) % mute.len().max(1) as u64) as usize);
    known.take(seats).chain(mute.take(mute_seats)).copied().collect()
}

/// A number that looks like chance, another one for each `turn`: the upper bits of Knuth's multiplicative hash.
fn scatter(turn: u64) -> u64 {
    turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

#[cfg(test)]
mod tests;
