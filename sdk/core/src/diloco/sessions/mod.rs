//! Sessions of a run, the speed of their learners, and the restrictions on single learners.
//!
//! [`Roster`] owns connections and learners. It does not depend on rounds, parameters or leases.
//!
//! The restrictions on a learner are a limit on its share of training time, and a temporary exclusion. They outlive the
//! syncer's process, and hold until the owner lifts them or the exclusion is over. The elapsed time of an exclusion is
//! not stored, so it starts again in the next process.

mod pace;
mod rate_limit;

use std::collections::{BTreeMap, BTreeSet};

use super::speed::{STEP_MS, average};
use crate::wire::{ConnId, LearnerId, LearnerState, Millis, Share};
use pace::{ClaimedPace, Index, IndexKeys, MergedPace, ReportedSteps};
use rate_limit::Allowance;
use serde::{Deserialize, Serialize};

/// Upper bound on the accepted speed of a learner, as a multiple of the median speed of the others. A server's GPU is
/// about that much faster than a phone; [`SPEED_SLACK`](super::speed::SPEED_SLACK) doubles the bound. Faster claims are
/// limited to it. Our own constant.
const SPEED_RATIO_MAX: f64 = 1_000.0;
/// Initial upper bound on the speed for which tokens are credited, as a multiple of the same median. The bound doubles
/// with the time since the learner connected, up to [`SPEED_RATIO_MAX`]. So no learner advances the schedule of a run
/// within seconds. Our own constant.
const SPEED_RATIO_FIRST: f64 = 8.0;
/// Time in which that bound doubles, in milliseconds. Our own constant.
const SPEED_RATIO_DOUBLES_MS: f64 = 60_000.0;
/// Claimed step time from which a claim is accepted whatever the speed of the others, in milliseconds. Our own
/// constant.
const BELIEVED_MS: f64 = 20.0;

/// Time limits on silent connections.
#[derive(Clone, Copy, Debug)]
pub struct SilenceLimits {
    /// Time after which a silent connection is closed, in milliseconds.
    pub silent_ms_max: u64,
    /// Time after which a silent connection is closed if the learner reported a hidden tab or a pause, in milliseconds.
    pub hidden_ms_max: u64,
}

/// Sessions of a run, and the restrictions on learners.
#[derive(Debug)]
pub struct Roster {
    limits: SilenceLimits,
    sessions: BTreeMap<ConnId, Session>,
    connections: BTreeMap<LearnerId, ConnId>,
    index: Index,
    /// Restrictions on learners.
    restrictions: Restrictions,
}

/// Session of one learner.
#[derive(Clone, Debug)]
pub struct Session {
    /// The learner.
    pub learner: LearnerId,
    /// Whether the learner's process had no state of the run when it connected.
    pub is_fresh: bool,
    /// Whether the learner holds the parameters and trains. If so, it is invited to rounds.
    pub is_live: bool,
    /// Reported state.
    pub state: LearnerState,
    /// Last claimed step time, in milliseconds; 0 until known.
    pub step_ms: f64,
    /// Moving average of claimed step times.
    claimed: ClaimedPace,
    /// Shortest claimed step time, in milliseconds; 0 until known.
    pub step_ms_min: f64,
    /// Number of windows in one step.
    pub batch: u32,
    /// Moving average of the time from a request to its answer, in milliseconds; 0 until known.
    pub answer_ms: f64,
    /// Last reported training loss, in nats per token; NaN until known.
    pub loss: f32,
    /// Pace according to merged updates.
    pace: MergedPace,
    /// Step time according to the number of reported steps.
    steps: ReportedSteps,
    /// Rate limit for messages.
    allowance: Allowance,
    /// Whether the learner has answered a request over this connection.
    has_answered: bool,
    /// Time of the oldest unanswered request; `None` without one.
    waits_since: Option<Millis>,
    /// Time of the last traffic.
    heard: Millis,
    /// Start of the session.
    pub since: Millis,
    /// Keys of the session in the roster's index.
    keys: IndexKeys,
}

