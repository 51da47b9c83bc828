//! Pace of learners: claims of step times, limited by the merged updates.
//!
//! Nothing proves the time of a step, and a claim costs nothing. The claim of a learner is therefore limited to a range
//! around the step times that follow from its merged updates. Once any learner has such a range, claims of learners
//! without one are ignored.
//!
//! [`Index`] holds incremental statistics over all sessions: live learners, silence deadlines, slow answers and the
//! median step time. No message needs a pass over all sessions.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};

use super::{Roster, Session, SilenceLimits};
use crate::diloco::speed::{SPEED_SLACK, STEP_MS};
use crate::diloco::weighted_median::WeightedMedian;
use crate::wire::{ConnId, LearnerId, LearnerState, Millis};

/// Number of merged updates of a connection after which its pace is proven. Our own constant.
const MERGES_MIN: u32 = 8;
/// Number of merged updates that are remembered. A pause lengthens one update of each fragment, so others must be
/// remembered, too.
const KEPT: usize = 64;
/// Approximate number of claims in the moving average. Learners report about once a second. Our own constant.
const CLAIMS: u32 = 8;

/// Moving average of the step times that a learner claims.
///
/// It smooths noise in single claims. Without it, the median over learners would be biased if some learners are slower
/// than most: of five equal and three slower learners, the lower median is the fourth smallest claim, which is almost
/// the largest of the five. The very first claim is dropped after the second, because a first step is slow.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ClaimedPace {
    ms: f64,
    /// Number of claims, at most [`CLAIMS`].
    claims: u32,
}

impl ClaimedPace {
    /// Adds a claimed step time, in milliseconds.
    pub(super) fn record_claim(&mut self, step_ms: f64) {
        self.ms += (step_ms - self.ms) / f64::from(self.claims.max(1));
        self.claims = CLAIMS.min(self.claims + 1);
    }

    /// Returns the average claim, in milliseconds; `None` before the first claim.
    pub(super) fn ms(&self) -> Option<f64> {
        (self.claims > 0).then_some(self.ms)
    }
}

/// Minimum interval between two compared reports, in milliseconds. Delayed reports may arrive together.
const STEPS_MS_MIN: u64 = 500;

/// Step time according to the number of steps in a learner's reports.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReportedSteps {
    /// Time of the last compared report, and its number of steps.
    before: Option<(Millis, u64)>,
    /// Time per step between the last two compared reports, in milliseconds; 0 if unknown.
    ms: f64,
}

impl ReportedSteps {
    /// Records a report at `now` that the learner's process has taken `steps` steps so far.
    fn record(&mut self, now: Millis, steps: u64) {
        let Some((at, before)) = self.before else {
            self.before = Some((now, steps));
            return;
        };
        if now.since(at) < STEPS_MS_MIN {
            return;
        }
        self.before = Some((now, steps));
        match steps.saturating_sub(before) {
            // The learner rests, or one step takes longer than the interval between reports.
            0 => self.ms = 0.0,
            more => self.ms = (now.since(at) as f64 / more as f64).max(*STEP_MS.start()),
        }
    }

    /// Returns the time from one step to the next, including rests, in milliseconds; `None` if it is unknown.
    pub(super) fn ms(&self) -> Option<f64> {
        (self.ms > 0.0).then_some(self.ms)
    }
}

/// Pace of a learner according to the merged updates of one connection.
#[derive(Clone, Debug, Default)]
pub(super) struct MergedPace {
    /// Number of merged updates.
    merges: u32,
    /// Credited tokens of these updates.
    pub(super) tokens: u64,
    /// Mean step times of the latest updates, as by `Part::step_ms`, in milliseconds, oldest first.
    seen: VecDeque<f64>,
    /// Smallest and largest value in `seen`; 0 without values.
    bounds: [f64; 2],
}

impl MergedPace {
    fn note(&mut self, tokens: u64, step_ms: Option<f64>) {
        self.merges = self.merges.saturating_add(1);
        self.tokens = self.tokens.saturating_add(tokens);
        let Some(step_ms) = step_ms.filter(|step_ms| step_ms.is_finite() && *step_ms > 0.0) else { return };
        if self.seen.len() == KEPT {
            self.seen.pop_front();
        }
        self.seen.push_back(step_ms);
        let all = || self.seen.iter().copied();
        self.bounds = [all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max)];
    }
}

