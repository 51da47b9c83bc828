//! When a round is over: minimum quorum, then an adaptive grace window (Decoupled DiLoCo, Eq. 3).

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use super::Millis;

/// The knobs of `QuorumPolicy::decide`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuorumPolicy {
    /// K, the updates without which nothing is merged; fewer if fewer learners are alive, or answer.
    pub updates_min: NonZeroU32,
    /// γ, the share of the slack that is spent on waiting, 0 to 1. The paper's value is not published.
    pub grace_ratio: f64,
    /// τ, the rounds that may be in flight, which is also how many launches a round may last.
    pub rounds_in_flight: u32,
    /// A round without quorum is given up, or merged with what it has, after this many step times…
    pub patience_steps: f64,
    /// …and not before this many milliseconds. Where answers take long, as over thin links, it is longer:
    /// `patience_ms`.
    pub patience_ms_min: u64,
}

/// Patience, in times that an answer has taken lately; constant of ours.
const PATIENCE_ANSWERS: f64 = 2.0;
/// Longest patience that slow answers lead to, in milliseconds: one that only says that it is there must not
/// keep a fragment for ever. Constant of ours.
const PATIENCE_ANSWERS_MS_MAX: f64 = 120_000.0;

impl Default for QuorumPolicy {
    fn default() -> Self {
        Self {
            updates_min: NonZeroU32::MIN,
            grace_ratio: 0.8,
            rounds_in_flight: 2,
            patience_steps: 20.0,
            patience_ms_min: 2_000,
        }
    }
}

/// Moving averages of measured times, in milliseconds; 0 until measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// ξ_step: one inner step of the median live learner.
    pub step_ms: f64,
    /// ξ_launch: from the launch of one round to that of the next, H/P steps, and 1 step at least.
    pub launch_ms: f64,
    /// ξ_quorum: from the start of a round to its K-th update.
    pub quorum_ms: f64,
    /// ξ_sync: from the end of collecting to the merged fragment being sent.
    pub sync_ms: f64,
    /// From the question to the update that answers it, whether that is in time or not.
    pub answer_ms: f64,
}

/// One round, as far as the decision needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundView {
    /// When it was launched.
    pub launched: Millis,
    /// Updates taken in.
    pub updates: u32,
    /// Invited learners that are alive and have not answered.
    pub pending: u32,
    /// Of these, those who were asked for an earlier round already: patience with them is over, and the quorum is one
    /// of the others.
    pub overdue: u32,
    /// When the quorum was reached.
    pub quorum_at: Option<Millis>,
    /// Rounds launched at once with this one, itself included: their updates share the learners' links.
    pub at_once: u32,
}

/// What to do now about one round, and why.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "decision")]
pub enum Decision {
    /// Too few updates; an arrival changes that, or patience ends at `until`.
    AwaitQuorum {
        /// Updates still needed.
        missing: u32,
        /// When patience ends.
        until: Millis,
    },
    /// Quorum is reached; the window of `grace_ms` closes at `until`.
    AwaitGrace {
        /// Length of the window.
        grace_ms: u64,
        /// When it closes.
        until: Millis,
    },
    /// Merge what is there.
    Merge {
        /// What ended the wait.
        why: MergeCause,
    },
    /// Nobody has anything to merge.
    Abandon {
        /// What ended the wait.
        why: AbandonCause,
    },
}

/// Why collecting ended with a merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MergeCause {
    /// Every live invited learner has answered.
    AllAnswered,
    /// The grace window is over.
    GraceOver,
    /// Patience ended below quorum.
    PatienceOver,
}

/// Why collecting ended with nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AbandonCause {
    /// Every live invited learner has answered, none with an update.
    NothingNew,
    /// Patience ended without an update.
    PatienceOver,
}

impl QuorumPolicy {
    /// Longest wait after quorum, in milliseconds:
    /// `γ · (τ · ξ_launch − (ξ_quorum + ξ_sync))`, never below 0.
    ///
    /// In the paper H = P, so a round is launched at each step, and it has ξ_step here. What the window
    /// must not do is hold up a launch, and τ rounds in flight leave τ launches of time.
    #[must_use]
    pub(crate) fn grace_ms(&self, timing: &Timing) -> u64 {
        let slack = f64::from(self.rounds_in_flight) * timing.launch_ms - (timing.quorum_ms + timing.sync_ms);
        // Casting saturates, and turns NaN into 0.
        (self.grace_ratio * slack).max(0.0) as u64
    }

    /// How long a round may stay below quorum, in milliseconds: `patience_steps`, or twice as long as answers
    /// take, if that is more; `at_once` times that if so many rounds were launched together.
    #[must_use]
    pub(crate) fn patience_ms(&self, timing: &Timing, at_once: u32) -> u64 {
        // Never NaN: `max` leaves that out.
        let answers_ms = (PATIENCE_ANSWERS * timing.answer_ms * f64::from(at_once)).max(0.0);
        let ms = (self.patience_steps * timing.step_ms).max(answers_ms.min(PATIENCE_ANSWERS_MS_MAX));
        (ms.max(0.0) as u64).max(self.patience_ms_min)
    }

