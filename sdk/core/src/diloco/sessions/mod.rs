//! Sessions of a run, and the believed speed of their learners.
//!
//! [`Roster`] knows connections and learners. It does not depend on rounds, parameters or leases.
//!
//! The owner's restrictions on single learners are their share of training time, and temporary removal. They outlive
//! the syncer's process. They hold until the owner lifts them or their time is over. Elapsed time is not stored, so the
//! time starts again in the next process.

mod pace;
mod rate_limit;

use std::collections::{BTreeMap, BTreeSet};

use super::speed::{STEP_MS, average};
use crate::wire::{ConnId, LearnerId, LearnerState, Millis, Share};
use pace::{ClaimedPace, Index, MergedPace, Place, Steps};
use rate_limit::Allowance;
use serde::{Deserialize, Serialize};

/// Largest believed speed, as a multiple of the median of the others. A server's GPU among phones is that far ahead;
/// with the slack for speed the limit is twice as far. A faster claim counts as this speed.
const SPEED_RATIO_MAX: f64 = 1_000.0;
/// The same limit for counted tokens of a learner that has just connected. It doubles each minute up to the limit
/// above, so that no learner inflates the clock of a run within seconds. Constants of ours.
const SPEED_RATIO_FIRST: f64 = 8.0;
const SPEED_RATIO_DOUBLES_MS: f64 = 60_000.0;
/// Step time that is always believed, in milliseconds, however slow the others are or claim to be.
const BELIEVED_MS: f64 = 20.0;

/// Limits on the silence of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Silence after which a learner counts as gone, in milliseconds…
    pub silent_ms_max: u64,
    /// …and the same for one that reported a hidden tab or a pause.
    pub hidden_ms_max: u64,
}

/// Sessions of a run, and the owner's restrictions on learners.
#[derive(Debug)]
pub struct Roster {
    patience: Patience,
    sessions: BTreeMap<ConnId, Session>,
    connections: BTreeMap<LearnerId, ConnId>,
    index: Index,
    /// Learners that the owner slowed down or sent away.
    reins: Reins,
}

/// Session of one learner.
#[derive(Clone, Debug)]
pub struct Session {
    /// The learner.
    pub learner: LearnerId,
    /// Whether its process held nothing of the run when it connected.
    pub is_fresh: bool,
    /// Whether it holds the parameters and trains. If so, it is invited to rounds.
    pub is_live: bool,
    /// Claimed state.
    pub state: LearnerState,
    /// Last claimed step time, in milliseconds; 0 until known.
    pub step_ms: f64,
    /// Claimed step time, averaged over some seconds.
    word: ClaimedPace,
    /// Shortest claimed step time, 0 until known: the speed against which its claims are checked.
    pub step_ms_min: f64,
    /// Windows in one step.
    pub batch: u32,
    /// Moving average of the time from a question to its answer, in milliseconds; 0 until known.
    pub answer_ms: f64,
    /// Last mean training loss, in nats per token; NaN until known.
    pub loss: f32,
    /// Pace according to its merged updates.
    pace: MergedPace,
    /// Rate of the steps that the learner reports.
    steps: Steps,
    /// Rate limit for its messages.
    allowance: Allowance,
    /// Whether it answered over this connection.
    has_answered: bool,
    /// Start of the wait of a round for an answer, if one waits.
    waits_since: Option<Millis>,
    /// Time of its last message.
    heard: Millis,
    /// Time at which the session began.
    pub since: Millis,
    /// Entries in the index of the roster.
    place: Place,
}

impl Roster {
    /// Creates a roster without sessions, with the owner's restrictions.
    #[must_use]
    pub fn new(patience: Patience, reins: Reins) -> Self {
        let (sessions, connections, index) = (BTreeMap::new(), BTreeMap::new(), Index::default());
        Self { patience, sessions, connections, index, reins }
    }

    /// Returns the number of sessions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Returns the learner behind `conn`, once it introduced itself.
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

    /// Returns every connection, by id.
    pub fn conns(&self) -> impl Iterator<Item = ConnId> {
        self.sessions.keys().copied()
    }

