//! Several trainers on one GPU, with calls that block until they are done.

mod trainer;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use futures::executor::block_on;
pub use trainer::GpuTrainer;

use super::{Gpu, GpuEngine, GpuError, GpuOptions, GpuSetup, MemoryPlan, Tuned, Tuning, tune};
use crate::engine::EngineError;
use crate::model::{InnerSpec, ModelSpec};
use crate::wire::{ApplyPolicy, Code, DataSpec, ExchangeSpec, RunSpec};

/// Clock in microseconds since an arbitrary time.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Memory savings that change no bit, so that a trainer's results do not depend on the available memory.
const THRIFTS: [MemoryPlan; 2] = [MemoryPlan { host_hat: true, ..MemoryPlan::NONE }, MemoryPlan::EXACT];

/// Factory of trainers that share one GPU and the tuning of its kernels.
///
/// Each trainer takes the memory of a separate engine. This is for native programs only, because code in a browser must
/// not block.
#[derive(Clone)]
pub struct GpuTrainers {
    gpu: Gpu,
    now_us: Clock,
    tunings: Arc<Mutex<Vec<Tuning>>>,
}

impl fmt::Debug for GpuTrainers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuTrainers").field("gpu", self.gpu.facts()).finish_non_exhaustive()
    }
}

impl GpuTrainers {
    /// Opens the GPU that `options` ask for.
    ///
    /// # Errors
    /// Those of [`Gpu::open`].
    pub fn open(options: &GpuOptions, now_us: Clock) -> Result<Self, GpuError> {
        Ok(Self::on(block_on(Gpu::open(options))?, now_us))
    }

    /// Creates a factory on an open GPU.
    #[must_use]
    pub fn on(gpu: Gpu, now_us: Clock) -> Self {
        Self { gpu, now_us, tunings: Arc::default() }
    }

    /// Returns the shared GPU.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Creates a trainer with separate moments and separate parameters, which are initially 0. The first trainer for a
    /// step shape takes longer, because it measures the matrix products of that shape.
    ///
    /// # Errors
    /// Those of [`tune`] and [`GpuEngine::new`], except those of the exchange and of adapters.
    pub fn trainer(&self, model: &ModelSpec, inner: &InnerSpec) -> Result<GpuTrainer, EngineError> {
        let spec = alone(model, inner);
        let matmul = {
            let mut tunings = self.tunings.lock().unwrap_or_else(PoisonError::into_inner);
            let Tuned { matmul, tuning, .. } = block_on(tune(&self.gpu, &spec, &tunings, &*self.now_us))?;
            tunings.retain(|known| !known.is_replaced_by(&tuning));
            tunings.push(tuning);
            matmul
        };
        let now_us = Arc::clone(&self.now_us);
        let setup = GpuSetup {
            matmul,
            frozen: None,
            thrifts: THRIFTS.to_vec(),
            bytes_max: None,
            moments: None,
            now_us: Box::new(move || now_us()),
        };
        let engine = block_on(GpuEngine::new(&self.gpu, &spec, setup))?;
        Ok(GpuTrainer::new(engine, &self.gpu))
    }
}

/// Returns a run without exchange.
fn alone(model: &ModelSpec, inner: &InnerSpec) -> RunSpec {
    let apply = ApplyPolicy::Overwrite;
    RunSpec {
        model: (*model).into(),
        inner: *inner,
        // Many fragments have small bodies, for which the engine allocates memory.
        exchange: ExchangeSpec { fragments: 8, sync_every: 1, block: 256, code: Code::Int4, apply },
        data: DataSpec { token_bytes: 2, masks: false, shards: Vec::new() },
        seed: 0,
        frozen: None,
    }
}
