//! Real training in virtual time: a small model, trained by the CPU engine on every machine of a
//! [`crate::world::World`], under the real syncer and learner cores.
//!
//! A [`Recipe`] says what is trained, on which machines and for how long; a [`Corpus`] what on. One
//! recipe leads to one [`Outcome`]: loss answers to quorum, grace, codes and faults as it would in the
//! world, and nothing depends on how fast this machine is, or which one it is: all training here is
//! [`archipelago_runtime::engine::cpu::CpuTrainer::fixed`], unless the recipe brings [`Trainers`] of its own, as of a
//! GPU. Beside it, [`Recipe::train_alone`] is
//! synchronous data-parallel training from the same parameters over the same text.

mod alone;
mod average;
mod corpus;
mod cosines;
mod documents;
mod examiner;
mod idler;
mod joining;
mod lockstep;
mod noticed;
mod reader;
mod recipe;
mod shown;
mod together;
mod trainers;

pub use corpus::Corpus;
pub use cosines::{Cosines, Part};
pub use documents::{Documents, pieces};
pub use noticed::{Noticed, Treated};
pub(crate) use reader::Reader;
pub use recipe::{Budget, Ends, Joining, Lookahead, Outcome, Recipe, Sample, Spent, reference_model};
pub use shown::MachineShown;
pub use trainers::Trainers;

use crate::world::Violation;
use archipelago_core::data::SplitError;
use archipelago_core::diloco::LeaseError;
use archipelago_core::diloco::syncer::SyncerError;
use archipelago_core::model::ModelError;
use archipelago_runtime::engine::EngineError;

/// Why an experiment led to nothing.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// The text cannot be cut into training and held-out tokens.
    #[error(transparent)]
    Split(#[from] SplitError),
    /// The held-out part of the text is shorter than one window.
    #[error("{tokens} held-out tokens, one window takes {needed}: give a longer text")]
    Short {
        /// Held-out tokens there are.
        tokens: usize,
        /// Tokens of a window and its last target.
        needed: usize,
    },
    /// No honest machine, or a budget of nothing.
    #[error("an experiment needs at least one honest machine and a budget above 0")]
    Nothing,
    /// Moments are handed on, and not on the CPU.
    #[error("joiners get the moments of another learner on the CPU only: let them begin with none")]
    Donor,
    /// The shape is no model, or the optimiser's numbers are out of range.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The run cannot be led.
    #[error(transparent)]
    Syncer(#[from] SyncerError),
    /// The corpus has nothing to lease.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// Training failed, as with a learning rate that is too high.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// An honest learner stopped before the budget was spent, as its training failed.
    #[error("seed {seed}: the learner on machine {machine} stopped at {tokens} tokens: {reason}")]
    Stopped {
        /// The recipe's seed.
        seed: u64,
        /// Index of its machine.
        machine: usize,
        /// Tokens trained by all machines by then.
        tokens: u64,
        /// What it said.
        reason: String,
    },
    /// The parameters that training led to have no loss: it has blown up.
    #[error("seed {seed}: the held-out loss is {loss}: lower the learning rate")]
    NotFinite {
        /// The recipe's seed.
        seed: u64,
        /// Held-out loss, in nats per token.
        loss: f32,
    },
    /// No machine has trained for a long time: nothing will change any more.
    #[error("seed {seed}: the run stands still at {tokens} tokens")]
    StandsStill {
        /// The recipe's seed.
        seed: u64,
        /// Tokens trained by then.
        tokens: u64,
    },
    /// An invariant is broken: a fault of this program.
    #[error("seed {seed}: {violation}")]
    Violation {
        /// The recipe's seed.
        seed: u64,
        /// Which one.
        violation: Violation,
    },
}

#[cfg(test)]
mod tests;