    /// Returns every connected learner with its session, by learner.
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
            word: ClaimedPace::default(),
            step_ms_min: 0.0,
            batch: 0,
            answer_ms: 0.0,
            loss: f32::NAN,
            pace: MergedPace::default(),
            steps: Steps::default(),
            allowance: Allowance::default(),
            has_answered: false,
            waits_since: None,
            heard: now,
            since: now,
            place: Place::default(),
        };
        self.index.tend(&self.patience, conn, &mut session);
        self.sessions.insert(conn, session);
        self.connections.insert(learner, conn);
    }

    /// Closes a session, and returns its learner.
    pub fn close(&mut self, conn: ConnId) -> Option<LearnerId> {
        let session = self.sessions.remove(&conn)?;
        self.connections.remove(&session.learner);
        self.index.remove(conn, &session);
        Some(session.learner)
    }

    /// Records that a message came over `conn`.
    pub fn hear(&mut self, now: Millis, conn: ConnId) {
        if let Some(session) = self.sessions.get_mut(&conn) {
            session.heard = now;
            self.index.hear(&self.patience, conn, session);
        }
    }

    /// Records that the learner behind `conn` holds the parameters and trains, with `batch` windows in one step.
    pub fn ready(&mut self, conn: ConnId, batch: u32) -> Option<&Session> {
        let session = self.sessions.get_mut(&conn)?;
        (session.is_live, session.state, session.batch) = (true, LearnerState::Training, batch);
        self.index.tend(&self.patience, conn, session);
        Some(session)
    }

    /// Records that an answer of `learner` came `after_ms` after the question.
    pub fn note_answer(&mut self, learner: LearnerId, after_ms: u64) {
        let Some(&conn) = self.connections.get(&learner) else { return };
        if let Some(session) = self.sessions.get_mut(&conn) {
            session.answer_ms = average(session.answer_ms, after_ms as f64);
            self.index.tend(&self.patience, conn, session);
        }
    }

    /// Returns the claimed interval at which the learner behind `conn` reads messages, in milliseconds: once a step.
    #[must_use]
    pub fn listens_ms(&self, conn: ConnId) -> f64 {
        self.sessions.get(&conn).map_or(0.0, |session| session.step_ms)
    }

    /// Returns the live learners whose answers take longer than `than_ms`, each with its answer time in milliseconds.
    pub fn far(&self, than_ms: f64) -> impl Iterator<Item = (LearnerId, f64)> {
        let far = self.index.far(than_ms).into_iter().filter_map(|conn| self.sessions.get(&conn));
        far.map(|session| (session.learner, session.answer_ms))
    }

    /// Takes in a report of the learner behind `conn`: `step_ms` in milliseconds and `loss` in nats per token. An
    /// implausible value is ignored. Returns true if the state changed.
    pub fn report(&mut self, conn: ConnId, step_ms: f32, loss: f32, state: LearnerState) -> bool {
        let Some(session) = self.sessions.get_mut(&conn) else { return false };
        let step_ms = f64::from(step_ms);
        if STEP_MS.contains(&step_ms) {
            session.step_ms = step_ms;
            session.word.hear(step_ms);
            let known = session.step_ms_min > 0.0;
            session.step_ms_min = if known { session.step_ms_min.min(step_ms) } else { step_ms };
        }
        if loss.is_finite() {
            session.loss = loss;
        }
        let is_news = std::mem::replace(&mut session.state, state) != state;
        self.index.tend(&self.patience, conn, session);
        is_news
    }

    /// Returns the connections that were silent for too long.
    #[must_use]
    pub fn silent(&self, now: Millis) -> Vec<ConnId> {
        self.index.silent(now)
    }

    /// Returns the time at which the next silent connection is given up.
    #[must_use]
    pub fn deadline(&self) -> Option<Millis> {
        self.index.deadline()
    }

    /// Returns true if the step time of any live learner is known.
    #[must_use]
    pub fn is_measured(&self) -> bool {
        self.step_ms().is_some()
    }

    /// Returns ξ_step, the step time of the median live learner in milliseconds, or `None` until one is known. Merged
    /// updates determine it, and claims alone move it only a little. A learner that is alone is believed as soon as it
    /// reports that it became faster, since no other learner is rushed by that.
    #[must_use]
    pub fn step_ms(&self) -> Option<f64> {
        let median = self.index.median_ms(None)?;
        let mut live = self.live().iter();
        let alone = live.next().filter(|_| live.next().is_none()).and_then(|&learner| self.session(learner));
        Some(alone.and_then(|session| session.steps.ms()).map_or(median, |step_ms| median.min(step_ms)))
    }

    /// Returns the shortest believed step time of `learner`, in milliseconds: its shortest claim in this session,
    /// within the limit set by the speed of the others. A learner without a claim gets the limit. A lone learner is
    /// believed.
    #[must_use]
    pub fn step_ms_least(&self, learner: LearnerId) -> f64 {
        self.least_ms(learner, SPEED_RATIO_MAX, 0.0)
    }

    /// Returns the time for which `learner` is connected, in milliseconds.
    #[must_use]
    pub fn connected_ms(&self, now: Millis, learner: LearnerId) -> u64 {
        self.session(learner).map_or(0, |session| now.since(session.since))
    }

    /// Returns the shortest believed step time where tokens are counted. The limit is 8 times the speed of the others
    /// at first, and doubles each minute. In the first minute, the claims of all others bound it, too.
    /// Otherwise boasting learners that are merged first could confirm each other's claims.
    #[must_use]
    pub fn step_ms_counted(&self, now: Millis, learner: LearnerId) -> f64 {
        let connected_ms = self.connected_ms(now, learner) as f64;
        let ratio = SPEED_RATIO_FIRST * libm::exp2(connected_ms / SPEED_RATIO_DOUBLES_MS);
        let count = self.sessions.len();
        let others_ms = match self.index.word_ms(self.conn(learner), count) {
            _ if connected_ms >= SPEED_RATIO_DOUBLES_MS || count == 1 => 0.0,
            Some(words_ms) => words_ms,
            // Most of the others have not finished a step yet, so only a step of `BELIEVED_MS` is believed.
            None => f64::INFINITY,
        };
        self.least_ms(learner, ratio.min(SPEED_RATIO_MAX), others_ms)
    }

    /// Returns the shortest believed step time for a limit of `ratio_max`. The median of the others counts as
    /// `others_ms` at least.
    fn least_ms(&self, learner: LearnerId, ratio_max: f64, others_ms: f64) -> f64 {
        let claimed = self.session(learner).map_or(0.0, |session| session.step_ms_min);
        if claimed >= BELIEVED_MS {
            // Such a claim is believed, regardless of the others.
            return claimed;
        }
        let median = self.index.median_ms(self.conn(learner)).unwrap_or(0.0).max(others_ms);
        claimed.max((median / ratio_max).min(BELIEVED_MS)).max(*STEP_MS.start())
    }

    /// Returns the mean of the last training losses, in nats per token, over the sessions that reported one.
    #[must_use]
    pub fn train_loss(&self) -> Option<f32> {
        let losses = self.sessions.values().map(|session| session.loss).filter(|loss| loss.is_finite());
        let losses: Vec<f32> = losses.collect();
        (!losses.is_empty()).then(|| losses.iter().sum::<f32>() / losses.len() as f32)
    }

    /// Returns the part of its time that the owner lets `learner` train.
    #[must_use]
    pub fn share(&self, learner: LearnerId) -> Share {
        self.reins.share(learner)
    }
}

