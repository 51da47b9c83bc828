//! Trainers on a GPU, several of them side by side, for who waits for each call.

mod trainer;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use futures::executor::block_on;
pub use trainer::GpuTrainer;

use super::{Gpu, GpuEngine, GpuError, GpuOptions, GpuSetup, Thrift, Tuned, Tuning, tune};
use crate::engine::EngineError;
use crate::model::{InnerSpec, ModelSpec};
use crate::wire::{ApplyPolicy, Code, DataSpec, ExchangeSpec, RunSpec};

/// Tells microseconds since any moment.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Ways to take less memory, of which none changes a bit: it must not be the memory that decides what a trainer finds.
const THRIFTS: [Thrift; 2] = [Thrift { host_hat: true, ..Thrift::NONE }, Thrift::EXACT];

/// Makes trainers that share one GPU, and what was found out about its kernels.
///
/// Each takes the memory of an engine of its own. It serves programs of an operating system: in a browser nothing may
/// wait as this does.
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

    /// Of a GPU that is open.
    #[must_use]
    pub fn on(gpu: Gpu, now_us: Clock) -> Self {
        Self { gpu, now_us, tunings: Arc::default() }
    }

    /// What they run on.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// A trainer of its own parameters, which are 0, and of its own moments. The first for steps of a shape takes a
    /// moment longer: it finds out how to multiply matrices of that shape.
    ///
    /// # Errors
    /// Those of [`tune`] and [`GpuEngine::new`], but for what an exchange and adapters bring about.
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

/// A run in which nothing is exchanged.
fn alone(model: &ModelSpec, inner: &InnerSpec) -> RunSpec {
    let apply = ApplyPolicy::Overwrite;
    RunSpec {
        model: (*model).into(),
        inner: *inner,
        // Many fragments have small bodies, for which the engine takes memory.
        exchange: ExchangeSpec { fragments: 8, sync_every: 1, block: 256, code: Code::Int4, apply },
        data: DataSpec { token_bytes: 2, masks: false, shards: Vec::new() },
        seed: 0,
        frozen: None,
    }
}
