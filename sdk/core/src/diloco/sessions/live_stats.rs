//! Incremental statistics over all sessions: live learners, silence deadlines, slow answers and the median pace. No
//! message needs a pass over all sessions.

use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};

use super::{Patience, Session};
use crate::diloco::weighted_median::WeightedMedian;
use crate::wire::{ConnId, LearnerId, LearnerState, Millis};

/// Bound on the median of claimed step times while no pace is proven, as a multiple of the shortest claim. Constant
/// of ours.
const UNPROVEN_RATIO_MAX: f64 = 4.0;

/// Sessions of a roster, indexed for the statistics.
#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    live: BTreeSet<LearnerId>,
    /// Deadlines after which each connection counts as gone.
    silences: BTreeSet<(Millis, ConnId)>,
    /// Live sessions by answer time, as bits of a float above 0.
    answers: BTreeSet<(u64, ConnId)>,
    /// Claimed step times of live sessions, with equal weights.
    words: WeightedMedian,
    /// Proven step times of live sessions, weighted by merged tokens.
    proven: WeightedMedian,
}

/// Present entries of one session in the index.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
    silent_at: Option<Millis>,
    answer: Option<u64>,
}

impl Index {
    /// Updates all entries of `session`.
    pub(super) fn tend(&mut self, patience: &Patience, conn: ConnId, session: &mut Session) {
        self.hear(patience, conn, session);
        let is_live = session.is_live;
        if is_live {
            self.live.insert(session.learner);
        }
        let answer = (is_live && session.answer_ms > 0.0).then(|| session.answer_ms.to_bits());
        if answer != session.place.answer {
            let before = std::mem::replace(&mut session.place.answer, answer);
            if let Some(bits) = before {
                self.answers.remove(&(bits, conn));
            }
            if let Some(bits) = answer {
                self.answers.insert((bits, conn));
            }
        }
        let word = session.word.ms().filter(|_| is_live);
        self.words.set(conn.0, word.map(|step_ms| (step_ms, 1)));
        let proven = session.proven_ms().filter(|_| is_live);
        self.proven.set(conn.0, proven.map(|step_ms| (step_ms, session.pace.tokens.max(1))));
    }

    /// Updates the silence deadline of `session`.
    pub(super) fn hear(&mut self, patience: &Patience, conn: ConnId, session: &mut Session) {
        let silent_at = silent_at(patience, session);
        let before = session.place.silent_at.replace(silent_at);
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
        if let Some(at) = session.place.silent_at {
            self.silences.remove(&(at, conn));
        }
        if let Some(bits) = session.place.answer {
            self.answers.remove(&(bits, conn));
        }
        self.words.set(conn.0, None);
        self.proven.set(conn.0, None);
    }

    /// Returns the learners that take part in rounds.
    pub(super) fn live(&self) -> &BTreeSet<LearnerId> {
        &self.live
    }

    /// Returns the connections that count as gone at `now`, by id.
    pub(super) fn silent(&self, now: Millis) -> Vec<ConnId> {
        let silent = self.silences.range(..=(now, ConnId(u64::MAX))).map(|(_, conn)| *conn);
        in_order(silent)
    }

    /// Returns the next silence deadline.
    pub(super) fn deadline(&self) -> Option<Millis> {
        self.silences.first().map(|(at, _)| *at)
    }

    /// Returns the connections whose answers take longer than `than_ms`, at least 0, by id.
    pub(super) fn far(&self, than_ms: f64) -> Vec<ConnId> {
        let after = Excluded((than_ms.max(0.0).to_bits(), ConnId(u64::MAX)));
        in_order(self.answers.range((after, Unbounded)).map(|(_, conn)| *conn))
    }

    /// Returns the median claimed step time of all but `except`, in milliseconds; `None` until half of `sessions`
    /// have claimed one.
    pub(super) fn word_ms(&self, except: Option<ConnId>, sessions: usize) -> Option<f64> {
        let are_enough = 2 * self.words.len() >= sessions;
        self.words.median(except.map(|conn| conn.0)).filter(|_| are_enough)
    }

    /// Returns the median step time of all but `except`, in milliseconds; `None` until one is known.
    ///
    /// Sessions with a proven pace have equal weights, except those with very few merged tokens. Hence idle
    /// learners cannot outvote those that train. While no pace is proven, claims count, but the result is at most
    /// four times the shortest claim. The first rounds then come soon, and their merges prove paces.
    pub(super) fn median_ms(&self, except: Option<ConnId>) -> Option<f64> {
        let except = except.map(|conn| conn.0);
        self.proven.median(except).or_else(|| {
            let most = UNPROVEN_RATIO_MAX * self.words.least(except)?;
            Some(self.words.median(except)?.min(most))
        })
    }
}

fn in_order(conns: impl Iterator<Item = ConnId>) -> Vec<ConnId> {
    let mut conns: Vec<_> = conns.collect();
    conns.sort_unstable();
    conns
}

/// Returns the time at which a silent `session` counts as gone.
fn silent_at(patience: &Patience, session: &Session) -> Millis {
    let patience_ms = match session.state {
        LearnerState::Hidden | LearnerState::Paused => patience.hidden_ms_max,
        // A step may last longer than the silence limit, and the learner sends only between steps. Its claimed step
        // time earns at most the limit of a hidden tab.
        _ => {
            let steps_ms = (4.0 * session.step_ms) as u64;
            patience.silent_ms_max.max(steps_ms.min(patience.hidden_ms_max))
        }
    };
    session.heard.after(patience_ms)
}

#[cfg(test)]
mod tests {
    use super::super::{Patience, Reins, Roster};
    use super::*;
    use crate::rng::Rng;

    const PATIENCE: Patience = Patience { silent_ms_max: 1_000, hidden_ms_max: 10_000 };

    /// Computes the same statistics with a pass over all sessions.
    fn asked(
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

    /// Goal: the index misses no session.
    #[test]
    fn the_index_knows_what_asking_everybody_would_tell() {
        let (mut rng, mut roster) = (Rng::new(9), Roster::new(PATIENCE, Reins::default()));
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
                _ => roster.hear(now, conn),
            }
            let than_ms = f64::from(rng.below(200));
            let far = roster.far(than_ms).map(|(learner, _)| learner).collect();
            let known = (roster.live().clone(), roster.silent(now), roster.deadline(), far);
            assert_eq!(known, asked(&roster, now, than_ms), "{turn}");
        }
        assert!(roster.live().len() > 9 && roster.step_ms().is_some());
    }
}