impl Session {
    /// Returns the proven step time in milliseconds: the average claim, limited to the range from `least / SPEED_SLACK`
    /// to `most · SPEED_SLACK` of the step times in merged updates, or `least` without a claim. `None` until
    /// [`MERGES_MIN`] updates are merged.
    pub(super) fn proven_ms(&self) -> Option<f64> {
        let MergedPace { merges, bounds: [least, most], .. } = self.pace;
        if merges < MERGES_MIN || most <= 0.0 {
            return None;
        }
        let claimed = self.claimed.ms().unwrap_or(least);
        Some(claimed.clamp(least / SPEED_SLACK, most * SPEED_SLACK))
    }
}

impl Roster {
    /// Records a merged update of `learner` with `tokens` credited tokens. `step_ms` is its mean step time in
    /// milliseconds, if it is known.
    pub fn note_merged(&mut self, learner: LearnerId, tokens: u64, step_ms: Option<f64>) {
        let Some(&conn) = self.connections.get(&learner) else { return };
        if let Some(session) = self.sessions.get_mut(&conn) {
            session.pace.note(tokens, step_ms);
            self.index.update(&self.limits, conn, session);
        }
    }

    /// Records a report at `now` that the process behind `conn` has taken `steps` steps so far.
    pub fn note_steps(&mut self, now: Millis, conn: ConnId, steps: u64) {
        if let Some(session) = self.sessions.get_mut(&conn) {
            session.steps.record(now, steps);
        }
    }

    /// Records a request to `learner` at `now`, unless an earlier one is unanswered.
    pub fn note_asked(&mut self, now: Millis, learner: LearnerId) {
        let session = self.connections.get(&learner).and_then(|conn| self.sessions.get_mut(conn));
        if let Some(session) = session {
            session.waits_since.get_or_insert(now);
        }
    }

    /// Records that `learner` answered a request, with or without an update.
    pub fn note_response(&mut self, learner: LearnerId) {
        let session = self.connections.get(&learner).and_then(|conn| self.sessions.get_mut(conn));
        if let Some(session) = session {
            (session.has_answered, session.waits_since) = (true, None);
        }
    }

    /// Returns true if `learner` is connected and expected to answer: it has not reported a pause, and no request has
    /// been unanswered for longer than the silence limit.
    #[must_use]
    pub fn is_awaited(&self, now: Millis, learner: LearnerId) -> bool {
        self.session(learner).is_some_and(|session| {
            let waited_ms = session.waits_since.map_or(0, |since| now.since(since));
            session.state != LearnerState::Paused && waited_ms <= self.limits.silent_ms_max
        })
    }

    /// Returns true if `learner` has answered a request over this connection, and no request has been unanswered for
    /// longer than the silence limit.
    #[must_use]
    pub fn answers(&self, now: Millis, learner: LearnerId) -> bool {
        self.session(learner).is_some_and(|session| {
            let waited_ms = session.waits_since.map_or(0, |since| now.since(since));
            session.has_answered && waited_ms <= self.limits.silent_ms_max
        })
    }
}

/// Upper bound on the median of claimed step times while no pace is proven, as a multiple of the shortest claim. Our
/// own constant.
const UNPROVEN_RATIO_MAX: f64 = 4.0;

/// Index of a roster's sessions for its statistics.
#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    /// Learners that take part in rounds.
    live: BTreeSet<LearnerId>,
    /// Connections by the time at which they are closed if they stay silent.
    silences: BTreeSet<(Millis, ConnId)>,
    /// Live sessions by the bits of their answer time, a float above 0.
    answers: BTreeSet<(u64, ConnId)>,
    /// Average claimed step times of live sessions, with equal weights.
    claims: WeightedMedian,
    /// Proven step times of live sessions, weighted by merged tokens.
    proven: WeightedMedian,
}

/// Keys of one session in the index.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IndexKeys {
    /// Key in `silences`.
    silent_at: Option<Millis>,
    /// Key in `answers`.
    answer: Option<u64>,
}

impl Index {
    /// Updates all entries of `session`.
    pub(super) fn update(&mut self, limits: &SilenceLimits, conn: ConnId, session: &mut Session) {
        self.update_deadline(limits, conn, session);
        let is_live = session.is_live;
        if is_live {
            self.live.insert(session.learner);
        }
        let answer = (is_live && session.answer_ms > 0.0).then(|| session.answer_ms.to_bits());
        if answer != session.keys.answer {
            let before = std::mem::replace(&mut session.keys.answer, answer);
            if let Some(bits) = before {
                self.answers.remove(&(bits, conn));
            }
            if let Some(bits) = answer {
                self.answers.insert((bits, conn));
            }
        }
        let claimed = session.claimed.ms().filter(|_| is_live);
        self.claims.set(conn.0, claimed.map(|step_ms| (step_ms, 1)));
        let proven = session.proven_ms().filter(|_| is_live);
        self.proven.set(conn.0, proven.map(|step_ms| (step_ms, session.pace.tokens.max(1))));
    }