/// Longest time that a learner may be dropped for, in milliseconds.
pub const DROP_MS_MAX: u32 = 3_600_000;

/// Restrictions on learners; a learner without restrictions has no entry.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Reins(BTreeMap<LearnerId, Rein>);

/// Restrictions on one learner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rein {
    /// Part of its time that the learner trains.
    share: Share,
    /// Time for which the learner was sent away, in milliseconds; 0 if it was not.
    wait_ms: u32,
    /// End of that time. Unknown for a restriction from an earlier process, until the time is first checked.
    #[serde(skip)]
    returns: Option<Millis>,
}

impl Rein {
    const NONE: Self = Self { share: Share::FULL, wait_ms: 0, returns: None };

    fn returns(&self, now: Millis) -> Option<Millis> {
        let begins_anew = (self.wait_ms > 0).then(|| now.after(u64::from(self.wait_ms)));
        self.returns.or(begins_anew).filter(|&returns| returns > now)
    }
}

impl Reins {
    /// Returns true if there are no restrictions.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sets the part of its time that `learner` trains.
    pub(in crate::diloco) fn pace(&mut self, learner: LearnerId, share: Share) {
        self.change(learner, |rein| rein.share = share);
    }

    /// Sends `learner` away for `wait_ms`, at most [`DROP_MS_MAX`]; 0 lets it return.
    pub(in crate::diloco) fn send_away(&mut self, learner: LearnerId, wait_ms: u32) {
        self.change(learner, |rein| (rein.wait_ms, rein.returns) = (wait_ms.min(DROP_MS_MAX), None));
    }

