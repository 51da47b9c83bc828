//! Pending answers of a round, updated as answers arrive and learners join or leave. The round is examined after each
//! message, which must not cost a pass over all invited learners.

use std::collections::BTreeSet;

use crate::wire::LearnerId;

/// Invited learners that are connected and have not answered.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    pending: BTreeSet<LearnerId>,
    /// Those of them that were asked for an earlier round already.
    overdue: BTreeSet<LearnerId>,
}

impl Waiting {
    /// Starts waiting for `learner`.
    pub(super) fn begin(&mut self, learner: LearnerId, is_overdue: bool) {
        self.pending.insert(learner);
        if is_overdue {
            self.overdue.insert(learner);
        } else {
            self.overdue.remove(&learner);
        }
    }

    /// Stops waiting for `learner`, which answered or left.
    pub(super) fn end(&mut self, learner: LearnerId) {
        if self.pending.remove(&learner) {
            self.overdue.remove(&learner);
        }
    }

    /// Returns the number of pending answers.
    pub(super) fn pending(&self) -> u32 {
        self.pending.len() as u32
    }

    /// Returns the number of pending answers that an earlier round already asked for.
    pub(super) fn overdue(&self) -> u32 {
        self.overdue.len() as u32
    }
}
