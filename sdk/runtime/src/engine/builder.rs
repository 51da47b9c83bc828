//! Choice of the engine. The builder finds the device, reopens it after a loss, and falls back to the CPU.

use std::num::NonZeroUsize;
use std::rc::Rc;
use std::sync::Arc;

use super::backend::{GpuBackend, Setup};
use super::gpu::{ChoiceError, Gpu, GpuEngine, GpuError, Room, Trial, Tuning};
use super::registry::AnyBackend;
use super::{AnyEngine, EngineError, EngineKind, Helpers, OptimiserState, frozen_for};
use crate::model::{FrozenWeights, ModelSpec, layout};
use crate::wire::RunSpec;

/// Number of device losses within [`LOSSES_US`] after which [`EngineKind::Auto`] switches to the CPU.
const LOSSES_MAX: usize = 3;
/// Ten minutes, in microseconds.
const LOSSES_US: u64 = 600_000_000;

/// Reason why [`EngineKind::Auto`] trains on the CPU, in one sentence.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Fallback {
    /// No GPU can train the model.
    #[error("training on the CPU: {0}")]
    Gpu(GpuError),
    /// The GPU was lost repeatedly.
    #[error("training on the CPU: the GPU was lost {losses} times within ten minutes; see its driver")]
    Losses {
        /// Number of losses.
        losses: usize,
    },
}

/// Builder of a learner's engines, one after the other. It finds the device and reopens it after a loss. With
/// [`EngineKind::Auto`] it falls back to the next kind of engine if necessary.
pub struct EngineBuilder {
    setup: Setup,
    backend: AnyBackend,
    fallback: Option<Fallback>,
    /// Times of the device losses within the last [`LOSSES_US`], in microseconds.
    losses_us: Vec<u64>,
}

impl EngineBuilder {
    /// Finds the device that `options` describe. `now_us` returns microseconds since an arbitrary origin.
    ///
    /// # Errors
    /// Those of [`Gpu::open`], for [`EngineKind::Gpu`] only.
    pub async fn open(options: EngineOptions, now_us: Rc<dyn Fn() -> u64>) -> Result<Self, GpuError> {
        let kind = options.kind;
        let setup = Setup { options, now_us, helpers: Helpers::default(), frozen: None };
        let kinds = if kind == EngineKind::Auto { AnyBackend::KINDS } else { &[kind] };
        let (backend, fallback) = first(kinds, &setup).await?;
        Ok(Self { setup, backend, fallback, losses_us: Vec::new() })
    }

    /// Returns the GPU, or `None` on the CPU.
    #[must_use]
    pub fn gpu(&self) -> Option<&Gpu> {
        self.on_gpu().map(|backend| &backend.gpu)
    }

    /// Returns the reason for the fallback from a GPU to the CPU, if there was one.
    #[must_use]
    pub fn fallback(&self) -> Option<&Fallback> {
        self.fallback.as_ref()
    }

    /// Returns the trials that chose the kernels of matrix products in the last build. The list is empty before the
    /// first build, on the CPU, and if a stored tuning result was used.
    #[must_use]
    pub fn trials(&self) -> &[Trial] {
        self.on_gpu().map_or(&[], |backend| &backend.trials)
    }

    /// Returns the reason why the last build tuned the kernels again although it had a tuning result for this shape.
    #[must_use]
    pub fn stale(&self) -> Option<&ChoiceError> {
        self.on_gpu().and_then(|backend| backend.stale.as_ref())
    }

    /// Returns the error of the GPU's matrix units, if the GPU lists matrix units but cannot use them. The engine then
    /// multiplies 32-bit floats, as with [`EngineOptions::whole_products`].
    #[must_use]
    pub fn matrices_fault(&self) -> Option<&GpuError> {
        self.on_gpu().and_then(|backend| backend.matrices_fault.as_deref())
    }

    /// Returns the tuning results to pass as [`EngineOptions::tunings`] in the next process.
    #[must_use]
    pub fn tunings(&self) -> &[Tuning] {
        self.on_gpu().map_or(&self.setup.options.tunings, |backend| &backend.tunings)
    }

    fn on_gpu(&self) -> Option<&GpuBackend> {
        if let AnyBackend::Gpu(backend) = &self.backend { Some(backend) } else { None }
    }

