//! When the next round is launched, on which fragment, and whom it asks.
//!
//! [`Schedule`] owns the order of the rounds of all fragments, their numbers, the measured times that pace them, and
//! the owner's word to hold or to finish. It knows nothing of connections, parameters or leases.

use std::collections::{BTreeMap, BTreeSet};

use super::{Launch, Timing};
use crate::wire::{FragmentId, LearnerId, Millis, Round};

/// Weight of the newest value in the moving averages of times.
const TIMING_WEIGHT: f64 = 0.5;

/// Launches that are remembered, to know how late an update is that comes after its round.
const LAUNCHES_MAX: usize = 256;

/// The number of a run's first round.
const FIRST_ROUND: u64 = 1;

/// What does not change about the schedule during a run.
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
}

/// The order of the rounds of a run.
#[derive(Debug)]
pub struct Schedule {
    terms: ScheduleTerms,
    turn: Turn,
    /// When the last round was launched.
    launched: Option<Millis>,
    /// When the latest rounds were launched.
    launches: BTreeMap<Round, Millis>,
    ending: Option<Ending>,
}

/// The last collection, before everyone is sent home.
#[derive(Debug)]
struct Ending {
    /// Fragments whose last round is still to come.
    todo: Vec<FragmentId>,
    /// Everyone has been told.
    is_said: bool,
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
        }
    }
}

impl Turn {
    /// The same with round numbers from a fresh range, so that no version names two contents: what was merged after
    /// the snapshot is lost.
    #[must_use]
    pub fn after_restart(self) -> Self {
        Self { next_round: ((self.next_round >> 32) + 1) << 32, ..self }
    }
}

impl Schedule {
    /// The schedule of a run whose turn this is.
    #[must_use]
    pub fn new(terms: ScheduleTerms, turn: Turn) -> Self {
        Self { terms, turn, launched: None, launches: BTreeMap::new(), ending: None }
    }

    /// The part that outlives the process.
    #[must_use]
    pub fn turn(&self) -> &Turn {
        &self.turn
    }

    /// Measured times.
    #[must_use]
    pub fn timing(&self) -> &Timing {
        &self.turn.timing
    }

    /// The fragment whose turn it is.
    #[must_use]
    pub fn next_fragment(&self) -> FragmentId {
        self.turn.next_fragment
    }

