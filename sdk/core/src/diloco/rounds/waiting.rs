//! For whom a round still waits, kept up to date as answers come and learners come and go: a round is looked at with
//! each message, whoever sent it, and must not ask all whom it invited each time.

use std::collections::BTreeSet;

use crate::wire::LearnerId;

/// Those invited to a round who are there and have not answered.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    pending: BTreeSet<LearnerId>,
    /// Of these, those who were asked for an earlier round already.
    overdue: BTreeSet<LearnerId>,
}

impl Waiting {
    /// `learner` is waited for.
    pub(super) fn begin(&mut self, learner: LearnerId, is_overdue: bool) {
        self.pending.insert(learner);
        if is_overdue {
            self.overdue.insert(learner);
        } else {
            self.overdue.remove(&learner);
        }
    }

    /// `learner` answered, or is gone.
    pub(super) fn end(&mut self, learner: LearnerId) {
        if self.pending.remove(&learner) {
            self.overdue.remove(&learner);
        }
    }

    /// How many there are.
    pub(super) fn pending(&self) -> u32 {
        self.pending.len() as u32
    }

    /// How many of these were asked for an earlier round already.
    pub(super) fn overdue(&self) -> u32 {
        self.overdue.len() as u32
    }
}
