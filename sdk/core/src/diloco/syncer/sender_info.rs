//! Facts about the sender of an update.

use super::Syncer;
use crate::diloco::speed::SPEED_SLACK;
use crate::diloco::{Account, PROBATION_MS, SenderInfo, SenderTrust};
use crate::wire::{FragmentId, LearnerId, Millis};

/// Largest pace that counts for a learner, in medians of the other established learners. Beyond one probation it grows
/// with the root of the probations for which the learner was merged. A much faster learner thus counts in full after a
/// while. One that only claims it counts for 20 medians after an hour and for less than 100 after a day. Our own
/// constant.
const PACE_RATIO_MAX: f64 = 8.0;

impl Syncer {
    pub(super) fn standing(&self, now: Millis, learner: LearnerId, fragment: FragmentId) -> SenderInfo {
        let is_new = self.is_newcomer(learner);
        let at = usize::from(fragment.0);
        let is_stranger = |account: &Account| account.tokens_merged.get(at) == Some(&0);
        let is_stranger = self.ledger().account(learner).is_some_and(is_stranger);
        // A newcomer's pace is unknown, so its steps are capped by the usual tokens of a merge.
        let usual = Some(self.ledger().usual_tokens(fragment)).filter(|usual| is_new && *usual > 0);
        let steps_max = usual
            .map(|usual| (PACE_RATIO_MAX * SPEED_SLACK) as u64 * (usual / self.step_tokens(learner)).max(1));
        SenderInfo {
            steps_max,
            stranger_ms: is_stranger.then(|| self.roster.connected_ms(now, learner)),
            step_tokens: self.step_tokens(learner),
            step_ms_least: self.step_ms_counted(now, learner),
            unmerged_tokens: self.books.unmerged_tokens(learner, fragment),
            repute: SenderTrust {
                is_new,
                is_doubted: self.ledger().doubt(learner).is_some(),
                is_shown: self.shown.get(&learner).copied(),
            },
            has_voice: !is_new || !self.is_known_there(now),
            clock_tokens: self.ledger().schedule_tokens(),
        }
    }

    /// Returns the shortest believed time of a step of `learner`, in milliseconds.
    ///
    /// It allows eight times the median pace of the other established learners, and slowly more. The learner's own
    /// earlier tokens do not enter, since they may rest on its claims. If no other learner is established, its claim
    /// counts as far as those of the others allow. After a restart the bound is eight times the median pace from
    /// before, or its own pace if that is higher.
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

    /// Returns true if `learner` is on probation, compared with connected learners.
    pub(super) fn is_newcomer(&self, learner: LearnerId) -> bool {
        self.ledger().is_newcomer(learner, self.standings.longest_ms())
    }

    /// Returns true if any established learner is connected and answers.
    fn is_known_there(&self, now: Millis) -> bool {
        self.standings.known().iter().any(|&learner| self.roster.is_awaited(now, learner))
    }

    /// Returns the tokens of one step of `learner`, above 0.
    pub(super) fn step_tokens(&self, learner: LearnerId) -> u64 {
        let batch = self.roster.session(learner).map_or(0, |session| session.batch);
        u64::from(batch.max(1)) * u64::from(self.spec.model.context.max(1))
    }
}
