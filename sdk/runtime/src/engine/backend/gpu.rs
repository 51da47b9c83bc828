//! Building engines on a GPU: it finds the device, remembers how its kernels were chosen, and opens it anew.

use std::rc::Rc;

use super::{Backend, Setup};
use crate::engine::gpu::{
    ChoiceError, Gpu, GpuEngine, GpuError, GpuOptions, GpuSetup, Thrift, Trial, Tuned, Tuning, tune,
};
use crate::engine::{EngineError, EngineKind, OptimiserState};
use crate::wire::RunSpec;

/// One GPU, and what is known of it.
pub struct GpuBackend {
    pub gpu: Gpu,
    /// What was found out about GPUs, in earlier sessions too.
    pub tunings: Vec<Tuning>,
    /// How the kernels were chosen at the last build; empty where it was known.
    pub trials: Vec<Trial>,
    /// Why they were chosen anew then, although something was known.
    pub stale: Option<ChoiceError>,
    /// What became of its units for matrices when they were tried, if it lists them and cannot use them.
    pub matrices_fault: Option<Box<GpuError>>,
}

impl GpuBackend {
    /// Builds on `gpu`, of which `tunings` may say something.
    pub fn new(gpu: Gpu, tunings: Vec<Tuning>) -> Self {
        Self { gpu, tunings, trials: Vec::new(), stale: None, matrices_fault: None }
    }

    /// The kernels for `spec`. A driver may list units for matrices, refuse their kernel, and be of no use from then
    /// on: then the device is opened anew and multiplies whole floats, for as long as this lives.
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

/// A program on the CPU only if it must be a GPU: the CPU engine is faster.
async fn open(setup: &Setup, whole_products: bool) -> Result<Gpu, GpuError> {
    let options = &setup.options;
    let software = options.kind == EngineKind::Gpu;
    let adapter = options.adapter.clone();
    Gpu::open(&GpuOptions { adapter, software, whole_products, ..GpuOptions::default() }).await
}

impl Backend for GpuBackend {
    type Engine = GpuEngine;

    /// Two moments, and Θ̂ where the device has no room for it.
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
        let (thrifts, bytes_max) = (Thrift::LADDER.to_vec(), setup.options.gpu_bytes_max());
        let now_us = Box::new(move || now_us());
        let setup = GpuSetup { matmul, frozen, thrifts, bytes_max, moments, now_us };
        GpuEngine::new(&self.gpu, spec, setup).await
    }
}
