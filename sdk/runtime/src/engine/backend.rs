//! Interface between an [`super::EngineBuilder`] and one kind of engine, with its CPU and GPU implementations.

use std::rc::Rc;
use std::sync::Arc;

use super::cpu::CpuTrainer;
use super::gpu::{
    ChoiceError, Gpu, GpuEngine, GpuError, GpuOptions, GpuSetup, MemoryPlan, Trial, TunedKernels, Tuning,
    tune,
};
use super::{
    DataParallel, Engine, EngineError, EngineKind, EngineOptions, Helpers, HostEngine, OptimiserState,
};
use crate::model::{FrozenWeights, ModelSpec};
use crate::wire::RunSpec;

/// Builder of engines of one kind. It finds the device once and then builds engines on it, one after the other.
pub trait Backend: Sized {
    /// Type of the engines.
    type Engine: Engine;

    /// Number of copies of the parameters that an engine holds in host memory, gradient and moments included.
    const HOST_COPIES: u64;

    /// Finds the device that the options in `setup` describe.
    ///
    /// # Errors
    /// [`GpuError`] if no such device can be opened.
    async fn open(setup: &Setup) -> Result<Self, GpuError>;

    /// Returns true if the device is gone.
    fn is_lost(&self) -> bool {
        false
    }

    /// Reopens the device after a loss.
    ///
    /// # Errors
    /// [`GpuError`] if the device cannot be opened at present.
    async fn renew(&mut self, setup: &Setup) -> Result<(), GpuError> {
        let _ = setup;
        Ok(())
    }

    /// Builds an engine for the run that `spec` describes, and restores the optimiser state `moments`. The caller must
    /// have dropped the previous engine.
    ///
    /// # Errors
    /// [`EngineError::Gpu`] if this device cannot train the model, so that another kind of engine may. Other errors
    /// apply to every kind of engine, or are temporary.
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
    /// Clock in microseconds since an arbitrary origin.
    pub now_us: Rc<dyn Fn() -> u64>,
    /// Factory of the helpers of CPU engines.
    pub helpers: Helpers,
    /// Frozen weights of runs that train adapters.
    pub frozen: Option<Arc<FrozenWeights>>,
}

/// The processor of this machine. It is always present and never lost.
pub struct CpuBackend;

impl Backend for CpuBackend {
    type Engine = DataParallel;

    /// Number of copies: θ, gradient, two moments, Θ̂ and reported progress.
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
        // Moments of another model or optimiser are ignored.
        if let Some(moments) = moments.filter(|moments| trainer.fits(moments)) {
            trainer.resume(&moments)?;
        }
        let host = HostEngine::new(spec, trainer)?;
        // Helpers report no expert loads and hold no frozen weights, so such models train without them.
        let is_alone = model.experts.is_some() || model.lora.is_some();
        let helpers = if !is_alone { setup.helpers.start(spec) } else { Vec::new() };
        Ok(DataParallel::new(host, helpers, Rc::clone(&setup.now_us)))
    }
}

/// One GPU and the tuning results known for it.
pub struct GpuBackend {
    pub gpu: Gpu,
    /// Tuning results for GPUs, including results of earlier processes.
    pub tunings: Vec<Tuning>,
    /// Trials that chose the kernels at the last build; empty if the choice was already known.
    pub trials: Vec<Trial>,
    /// Reason why the last build tuned the kernels again although it had a tuning result for this shape.
    pub stale: Option<ChoiceError>,
    /// Error of the matrix units at their trial, if the GPU lists matrix units but cannot use them.
    pub matrices_fault: Option<Box<GpuError>>,
}

impl GpuBackend {
    /// Creates a backend on `gpu`. `tunings` are results of earlier builds and may include one for this GPU.
    pub fn new(gpu: Gpu, tunings: Vec<Tuning>) -> Self {
        Self { gpu, tunings, trials: Vec::new(), stale: None, matrices_fault: None }
    }

    /// Chooses the kernels for `spec`. Some drivers list matrix units, reject the kernel that uses them, and are then
    /// lost. In that case the device is reopened, and this backend multiplies 32-bit floats from then on.
    async fn tune(&mut self, setup: &Setup, spec: &RunSpec) -> Result<TunedKernels, EngineError> {
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

/// Opens the device. A software GPU is opened only for [`EngineKind::Gpu`], because the CPU engine is faster.
async fn open(setup: &Setup, whole_products: bool) -> Result<Gpu, GpuError> {
    let options = &setup.options;
    let software = options.kind == EngineKind::Gpu;
    let adapter = options.adapter.clone();
    Gpu::open(&GpuOptions { adapter, software, whole_products, ..GpuOptions::default() }).await
}

impl Backend for GpuBackend {
    type Engine = GpuEngine;

    /// Number of copies: two moments, and Θ̂ if the device lacks memory for it.
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
        let TunedKernels { matmul, tuning, trials, stale } = self.tune(setup, spec).await?;
        self.tunings.retain(|known| !known.is_replaced_by(&tuning));
        self.tunings.push(tuning);
        (self.trials, self.stale) = (trials, stale);
        let matmul = if setup.options.half_weights { matmul.with_half_weights() } else { matmul };
        let now_us = Rc::clone(&setup.now_us);
        let frozen = setup.frozen.clone();
        let (memory_plans, bytes_max) = (MemoryPlan::LADDER.to_vec(), setup.options.gpu_bytes_max());
        let now_us = Box::new(move || now_us());
        let setup = GpuSetup { matmul, frozen, memory_plans, bytes_max, moments, now_us };
        GpuEngine::new(&self.gpu, spec, setup).await
    }
}
