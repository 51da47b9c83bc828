//! Real training in virtual time: the CPU engine trains a small model on every machine of a
//! [`archipelago_sim::world::World`], under the real syncer and learner cores.
//!
//! A [`Recipe`] has the model, the machines and the budget, and a [`Corpus`] has the text. A recipe always gives the
//! same [`TrainingResult`]. The loss depends on quorum, grace, codes and faults as in reality, but not on the speed or
//! kind of the present machine: all training uses [`archipelago_runtime::engine::cpu::CpuTrainer::fixed`], unless the
//! recipe has its own [`Trainers`], such as those of a GPU. For comparison, [`Recipe::train_baseline`] is synchronous
//! data-parallel training from the same parameters over the same text.

mod attack_stats;
mod cosines;
mod distributed;
mod documents;
mod joining;
mod lockstep;
mod loss_checks;
mod measurement;
mod recipe;
mod trainers;

pub use attack_stats::{AttackStats, Treatment};
pub use cosines::{Cosines, TensorGroup};
pub use documents::{Documents, pieces};
pub use loss_checks::LossCheck;
pub use recipe::{
    Budget, BudgetResult, FinalLosses, JoinerStart, Lookahead, Recipe, Sample, TrainingResult,
    reference_model,
};
pub use trainers::Trainers;

use archipelago_core::data::SplitError;
use archipelago_core::diloco::LeaseError;
use archipelago_core::diloco::syncer::SyncerError;
use archipelago_core::model::ModelError;
use archipelago_runtime::engine::EngineError;
pub use archipelago_sim::corpus::Corpus;
use archipelago_sim::corpus::{CorpusError, WindowReader};
use archipelago_sim::world::Violation;

/// The reason why an experiment failed.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// The text cannot be split into training and held-out tokens.
    #[error(transparent)]
    Split(#[from] SplitError),
    /// The held-out part of the text is shorter than one window.
    #[error("{tokens} held-out tokens, one window takes {needed}: give a longer text")]
    Short {
        /// Number of held-out tokens.
        tokens: usize,
        /// Tokens of a window and its last target.
        needed: usize,
    },
    /// No honest machine, or an empty budget.
    #[error("an experiment needs at least one honest machine and a budget above 0")]
    Nothing,
    /// The recipe has [`JoinerStart::Donor`] and its own [`Trainers`], which cannot donate moments.
    #[error("joiners get the moments of another learner on the CPU only: let them begin with none")]
    Donor,
    /// The shape is invalid, or the optimiser's numbers are out of range.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The syncer rejects the run.
    #[error(transparent)]
    Syncer(#[from] SyncerError),
    /// The corpus has no windows to lease.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// Training failed, for example with too high a learning rate.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// An honest learner stopped before the budget was spent because its training failed.
    #[error("seed {seed}: the learner on machine {machine} stopped at {tokens} tokens: {reason}")]
    Stopped {
        /// The recipe's seed.
        seed: u64,
        /// Index of its machine.
        machine: usize,
        /// Tokens trained by all machines at that time.
        tokens: u64,
        /// The learner's reason.
        reason: String,
    },
    /// The trained parameters have no finite loss: training has diverged.
    #[error("seed {seed}: the held-out loss is {loss}: lower the learning rate")]
    NotFinite {
        /// The recipe's seed.
        seed: u64,
        /// Held-out loss, in nats per token.
        loss: f32,
    },
    /// No machine has trained for a long time; the run will not change any more.
    #[error("seed {seed}: the run stands still at {tokens} tokens")]
    StandsStill {
        /// The recipe's seed.
        seed: u64,
        /// Tokens trained at that time.
        tokens: u64,
    },
    /// A broken invariant, which is a bug of this program.
    #[error("seed {seed}: {violation}")]
    Violation {
        /// The recipe's seed.
        seed: u64,
        /// The broken invariant.
        violation: Violation,
    },
}

impl From<CorpusError> for LabError {
    fn from(error: CorpusError) -> Self {
        match error {
            CorpusError::Split(error) => Self::Split(error),
            CorpusError::Short { tokens, needed } => Self::Short { tokens, needed },
            CorpusError::Engine(error) => Self::Engine(error),
        }
    }
}

#[cfg(test)]
mod tests;
