//! Rollback of a fragment.

use std::collections::BTreeSet;

use super::{PendingUpdate, Phase, Rounds};
use crate::diloco::{FragmentState, MergeFailure, MergeOutcome, RemadeEntry, UpdateOutcome, checksum, kept};
use crate::wire::{Fate, LateReason, LearnerId, Millis, Round};

/// A rollback under way.
#[derive(Debug)]
pub(super) struct Remaking {
    round: Round,
    without: BTreeSet<LearnerId>,
    began: Millis,
}

/// A fragment after its rollback.
#[derive(Clone, Debug, PartialEq)]
pub struct Remade {
    /// Entry for the tape.
    pub entry: RemadeEntry,
    /// Coded change of Θ̂.
    pub body: Vec<u8>,
    /// Duration of the rollback, in milliseconds.
    pub sync_ms: u64,
}

impl Rounds {
    /// Hands out the fragment's state for a rollback without the updates in `without`, as a round of its own. `None`
    /// while a round is under way.
    pub fn remake(
        &mut self,
        now: Millis,
        round: Round,
        without: BTreeSet<LearnerId>,
    ) -> Option<FragmentState> {
        if !self.is_idle() {
            return None;
        }
        let state = self.state.take()?;
        self.phase = Phase::Remaking(Remaking { round, without, began: now });
        Some(state)
    }

    /// Returns true while a rollback is under way.
    #[must_use]
    pub fn is_remaking(&self) -> bool {
        matches!(self.phase, Phase::Remaking(_))
    }

    /// Takes the outcome of a rollback; `None` if it is not the job under way.
    pub fn remade(&mut self, now: Millis, outcome: MergeOutcome) -> Option<Remade> {
        let MergeOutcome { round, fragment, state, body, checksum: sum, digest, norm } = outcome;
        let (base, version) = (self.version, state.version);
        let kept = checksum(&kept(&state));
        let Remaking { without, began, .. } = self.end_remaking(round, state)?;
        self.note_version(version);
        let without = without.into_iter().collect();
        let entry =
            RemadeEntry { round, fragment, base, version, without, kept, checksum: sum, digest, norm };
        Some(Remade { entry, body, sync_ms: now.since(began) })
    }

    /// Takes the state back from a failed job and returns true if it is the one under way.
    pub fn not_remade(&mut self, failure: MergeFailure) -> bool {
        self.end_remaking(failure.round, failure.state).is_some()
    }

    /// Drops the waiting update of `learner` and returns its fate: late.
    pub fn discard(&mut self, learner: LearnerId) -> Option<UpdateOutcome> {
        // The time for which the learner is sent away must not count as time between merged updates.
        self.came.remove(&learner);
        let fragment = self.terms.fragment;
        let late = |round, PendingUpdate { serial, tokens, .. }: PendingUpdate| {
            let fate = Fate::Late(LateReason::RoundOver);
            UpdateOutcome { round, fragment, learner, serial, tokens, fate }
        };
        if let Some(taken) = self.early.remove(&learner) {
            return Some(late(None, taken));
        }
        let open = self.collecting_mut()?;
        let taken = open.taken.remove(&learner)?;
        Some(late(Some(open.round), taken))
    }

    fn end_remaking(&mut self, round: Round, state: FragmentState) -> Option<Remaking> {
        match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Remaking(remaking) if remaking.round == round => {
                self.version = state.version;
                self.state = Some(state);
                Some(remaking)
            }
            other => {
                self.phase = other;
                None
            }
        }
    }
}