    /// Sets the frozen weights for all engines built from now on. Runs that train the whole model ignore them; runs
    /// that train adapters need them.
    pub fn frozen(&mut self, weights: Arc<FrozenWeights>) {
        self.setup.frozen = Some(weights);
    }

    /// Builds an engine for the run that `spec` describes. The caller must have dropped the previous engine. `moments`
    /// restores the optimiser state, for instance after the device of the previous engine was lost.
    ///
    /// # Errors
    /// - [`EngineError::Lost`]: the device is gone; try again later.
    /// - [`EngineError::Gpu`]: a GPU is required, and the model does not fit it.
    /// - [`EngineError::HostMemory`]: the model does not fit this machine.
    /// - [`EngineError::Frozen`], [`EngineError::FrozenUnfit`]: the run trains adapters, and [`Self::frozen`] was not
    ///   called, or was called with weights of another model.
    /// - Those of [`super::cpu::CpuTrainer::new`] and [`super::HostEngine::new`].
    pub async fn build(
        &mut self,
        spec: &RunSpec,
        moments: Option<OptimiserState>,
    ) -> Result<AnyEngine, EngineError> {
        frozen_for(&ModelSpec::of(&spec.model)?, self.setup.frozen.clone())?;
        self.renew().await?;
        self.check_memory(spec)?;
        match self.backend.build(&self.setup, spec, moments).await {
            Err(EngineError::Gpu(error)) if self.setup.options.kind == EngineKind::Auto => {
                self.fall_back(Fallback::Gpu(error)).await?;
                self.check_memory(spec)?;
                self.backend.build(&self.setup, spec, None).await
            }
            built => built,
        }
    }

    /// Replaces a lost device.
    async fn renew(&mut self) -> Result<(), EngineError> {
        if !self.backend.is_lost() {
            return Ok(());
        }
        let now_us = (self.setup.now_us)();
        self.losses_us.retain(|then_us| now_us.saturating_sub(*then_us) < LOSSES_US);
        self.losses_us.push(now_us);
        let losses = self.losses_us.len();
        if losses >= LOSSES_MAX && self.setup.options.kind == EngineKind::Auto {
            return self.fall_back(Fallback::Losses { losses }).await;
        }
        // While a driver resets, there may be no adapter for some time.
        let renewed = self.backend.renew(&self.setup).await;
        renewed.map_err(|error| EngineError::Lost { reason: error.to_string() })
    }

    /// Falls back to the next kind of engine that has a device. The reason is `why`, or the error of a kind that was
    /// skipped.
    async fn fall_back(&mut self, why: Fallback) -> Result<(), EngineError> {
        let rest = AnyBackend::KINDS.iter().skip_while(|kind| **kind != self.backend.kind()).skip(1);
        let rest: Vec<EngineKind> = rest.copied().collect();
        let (backend, skipped) = first(&rest, &self.setup).await?;
        (self.backend, self.fallback) = (backend, Some(skipped.unwrap_or(why)));
        Ok(())
    }

    /// Checks that the run that `spec` describes fits the device that [`Self::build`] would use. Returns the memory
    /// plan for at least one window at a time on a GPU, and `None` on the CPU.
    ///
    /// # Errors
    /// - [`EngineError::HostMemory`]: the model does not fit this machine.
    /// - [`EngineError::Gpu`]: a matrix exceeds the device's binding limit, or the device lacks memory.
    /// - [`EngineError::Model`]: the model is invalid.
    pub async fn room(&self, spec: &RunSpec) -> Result<Option<Room>, EngineError> {
        self.check_memory(spec)?;
        let Some(gpu) = self.gpu() else { return Ok(None) };
        GpuEngine::find_room(gpu, spec, self.setup.options.gpu_bytes_max()).await.map(Some)
    }

    /// Refuses a model that does not fit into host memory, instead of an out-of-memory kill during the run.
    fn check_memory(&self, spec: &RunSpec) -> Result<(), EngineError> {
        let needed_mib =
            (self.backend.host_copies() * 4 * layout(&ModelSpec::of(&spec.model)?)?.len() as u64) >> 20;
        match (self.setup.options.free_mib)() {
            Some(available_mib) if needed_mib > available_mib => {
                Err(EngineError::HostMemory { needed_mib, available_mib })
            }
            _ => Ok(()),
        }
    }
}

impl Helpers {
    /// Sets these helpers for every CPU engine that `builder` builds from now on.
    pub fn help(self, builder: &mut EngineBuilder) {
        builder.setup.helpers = self;
    }
}