impl Roster {
    /// Creates a roster without sessions.
    #[must_use]
    pub fn new(limits: SilenceLimits, restrictions: Restrictions) -> Self {
        let (sessions, connections, index) = (BTreeMap::new(), BTreeMap::new(), Index::default());
        Self { limits, sessions, connections, index, restrictions }
    }

    /// Returns the number of sessions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Returns the learner behind `conn`, if it was admitted.
    #[must_use]
    pub fn learner(&self, conn: ConnId) -> Option<LearnerId> {
        self.sessions.get(&conn).map(|session| session.learner)
    }

    /// Returns the connection of `learner`, if it is connected.
    #[must_use]
    pub fn conn(&self, learner: LearnerId) -> Option<ConnId> {
        self.connections.get(&learner).copied()
    }

    /// Returns the session of `learner`, if it is connected.
    #[must_use]
    pub fn session(&self, learner: LearnerId) -> Option<&Session> {
        self.sessions.get(self.connections.get(&learner)?)
    }

    /// Returns all connections of learners, ordered by id.
    pub fn conns(&self) -> impl Iterator<Item = ConnId> {
        self.sessions.keys().copied()
    }

    /// Returns all connected learners with their sessions, ordered by learner id.
    pub fn sessions(&self) -> impl Iterator<Item = (LearnerId, &Session)> {
        let sessions = &self.sessions;
        self.connections.iter().filter_map(|(learner, conn)| Some((*learner, sessions.get(conn)?)))
    }

    /// Returns the learners that take part in rounds.
    #[must_use]
    pub fn live(&self) -> &BTreeSet<LearnerId> {
        self.index.live()
    }

    /// Returns true if `learner` takes part in rounds.
    #[must_use]
    pub fn is_live(&self, learner: LearnerId) -> bool {
        self.session(learner).is_some_and(|session| session.is_live)
    }

    /// Opens a session. An older session of the same learner must be closed first.
    pub fn open(&mut self, now: Millis, conn: ConnId, learner: LearnerId, is_fresh: bool) {
        let mut session = Session {
            learner,
            is_fresh,
            is_live: false,
            state: LearnerState::Joining,
            step_ms: 0.0,
            claimed: ClaimedPace::default(),
            step_ms_min: 0.0,
            batch: 0,
            answer_ms: 0.0,
            loss: f32::NAN,
            pace: MergedPace::default(),
            steps: ReportedSteps::default(),
            allowance: Allowance::default(),
            has_answered: false,
            waits_since: None,
            heard: now,
            since: now,
            keys: IndexKeys::default(),
        };
        self.index.update(&self.limits, conn, &mut session);
        self.sessions.insert(conn, session);
        self.connections.insert(learner, conn);
    }

    /// Closes the session of `conn`, and returns its learner.
    pub fn close(&mut self, conn: ConnId) -> Option<LearnerId> {
        let session = self.sessions.remove(&conn)?;
        self.connections.remove(&session.learner);
        self.index.remove(conn, &session);
        Some(session.learner)
    }

    /// Records traffic on `conn`.
    pub fn note_activity(&mut self, now: Millis, conn: ConnId) {
        if let Some(session) = self.sessions.get_mut(&conn) {
            session.heard = now;
            self.index.update_deadline(&self.limits, conn, session);
        }
    }

    /// Records that the learner behind `conn` holds the parameters and trains, with `batch` windows in one step.
    pub fn ready(&mut self, conn: ConnId, batch: u32) -> Option<&Session> {
        let session = self.sessions.get_mut(&conn)?;
        (session.is_live, session.state, session.batch) = (true, LearnerState::Training, batch);
        self.index.update(&self.limits, conn, session);
        Some(session)
    }