    /// Whether the owner holds the run.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.turn.is_held
    }

    /// Whether the last collection has begun.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.ending.is_some()
    }

    /// Whether a round of this number was ever launched.
    #[must_use]
    pub fn is_issued(&self, round: Round) -> bool {
        round.0 < self.turn.next_round
    }

    /// Holds the run or lets it go on; whether that is news.
    pub fn hold(&mut self, is_held: bool) -> bool {
        std::mem::replace(&mut self.turn.is_held, is_held) != is_held
    }

    /// From now on only the last round of each fragment is launched.
    pub fn finish(&mut self) {
        let todo = (0..self.terms.fragments).map(FragmentId).collect();
        self.ending.get_or_insert(Ending { todo, is_said: false });
    }

    /// When the next round may be launched; `None` if only an arrival can bring that about.
    ///
    /// At most τ rounds are in flight, at least `H · ξ_step / P` apart.
    #[must_use]
    pub fn launch_at(&self, traffic: &Traffic) -> Option<Millis> {
        // Once a run has begun, whoever is there carries it on, also after a restart.
        let has_begun = self.turn.next_round != FIRST_ROUND;
        let needed = if has_begun { 1 } else { self.terms.learners_start.max(1) as usize };
        let is_full = traffic.in_flight >= self.terms.rounds_in_flight.max(1) as usize;
        let too_few = traffic.live < needed || !traffic.is_measured;
        if self.is_ending() || self.is_held() || is_full || traffic.is_next_busy || too_few {
            return None;
        }
        let Some(launched) = self.launched else { return Some(Millis(0)) };
        let ScheduleTerms { sync_every, fragments, .. } = self.terms;
        let floor_ms = f64::from(sync_every) * self.timing().step_ms / f64::from(fragments);
        Some(launched.after(floor_ms.ceil() as u64))
    }

    /// Launches the next round; to be called when [`Self::launch_at`] has come. `live` are the learners that take part
    /// in rounds.
    pub fn next(&mut self, now: Millis, live: &BTreeSet<LearnerId>) -> Launch {
        let fragment = self.turn.next_fragment;
        self.turn.next_fragment = FragmentId((fragment.0 + 1) % self.terms.fragments);
        let invited = self.cohort(live);
        self.launch(now, fragment, invited, None)
    }

    /// Launches the last round of each fragment on which none is under way, once a run ends.
    pub fn last(
        &mut self,
        now: Millis,
        is_busy: impl Fn(&FragmentId) -> bool,
        live: &BTreeSet<LearnerId>,
    ) -> Vec<Launch> {
        let Some(ending) = self.ending.as_mut().filter(|ending| !ending.todo.is_empty()) else {
            return Vec::new();
        };
        if live.is_empty() {
            // Nobody has anything to hand in any more.
            ending.todo.retain(is_busy);
            return Vec::new();
        }
        let (todo, free): (Vec<_>, Vec<_>) = std::mem::take(&mut ending.todo).into_iter().partition(is_busy);
        ending.todo = todo;
        let together = u32::try_from(free.len()).unwrap_or(u32::MAX);
        let last = |fragment| self.launch(now, fragment, live.clone(), Some(together));
        free.into_iter().map(last).collect()
    }

    /// Whether everyone may be sent home now; says so once. `is_idle`: no round is under way.
    pub fn is_over(&mut self, is_idle: bool) -> bool {
        let Some(ending) = self.ending.as_mut().filter(|ending| is_idle && ending.todo.is_empty()) else {
            return false;
        };
        !std::mem::replace(&mut ending.is_said, true)
    }

    /// The time of a step of the median learner, in milliseconds.
    pub fn note_step(&mut self, step_ms: f64) {
        let steps = f64::from(self.terms.sync_every) / f64::from(self.terms.fragments);
        self.turn.timing.step_ms = step_ms;
        self.turn.timing.launch_ms = step_ms * steps.max(1.0);
    }

    /// An update for `round` came in, in time or late.
    pub fn note_answer(&mut self, now: Millis, round: Round) {
        if let Some(&launched) = self.launches.get(&round) {
            let timing = &mut self.turn.timing;
            timing.answer_ms = average(timing.answer_ms, now.since(launched) as f64);
        }
    }

    /// A round reached its quorum `after_ms` after its launch.
    pub fn note_quorum(&mut self, after_ms: u64) {
        let timing = &mut self.turn.timing;
        timing.quorum_ms = average(timing.quorum_ms, after_ms as f64);
    }

    /// A round led to a version, `sync_ms` after it ended collecting.
    pub fn note_merged(&mut self, sync_ms: u64) {
        self.turn.rounds_merged += 1;
        let timing = &mut self.turn.timing;
        timing.sync_ms = average(timing.sync_ms, sync_ms as f64);
    }

    /// A round led to nothing.
    pub fn note_abandoned(&mut self) {
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
        self.launches.insert(round, now);
        if self.launches.len() > LAUNCHES_MAX {
            self.launches.pop_first();
        }
        Launch { round, fragment, invited, last_of }
    }

    /// The live learners, or a sample that moves on with each turn of all fragments: a step for each round could
    /// ask the same learners for the same fragment every time.
    fn cohort(&self, live: &BTreeSet<LearnerId>) -> BTreeSet<LearnerId> {
        let size = (self.terms.cohort_max.max(1) as usize).min(live.len());
        let turn = self.turn.next_round / u64::from(self.terms.fragments);
        let skip = (turn as usize).wrapping_mul(size) % live.len().max(1);
        live.iter().cycle().skip(skip).take(size).copied().collect()
    }
}

fn average(old: f64, new: f64) -> f64 {
    if old == 0.0 { new } else { old + TIMING_WEIGHT * (new - old) }
}

#[cfg(test)]
mod tests;
