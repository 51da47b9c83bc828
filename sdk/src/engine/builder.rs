//! Choosing the engine: it finds the device, opens it anew after a loss, and falls back to the CPU.

use std::num::NonZeroUsize;
use std::rc::Rc;

use super::cpu::CpuTrainer;
use super::gpu::{ChoiceError, Gpu, GpuEngine, GpuError, GpuOptions, GpuSetup, Trial, Tuned, Tuning, tune};
use super::{AnyEngine, EngineError, EngineKind, Helpers, HostEngine, Moments, Team};
use crate::model::layout;
use crate::wire::RunSpec;

/// So many losses within [`LOSSES_US`] turn [`EngineKind::Auto`] to the CPU.
const LOSSES_MAX: usize = 3;
/// Ten minutes, in microseconds.
const LOSSES_US: u64 = 600_000_000;
/// Copies of the parameters that the CPU engine holds: θ, gradient, two moments, Θ̂ and what was reported.
const CPU_COPIES: u64 = 6;
/// Those that the GPU engine holds in host memory: two moments.
const GPU_COPIES: u64 = 2;

/// What a learner may train with.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Which engine.
    pub kind: EngineKind,
    /// Part of the name of the GPU; the best one if there is none.
    pub adapter: Option<String>,
    /// Whether a GPU reads weights as 16-bit floats; sums are of 32 bits all the same.
    pub half_weights: bool,
    /// Threads of the CPU engine.
    pub threads: NonZeroUsize,
    /// Memory that the host has free, in MiB, if it says so.
    pub free_mib: fn() -> Option<u64>,
    /// What is known of GPUs from earlier builds.
    pub tunings: Vec<Tuning>,
}

/// Why [`EngineKind::Auto`] trains on the CPU, in one sentence.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Fallback {
    /// There is no GPU that can train the model.
    #[error("training on the CPU: {0}")]
    Gpu(GpuError),
    /// The GPU was lost again and again.
    #[error("training on the CPU: the GPU was lost {losses} times within ten minutes; see its driver")]
    Losses {
        /// How often.
        losses: usize,
    },
}

/// Builds a learner's engines, one after the other: finds the device, opens it anew after a loss, and turns to
/// the CPU where [`EngineKind::Auto`] must.
pub struct EngineBuilder {
    options: EngineOptions,
    now_us: Rc<dyn Fn() -> u64>,
    helpers: Helpers,
    /// `None` for the CPU.
    gpu: Option<Gpu>,
    fallback: Option<Fallback>,
    /// When devices were lost, of late.
    losses_us: Vec<u64>,
    trials: Vec<Trial>,
    stale: Option<ChoiceError>,
}

impl EngineBuilder {
    /// Looks for the device that `options` ask for; `now_us` gives microseconds since any moment.
    ///
    /// # Errors
    /// Those of [`Gpu::open`], if it must be a GPU.
    pub async fn open(options: EngineOptions, now_us: Rc<dyn Fn() -> u64>) -> Result<Self, GpuError> {
        let (mut gpu, mut fallback) = (None, None);
        if options.kind != EngineKind::Cpu {
            match open(&options).await {
                Ok(found) => gpu = Some(found),
                Err(error) if options.kind == EngineKind::Auto => fallback = Some(Fallback::Gpu(error)),
                Err(error) => return Err(error),
            }
        }
        let (helpers, losses_us, trials) = (Helpers::default(), Vec::new(), Vec::new());
        Ok(Self { options, now_us, helpers, gpu, fallback, losses_us, trials, stale: None })
    }

    /// Gives CPU engines helpers from now on.
    pub fn set_helpers(&mut self, helpers: Helpers) {
        self.helpers = helpers;
    }

    /// The GPU; `None` for the CPU.
    #[must_use]
    pub fn gpu(&self) -> Option<&Gpu> {
        self.gpu.as_ref()
    }

    /// Why it is the CPU, although a GPU was wanted.
    #[must_use]
    pub fn fallback(&self) -> Option<&Fallback> {
        self.fallback.as_ref()
    }