    /// Records that `learner` answered `after_ms` after the request.
    pub fn note_answer(&mut self, learner: LearnerId, after_ms: u64) {
        let Some(&conn) = self.connections.get(&learner) else { return };
        if let Some(session) = self.sessions.get_mut(&conn) {
            session.answer_ms = average(session.answer_ms, after_ms as f64);
            self.index.update(&self.limits, conn, session);
        }
    }

    /// Returns the interval at which the learner behind `conn` reads messages, in milliseconds: its claimed step time.
    #[must_use]
    pub fn read_interval_ms(&self, conn: ConnId) -> f64 {
        self.sessions.get(&conn).map_or(0.0, |session| session.step_ms)
    }

    /// Returns the live learners whose answers take longer than `than_ms`, each with its answer time in milliseconds.
    pub fn far(&self, than_ms: f64) -> impl Iterator<Item = (LearnerId, f64)> {
        let far = self.index.far(than_ms).into_iter().filter_map(|conn| self.sessions.get(&conn));
        far.map(|session| (session.learner, session.answer_ms))
    }

    /// Records a report of the learner behind `conn`: `step_ms` in milliseconds and `loss` in nats per token.
    /// Implausible values are ignored. Returns true if the state changed.
    pub fn report(&mut self, conn: ConnId, step_ms: f32, loss: f32, state: LearnerState) -> bool {
        let Some(session) = self.sessions.get_mut(&conn) else { return false };
        let step_ms = f64::from(step_ms);
        if STEP_MS.contains(&step_ms) {
            session.step_ms = step_ms;
            session.claimed.record_claim(step_ms);
            let known = session.step_ms_min > 0.0;
            session.step_ms_min = if known { session.step_ms_min.min(step_ms) } else { step_ms };
        }
        if loss.is_finite() {
            session.loss = loss;
        }
        let is_news = std::mem::replace(&mut session.state, state) != state;
        self.index.update(&self.limits, conn, session);
        is_news
    }

    /// Returns the connections that were silent for too long, ordered by id.
    #[must_use]
    pub fn silent(&self, now: Millis) -> Vec<ConnId> {
        self.index.silent(now)
    }

    /// Returns the time at which the next silent connection is closed.
    #[must_use]
    pub fn deadline(&self) -> Option<Millis> {
        self.index.deadline()
    }

    /// Returns true if the step time of any live learner is known.
    #[must_use]
    pub fn is_measured(&self) -> bool {
        self.step_ms().is_some()
    }

    /// Returns ξ_step, the median step time of live learners in milliseconds; `None` until one is known. It follows
    /// from merged updates, and claims move it only within bounds. If a single learner is live and its reported steps
    /// show that it became faster, that step time is returned, since shorter intervals between rounds affect no other
    /// learner.
    #[must_use]
    pub fn step_ms(&self) -> Option<f64> {
        let median = self.index.median_ms(None)?;
        let mut live = self.live().iter();
        let alone = live.next().filter(|_| live.next().is_none()).and_then(|&learner| self.session(learner));
        Some(alone.and_then(|session| session.steps.ms()).map_or(median, |step_ms| median.min(step_ms)))
    }

    /// Returns the lower bound on the step time of `learner`, in milliseconds. It is the larger of the learner's
    /// shortest claim in this session and of the bound from the speed of the others: see [`SPEED_RATIO_MAX`]. The claim
    /// of the only learner is accepted.
    #[must_use]
    pub fn step_ms_least(&self, learner: LearnerId) -> f64 {
        self.least_ms(learner, SPEED_RATIO_MAX, 0.0)
    }

    /// Returns the time since `learner` connected, in milliseconds; 0 if it is not connected.
    #[must_use]
    pub fn connected_ms(&self, now: Millis, learner: LearnerId) -> u64 {
        self.session(learner).map_or(0, |session| now.since(session.since))
    }