    /// Updates the silence deadline of `session`.
    pub(super) fn update_deadline(&mut self, limits: &SilenceLimits, conn: ConnId, session: &mut Session) {
        let silent_at = silent_at(limits, session);
        let before = session.keys.silent_at.replace(silent_at);
        if before != Some(silent_at) {
            if let Some(at) = before {
                self.silences.remove(&(at, conn));
            }
            self.silences.insert((silent_at, conn));
        }
    }

    /// Removes all entries of `session`.
    pub(super) fn remove(&mut self, conn: ConnId, session: &Session) {
        self.live.remove(&session.learner);
        if let Some(at) = session.keys.silent_at {
            self.silences.remove(&(at, conn));
        }
        if let Some(bits) = session.keys.answer {
            self.answers.remove(&(bits, conn));
        }
        self.claims.set(conn.0, None);
        self.proven.set(conn.0, None);
    }

    /// Returns the learners that take part in rounds.
    pub(super) fn live(&self) -> &BTreeSet<LearnerId> {
        &self.live
    }

    /// Returns the connections that were silent for too long at `now`, ordered by id.
    pub(super) fn silent(&self, now: Millis) -> Vec<ConnId> {
        let silent = self.silences.range(..=(now, ConnId(u64::MAX))).map(|(_, conn)| *conn);
        in_order(silent)
    }

    /// Returns the next silence deadline.
    pub(super) fn deadline(&self) -> Option<Millis> {
        self.silences.first().map(|(at, _)| *at)
    }

    /// Returns the live connections whose answer time is above `than_ms`, ordered by id.
    pub(super) fn far(&self, than_ms: f64) -> Vec<ConnId> {
        let after = Excluded((than_ms.max(0.0).to_bits(), ConnId(u64::MAX)));
        in_order(self.answers.range((after, Unbounded)).map(|(_, conn)| *conn))
    }

    /// Returns the median claimed step time of live sessions other than `except`, in milliseconds; `None` until at
    /// least half of `sessions`, the number of sessions, have a claim.
    pub(super) fn claimed_ms(&self, except: Option<ConnId>, sessions: usize) -> Option<f64> {
        let are_enough = 2 * self.claims.len() >= sessions;
        self.claims.median(except.map(|conn| conn.0)).filter(|_| are_enough)
    }

    /// Returns the median step time of live sessions other than `except`, in milliseconds; `None` until one is known.
    ///
    /// It is the median of proven step times. Their weights are equal, except that sessions with very few merged tokens
    /// have less, so that idle learners cannot determine the median. While no pace is proven, it is the median of
    /// claims, but at most [`UNPROVEN_RATIO_MAX`] times the shortest claim. The first rounds are then soon, and their
    /// merges prove paces.
    pub(super) fn median_ms(&self, except: Option<ConnId>) -> Option<f64> {
        let except = except.map(|conn| conn.0);
        self.proven.median(except).or_else(|| {
            let most = UNPROVEN_RATIO_MAX * self.claims.least(except)?;
            Some(self.claims.median(except)?.min(most))
        })
    }
}

fn in_order(conns: impl Iterator<Item = ConnId>) -> Vec<ConnId> {
    let mut conns: Vec<_> = conns.collect();
    conns.sort_unstable();
    conns
}

/// Returns the time at which `session` is closed if it stays silent.
fn silent_at(limits: &SilenceLimits, session: &Session) -> Millis {
    let patience_ms = match session.state {
        LearnerState::Hidden | LearnerState::Paused => limits.hidden_ms_max,
        // A step may last longer than the silence limit, and a learner sends only between steps. The claimed step time
        // extends the limit up to that of a hidden tab.
        _ => {
            let steps_ms = (4.0 * session.step_ms) as u64;
            limits.silent_ms_max.max(steps_ms.min(limits.hidden_ms_max))
        }
    };
    session.heard.after(patience_ms)
}

#[cfg(test)]
mod tests {
    use super::super::{Restrictions, Roster, SilenceLimits};
    use super::*;
    use crate::rng::Rng;