    /// How the kernels of matrix products were chosen; empty before the first build, on the CPU, and where
    /// it was known.
    #[must_use]
    pub fn trials(&self) -> &[Trial] {
        &self.trials
    }

    /// Why the kernels were chosen anew at the last build, although something was known.
    #[must_use]
    pub fn stale(&self) -> Option<&ChoiceError> {
        self.stale.as_ref()
    }

    /// What to give as [`EngineOptions::tunings`] the next time.
    #[must_use]
    pub fn tunings(&self) -> &[Tuning] {
        &self.options.tunings
    }

    /// An engine for the run that `spec` describes, the one before being gone. With `moments` it goes on
    /// where that one was when its device was lost.
    ///
    /// # Errors
    /// - [`EngineError::Lost`]: the device is gone; try again later.
    /// - [`EngineError::Gpu`]: it must be a GPU, and the model does not fit it.
    /// - [`EngineError::HostMemory`]: the model does not fit this machine.
    /// - Those of [`CpuTrainer::new`] and [`HostEngine::new`].
    pub async fn build(
        &mut self,
        spec: &RunSpec,
        moments: Option<Moments>,
    ) -> Result<AnyEngine, EngineError> {
        self.check_gpu(moments.is_some()).await?;
        if let Some(gpu) = self.gpu.clone() {
            return match self.on_gpu(&gpu, spec, moments).await {
                Err(EngineError::Gpu(error)) if self.options.kind == EngineKind::Auto => {
                    self.turn_to_cpu(Fallback::Gpu(error));
                    self.on_cpu(spec, None)
                }
                built => built,
            };
        }
        self.on_cpu(spec, moments)
    }

    /// Replaces a device that was lost.
    async fn check_gpu(&mut self, lost: bool) -> Result<(), EngineError> {
        let Some(gpu) = &self.gpu else { return Ok(()) };
        if !lost && gpu.check().is_ok() {
            return Ok(());
        }
        let now_us = (self.now_us)();
        self.losses_us.retain(|then_us| now_us.saturating_sub(*then_us) < LOSSES_US);
        self.losses_us.push(now_us);
        let losses = self.losses_us.len();
        if losses >= LOSSES_MAX && self.options.kind == EngineKind::Auto {
            self.turn_to_cpu(Fallback::Losses { losses });
            return Ok(());
        }
        // A driver that resets may have no adapter for a while.
        let found = open(&self.options).await;
        self.gpu = Some(found.map_err(|error| EngineError::Lost { reason: error.to_string() })?);
        Ok(())
    }

    fn turn_to_cpu(&mut self, why: Fallback) {
        self.gpu = None;
        self.fallback = Some(why);
    }

    async fn on_gpu(
        &mut self,
        gpu: &Gpu,
        spec: &RunSpec,
        moments: Option<Moments>,
    ) -> Result<AnyEngine, EngineError> {
        self.check_memory(spec, GPU_COPIES)?;
        let Tuned { matmul, tuning, trials, stale } =
            tune(gpu, spec, &self.options.tunings, &*self.now_us).await?;
        let known = &mut self.options.tunings;
        known.retain(|known| !known.is_replaced_by(&tuning));
        known.push(tuning);
        (self.trials, self.stale) = (trials, stale);
        let matmul = if self.options.half_weights { matmul.with_half_weights() } else { matmul };
        let now_us = Rc::clone(&self.now_us);
        let setup = GpuSetup { matmul, moments, now_us: Box::new(move || now_us()) };
        Ok(AnyEngine::Gpu(Box::new(GpuEngine::new(gpu, spec, setup).await?)))
    }

    fn on_cpu(&self, spec: &RunSpec, moments: Option<Moments>) -> Result<AnyEngine, EngineError> {
        self.check_memory(spec, CPU_COPIES)?;
        let mut trainer = CpuTrainer::new(&spec.model, &spec.inner, self.options.threads)?;
        if let Some(moments) = &moments {
            trainer.resume(moments)?;
        }
        let (host, helpers) = (HostEngine::new(spec, trainer)?, self.helpers.start(spec));
        Ok(AnyEngine::Cpu(Box::new(Team::new(host, helpers, Rc::clone(&self.now_us)))))
    }