/// Opens the first of `kinds` that has a device. Also returns the error of the last kind that was skipped.
async fn first(kinds: &[EngineKind], setup: &Setup) -> Result<(AnyBackend, Option<Fallback>), GpuError> {
    let mut missing = None;
    for kind in kinds {
        match AnyBackend::open(*kind, setup).await {
            Ok(backend) => return Ok((backend, missing.map(Fallback::Gpu))),
            Err(error) => missing = Some(error),
        }
    }
    Err(missing.unwrap_or(GpuError::NoAdapter))
}

/// Settings that choose the hardware and limit the memory of an engine.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Kind of engine.
    pub kind: EngineKind,
    /// Substring of the name of the GPU to use. `None` selects the best GPU.
    pub adapter: Option<String>,
    /// Whether a GPU reads weights as 16-bit floats. Sums use 32 bits in either case.
    pub half_weights: bool,
    /// Whether a GPU multiplies only 32-bit floats. If false, a GPU with matrix units rounds operands to 16-bit floats
    /// where that is faster. Sums use 32 bits in either case.
    pub whole_products: bool,
    /// Maximum GPU memory, in MiB. `None` sets no limit.
    pub gpu_mib_max: Option<u64>,
    /// Threads of the CPU engine.
    pub threads: NonZeroUsize,
    /// Returns the free host memory in MiB, or `None` if it is unknown.
    pub free_mib: fn() -> Option<u64>,
    /// Tuning results of earlier builds on GPUs, from [`EngineBuilder::tunings`].
    pub tunings: Vec<Tuning>,
}

