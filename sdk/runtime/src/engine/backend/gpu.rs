//! Backend of the GPU engine. It finds the device, remembers the choice of kernels, and reopens the device.

use std::rc::Rc;

use super::{Backend, Setup};
use crate::engine::gpu::{
    ChoiceError, Gpu, GpuEngine, GpuError, GpuOptions, GpuSetup, MemoryPlan, Trial, Tuned, Tuning, tune,
};
use crate::engine::{EngineError, EngineKind, OptimiserState};
use crate::wire::RunSpec;

/// One GPU with its known tunings.
pub struct GpuBackend {
    pub gpu: Gpu,
    /// Tuning results for GPUs, including those of earlier sessions.
    pub tunings: Vec<Tuning>,
    /// Trials that chose the kernels at the last build; empty if the choice was already known.
    pub trials: Vec<Trial>,
    /// Reason why the last build chose the kernels again, although an earlier choice was known.
    pub stale: Option<ChoiceError>,
    /// Fault of the matrix units when they were tried, if the GPU lists them but cannot use them.
    pub matrices_fault: Option<Box<GpuError>>,
}

impl GpuBackend {
    /// Creates a backend on `gpu`, for which `tunings` may hold a choice.
    pub fn new(gpu: Gpu, tunings: Vec<Tuning>) -> Self {
        Self { gpu, tunings, trials: Vec::new(), stale: None, matrices_fault: None }
    }

    /// Chooses the kernels for `spec`. A driver may list matrix units, refuse their kernel, and be unusable from then
    /// on. The device is then reopened and multiplies 32-bit floats for the lifetime of this backend.
    async fn tune(&mut self, setup: &Setup, spec: &RunSpec) -> Result<Tuned, EngineError> {
        match tune(&self.gpu, spec, &self.tunings, &*setup.now_us).await {
            Err(_) if self.gpu.has_matrices() && self.is_lost() => {
                self.matrices_fault = self.gpu.check().err().map(Box::new);
                self.renew(setup).await?;
                tune(&self.gpu, spec, &self.tunings, &*setup.now_us).await
            }
            tuned => tuned,
        }
    }
}

/// Opens the device. A software GPU is accepted only if a GPU is required, because the CPU engine is faster.
async fn open(setup: &Setup, whole_products: bool) -> Result<Gpu, GpuError> {
    let options = &setup.options;
    let software = options.kind == EngineKind::Gpu;
    let adapter = options.adapter.clone();
    Gpu::open(&GpuOptions { adapter, software, whole_products, ..GpuOptions::default() }).await
}

impl Backend for GpuBackend {
    type Engine = GpuEngine;

    /// Two moments, and Θ̂ if the device has no room for it.
    const HOST_COPIES: u64 = 3;

    async fn open(setup: &Setup) -> Result<Self, GpuError> {
        Ok(Self::new(open(setup, setup.options.whole_products).await?, setup.options.tunings.clone()))
    }

    fn is_lost(&self) -> bool {
        self.gpu.check().is_err()
    }

    async fn renew(&mut self, setup: &Setup) -> Result<(), GpuError> {
        let whole_products = setup.options.whole_products || self.matrices_fault.is_some();
        self.gpu = open(setup, whole_products).await?;
        Ok(())
    }

    /// # Errors
    /// Those of [`tune`] and [`GpuEngine::new`].
    async fn build(
        &mut self,
        setup: &Setup,
        spec: &RunSpec,
        moments: Option<OptimiserState>,
    ) -> Result<GpuEngine, EngineError> {
        let Tuned { matmul, tuning, trials, stale } = self.tune(setup, spec).await?;
        self.tunings.retain(|known| !known.is_replaced_by(&tuning));
        self.tunings.push(tuning);
        (self.trials, self.stale) = (trials, stale);
        let matmul = if setup.options.half_weights { matmul.with_half_weights() } else { matmul };
        let now_us = Rc::clone(&setup.now_us);
        let frozen = setup.frozen.clone();
        let (thrifts, bytes_max) = (MemoryPlan::LADDER.to_vec(), setup.options.gpu_bytes_max());
        let now_us = Box::new(move || now_us());
        let setup = GpuSetup { matmul, frozen, thrifts, bytes_max, moments, now_us };
        GpuEngine::new(&self.gpu, spec, setup).await
    }
}
