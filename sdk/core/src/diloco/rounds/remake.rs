//! Undoing what a fragment was merged to.

use std::collections::BTreeSet;

use super::{Phase, Rounds, Taken};
use crate::diloco::{FragmentState, MergeFailure, MergeOutcome, RemadeEntry, Settled, checksum, kept};
use crate::wire::{Fate, LateReason, LearnerId, Millis, Round};

/// A fragment whose merges are being made again.
#[derive(Debug)]
pub(super) struct Remaking {
    round: Round,
    without: BTreeSet<LearnerId>,
    began: Millis,
}

/// A fragment whose merges were made again.
#[derive(Clone, Debug, PartialEq)]
pub struct Remade {
    /// What the tape is to have of it.
    pub entry: RemadeEntry,
    /// Coded change of Θ̂.
    pub body: Vec<u8>,
    /// Time that it took, in milliseconds.
    pub sync_ms: u64,
}

impl Rounds {
    /// Hands out the fragment's state, to be made again without the updates of some learners, as a round of its own.
    /// `None` while a round is under way.
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

    /// Whether what the fragment was merged to is being undone.
    #[must_use]
    pub fn is_remaking(&self) -> bool {
        matches!(self.phase, Phase::Remaking(_))
    }

    /// Takes in what that led to; `None` if it is not the job under way.
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

    /// Takes the state back from a job that could not do it; whether it is the one under way.
    pub fn not_remade(&mut self, failure: MergeFailure) -> bool {
        self.end_remaking(failure.round, failure.state).is_some()
    }

    /// Forgets the update of `learner` that waits to be merged, and says what became of it: it came too late.
    pub fn discard(&mut self, learner: LearnerId) -> Option<Settled> {
        // Time away is not time of which its updates were merged.
        self.came.remove(&learner);
        let fragment = self.terms.fragment;
        let late = |round, Taken { serial, tokens, .. }: Taken| {
            let fate = Fate::Late(LateReason::RoundOver);
            Settled { round, fragment, learner, serial, tokens, fate }
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