impl EngineOptions {
    /// Returns the maximum GPU memory, in bytes.
    pub(super) fn gpu_bytes_max(&self) -> Option<u64> {
        self.gpu_mib_max.map(|mib| mib.saturating_mul(1 << 20))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::num::NonZeroUsize;

    use futures::executor::block_on;

    use super::*;
    use crate::engine::Engine;
    use crate::engine::gpu::{GpuOptions, Matmul, Variant};
    use crate::model::Preset;
    use crate::wire::{ApplyPolicy, Code, DataSpec, ExchangeSpec};

    const MINUTE_US: u64 = 60_000_000;

    fn spec() -> RunSpec {
        let apply = ApplyPolicy::Overwrite;
        RunSpec {
            model: Preset::Tiny.model(50).into(),
            inner: Preset::Tiny.inner(),
            exchange: ExchangeSpec { fragments: 2, sync_every: 1, block: 64, code: Code::Int4, apply },
            data: DataSpec { token_bytes: 2, masks: false, shards: Vec::new() },
            seed: 0,
            frozen: None,
        }
    }

    /// Returns options that name a GPU that does not exist.
    fn options(kind: EngineKind) -> EngineOptions {
        EngineOptions {
            kind,
            adapter: Some("no such gpu".to_owned()),
            half_weights: false,
            whole_products: false,
            gpu_mib_max: None,
            threads: NonZeroUsize::MIN,
            free_mib: || None,
            tunings: Vec::new(),
        }
    }

    fn open(options: EngineOptions) -> Result<EngineBuilder, GpuError> {
        block_on(EngineBuilder::open(options, Rc::new(|| 0)))
    }

    #[test]
    fn auto_falls_back_to_the_cpu_and_gives_the_reason() {
        let mut builder = open(options(EngineKind::Auto)).unwrap();
        let reason = builder.fallback().unwrap().to_string();
        assert!(reason.starts_with("training on the CPU: no GPU "), "{reason}");
        let moments = OptimiserState::of_adamw(3, vec![0.0; 1], vec![0.0; 1]);
        // These moments have the length of another model. The engine ignores them.
        let mut engine = block_on(builder.build(&spec(), Some(moments))).unwrap();
        assert_eq!(engine.kind(), EngineKind::Cpu);
        let tokens = vec![1; 8 * 65];
        assert_eq!(block_on(engine.step(&tokens, 1e-3)).unwrap().tokens, 512);

        assert!(matches!(
            open(options(EngineKind::Gpu)),
            Err(GpuError::NotNamed { .. } | GpuError::NoAdapter)
        ));
        assert_eq!(open(options(EngineKind::Cpu)).unwrap().fallback(), None);
    }

    #[test]
    fn a_model_larger_than_the_memory_is_refused() {
        let mut builder = open(EngineOptions { free_mib: || Some(1), ..options(EngineKind::Cpu) }).unwrap();
        let error = block_on(builder.build(&spec(), None)).err();
        assert!(
            matches!(error, Some(EngineError::HostMemory { needed_mib: 2, available_mib: 1 })),
            "{error:?}"
        );
    }

    /// Returns a device of any kind, or `None` if GPU tests are turned off.
    fn any_gpu() -> Option<Gpu> {
        if std::env::var("ARCHIPELAGO_TEST_GPU").is_ok_and(|value| value == "no") {
            eprintln!("skipped: ARCHIPELAGO_TEST_GPU=no");
            return None;
        }
        let any = GpuOptions { software: true, ..GpuOptions::default() };
        Some(
            block_on(Gpu::open(&any))
                .unwrap_or_else(|error| panic!("{error}; skip this test with --without gpu")),
        )
    }

    #[test]
    fn gpu_with_unusable_matrix_units_multiplies_f32() {
        let Some(gpu) = any_gpu() else { return };
        // An earlier build without matrix units stored this tuning result. It applies again after the matrix units have
        // failed.
        let choice = Matmul::fixed(Variant::Register4).choice(&gpu);
        let model = Preset::Tiny.model(50);
        let known =
            Tuning { rows: 8 * model.context, width: model.d_model, ff: model.d_ff, choice: choice.clone() };
        let gpu = gpu.with_matrices();
        let mut builder = open(EngineOptions { adapter: None, ..options(EngineKind::Gpu) }).unwrap();
        builder.backend = AnyBackend::Gpu(GpuBackend::new(gpu.clone(), vec![known]));
        assert_eq!(block_on(builder.build(&spec(), None)).unwrap().kind(), EngineKind::Gpu);
        let fault = builder.matrices_fault().expect("a program on the CPU has no such units");
        assert!(matches!(fault, GpuError::Refused { .. }), "{fault}");
        assert_eq!(gpu.check().as_ref(), Err(fault));
        assert!(builder.gpu().unwrap().check().is_ok(), "it is another device");
        assert_eq!((builder.trials(), &builder.tunings()[0].choice), (&[][..], &choice));
        assert_eq!(builder.losses_us, [], "the device was not lost, it was misled");
    }

    /// Goal: a device that is lost rarely is reopened; a device that is lost three times in ten minutes is given up.
    #[test]
    fn auto_gives_up_a_device_that_is_lost_again_and_again() {
        let Some(gpu) = any_gpu() else { return };
        let clock = Rc::new(Cell::new(0));
        let now = Rc::clone(&clock);
        let mut builder = open(options(EngineKind::Auto)).unwrap();
        builder.backend = AnyBackend::Gpu(GpuBackend::new(gpu.clone(), Vec::new()));
        (builder.fallback, builder.setup.now_us) = (None, Rc::new(move || now.get()));
        assert_eq!(block_on(builder.build(&spec(), None)).unwrap().kind(), EngineKind::Gpu);

        // Moments from an earlier process do not count as a loss.
        let moments = OptimiserState::of_adamw(0, Vec::new(), Vec::new());
        assert_eq!(block_on(builder.build(&spec(), Some(moments))).unwrap().kind(), EngineKind::Gpu);
        assert_eq!(builder.losses_us, []);

        // No device has the requested name, so each attempt to reopen it counts as another loss.
        gpu.lose();
        for minutes in [0, 8, 11, 20] {
            clock.set(minutes * MINUTE_US);
            let error = block_on(builder.build(&spec(), None)).err();
            assert!(matches!(error, Some(EngineError::Lost { .. })), "{minutes}: {error:?}");
        }
        clock.set(20 * MINUTE_US + 1);
        assert_eq!(block_on(builder.build(&spec(), None)).unwrap().kind(), EngineKind::Cpu);
        assert_eq!(builder.fallback(), Some(&Fallback::Losses { losses: 3 }));

        let (software, adapter) = (EngineKind::Gpu, None);
        let mut builder = open(EngineOptions { adapter, ..options(software) }).unwrap();
        let lost = builder.gpu().unwrap().clone();
        lost.lose();
        assert_eq!(block_on(builder.build(&spec(), None)).unwrap().kind(), EngineKind::Gpu);
        assert!(builder.gpu().unwrap().check().is_ok(), "it is another device");
    }
}
