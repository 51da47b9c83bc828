//! Who is connected, how each one stands, and how fast it is believed to be.
//!
//! [`Roster`] knows connections and learners. It knows nothing of rounds, parameters or leases.

mod allowance;
mod index;
mod pace;
mod rein;

use std::collections::{BTreeMap, BTreeSet};

use allowance::Allowance;
use index::{Index, Place};
use pace::{Pace, Steps, Word};
pub use rein::{DROP_MS_MAX, Reins};

use super::speed::{STEP_MS, average};
use crate::wire::{ConnId, LearnerId, LearnerState, Millis, Share};

/// How many times as fast as the median of the others a learner may be. A server's GPU among phones is that far
/// ahead, with the slack for speed twice as far; who claims more counts as much as one of this speed.
const SPEED_RATIO_MAX: f64 = 1_000.0;
/// The same of one that has just connected, as far as its tokens count; it doubles each minute up to the above. So
/// nobody runs away with the clock of a run in seconds. Constants of ours.
const SPEED_RATIO_FIRST: f64 = 8.0;
const SPEED_RATIO_DOUBLES_MS: f64 = 60_000.0;
/// However slow the others are, or say they are, a step of this many milliseconds is believed.
const BELIEVED_MS: f64 = 20.0;

/// How long a connection may be silent.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// A learner that is silent for longer is gone, in milliseconds…
    pub silent_ms_max: u64,
    /// …unless it said that its tab is hidden or that it is paused.
    pub hidden_ms_max: u64,
}

/// The connections of a run, and the owner's hand on single learners.
#[derive(Debug)]
pub struct Roster {
    patience: Patience,
    sessions: BTreeMap<ConnId, Session>,
    connections: BTreeMap<LearnerId, ConnId>,
    index: Index,
    /// Learners that the owner slowed down or sent away.
    reins: Reins,
}

/// One connection with a learner behind it.
#[derive(Clone, Debug)]
pub struct Session {
    /// Who it is.
    pub learner: LearnerId,
    /// Its process held nothing of the run when it came.
    pub is_fresh: bool,
    /// It holds the parameters and trains: it is invited to rounds.
    pub is_live: bool,
    /// What it says it is doing.
    pub state: LearnerState,
    /// What it last said of the time of a step, in milliseconds, 0 until known.
    pub step_ms: f64,
    /// The same, evened out over some seconds.
    word: Word,
    /// The shortest it ever claimed, 0 until known: the speed that its claims are held against.
    pub step_ms_min: f64,
    /// Windows that it trains on in one step.
    pub batch: u32,
    /// Moving average of the time from a question to its answer, in milliseconds, 0 until known.
    pub answer_ms: f64,
    /// Its last mean training loss, in nats per token; NaN until known.
    pub loss: f32,
    /// What its merged updates say of its pace.
    pace: Pace,
    /// Rate of the steps that the learner reports.
    steps: Steps,
    /// What it may still say.
    allowance: Allowance,
    /// It answered over this connection.
    has_answered: bool,
    /// Since when a round waits for an answer, if one does.
    waits_since: Option<Millis>,
    /// When something was last heard of it.
    heard: Millis,
    /// When it introduced itself.
    pub since: Millis,
    /// Where it stands in the index of the roster.
    place: Place,
}

impl Roster {
    /// Nobody is connected, and the owner has had this asked of learners.
    #[must_use]
    pub fn new(patience: Patience, reins: Reins) -> Self {
        let (sessions, connections, index) = (BTreeMap::new(), BTreeMap::new(), Index::default());
        Self { patience, sessions, connections, index, reins }
    }

    /// Connections with a learner behind them.
    #[must_use]
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// The learner behind `conn`, once it introduced itself.
    #[must_use]
    pub fn learner(&self, conn: ConnId) -> Option<LearnerId> {
        self.sessions.get(&conn).map(|session| session.learner)
    }

    /// The connection of `learner`, if it is there.
    #[must_use]
    pub fn conn(&self, learner: LearnerId) -> Option<ConnId> {
        self.connections.get(&learner).copied()
    }

    /// The session of `learner`, if it is there.
    #[must_use]
    pub fn session(&self, learner: LearnerId) -> Option<&Session> {
        self.sessions.get(self.connections.get(&learner)?)
    }

    /// Every connection, by id.
    pub fn conns(&self) -> impl Iterator<Item = ConnId> {
        self.sessions.keys().copied()
    }

    /// Every learner that is connected with its session, by its id.
    pub fn sessions(&self) -> impl Iterator<Item = (LearnerId, &Session)> {
        let sessions = &self.sessions;
        self.connections.iter().filter_map(|(learner, conn)| Some((*learner, sessions.get(conn)?)))
    }

    /// The learners that take part in rounds.
    #[must_use]
    pub fn live(&self) -> &BTreeSet<LearnerId> {
        self.index.live()
    }

    /// Whether `learner` is there and takes part in rounds.
    #[must_use]
    pub fn is_live(&self, learner: LearnerId) -> bool {
        self.session(learner).is_some_and(|session| session.is_live)
    }

