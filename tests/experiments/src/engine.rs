//! Engine that trains the models of a table.

use std::sync::Arc;

use crate::lab::Trainers;
use clap::ValueEnum;
use serde::Serialize;

use crate::SimulateError;

/// Kind of engine.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EngineChoice {
    /// CPU; results are bit-identical on every machine
    #[default]
    Cpu,
    /// GPU, even a software one that runs on the CPU
    Gpu,
}

/// Engine settings.
#[derive(clap::Args, Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct EngineArgs {
    /// Training engine: cpu, or gpu if the program was built with it
    #[arg(long, value_name = "KIND", value_enum, default_value_t, help_heading = "Training")]
    // Omitted for the CPU, so that keys of runs cached before this setting existed stay valid.
    #[serde(skip_serializing_if = "EngineArgs::is_cpu")]
    pub engine: EngineChoice,
    /// Part of the name of the GPU [default: the best one]
    #[arg(long, value_name = "NAME", help_heading = "Training")]
    #[serde(skip)]
    pub adapter: Option<String>,
}

impl EngineArgs {
    fn is_cpu(engine: &EngineChoice) -> bool {
        *engine == EngineChoice::Cpu
    }

    /// Returns the source of trainers for the table's recipes; `None` for the default one.
    ///
    /// # Errors
    /// `Refused`: there is no such GPU, or this program was built without the GPU engine.
    pub fn trainers(
        &self,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Option<Arc<dyn Trainers>>, SimulateError> {
        match self.engine {
            EngineChoice::Cpu => Ok(None),
            EngineChoice::Gpu => gpu::trainers(self.adapter.as_deref(), progress).map(Some),
        }
    }
}

#[cfg(feature = "gpu")]
mod gpu {
    use std::sync::Arc;
    use std::time::Instant;

    use crate::lab::Trainers;
    use archipelago_core::model::{InnerSpec, ModelSpec};
    use archipelago_runtime::engine::gpu::{AdapterFacts, GpuOptions, GpuTrainers};
    use archipelago_runtime::engine::{EngineError, Trainer};

    use crate::SimulateError;

    /// Source of trainers on one GPU, shared by all runs.
    #[derive(Debug)]
    struct OnGpu(GpuTrainers);

    impl Trainers for OnGpu {
        fn trainer(&self, model: &ModelSpec, inner: &InnerSpec) -> Result<Box<dyn Trainer>, EngineError> {
            Ok(Box::new(self.0.trainer(model, inner)?))
        }

        fn check(&self) -> Result<(), EngineError> {
            Ok(self.0.gpu().check()?)
        }
    }

    pub fn trainers(
        adapter: Option<&str>,
        progress: &mut dyn FnMut(&str),
    ) -> Result<Arc<dyn Trainers>, SimulateError> {
        let adapter = adapter.map(str::to_owned);
        let options = GpuOptions { adapter, software: true, ..GpuOptions::default() };
        let trainers = GpuTrainers::open(&options, clock()).map_err(SimulateError::refused)?;
        let AdapterFacts { name, kind, driver, .. } = trainers.gpu().facts();
        progress(&format!("training on {name} ({kind}, {driver})"));
        Ok(Arc::new(OnGpu(trainers)))
    }

    #[expect(clippy::disallowed_methods, reason = "how long a step takes is no part of what is simulated")]
    fn clock() -> archipelago_runtime::engine::gpu::Clock {
        let begun = Instant::now();
        Arc::new(move || begun.elapsed().as_micros() as u64)
    }
}

#[cfg(not(feature = "gpu"))]
mod gpu {
    use std::sync::Arc;

    use crate::lab::Trainers;

    use crate::SimulateError;

    pub fn trainers(_: Option<&str>, _: &mut dyn FnMut(&str)) -> Result<Arc<dyn Trainers>, SimulateError> {
        Err(SimulateError::refused(
            "this program was built without the engine for GPUs: build it with --features gpu, or take --engine cpu",
        ))
    }
}
