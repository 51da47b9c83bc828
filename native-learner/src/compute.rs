//! The training engine, sentences about its selection, and the machine's cores and memory.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::rc::Rc;
use std::{fs, mem, slice, thread};

use archipelago::run::EngineInputs;
use archipelago_core::wire::{DeviceKind, RunSpec};
use archipelago_runtime::engine::gpu::{AdapterFacts, Room, Trial, tune};
use archipelago_runtime::engine::{AnyEngine, EngineBuilder, EngineError, EngineOptions};
use archipelago_runtime::platform::Clock;

use crate::cli::ComputeArgs;
use crate::exit::{Exit, Failure};
use crate::tunings;

/// Builder of engines, which stores measurements of GPU kernels for later starts.
pub(crate) struct Compute {
    pub(crate) builder: EngineBuilder,
    clock: Clock,
    threads: NonZeroUsize,
    file: Option<PathBuf>,
    /// Sentences for the user that have not been shown yet.
    notes: Vec<String>,
}

impl Compute {
    /// Opens the device that `args` select. Notes about the selection can then be taken with [`Self::take_notes`].
    pub(crate) async fn open(args: &ComputeArgs, clock: Clock) -> Result<Self, Failure> {
        let (file, mut notes) = (tunings::default_file(), Vec::new());
        let known = file.as_deref().map_or_else(|| Ok(Vec::new()), tunings::read);
        let options = EngineOptions {
            kind: args.engine,
            adapter: args.adapter.clone(),
            half_weights: args.half_weights,
            whole_products: args.whole_products,
            gpu_mib_max: args.gpu_memory,
            threads: args.threads(),
            free_mib: available_mib,
            tunings: known.unwrap_or_else(|error| {
                notes.push(error.to_string());
                Vec::new()
            }),
        };
        let opened = EngineBuilder::open(options, Rc::new(move || clock.now_us())).await;
        let builder = opened.map_err(|error| Failure::new(Exit::Machine, error))?;
        notes.extend(args.excess());
        notes.extend(builder.fallback().map(ToString::to_string));
        if let Some(AdapterFacts { name, software: true, .. }) = builder.gpu().map(|gpu| gpu.facts()) {
            notes.push(format!("{name} is a software GPU on the CPU: --engine cpu is faster"));
        }
        Ok(Self { builder, clock, threads: args.threads(), file, notes })
    }

    /// Builds an engine for a run with `spec`; see [`EngineBuilder::build`].
    pub(crate) async fn build(
        &mut self,
        spec: &RunSpec,
        EngineInputs { moments, frozen }: EngineInputs,
    ) -> Result<AnyEngine, EngineError> {
        let fallback_before = self.builder.fallback().cloned();
        let fault = self.builder.matrices_fault().cloned();
        if let Some(frozen) = frozen {
            self.builder.frozen(frozen);
        }
        let engine = self.builder.build(spec, moments).await?;
        if let Some(Room { memory_plan, bytes }) = engine.room() {
            self.notes.push(format!("the GPU gives {} MiB, and {memory_plan}", bytes.div_ceil(1 << 20)));
        }
        let fallback = self.builder.fallback().filter(|fallback| Some(*fallback) != fallback_before.as_ref());
        self.notes.extend(fallback.map(ToString::to_string));
        if let Some(error) = self.builder.matrices_fault().filter(|_| fault.is_none()) {
            self.notes
                .push(format!("the GPU multiplies 32-bit floats, since its matrix units fail: {error}"));
        }
        self.notes.extend(self.builder.stale().map(ToString::to_string));
        let newest = self.builder.tunings().last().filter(|_| !self.builder.trials().is_empty());
        if let (Some(file), Some(newest)) = (&self.file, newest) {
            let added = tunings::add(file, slice::from_ref(newest));
            self.notes.extend(added.err().map(|error| error.to_string()));
        }
        Ok(engine)
    }

    /// Describes the device, for display.
    pub(crate) fn device(&self) -> String {
        match self.builder.gpu() {
            Some(gpu) => DeviceKind::Gpu.describe(&gpu.facts().name),
            None => {
                let plural = if self.threads.get() == 1 { "" } else { "s" };
                DeviceKind::Cpu.describe(&format!("{} thread{plural}", self.threads))
            }
        }
    }

    /// Returns the sentences added since the last call.
    pub(crate) fn take_notes(&mut self) -> Vec<String> {
        mem::take(&mut self.notes)
    }

    /// Returns the measured speed of each kernel for matrix products of `spec`. If earlier measurements were used to
    /// select the kernels, they are measured now. On a CPU, the result is empty.
    pub(crate) async fn trials(&self, spec: &RunSpec) -> Result<Vec<Trial>, EngineError> {
        let (trials, clock) = (self.builder.trials(), self.clock);
        match self.builder.gpu() {
            Some(gpu) if trials.is_empty() => Ok(tune(gpu, spec, &[], &move || clock.now_us()).await?.trials),
            _ => Ok(trials.to_vec()),
        }
    }
}

/// Returns the number of cores that this process may use; 1 if the system does not report it.
pub(crate) fn cores() -> NonZeroUsize {
    thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// Returns the memory that this process may still allocate, in MiB; `None` if the system does not report it.
pub(crate) fn available_mib() -> Option<u64> {
    archipelago_cli::available_bytes().map(|bytes| bytes >> 20)
}

/// Returns the name of this machine, for display.
pub(crate) fn host_name() -> Option<String> {
    let name = fs::read_to_string("/etc/hostname").ok()?;
    let name = name.trim();
    (!name.is_empty()).then(|| name.to_owned())
}
