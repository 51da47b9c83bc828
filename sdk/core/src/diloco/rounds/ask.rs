//! Who is asked, and when again.

use std::collections::BTreeSet;

use super::{Answered, Rounds, is_overdue};
use crate::wire::{LearnerId, Millis};

impl Rounds {
    /// Whether `learner` may be asked ahead of the next round: it was not, and nothing of it is unsettled here. One
    /// that had nothing to report is not asked again before that.
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

    /// Takes in that `learner`, who is back, takes part. Whether the round under way waits for an answer of it: then it
    /// is asked, again if need be.
    pub fn ask_again(&mut self, now: Millis, learner: LearnerId) -> bool {
        let Some(open) = self.collecting_mut().filter(|open| open.awaits(learner)) else { return false };
        open.waiting.begin(learner, is_overdue(Some(&now), open.launched_before));
        self.asked.insert(learner, now);
        true
    }

    /// Takes in that `learner` has nothing to report; `None` if nobody asked, or no round waits for it.
    pub fn pass(&mut self, now: Millis, learner: LearnerId) -> Option<Answered> {
        let asked = self.asked.remove(&learner)?;
        let Some(open) = self.collecting_mut().filter(|open| open.awaits(learner)) else {
            self.passed.insert(learner);
            return None;
        };
        open.answer(learner);
        Some(Answered { round: Some(open.round), tokens: 0, after_ms: Some(now.since(asked)) })
    }

    /// Whether `learner` was asked and has not answered yet.
    pub(crate) fn is_asked(&self, learner: LearnerId) -> bool {
        self.asked.contains_key(&learner)
    }

    /// Nobody but `those` is there any more, and nobody waits for others.
    pub fn unask_all_but(&mut self, those: &BTreeSet<LearnerId>) {
        self.asked.retain(|learner, _| those.contains(learner));
        self.passed.retain(|learner| those.contains(learner));
    }

    /// The connection of `learner` is gone, and with it every question: nobody waits for it any more.
    pub fn unask(&mut self, learner: LearnerId) {
        if let Some(open) = self.collecting_mut() {
            open.waiting.end(learner);
        }
        self.asked.remove(&learner);
        self.passed.remove(&learner);
    }
}
