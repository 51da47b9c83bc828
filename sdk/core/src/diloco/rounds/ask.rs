//! Questions to learners, and their repetition.

use std::collections::BTreeSet;

use super::{Answered, Rounds, is_overdue};
use crate::wire::{LearnerId, Millis};

impl Rounds {
    /// Returns true if `learner` may be asked ahead of the next round: it has no open question and no unsettled update.
    /// A learner that answered without an update is not asked again before that round.
    #[must_use]
    pub fn may_ask_ahead(&self, learner: LearnerId) -> bool {
        self.terms.is_additive
            && self.is_idle()
            && !self.asked.contains_key(&learner)
            && !self.early.contains_key(&learner)
            && !self.passed.contains(&learner)
    }

    /// Notes that `learner` is asked ahead of the next round.
    pub fn ask_ahead(&mut self, now: Millis, learner: LearnerId) {
        self.asked.entry(learner).or_insert(now);
    }

    /// Notes that `learner` is back, and returns true if the round under way waits for its answer. The caller then asks
    /// it, again if necessary.
    pub fn ask_again(&mut self, now: Millis, learner: LearnerId) -> bool {
        let Some(open) = self.collecting_mut().filter(|open| open.awaits(learner)) else { return false };
        open.waiting.begin(learner, is_overdue(Some(&now), open.launched_before));
        self.asked.insert(learner, now);
        true
    }

    /// Notes that `learner` has no update; `None` if it was not asked or no round waits for it.
    pub fn pass(&mut self, now: Millis, learner: LearnerId) -> Option<Answered> {
        let asked = self.asked.remove(&learner)?;
        let Some(open) = self.collecting_mut().filter(|open| open.awaits(learner)) else {
            self.passed.insert(learner);
            return None;
        };
        open.answer(learner);
        Some(Answered { round: Some(open.round), tokens: 0, after_ms: Some(now.since(asked)) })
    }

    /// Returns true if `learner` was asked and has not answered yet.
    pub(crate) fn is_asked(&self, learner: LearnerId) -> bool {
        self.asked.contains_key(&learner)
    }

    /// Drops the questions to all learners that are not in `those`.
    pub fn unask_all_but(&mut self, those: &BTreeSet<LearnerId>) {
        self.asked.retain(|learner, _| those.contains(learner));
        self.passed.retain(|learner| those.contains(learner));
    }

    /// Drops all questions to `learner`, whose connection is gone. The round stops waiting for it.
    pub fn unask(&mut self, learner: LearnerId) {
        if let Some(open) = self.collecting_mut() {
            open.waiting.end(learner);
        }
        self.asked.remove(&learner);
        self.passed.remove(&learner);
    }
}