    /// What to do about `round` at `now`.
    #[must_use]
    pub(crate) fn decide(&self, timing: &Timing, now: Millis, round: &RoundView) -> Decision {
        if round.pending == 0 {
            return match round.updates {
                0 => Decision::Abandon { why: AbandonCause::NothingNew },
                _ => Decision::Merge { why: MergeCause::AllAnswered },
            };
        }
        let needed = self.needed(round);
        if round.updates < needed {
            let until = round.launched.after(self.patience_ms(timing, round.at_once));
            return match (now >= until, round.updates) {
                (false, _) => Decision::AwaitQuorum { missing: needed - round.updates, until },
                (true, 0) => Decision::Abandon { why: AbandonCause::PatienceOver },
                (true, _) => Decision::Merge { why: MergeCause::PatienceOver },
            };
        }
        let grace_ms = self.grace_ms(timing);
        let until = round.quorum_at.unwrap_or(now).after(grace_ms);
        if now >= until {
            Decision::Merge { why: MergeCause::GraceOver }
        } else {
            Decision::AwaitGrace { grace_ms, until }
        }
    }

    /// Whether `round` has its quorum: K, or all of whom answers are still expected if those are fewer.
    #[must_use]
    pub(crate) fn is_quorate(&self, round: &RoundView) -> bool {
        round.updates > 0 && round.updates >= self.needed(round)
    }

    fn needed(&self, round: &RoundView) -> u32 {
        let expected = round.updates + round.pending.saturating_sub(round.overdue);
        self.updates_min.get().min(expected.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// K = 2, τ·ξ_launch = 100 ms, of which 37.5 ms are spoken for: grace is 50 ms.
    const TIMING: Timing =
        Timing { step_ms: 25.0, launch_ms: 50.0, quorum_ms: 30.0, sync_ms: 7.5, answer_ms: 30.0 };

    fn policy() -> QuorumPolicy {
        QuorumPolicy { updates_min: NonZeroU32::new(2).unwrap(), ..QuorumPolicy::default() }
    }

    fn check(now: u64, arrivals: &[u64], invited: u32, expected: Decision) {
        let updates = u32::try_from(arrivals.len()).unwrap();
        let round = RoundView {
            launched: Millis(0),
            updates,
            pending: invited - updates,
            overdue: 0,
            quorum_at: arrivals.get(1).copied().map(Millis),
            at_once: 1,
        };
        assert_eq!(policy().decide(&TIMING, Millis(now), &round), expected, "now {now}, {arrivals:?}");
    }

    #[test]
    fn waits_then_merges() {
        let patience = Millis(2_000);
        check(10, &[], 3, Decision::AwaitQuorum { missing: 2, until: patience });
        check(10, &[5], 3, Decision::AwaitQuorum { missing: 1, until: patience });
        check(10, &[5, 10], 3, Decision::AwaitGrace { grace_ms: 50, until: Millis(60) });
        check(59, &[5, 10], 3, Decision::AwaitGrace { grace_ms: 50, until: Millis(60) });
        check(60, &[5, 10], 3, Decision::Merge { why: MergeCause::GraceOver });
        check(11, &[5, 10, 11], 3, Decision::Merge { why: MergeCause::AllAnswered });
    }

    #[test]
    fn quorum_shrinks_with_the_living() {
        check(5, &[5], 1, Decision::Merge { why: MergeCause::AllAnswered });
        check(5, &[], 0, Decision::Abandon { why: AbandonCause::NothingNew });
        check(5, &[], 1, Decision::AwaitQuorum { missing: 1, until: Millis(2_000) });
    }

    #[test]
    fn patience_ends() {
        check(2_000, &[5], 3, Decision::Merge { why: MergeCause::PatienceOver });
        check(2_000, &[], 3, Decision::Abandon { why: AbandonCause::PatienceOver });
    }

    #[test]
    fn patience_outlasts_answers_over_thin_links() {
        let patience_ms = |answer_ms, at_once| policy().patience_ms(&Timing { answer_ms, ..TIMING }, at_once);
        assert_eq!([0.0, 900.0, f64::NAN].map(|answer_ms| patience_ms(answer_ms, 1)), [2_000; 3]);
        assert_eq!((patience_ms(3_500.0, 1), patience_ms(900.0, 8)), (7_000, 14_400));
        assert_eq!(patience_ms(1e9, 8), 120_000);
    }

    #[test]
    fn grace_is_never_negative() {
        let slow_network = Timing { quorum_ms: 5_000.0, ..TIMING };
        assert_eq!(policy().grace_ms(&slow_network), 0);
        assert_eq!(policy().grace_ms(&Timing { launch_ms: f64::NAN, ..TIMING }), 0);
        assert_eq!(policy().grace_ms(&TIMING), 50);
    }
}
