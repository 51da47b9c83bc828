//! What a kind of engine has to say of itself, so that an [`super::EngineBuilder`] can build it.

mod cpu;
mod gpu;

use std::rc::Rc;
use std::sync::Arc;

pub use cpu::CpuBackend;
pub use gpu::GpuBackend;

use super::gpu::GpuError;
use super::{Engine, EngineError, EngineOptions, Helpers, OptimiserState};
use crate::model::FrozenWeights;
use crate::wire::RunSpec;

/// Finds the device of one kind of engine, and builds engines on it, one after the other.
pub trait Backend: Sized {
    /// What it builds.
    type Engine: Engine;

    /// Copies of the parameters that an engine holds in host memory.
    const HOST_COPIES: u64;

    /// Looks for the device that `setup` asks for.
    ///
    /// # Errors
    /// [`GpuError`]: there is no such device.
    async fn open(setup: &Setup) -> Result<Self, GpuError>;

    /// Whether the device is gone.
    fn is_lost(&self) -> bool {
        false
    }

    /// Opens the device anew.
    ///
    /// # Errors
    /// [`GpuError`]: there is no such device at the moment.
    async fn renew(&mut self, setup: &Setup) -> Result<(), GpuError> {
        let _ = setup;
        Ok(())
    }

    /// An engine for the run that `spec` describes, the one before being gone.
    ///
    /// # Errors
    /// [`EngineError::Gpu`] if the device cannot train the model; others if no engine can, or not now.
    async fn build(
        &mut self,
        setup: &Setup,
        spec: &RunSpec,
        moments: Option<OptimiserState>,
    ) -> Result<Self::Engine, EngineError>;
}

/// What all engines are built with.
pub struct Setup {
    /// What was asked for.
    pub options: EngineOptions,
    /// Microseconds since any moment.
    pub now_us: Rc<dyn Fn() -> u64>,
    /// For engines on the CPU.
    pub helpers: Helpers,
    /// For runs that train adapters.
    pub frozen: Option<Arc<FrozenWeights>>,
}
