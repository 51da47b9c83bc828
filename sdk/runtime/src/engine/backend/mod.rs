//! Interface through which an [`super::EngineBuilder`] builds one kind of engine.

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

/// Builder of engines of one kind: finds the device, then builds engines on it, one after the other.
pub trait Backend: Sized {
    /// Type of the engines.
    type Engine: Engine;

    /// Number of parameter copies that an engine holds in host memory.
    const HOST_COPIES: u64;

    /// Finds the device that `setup` asks for.
    ///
    /// # Errors
    /// [`GpuError`]: there is no such device.
    async fn open(setup: &Setup) -> Result<Self, GpuError>;

    /// Returns true if the device is gone.
    fn is_lost(&self) -> bool {
        false
    }

    /// Reopens the device.
    ///
    /// # Errors
    /// [`GpuError`]: there is no such device at present.
    async fn renew(&mut self, setup: &Setup) -> Result<(), GpuError> {
        let _ = setup;
        Ok(())
    }

    /// Builds an engine for the run that `spec` describes. The previous engine must be gone.
    ///
    /// # Errors
    /// [`EngineError::Gpu`] if the device cannot train the model; other errors if no engine can, or if none can at
    /// present.
    async fn build(
        &mut self,
        setup: &Setup,
        spec: &RunSpec,
        moments: Option<OptimiserState>,
    ) -> Result<Self::Engine, EngineError>;
}

/// Settings shared by all engines.
pub struct Setup {
    /// Options from the user.
    pub options: EngineOptions,
    /// Clock in microseconds since an arbitrary time.
    pub now_us: Rc<dyn Fn() -> u64>,
    /// Helpers of CPU engines.
    pub helpers: Helpers,
    /// Frozen weights of runs that train adapters.
    pub frozen: Option<Arc<FrozenWeights>>,
}
