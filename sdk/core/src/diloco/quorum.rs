//! End of a round: minimum quorum, then an adaptive grace window (Decoupled DiLoCo, Eq. 3).

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use super::Millis;

/// Parameters of `QuorumPolicy::decide`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuorumPolicy {
    /// K, the updates that a merge needs; fewer if fewer learners are alive or answer.
    pub updates_min: NonZeroU32,
    /// γ, the part of the slack that is spent on waiting, 0 to 1. The paper does not publish its value.
    pub grace_ratio: f64,
    /// τ, the largest number of rounds in flight; also the number of launches that a round may last.
    pub rounds_in_flight: u32,
    /// Patience in step times. A round without quorum is then abandoned, or merged with the updates that it has…
    pub patience_steps: f64,
    /// …but not before this time, in milliseconds. Slow answers, as over thin links, extend it: `patience_ms`.
    pub patience_ms_min: u64,
}

/// Patience as a multiple of the recent answer time. Constant of ours.
const PATIENCE_ANSWERS: f64 = 2.0;
/// Longest patience for slow answers, in milliseconds: a learner that is present and never answers must not block a
/// fragment for ever. Constant of ours.
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
    /// ξ_launch: from one launch to the next, H/P steps, and at least 1 step.
    pub launch_ms: f64,
    /// ξ_quorum: from the start of a round to its K-th update.
    pub quorum_ms: f64,
    /// ξ_sync: from the end of collecting to the merged fragment being sent.
    pub sync_ms: f64,
    /// From the question to the update that answers it, in time or late.
    pub answer_ms: f64,
}

/// Facts about one round that the decision needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundView {
    /// Time of the launch.
    pub launched: Millis,
    /// Accepted updates.
    pub updates: u32,
    /// Invited live learners without an answer.
    pub pending: u32,
    /// Part of these that was asked for an earlier round already. Their patience is over, and the quorum does not
    /// count them.
    pub overdue: u32,
    /// Time at which the quorum was reached.
    pub quorum_at: Option<Millis>,
    /// Rounds launched at once with this one, including it. Their updates share the learners' links.
    pub at_once: u32,
}

/// Decision about one round, with its reason.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "decision")]
pub enum Decision {
    /// Too few updates; a new one changes that, or patience ends at `until`.
    AwaitQuorum {
        /// Updates still needed.
        missing: u32,
        /// End of patience.
        until: Millis,
    },
    /// Quorum is reached; the window of `grace_ms` closes at `until`.
    AwaitGrace {
        /// Length of the window.
        grace_ms: u64,
        /// End of the window.
        until: Millis,
    },
    /// Merge the present updates.
    Merge {
        /// Reason for the end of the wait.
        why: MergeCause,
    },
    /// End the round, since there is nothing to merge.
    Abandon {
        /// Reason for the end of the wait.
        why: AbandonCause,
    },
}

/// Reasons for a collection to end with a merge.
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

/// Reasons for a collection to end without a merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AbandonCause {
    /// Every live invited learner has answered, none with an update.
    NothingNew,
    /// Patience ended without an update.
    PatienceOver,
}

impl QuorumPolicy {
    /// Returns the longest wait after the quorum, in milliseconds: `γ · (τ · ξ_launch − (ξ_quorum + ξ_sync))`, at
    /// least 0.
    ///
    /// In the paper H = P, so that a round is launched at each step, and the formula has ξ_step here. The window must
    /// not delay a launch, and τ rounds in flight allow τ launch intervals.
    #[must_use]
    pub(crate) fn grace_ms(&self, timing: &Timing) -> u64 {
        let slack = f64::from(self.rounds_in_flight) * timing.launch_ms - (timing.quorum_ms + timing.sync_ms);
        // Casting saturates, and turns NaN into 0.
        (self.grace_ratio * slack).max(0.0) as u64
    }

    /// Returns how long a round may stay below its quorum, in milliseconds. It is `patience_steps`, or twice the
    /// answer time if that is longer. The answer time is multiplied by `at_once`, the number of rounds launched
    /// together.
    #[must_use]
    pub(crate) fn patience_ms(&self, timing: &Timing, at_once: u32) -> u64 {
        // Never NaN: `max` ignores it.
        let answers_ms = (PATIENCE_ANSWERS * timing.answer_ms * f64::from(at_once)).max(0.0);
        let ms = (self.patience_steps * timing.step_ms).max(answers_ms.min(PATIENCE_ANSWERS_MS_MAX));
        (ms.max(0.0) as u64).max(self.patience_ms_min)
    }

    /// Decides about `round` at `now`.
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

    /// Returns true if `round` has its quorum: K, or the number of expected answers if that is smaller.
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

    /// K = 2, τ·ξ_launch = 100 ms, of which 37.5 ms are used: the grace window is 50 ms.
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
