//! Copies of the parameters, for measurement and export.

use std::sync::Arc;

use archipelago_core::diloco::syncer::Syncer;
use archipelago_core::diloco::{Codec, FragmentState, Fragments, LearnerId};

use crate::llama::TrainingProgress;
use crate::status::StatusTracker;

/// Parameters to measure, with the progress of the run.
#[derive(Clone, Debug)]
pub struct EvalSnapshot {
    /// The fragments without Θ̂, `[P]`, shared with the syncer.
    pub states: Vec<FragmentState>,
    /// Number of the newest decision in these parameters.
    pub seq: u64,
    /// Codec of update bodies.
    pub codec: Codec,
    /// Positions of the fragments in the flat parameter vector.
    pub fragments: Arc<Fragments>,
    /// Progress of the run, for a model card.
    pub course: TrainingProgress,
    /// Tokens merged into the parameters.
    pub tokens_merged: u64,
    /// Rounds merged into the parameters.
    pub rounds: u64,
    /// True if the run is complete, so that no further merge follows.
    pub is_final: bool,
}

/// Result of a check of the held-out loss for harm.
#[derive(Debug)]
pub enum HarmVerdict {
    /// The loss is normal or cannot be judged; decisions after `seq` may still be rolled back later.
    Well {
        /// Number of the newest decision at the last measurement with a normal loss.
        seq: u64,
    },
    /// The loss rose because of updates that the culprits sent since the last measurement with a normal loss.
    Harm {
        /// Fragments at that measurement, `[P]`.
        from: Vec<FragmentState>,
        /// Number of the newest decision at that measurement.
        after: u64,
        /// The learners whose updates raised the loss.
        culprits: Vec<LearnerId>,
        /// Losses at that measurement and now, in nats per token.
        losses: (f32, f32),
        /// Loss without the culprits' updates, in nats per token.
        without: f32,
    },
    /// The loss rose, and attribution found no single learner; decisions after `seq` may still be rolled back later.
    Unexplained {
        /// Losses at the last measurement with a normal loss and now, in nats per token.
        losses: (f32, f32),
        /// Number of the newest decision now.
        seq: u64,
    },
}

impl EvalSnapshot {
    /// Returns the state of the run after the decision `seq`; `None` while a merge or a rollback is pending.
    pub(super) fn of(syncer: &Syncer, board: &StatusTracker, seq: u64) -> Option<Self> {
        syncer.thetas().filter(|_| !syncer.is_undoing())?;
        Some(Self {
            states: syncer.states().map(FragmentState::without_hat).collect(),
            seq,
            codec: syncer.verifier().codec(),
            fragments: Arc::clone(syncer.fragments()),
            course: TrainingProgress::of(syncer.ledger(), board.losses()),
            tokens_merged: syncer.ledger().clock_tokens(),
            rounds: syncer.rounds_merged(),
            is_final: syncer.is_over(),
        })
    }

    /// Returns Θ as one flat vector, `[layout.len()]`.
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
