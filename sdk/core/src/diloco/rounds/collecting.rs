//! A round while it collects.

use std::collections::{BTreeMap, BTreeSet};

use super::Taken;
use super::waiting::Waiting;
use crate::diloco::Decision;
use crate::wire::{LearnerId, Millis, Round};

/// A round that collects updates relative to the present version.
#[derive(Debug)]
pub(super) struct Collecting {
    pub(super) round: Round,
    pub(super) launched: Millis,
    /// When the one before it was: who was asked by then and has not answered had the patience of a whole round.
    pub(super) launched_before: Option<Millis>,
    pub(super) invited: BTreeSet<LearnerId>,
    pub(super) answered: BTreeSet<LearnerId>,
    pub(super) waiting: Waiting,
    pub(super) taken: BTreeMap<LearnerId, Taken>,
    pub(super) quorum_at: Option<Millis>,
    /// The last round of a finishing run waits for everyone.
    pub(super) last_of: Option<u32>,
    /// The decision that was reported last.
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
