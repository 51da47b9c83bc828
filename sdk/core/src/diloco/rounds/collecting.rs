//! A round that collects updates.

use std::collections::{BTreeMap, BTreeSet};

use super::PendingUpdate;
use super::pending::Waiting;
use crate::diloco::Decision;
use crate::wire::{LearnerId, Millis, Round};

/// A round that collects updates relative to the current version.
#[derive(Debug)]
pub(super) struct Collecting {
    pub(super) round: Round,
    pub(super) launched: Millis,
    /// Launch of the previous round. A learner asked by then has had a whole round to answer.
    pub(super) launched_before: Option<Millis>,
    pub(super) invited: BTreeSet<LearnerId>,
    pub(super) answered: BTreeSet<LearnerId>,
    pub(super) waiting: Waiting,
    pub(super) taken: BTreeMap<LearnerId, PendingUpdate>,
    pub(super) quorum_at: Option<Millis>,
    /// Set for the last round of a finishing run, which waits for every learner.
    pub(super) last_of: Option<u32>,
    /// The last decision that was reported.
    pub(super) said: Option<Decision>,
}

impl Collecting {
    pub(super) fn awaits(&self, learner: LearnerId) -> bool {
        self.invited.contains(&learner) && !self.answered.contains(&learner)
    }

    pub(super) fn answer(&mut self, learner: LearnerId) {
        self.answered.insert(learner);
        self.waiting.end(learner);
    }
}
