//! The parameters as others get them, to measure or to take home.

use std::sync::Arc;

use archipelago_core::diloco::syncer::Syncer;
use archipelago_core::diloco::{Codec, FragmentState, Fragments, LearnerId};

use crate::llama::Course;
use crate::status::Board;

/// Parameters to measure, and where the run stood.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The fragments without Θ̂, `[P]`, shared with the syncer.
    pub states: Vec<FragmentState>,
    /// The newest decision by then.
    pub seq: u64,
    /// How bodies are coded.
    pub codec: Codec,
    /// How they lie in the flat vector.
    pub fragments: Arc<Fragments>,
    /// How far the run had come, for people.
    pub course: Course,
    /// Tokens merged into it.
    pub tokens_merged: u64,
    /// Rounds merged into it.
    pub rounds: u64,
    /// Whether the run is complete, so that nothing will ever be merged into it again.
    pub is_final: bool,
}

/// What was found out about a held-out loss.
#[derive(Debug)]
pub enum Judgement {
    /// It is usual, or nothing can be said of it; what was decided after `seq` may have to be undone later.
    Well {
        /// The newest decision at the last good moment.
        seq: u64,
    },
    /// It rose, by what these sent since all was well.
    Harm {
        /// The fragments when all was well, `[P]`.
        from: Vec<FragmentState>,
        /// The newest decision by then.
        after: u64,
        /// Who that is.
        culprits: Vec<LearnerId>,
        /// The loss when all was well, and what it is, in nats per token.
        losses: (f32, f32),
        /// What it would be without them.
        without: f32,
    },
    /// It rose, and by no single learner's doing; what is decided after `seq` may have to be undone later.
    Unexplained {
        /// As above.
        losses: (f32, f32),
        /// The newest decision by now.
        seq: u64,
    },
}

impl Subject {
    /// The run as it is, after the decision `seq`; `None` while anything is being merged, or is to be undone.
    pub(super) fn of(syncer: &Syncer, board: &Board, seq: u64) -> Option<Self> {
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

    /// Θ, flat, `[layout.len()]`.
    #[must_use]
    pub fn theta(&self) -> Vec<f32> {
        let mut flat = vec![0.0; self.params()];
        for (fragment, state) in self.fragments.ids().zip(&self.states) {
            self.fragments.scatter(fragment, &state.theta, &mut flat);
        }
        flat
    }

    /// Values of Θ.
    #[must_use]
    pub fn params(&self) -> usize {
        self.states.iter().map(|state| state.theta.len()).sum()
    }
}