    /// Returns the part of its time that `learner` trains.
    #[must_use]
    pub fn share(&self, learner: LearnerId) -> Share {
        self.0.get(&learner).map_or(Share::FULL, |rein| rein.share)
    }

    /// Returns the time for which `learner` was sent away, in milliseconds; 0 if it was not, or that time is over.
    #[must_use]
    pub fn wait_ms(&self, learner: LearnerId) -> u32 {
        self.0.get(&learner).map_or(0, |rein| rein.wait_ms)
    }

    fn change(&mut self, learner: LearnerId, change: impl FnOnce(&mut Rein)) {
        let rein = self.0.entry(learner).or_insert(Rein::NONE);
        change(rein);
        if *rein == Rein::NONE {
            self.0.remove(&learner);
        }
    }

    /// Returns the restrictions as a later process reads them.
    fn kept(&self) -> Self {
        let kept = |(learner, rein): (&LearnerId, &Rein)| (*learner, Rein { returns: None, ..*rein });
        Self(self.0.iter().map(kept).collect())
    }

    /// Starts the time of restrictions from an earlier process at `now`.
    fn begin(&mut self, now: Millis) {
        for rein in self.0.values_mut() {
            rein.returns = rein.returns.or_else(|| rein.returns(now));
        }
    }
}

impl Roster {
    /// Returns the restrictions as a later process reads them.
    #[must_use]
    pub fn reins(&self) -> Reins {
        self.reins.kept()
    }

    /// Returns the time at which `learner` may return, if the owner sent it away and that time is after `now`.
    #[must_use]
    pub fn returns(&self, now: Millis, learner: LearnerId) -> Option<Millis> {
        self.reins.0.get(&learner)?.returns(now)
    }

    /// Returns how long `learner` must still stay away, in milliseconds.
    #[must_use]
    pub fn away_ms(&self, now: Millis, learner: LearnerId) -> Option<u32> {
        let returns = self.returns(now, learner)?;
        Some(u32::try_from(returns.since(now)).unwrap_or(DROP_MS_MAX))
    }

    /// Returns the whole time for which `learner` was sent away, in milliseconds; 0 if it was not.
    #[must_use]
    pub fn sent_away_ms(&self, learner: LearnerId) -> u32 {
        self.reins.wait_ms(learner)
    }

    /// Returns true if there is a restriction on `learner`.
    #[must_use]
    pub fn is_reined(&self, learner: LearnerId) -> bool {
        self.reins.0.contains_key(&learner)
    }

    /// Sets the part of its time that `learner` trains.
    pub fn pace(&mut self, learner: LearnerId, share: Share) {
        self.reins.pace(learner, share);
    }

    /// Sends `learner` away for `wait_ms`, at most [`DROP_MS_MAX`]; 0 lets it return.
    pub fn send_away(&mut self, now: Millis, learner: LearnerId, wait_ms: u32) {
        self.reins.send_away(learner, wait_ms);
        self.reins.begin(now);
    }

    /// Lifts the restrictions whose time is over, and returns their learners.
    pub fn expire_reins(&mut self, now: Millis) -> Vec<LearnerId> {
        self.reins.begin(now);
        let is_over = |rein: &Rein| rein.wait_ms > 0 && rein.returns(now).is_none();
        let over: Vec<_> =
            self.reins.0.iter().filter(|(_, rein)| is_over(rein)).map(|(learner, _)| *learner).collect();
        for &learner in &over {
            self.reins.send_away(learner, 0);
        }
        over
    }
}

#[cfg(test)]
mod tests;
