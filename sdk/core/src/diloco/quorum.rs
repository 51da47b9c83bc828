//! Rule for the end of a round: a minimum quorum, then an adaptive grace window (Decoupled DiLoCo, Eq. 3).

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use super::Millis;

/// Parameters of the rule that ends rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuorumPolicy {
    /// K, the number of updates that a merge needs. If fewer learners are alive or answer, their number replaces it.
    pub updates_min: NonZeroU32,
    /// γ, the fraction of the slack that the grace window uses, 0 to 1. The paper does not publish its value.
    pub grace_ratio: f64,
    /// τ, the largest number of rounds in flight. It also bounds the duration of a round, in launch intervals.
    pub rounds_in_flight: u32,
    /// Patience, in step times of the median learner. After it, a round without quorum merges the updates that it has.
    /// A round without updates is abandoned.
    pub patience_steps: f64,
    /// Lower bound on the patience, in milliseconds. Slow answers extend the patience further.
    pub patience_ms_min: u64,
}

/// Patience as a multiple of the average answer time. Our own constant.
const PATIENCE_ANSWERS: f64 = 2.0;
/// Upper bound on the patience due to slow answers, in milliseconds, so that a connected learner that never answers
/// does not block a fragment. Our own constant.
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
    /// ξ_step: time of one inner step of the median live learner.
    pub step_ms: f64,
    /// ξ_launch: time between two launches, H/P steps and at least 1 step.
    pub launch_ms: f64,
    /// ξ_quorum: time from the start of a round to its quorum.
    pub quorum_ms: f64,
    /// ξ_sync: time from the end of collection to the end of the merge.
    pub sync_ms: f64,
    /// Time from a request (`Collect`) to the learner's update, in time or late.
    pub answer_ms: f64,
}

/// Facts about one round that the decision needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundView {
    /// Time of the launch.
    pub launched: Millis,
    /// Number of accepted updates.
    pub updates: u32,
    /// Number of invited live learners without an answer.
    pub pending: u32,
    /// Number of pending learners that have not answered since an earlier round. The quorum does not wait for them.
    pub overdue: u32,
    /// Time at which the quorum was reached; `None` before.
    pub quorum_at: Option<Millis>,
    /// Number of rounds launched together, including this one. Their updates share the learners' links.
    pub at_once: u32,
}

/// Decision about one round at one moment, with its reason.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "decision")]
pub enum Decision {
    /// Wait for more updates until patience ends.
    AwaitQuorum {
        /// Number of updates that the quorum still needs.
        missing: u32,
        /// End of patience.
        until: Millis,
    },
    /// Wait for stragglers until the grace window ends; the quorum is reached.
    AwaitGrace {
        /// Length of the grace window, in milliseconds.
        grace_ms: u64,
        /// End of the grace window.
        until: Millis,
    },
    /// Merge the accepted updates.
    Merge {
        /// Reason to wait no longer.
        why: MergeCause,
    },
    /// End the round without a merge, since it has no updates.
    Abandon {
        /// Reason to wait no longer.
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
    /// Every live invited learner has answered, and none of them has an update.
    NothingNew,
    /// Patience ended without an update.
    PatienceOver,
}

impl QuorumPolicy {
    /// Returns the length of the grace window in milliseconds: `γ · (τ · ξ_launch − (ξ_quorum + ξ_sync))`, at least 0.
    ///
    /// The paper has ξ_step in place of ξ_launch: with its H = P, a round is launched at each step. The window must not
    /// delay a launch, and τ rounds in flight leave τ launch intervals for a round.
    #[must_use]
    pub(crate) fn grace_ms(&self, timing: &Timing) -> u64 {
        let slack = f64::from(self.rounds_in_flight) * timing.launch_ms - (timing.quorum_ms + timing.sync_ms);
        // Casting saturates, and turns NaN into 0.
        (self.grace_ratio * slack).max(0.0) as u64
    }

    /// Returns the longest time that a round may stay below its quorum, in milliseconds. It is the longest of
    /// `patience_steps` step times, `patience_ms_min`, and twice the answer time times `at_once`, the number of rounds
    /// launched together, up to [`PATIENCE_ANSWERS_MS_MAX`].
    #[must_use]
    pub(crate) fn patience_ms(&self, timing: &Timing, at_once: u32) -> u64 {
        // `max` returns the other operand if one is NaN.
        let answers_ms = (PATIENCE_ANSWERS * timing.answer_ms * f64::from(at_once)).max(0.0);
        let ms = (self.patience_steps * timing.step_ms).max(answers_ms.min(PATIENCE_ANSWERS_MS_MAX));
        (ms.max(0.0) as u64).max(self.patience_ms_min)
    }

    /// Decides whether `round` waits, merges or ends at `now`.
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

    /// Returns true if `round` has its quorum: K updates, or the number of expected answers if that is smaller.
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

    /// Times with a grace window of 50 ms: `0.8 · (2 · 50 − 37.5)`.
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
    fn quorum_shrinks_with_live_learners() {
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
    fn patience_grows_with_answer_times() {
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
