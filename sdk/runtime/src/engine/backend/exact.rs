//! Building the engine whose steps have the same bits everywhere.

use super::{Backend, Setup};
use crate::engine::cpu::CpuTrainer;
use crate::engine::gpu::GpuError;
use crate::engine::{EngineError, HostEngine, OptimiserState};
use crate::model::ModelSpec;
use crate::wire::RunSpec;

/// One thread of the processor.
pub struct ExactBackend;

impl Backend for ExactBackend {
    type Engine = HostEngine<CpuTrainer>;

    /// θ, gradient, two moments, Θ̂, what was reported, and two states that it may be asked for.
    const HOST_COPIES: u64 = 14;

    async fn open(_: &Setup) -> Result<Self, GpuError> {
        Ok(Self)
    }

    /// It always begins with moments of zero: whoever looks at what it did knows nothing of others.
    ///
    /// # Errors
    /// Those of [`CpuTrainer::fixed_on`] and [`HostEngine::new`].
    async fn build(
        &mut self,
        setup: &Setup,
        spec: &RunSpec,
        _: Option<OptimiserState>,
    ) -> Result<Self::Engine, EngineError> {
        let model = ModelSpec::of(&spec.model)?;
        let trainer = CpuTrainer::fixed_on(setup.frozen.clone(), &model, &spec.inner)?;
        HostEngine::new(spec, trainer)
    }
}