    /// Returns the lower bound on the step time of `learner` where tokens are credited, in milliseconds. The bound on
    /// its speed is [`SPEED_RATIO_FIRST`] times the median speed of the others at first, and doubles each minute. In
    /// the first minute, that median is also at most the speed of the median claim. Otherwise learners with false
    /// claims that are merged first could confirm each other's claims.
    #[must_use]
    pub fn step_ms_credited(&self, now: Millis, learner: LearnerId) -> f64 {
        let connected_ms = self.connected_ms(now, learner) as f64;
        let ratio = SPEED_RATIO_FIRST * libm::exp2(connected_ms / SPEED_RATIO_DOUBLES_MS);
        let count = self.sessions.len();
        let others_ms = match self.index.claimed_ms(self.conn(learner), count) {
            _ if connected_ms >= SPEED_RATIO_DOUBLES_MS || count == 1 => 0.0,
            Some(claimed_ms) => claimed_ms,
            // Most learners have not finished a step yet, so the bound is `BELIEVED_MS`.
            None => f64::INFINITY,
        };
        self.least_ms(learner, ratio.min(SPEED_RATIO_MAX), others_ms)
    }

    /// Returns the lower bound on the step time of `learner`, in milliseconds, if its speed is at most `ratio_max`
    /// times the median speed of the others. The median step time of the others is taken as `others_ms` if it is
    /// shorter.
    fn least_ms(&self, learner: LearnerId, ratio_max: f64, others_ms: f64) -> f64 {
        let claimed = self.session(learner).map_or(0.0, |session| session.step_ms_min);
        if claimed >= BELIEVED_MS {
            return claimed;
        }
        let median = self.index.median_ms(self.conn(learner)).unwrap_or(0.0).max(others_ms);
        claimed.max((median / ratio_max).min(BELIEVED_MS)).max(*STEP_MS.start())
    }

    /// Returns the mean of the sessions' last training losses, in nats per token; `None` if none reported one.
    #[must_use]
    pub fn train_loss(&self) -> Option<f32> {
        let losses = self.sessions.values().map(|session| session.loss).filter(|loss| loss.is_finite());
        let losses: Vec<f32> = losses.collect();
        (!losses.is_empty()).then(|| losses.iter().sum::<f32>() / losses.len() as f32)
    }

    /// Returns the fraction of its time that the owner allows `learner` to train.
    #[must_use]
    pub fn share(&self, learner: LearnerId) -> Share {
        self.restrictions.share(learner)
    }
}

/// Longest exclusion of a learner, in milliseconds.
pub const DROP_MS_MAX: u32 = 3_600_000;

/// Restrictions on learners; a learner without restrictions has no entry.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Restrictions(BTreeMap<LearnerId, Restriction>);

/// Restrictions on one learner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Restriction {
    /// Fraction of its time that the learner may train.
    share: Share,
    /// Length of the learner's exclusion, in milliseconds; 0 if it is not excluded.
    wait_ms: u32,
    /// End of the exclusion; `None` for an exclusion from an earlier process until [`Restrictions::begin`] sets it.
    #[serde(skip)]
    returns: Option<Millis>,
}

impl Restriction {
    const NONE: Self = Self { share: Share::FULL, wait_ms: 0, returns: None };

    /// Returns the end of the exclusion, if it is after `now`.
    fn returns(&self, now: Millis) -> Option<Millis> {
        let restarted = (self.wait_ms > 0).then(|| now.after(u64::from(self.wait_ms)));
        self.returns.or(restarted).filter(|&returns| returns > now)
    }
}

impl Restrictions {
    /// Returns true if there are no restrictions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Limits the fraction of its time that `learner` may train.
    pub(in crate::diloco) fn pace(&mut self, learner: LearnerId, share: Share) {
        self.change(learner, |restriction| restriction.share = share);
    }

    /// Sends `learner` away for `wait_ms`, at most [`DROP_MS_MAX`]; 0 lets it return.
    pub(in crate::diloco) fn exclude_learner(&mut self, learner: LearnerId, wait_ms: u32) {
        self.change(learner, |restriction| {
            (restriction.wait_ms, restriction.returns) = (wait_ms.min(DROP_MS_MAX), None);
        });
    }