    fn roster(claims: &[f32]) -> Roster {
        let limits = SilenceLimits { silent_ms_max: 1_000, hidden_ms_max: 10_000 };
        let mut roster = Roster::new(limits, Restrictions::default());
        for (&step_ms, learner) in claims.iter().zip(1..) {
            let conn = ConnId(u64::from(learner));
            roster.open(Millis(0), conn, LearnerId(learner), true);
            roster.ready(conn, 1);
            roster.report(conn, step_ms, f32::NAN, LearnerState::Training);
        }
        roster
    }

    fn merge(roster: &mut Roster, learner: u32, times: u32, step_ms: f64) {
        (0..times).for_each(|_| roster.note_merged(LearnerId(learner), 100, Some(step_ms)));
    }

    #[test]
    fn claims_are_ignored_once_any_pace_is_proven() {
        for claim in [3_600_000.0, 0.011] {
            let mut roster = roster(&[100.0, 120.0, claim, claim, claim, claim, claim]);
            let before = roster.step_ms().unwrap();
            assert!(before <= 400.0, "{before}: four times the fastest at most");
            merge(&mut roster, 1, 8, 100.0);
            assert_eq!(roster.step_ms(), Some(100.0), "{claim}");
            merge(&mut roster, 2, 7, 120.0);
            assert_eq!(roster.step_ms(), Some(100.0), "seven are too few");
        }
    }

    #[test]
    fn claims_are_limited_by_merged_updates() {
        for (claim, expected) in [(3_600_000.0, 220.0), (0.011, 45.0), (150.0, 150.0), (0.0, 90.0)] {
            let mut roster = roster(&[claim]);
            merge(&mut roster, 1, 4, 90.0);
            merge(&mut roster, 1, 4, 110.0);
            assert_eq!(roster.step_ms(), Some(expected), "{claim}");
        }
    }

    /// Goal: noise in step times does not raise their median.
    #[test]
    fn noisy_claims_do_not_raise_the_median() {
        let (mut rng, usual) = (Rng::new(3), [100.0, 100.0, 100.0, 100.0, 100.0, 200.0, 200.0, 300.0]);
        let mut roster = roster(&[100.0; 8]);
        (1..=8).for_each(|learner| merge(&mut roster, learner, 8, 100.0));
        let mut seen = Vec::new();
        for turn in 0..400 {
            for (&usual_ms, conn) in usual.iter().zip(1..) {
                let step_ms = usual_ms * (60 + rng.below(81)) as f32 / 100.0;
                roster.report(ConnId(conn), step_ms, f32::NAN, LearnerState::Training);
            }
            if turn >= 8 {
                seen.push(roster.step_ms().unwrap());
            }
        }
        let mean = seen.iter().sum::<f64>() / seen.len() as f64;
        assert!((95.0..105.0).contains(&mean), "{mean}");
    }

    /// Goal: the first claim has no effect on later averages, and a slower pace shows after a few claims.
    #[test]
    fn average_claim_follows_a_changed_pace() {
        let mut pace = ClaimedPace::default();
        assert_eq!(pace.ms(), None);
        for (claim, expected) in [(900.0, 900.0), (100.0, 100.0), (200.0, 150.0), (150.0, 150.0)] {
            pace.record_claim(claim);
            assert_eq!(pace.ms(), Some(expected));
        }
        (0..24).for_each(|_| pace.record_claim(800.0));
        assert!(pace.ms().unwrap() > 760.0, "{pace:?}");
    }

    /// Goal: the step time follows the only learner at once if it becomes faster, but not one of several.
    #[test]
    fn step_time_follows_a_single_learner_that_speeds_up() {
        let pace_of = |claims: &[f32]| {
            let mut roster = roster(claims);
            merge(&mut roster, 1, 64, 3_000.0);
            roster.note_steps(Millis(10_000), ConnId(1), 3);
            assert_eq!(roster.step_ms(), Some(3_000.0), "nothing is known of its steps");
            roster.note_steps(Millis(10_100), ConnId(1), 300);
            assert_eq!(roster.step_ms(), Some(3_000.0), "two reports may come together");
            roster.note_steps(Millis(11_000), ConnId(1), 103);
            roster.step_ms()
        };
        assert_eq!(pace_of(&[3_000.0]), Some(10.0));
        assert_eq!(pace_of(&[3_000.0, 3_000.0]), Some(3_000.0));
        let mut slower = roster(&[100.0]);
        merge(&mut slower, 1, 8, 100.0);
        slower.note_steps(Millis(0), ConnId(1), 0);
        slower.note_steps(Millis(9_000), ConnId(1), 1);
        assert_eq!(slower.step_ms(), Some(100.0), "a pause is no slow pace");
    }

