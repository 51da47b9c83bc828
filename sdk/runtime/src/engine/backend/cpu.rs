//! Backend of the CPU engine, with helpers if there are any.

use std::rc::Rc;

use super::{Backend, Setup};
use crate::engine::cpu::CpuTrainer;
use crate::engine::gpu::GpuError;
use crate::engine::{DataParallel, EngineError, HostEngine, OptimiserState, Trainer};
use crate::model::ModelSpec;
use crate::wire::RunSpec;

/// The processor: always present, and never lost.
pub struct CpuBackend;

impl Backend for CpuBackend {
    type Engine = DataParallel;

    /// θ, gradient, two moments, Θ̂ and reported progress.
    const HOST_COPIES: u64 = 6;

    async fn open(_: &Setup) -> Result<Self, GpuError> {
        Ok(Self)
    }

    /// # Errors
    /// Those of [`CpuTrainer::on`] and [`HostEngine::new`].
    async fn build(
        &mut self,
        setup: &Setup,
        spec: &RunSpec,
        moments: Option<OptimiserState>,
    ) -> Result<DataParallel, EngineError> {
        let model = ModelSpec::of(&spec.model)?;
        let mut trainer = CpuTrainer::on(setup.frozen.clone(), &model, &spec.inner, setup.options.threads)?;
        // Moments of another model are ignored.
        let len = trainer.layout().len();
        if let Some(moments) = moments.filter(|moments| moments.adamw(len).is_some()) {
            trainer.resume(&moments)?;
        }
        let host = HostEngine::new(spec, trainer)?;
        // Helpers report no expert loads and hold no frozen weights, so such models train without them.
        let is_alone = model.experts.is_some() || model.lora.is_some();
        let helpers = if !is_alone { setup.helpers.start(spec) } else { Vec::new() };
        Ok(DataParallel::new(host, helpers, Rc::clone(&setup.now_us)))
    }
}