    /// A learner introduced itself. Whoever had the same id before must have been closed.
    pub fn open(&mut self, now: Millis, conn: ConnId, learner: LearnerId, is_fresh: bool) {
        let mut session = Session {
            learner,
            is_fresh,
            is_live: false,
            state: LearnerState::Joining,
            step_ms: 0.0,
            word: Word::default(),
            step_ms_min: 0.0,
            batch: 0,
            answer_ms: 0.0,
            loss: f32::NAN,
            pace: Pace::default(),
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

    /// A connection ended; the learner that was behind it.
    pub fn close(&mut self, conn: ConnId) -> Option<LearnerId> {
        let session = self.sessions.remove(&conn)?;
        self.connections.remove(&session.learner);
        self.index.remove(conn, &session);
        Some(session.learner)
    }

    /// Something came over `conn`.
    pub fn hear(&mut self, now: Millis, conn: ConnId) {
        if let Some(session) = self.sessions.get_mut(&conn) {
            session.heard = now;
            self.index.hear(&self.patience, conn, session);
        }
    }

    /// The learner behind `conn` holds the parameters and trains, on `batch` windows in one step.
    pub fn ready(&mut self, conn: ConnId, batch: u32) -> Option<&Session> {
        let session = self.sessions.get_mut(&conn)?;
        (session.is_live, session.state, session.batch) = (true, LearnerState::Training, batch);
        self.index.tend(&self.patience, conn, session);
        Some(session)
    }

    /// An answer of `learner` came `after_ms` after the question.
    pub fn note_answer(&mut self, learner: LearnerId, after_ms: u64) {
        let Some(&conn) = self.connections.get(&learner) else { return };
        if let Some(session) = self.sessions.get_mut(&conn) {
            session.answer_ms = average(session.answer_ms, after_ms as f64);
            self.index.tend(&self.patience, conn, session);
        }
    }

    /// How often the learner behind `conn` listens, by its own word, in milliseconds: between two steps.
    #[must_use]
    pub fn listens_ms(&self, conn: ConnId) -> f64 {
        self.sessions.get(&conn).map_or(0.0, |session| session.step_ms)
    }

    /// The learners that take part in rounds whose answers take longer than `than_ms`, and how long they take, in
    /// milliseconds.
    pub fn far(&self, than_ms: f64) -> impl Iterator<Item = (LearnerId, f64)> {
        let far = self.index.far(than_ms).into_iter().filter_map(|conn| self.sessions.get(&conn));
        far.map(|session| (session.learner, session.answer_ms))
    }

    /// What the learner behind `conn` says of itself: `step_ms` in milliseconds and `loss` in nats per token, each
    /// left as it was if it is not to be believed. Whether its state is another one now.
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

    /// The connections on which nothing was heard for too long.
    #[must_use]
    pub fn silent(&self, now: Millis) -> Vec<ConnId> {
        self.index.silent(now)
    }

    /// When the next connection is given up if nothing is heard.
    #[must_use]
    pub fn deadline(&self) -> Option<Millis> {
        self.index.deadline()
    }

    /// Whether the time of a step of any live learner is known.
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

    /// The shortest time in which `learner` is believed to take a step, in milliseconds: the shortest that it
    /// ever claimed in this session, as far as the speed of the others allows. One that claims nothing is taken
    /// to be as fast as anyone may be; one that is alone is taken at its word.
    #[must_use]
    pub fn step_ms_least(&self, learner: LearnerId) -> f64 {
        self.least_ms(learner, SPEED_RATIO_MAX, 0.0)
    }

    /// For how long `learner` is connected, in milliseconds.
    #[must_use]
    pub fn connected_ms(&self, now: Millis, learner: LearnerId) -> u64 {
        self.session(learner).map_or(0, |session| now.since(session.since))
    }

    /// The same where tokens are counted: who has just connected is believed to be 8 times as fast as the others, and
    /// twice that each minute later. In its first minute the others are all who are there, by their words, or those
    /// who boast would be the first to be merged and bear each other out.
    #[must_use]
    pub fn step_ms_counted(&self, now: Millis, learner: LearnerId) -> f64 {
        let connected_ms = self.connected_ms(now, learner) as f64;
        let ratio = SPEED_RATIO_FIRST * libm::exp2(connected_ms / SPEED_RATIO_DOUBLES_MS);
        let count = self.sessions.len();
        let others_ms = match self.index.word_ms(self.conn(learner), count) {
            _ if connected_ms >= SPEED_RATIO_DOUBLES_MS || count == 1 => 0.0,
            Some(words_ms) => words_ms,
            // Most of the others have not taken a step yet: nobody has taken more of them than is believed of anyone.
            None => f64::INFINITY,
        };
        self.least_ms(learner, ratio.min(SPEED_RATIO_MAX), others_ms)
    }

    /// Where the others take as long as merged updates bear out, and `others_ms` at least.
    fn least_ms(&self, learner: LearnerId, ratio_max: f64, others_ms: f64) -> f64 {
        let claimed = self.session(learner).map_or(0.0, |session| session.step_ms_min);
        if claimed >= BELIEVED_MS {
            // Whatever the others say.
            return claimed;
        }
        let median = self.index.median_ms(self.conn(learner)).unwrap_or(0.0).max(others_ms);
        claimed.max((median / ratio_max).min(BELIEVED_MS)).max(*STEP_MS.start())
    }

    /// Mean of the last training losses, in nats per token, of those who said one.
    #[must_use]
    pub fn train_loss(&self) -> Option<f32> {
        let losses = self.sessions.values().map(|session| session.loss).filter(|loss| loss.is_finite());
        let losses: Vec<f32> = losses.collect();
        (!losses.is_empty()).then(|| losses.iter().sum::<f32>() / losses.len() as f32)
    }

    /// The part of its time that the owner has `learner` train.
    #[must_use]
    pub fn share(&self, learner: LearnerId) -> Share {
        self.reins.share(learner)
    }
}

#[cfg(test)]
mod tests;