    /// Better to refuse than to be killed for memory in the middle of a run.
    fn check_memory(&self, spec: &RunSpec, copies: u64) -> Result<(), EngineError> {
        let needed_mib = (copies * 4 * layout(&spec.model)?.len() as u64) >> 20;
        match (self.options.free_mib)() {
            Some(available_mib) if needed_mib > available_mib => {
                Err(EngineError::HostMemory { needed_mib, available_mib })
            }
            _ => Ok(()),
        }
    }
}

/// A program on the CPU only if it must be a GPU: the CPU engine is faster.
async fn open(options: &EngineOptions) -> Result<Gpu, GpuError> {
    let software = options.kind == EngineKind::Gpu;
    Gpu::open(&GpuOptions { adapter: options.adapter.clone(), software, ..GpuOptions::default() }).await
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use futures::executor::block_on;

    use super::*;
    use crate::engine::Engine;
    use crate::model::Preset;
    use crate::wire::{ApplyPolicy, Code, DataSpec, ExchangeSpec};

    const MINUTE_US: u64 = 60_000_000;

    fn spec() -> RunSpec {
        let apply = ApplyPolicy::Overwrite;
        RunSpec {
            model: Preset::Tiny.model(50),
            inner: Preset::Tiny.inner(),
            exchange: ExchangeSpec { fragments: 2, sync_every: 1, block: 64, code: Code::Int4, apply },
            data: DataSpec { token_bytes: 2, shards: Vec::new() },
            seed: 0,
        }
    }

    /// Options that no GPU meets.
    fn options(kind: EngineKind) -> EngineOptions {
        EngineOptions {
            kind,
            adapter: Some("no such gpu".to_owned()),
            half_weights: false,
            threads: NonZeroUsize::MIN,
            free_mib: || None,
            tunings: Vec::new(),
        }
    }

    fn open(options: EngineOptions) -> Result<EngineBuilder, GpuError> {
        block_on(EngineBuilder::open(options, Rc::new(|| 0)))
    }

    #[test]
    fn auto_turns_to_the_cpu_and_says_why() {
        let mut builder = open(options(EngineKind::Auto)).unwrap();
        let reason = builder.fallback().unwrap().to_string();
        assert!(reason.starts_with("training on the CPU: no GPU "), "{reason}");
        let moments = Moments { steps: 3, m: vec![0.0; 1], v: vec![0.0; 1] };
        assert!(block_on(builder.build(&spec(), Some(moments))).is_err(), "they are of another model");
        let mut engine = block_on(builder.build(&spec(), None)).unwrap();
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

    /// Goal: a device that is lost now and then is opened anew; one that is lost all the time is given up.
    #[test]
    fn auto_gives_up_a_device_that_is_lost_again_and_again() {
        if std::env::var("GPU_TESTS").is_ok_and(|value| value == "no") {
            return eprintln!("skipped: GPU_TESTS=no");
        }
        let any = GpuOptions { software: true, ..GpuOptions::default() };
        let gpu =
            block_on(Gpu::open(&any)).unwrap_or_else(|error| panic!("{error}; GPU_TESTS=no skips this"));
        let clock = Rc::new(Cell::new(0));
        let now = Rc::clone(&clock);
        let mut builder = open(options(EngineKind::Auto)).unwrap();
        (builder.gpu, builder.fallback, builder.now_us) =
            (Some(gpu.clone()), None, Rc::new(move || now.get()));
        assert_eq!(block_on(builder.build(&spec(), None)).unwrap().kind(), EngineKind::Gpu);

        // Whoever has moments has lost a device, even if that did not notice. Nothing that is named so comes
        // back, so each attempt is one more loss.
        let moments = Moments { steps: 0, m: Vec::new(), v: Vec::new() };
        let error = block_on(builder.build(&spec(), Some(moments))).err();
        assert!(matches!(error, Some(EngineError::Lost { .. })), "{error:?}");
        gpu.lose();
        for minutes in [8, 11, 20] {
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
