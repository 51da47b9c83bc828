//! A trainer in host memory together with what the exchange needs to know of it.

use std::num::NonZeroU16;
use std::sync::Arc;

use crate::diloco::{Codec, Fragments, QuantError, Replica, ReplicaError};
use crate::engine::{EngineError, StepStats, Trainer};
use crate::wire::{FragmentId, RunId, RunSpec};

/// Trains, and exchanges fragments of the trained parameters.
pub struct HostEngine<T> {
    run: RunId,
    trainer: T,
    fragments: Arc<Fragments>,
    replica: Replica,
}

/// Why a run cannot be trained here.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The model, its optimiser or the machine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The code of the exchange.
    #[error("the run's exchange makes no sense: {0}")]
    Codec(#[from] QuantError),
    /// A run without fragments.
    #[error("the run has no fragments: it needs at least 1")]
    NoFragments,
    /// The model does not fit.
    #[error(
        "the run needs about {needed_mib} MiB of memory and {available_mib} MiB are free: use a larger machine"
    )]
    Memory {
        /// Memory needed, in MiB.
        needed_mib: u64,
        /// Memory free, in MiB.
        available_mib: u64,
    },
}

impl<T: Trainer> HostEngine<T> {
    /// Splits the parameters of `trainer` as `spec` says. They are worth nothing before each fragment
    /// was loaded.
    ///
    /// # Errors
    /// [`BuildError::Codec`] and [`BuildError::NoFragments`].
    pub fn new(run: RunId, spec: &RunSpec, trainer: T) -> Result<Self, BuildError> {
        let count = NonZeroU16::new(spec.exchange.fragments).ok_or(BuildError::NoFragments)?;
        let codec = Codec::new(&spec.exchange)?;
        let fragments = Arc::new(Fragments::plan(trainer.layout(), count));
        let replica = Replica::new(Arc::clone(&fragments), codec, spec.exchange.apply);
        Ok(Self { run, trainer, fragments, replica })
    }

    /// The run that it was built for.
    #[must_use]
    pub fn run(&self) -> RunId {
        self.run
    }

    /// The split of the parameters.
    #[must_use]
    pub fn fragments(&self) -> &Arc<Fragments> {
        &self.fragments
    }

    /// The share of the parameters that `fragment` has, 0 to 1.
    #[must_use]
    pub fn share(&self, fragment: FragmentId) -> f64 {
        self.fragments.len(fragment) as f64 / self.trainer.layout().len() as f64
    }

    /// What trains.
    #[must_use]
    pub fn trainer(&self) -> &T {
        &self.trainer
    }

    /// One optimiser step, see [`Trainer::step`].
    ///
    /// # Errors
    /// Those of [`Trainer::step`].
    pub fn step(&mut self, tokens: &[u32], lr: f32) -> Result<StepStats, EngineError> {
        self.trainer.step(tokens, lr)
    }

    /// The coded progress on `fragment`, see [`Replica::encode`].
    ///
    /// # Errors
    /// Those of [`Replica::encode`].
    pub fn encode(&mut self, fragment: FragmentId) -> Result<Vec<u8>, ReplicaError> {
        self.replica.encode(fragment, self.trainer.params())
    }

    /// Takes in a merged change, see [`Replica::apply`].
    ///
    /// # Errors
    /// Those of [`Replica::apply`].
    pub fn apply(&mut self, fragment: FragmentId, body: &[u8], included: bool) -> Result<(), ReplicaError> {
        self.replica.apply(fragment, body, included, self.trainer.params_mut())
    }

    /// Takes in a whole Θ̂, see [`Replica::load`].
    ///
    /// # Errors
    /// Those of [`Replica::load`].
    pub fn load(
        &mut self,
        fragment: FragmentId,
        values: &[f32],
        keep: bool,
        included: bool,
    ) -> Result<(), ReplicaError> {
        self.replica.load(fragment, values, keep, included, self.trainer.params_mut())
    }
}