    /// Returns the fraction of its time that `learner` may train.
    #[must_use]
    pub fn share(&self, learner: LearnerId) -> Share {
        self.0.get(&learner).map_or(Share::FULL, |restriction| restriction.share)
    }

    /// Returns the length of the exclusion of `learner`, in milliseconds; 0 if it is not excluded.
    #[must_use]
    pub fn wait_ms(&self, learner: LearnerId) -> u32 {
        self.0.get(&learner).map_or(0, |restriction| restriction.wait_ms)
    }

    fn change(&mut self, learner: LearnerId, change: impl FnOnce(&mut Restriction)) {
        let restriction = self.0.entry(learner).or_insert(Restriction::NONE);
        change(restriction);
        if *restriction == Restriction::NONE {
            self.0.remove(&learner);
        }
    }

    /// Returns the restrictions without the ends of exclusions, as in a snapshot.
    fn persistent(&self) -> Self {
        let persistent = |(learner, restriction): (&LearnerId, &Restriction)| {
            (*learner, Restriction { returns: None, ..*restriction })
        };
        Self(self.0.iter().map(persistent).collect())
    }

    /// Starts exclusions from an earlier process at `now`.
    fn begin(&mut self, now: Millis) {
        for restriction in self.0.values_mut() {
            restriction.returns = restriction.returns.or_else(|| restriction.returns(now));
        }
    }
}

impl Roster {
    /// Returns the restrictions on learners, as in a snapshot.
    #[must_use]
    pub fn restrictions(&self) -> Restrictions {
        self.restrictions.persistent()
    }

    /// Returns the end of the exclusion of `learner`, if it is after `now`.
    #[must_use]
    pub fn returns(&self, now: Millis, learner: LearnerId) -> Option<Millis> {
        self.restrictions.0.get(&learner)?.returns(now)
    }

    /// Returns the remaining time of the exclusion of `learner`, in milliseconds.
    #[must_use]
    pub fn away_ms(&self, now: Millis, learner: LearnerId) -> Option<u32> {
        let returns = self.returns(now, learner)?;
        Some(u32::try_from(returns.since(now)).unwrap_or(DROP_MS_MAX))
    }

    /// Returns the whole time for which `learner` was sent away, in milliseconds; 0 if it was not.
    #[must_use]
    pub fn exclusion_ms(&self, learner: LearnerId) -> u32 {
        self.restrictions.wait_ms(learner)
    }

    /// Returns true if there is a restriction on `learner`.
    #[must_use]
    pub fn is_restricted(&self, learner: LearnerId) -> bool {
        self.restrictions.0.contains_key(&learner)
    }

    /// Limits the fraction of its time that `learner` may train.
    pub fn pace(&mut self, learner: LearnerId, share: Share) {
        self.restrictions.pace(learner, share);
    }

    /// Sends `learner` away for `wait_ms`, at most [`DROP_MS_MAX`]; 0 lets it return.
    pub fn exclude_learner(&mut self, now: Millis, learner: LearnerId, wait_ms: u32) {
        self.restrictions.exclude_learner(learner, wait_ms);
        self.restrictions.begin(now);
    }

    /// Lifts the exclusions that are over, and returns their learners.
    pub fn expire_exclusions(&mut self, now: Millis) -> Vec<LearnerId> {
        self.restrictions.begin(now);
        let is_over =
            |restriction: &Restriction| restriction.wait_ms > 0 && restriction.returns(now).is_none();
        let over = self.restrictions.0.iter().filter(|(_, restriction)| is_over(restriction));
        let over: Vec<_> = over.map(|(learner, _)| *learner).collect();
        for &learner in &over {
            self.restrictions.exclude_learner(learner, 0);
        }
        over
    }
}

#[cfg(test)]
mod tests;
