//! Copies of the parameters, for measurement and export.

use std::sync::Arc;

use archipelago_core::diloco::syncer::Syncer;
use archipelago_core::diloco::{Codec, FragmentState, Fragments, LearnerId};

use crate::llama::Course;
use crate::status::StatusTracker;

/// Parameters to measure, with the progress of the run.
#[derive(Clone, Debug)]
pub struct EvalSnapshot {
    /// The fragments without Θ̂, `[P]`, shared with the syncer.
    pub states: Vec<FragmentState>,
    /// The newest decision at that moment.
    pub seq: u64,
    /// Codec of update bodies.
    pub codec: Codec,
    /// Position of the fragments in the flat vector.
    pub fragments: Arc<Fragments>,
    /// Progress of the run, for people.
    pub course: Course,
    /// Tokens merged into it.
    pub tokens_merged: u64,
    /// Rounds merged into it.
    pub rounds: u64,
    /// Whether the run is complete, so that no further merge follows.
    pub is_final: bool,
}

/// Findings about a held-out loss.
#[derive(Debug)]
pub enum Judgement {
    /// The loss is normal or cannot be judged; decisions after `seq` may still be rolled back later.
    Well {
        /// The newest decision at the last good moment.
        seq: u64,
    },
    /// The loss rose because of updates that the culprits sent since the last good moment.
    Harm {
        /// The fragments at the last good moment, `[P]`.
        from: Vec<FragmentState>,
        /// The newest decision at that moment.
        after: u64,
        /// The learners whose updates raised the loss.
        culprits: Vec<LearnerId>,
        /// The loss at the last good moment and now, in nats per token.
        losses: (f32, f32),
        /// The loss without their updates.
        without: f32,
    },
    /// The loss rose, and attribution found no single learner; decisions after `seq` may still be rolled back later.
    Unexplained {
        /// As above.
        losses: (f32, f32),
        /// The newest decision now.
        seq: u64,
    },
}

impl EvalSnapshot {
    /// Returns the run after the decision `seq`; `None` while a merge or a rollback is pending.
    pub(super) fn of(syncer: &Syncer, board: &StatusTracker, seq: u64) -> Option<Self> {
        syncer.thetas().filter(|_| !syncer.is_undoing())?;
        Some(Self {
            states: syncer.states().map(FragmentState::without_hat).collect(),
            seq,
            codec: syncer.verifier().codec(),
            fragments: Arc::clone(syncer.fragments()),
            course: Course::of(syncer.ledger(), board.losses()),
            tokens_merged: syncer.ledger().clock_tokens(),
            rounds: syncer.rounds_merged(),
            is_final: syncer.is_over(),
        })
    }

    /// Returns Θ, flat, `[layout.len()]`.
    #[must_use]
    pub fn theta(&self) -> Vec<f32> {
        let mut flat = vec![0.0; self.params()];
        for (fragment, state) in self.fragments.ids().zip(&self.states) {
            self.fragments.scatter(fragment, &state.theta, &mut flat);
        }
        flat
    }

    /// Returns the number of values of Θ.
    #[must_use]
    pub fn params(&self) -> usize {
        self.states.iter().map(|state| state.theta.len()).sum()
    }
}