    /// Goal: a pause, which lengthens one update of each fragment, does not raise the step time.
    #[test]
    fn pause_does_not_raise_the_step_time() {
        let mut roster = roster(&[100.0]);
        merge(&mut roster, 1, 24, 100.0);
        merge(&mut roster, 1, 24, 60_000.0);
        assert_eq!(roster.step_ms(), Some(100.0));
    }

    #[test]
    fn learners_with_few_tokens_do_not_determine_the_median() {
        let mut roster = roster(&[100.0, 100.0, 60_000.0, 60_000.0, 60_000.0]);
        for learner in 1..=2 {
            (0..100).for_each(|_| roster.note_merged(LearnerId(learner), 1_000, Some(100.0)));
        }
        for learner in 3..=5 {
            (0..8).for_each(|_| roster.note_merged(LearnerId(learner), 8, Some(60_000.0)));
        }
        assert_eq!(roster.step_ms(), Some(100.0));
    }

    #[test]
    fn learner_answers_until_a_request_is_unanswered_for_too_long() {
        let mut roster = roster(&[100.0]);
        let anne = LearnerId(1);
        assert!(!roster.answers(Millis(0), anne), "it never did");
        roster.note_asked(Millis(0), anne);
        roster.note_response(anne);
        roster.note_asked(Millis(100), anne);
        roster.note_asked(Millis(900), anne);
        assert!(roster.answers(Millis(1_100), anne));
        assert!(!roster.answers(Millis(1_101), anne));
        roster.note_response(anne);
        assert!(roster.answers(Millis(9_000), anne));
    }

    const PATIENCE: SilenceLimits = SilenceLimits { silent_ms_max: 1_000, hidden_ms_max: 10_000 };

    /// Computes the statistics of the index with a pass over all sessions.
    fn statistics(
        roster: &Roster,
        now: Millis,
        than_ms: f64,
    ) -> (BTreeSet<LearnerId>, Vec<ConnId>, Option<Millis>, Vec<LearnerId>) {
        let sessions = &roster.sessions;
        let live = sessions.values().filter(|session| session.is_live);
        let far = live.clone().filter(|session| session.answer_ms > than_ms);
        let silent = sessions.iter().filter(|(_, session)| silent_at(&PATIENCE, session) <= now);
        (
            live.map(|session| session.learner).collect(),
            silent.map(|(conn, _)| *conn).collect(),
            sessions.values().map(|session| silent_at(&PATIENCE, session)).min(),
            far.map(|session| session.learner).collect(),
        )
    }

    /// Goal: the index equals a pass over all sessions after any sequence of changes.
    #[test]
    fn index_equals_statistics_from_scratch() {
        let (mut rng, mut roster) = (Rng::new(9), Roster::new(PATIENCE, Restrictions::default()));
        for turn in 0..3_000_u64 {
            let (now, learner) = (Millis(turn * 3), LearnerId(rng.below(30)));
            let conn = roster.conn(learner).unwrap_or(ConnId(1_000 + turn));
            let step_ms = [0.0, 5.0, 80.0, 900.0][rng.below(4) as usize];
            let state = [LearnerState::Training, LearnerState::Hidden][rng.below(2) as usize];
            match rng.below(8) {
                0 if roster.conn(learner).is_none() => roster.open(now, conn, learner, true),
                1 => drop(roster.ready(conn, 1)),
                2 => drop(roster.report(conn, step_ms, 1.0, state)),
                3 => roster.note_answer(learner, u64::from(rng.below(400))),
                4 => {
                    roster.note_merged(learner, u64::from(rng.below(90)), Some(f64::from(1 + rng.below(99))))
                }
                5 if rng.below(9) == 0 => drop(roster.close(conn)),
                _ => roster.note_activity(now, conn),
            }
            let than_ms = f64::from(rng.below(200));
            let far = roster.far(than_ms).map(|(learner, _)| learner).collect();
            let known = (roster.live().clone(), roster.silent(now), roster.deadline(), far);
            assert_eq!(known, statistics(&roster, now, than_ms), "{turn}");
        }
        assert!(roster.live().len() > 9 && roster.step_ms().is_some());
    }
}
