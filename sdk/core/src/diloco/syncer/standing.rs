//! What is known of the sender of an update.

use super::Syncer;
use crate::diloco::speed::SPEED_SLACK;
use crate::diloco::{Account, PROBATION_MS, Repute, Standing};
use crate::wire::{FragmentId, LearnerId, Millis};

/// A learner counts for at most so many of the median of the others who are known, times the root of the probations
/// that it has been merged for, if they are more than one: one that is far ahead is counted in full after a while, and
/// one that says so counts in an hour for 20 of the median, and in a day for less than 100. Constant of ours.
const PACE_RATIO_MAX: f64 = 8.0;

impl Syncer {
    pub(super) fn standing(&self, now: Millis, learner: LearnerId, fragment: FragmentId) -> Standing {
        let is_new = self.is_newcomer(learner);
        let at = usize::from(fragment.0);
        let is_stranger = |account: &Account| account.tokens_merged.get(at) == Some(&0);
        let is_stranger = self.ledger().account(learner).is_some_and(is_stranger);
        // Whose pace is not known yet counts as far as one whose is, beside what is usual in a merge.
        let usual = Some(self.ledger().usual_tokens(fragment)).filter(|usual| is_new && *usual > 0);
        let steps_max = usual
            .map(|usual| (PACE_RATIO_MAX * SPEED_SLACK) as u64 * (usual / self.step_tokens(learner)).max(1));
        Standing {
            steps_max,
            stranger_ms: is_stranger.then(|| self.roster.connected_ms(now, learner)),
            step_tokens: self.step_tokens(learner),
            step_ms_least: self.step_ms_counted(now, learner),
            unmerged_tokens: self.books.unmerged_tokens(learner, fragment),
            repute: Repute {
                is_new,
                is_doubted: self.ledger().doubt(learner).is_some(),
                is_shown: self.shown.get(&learner).copied(),
            },
            has_voice: !is_new || !self.is_known_there(now),
            clock_tokens: self.ledger().schedule_tokens(),
        }
    }

    /// The shortest time in which `learner` is believed to take a step where tokens are counted, in milliseconds: so
    /// that it counts as much as eight of the median of the others who are known, and slowly for more. What it counted
    /// for so far does not enter, for that may have been its word. While nobody else is known, its word counts as far
    /// as that of the others allows, and after a restart as far as the pace of before it does, its own or the others'.
    pub(super) fn step_ms_counted(&self, now: Millis, learner: LearnerId) -> f64 {
        let by_word = self.roster.step_ms_counted(now, learner);
        let (median, before) = (self.standings.pace(learner), self.ledger().pace_before());
        let most = if median > 0.0 {
            let probations = self.ledger().merged_ms(learner) as f64 / PROBATION_MS as f64;
            PACE_RATIO_MAX * median * probations.max(1.0).sqrt()
        } else if before > 0.0 {
            let own = self.ledger().pace(learner).unwrap_or(0.0);
            (PACE_RATIO_MAX * before).max(SPEED_SLACK * own)
        } else {
            return by_word;
        };
        by_word.max(SPEED_SLACK * self.step_tokens(learner) as f64 / most)
    }

    /// Whether `learner` has yet to prove itself, beside those who are there.
    pub(super) fn is_newcomer(&self, learner: LearnerId) -> bool {
        self.ledger().is_newcomer(learner, self.standings.longest_ms())
    }

    /// Whether anybody is there and answers who need not prove itself any more.
    fn is_known_there(&self, now: Millis) -> bool {
        self.standings.known().iter().any(|&learner| self.roster.is_awaited(now, learner))
    }

    /// Tokens of one step of `learner`, above 0.
    pub(super) fn step_tokens(&self, learner: LearnerId) -> u64 {
        let batch = self.roster.session(learner).map_or(0, |session| session.batch);
        u64::from(batch.max(1)) * u64::from(self.spec.model.context.max(1))
    }
}
