//! Several trainers on one GPU, with a blocking interface.

use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use futures::executor::block_on;

use super::arena::ChunkRange;
use super::ring::Ring;
use super::vectors::reader;
use super::{Gpu, GpuEngine, GpuError, GpuOptions, GpuSetup, MemoryPlan, TunedKernels, Tuning, tune};
use crate::diloco::Layout;
use crate::engine::{Engine, EngineError, Exchange, StepStats, Trainer};
use crate::model::{InnerSpec, ModelSpec};
use crate::wire::{ApplyPolicy, Code, DataSpec, ExchangeSpec, RunSpec};

/// Clock in microseconds since an arbitrary origin.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Memory plans that change no bit, so that a trainer's results do not depend on the available memory.
const THRIFTS: [MemoryPlan; 2] = [MemoryPlan { host_hat: true, ..MemoryPlan::NONE }, MemoryPlan::EXACT];

/// Factory of trainers that share one GPU and the tuning results of its kernels.
///
/// Each trainer needs as much memory as an engine. It is for native programs only, because code in a browser must not
/// block.
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
    /// Opens the GPU that `options` describe.
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

    /// Creates a trainer with its own moments and parameters; all are zero. The first trainer of each model shape takes
    /// longer, because it measures the matrix products of that shape.
    ///
    /// # Errors
    /// Those of [`tune`] and [`GpuEngine::new`], except those of the exchange and of adapters.
    pub fn trainer(&self, model: &ModelSpec, inner: &InnerSpec) -> Result<GpuTrainer, EngineError> {
        let spec = alone(model, inner);
        let matmul = {
            let mut tunings = self.tunings.lock().unwrap_or_else(PoisonError::into_inner);
            let TunedKernels { matmul, tuning, .. } =
                block_on(tune(&self.gpu, &spec, &tunings, &*self.now_us))?;
            tunings.retain(|known| !known.is_replaced_by(&tuning));
            tunings.push(tuning);
            matmul
        };
        let now_us = Arc::clone(&self.now_us);
        let setup = GpuSetup {
            matmul,
            frozen: None,
            memory_plans: THRIFTS.to_vec(),
            bytes_max: None,
            moments: None,
            now_us: Box::new(move || now_us()),
        };
        let engine = block_on(GpuEngine::new(&self.gpu, &spec, setup))?;
        Ok(GpuTrainer::new(engine, &self.gpu))
    }
}

/// Returns the spec of a run of one learner without exchange.
fn alone(model: &ModelSpec, inner: &InnerSpec) -> RunSpec {
    let apply = ApplyPolicy::Overwrite;
    RunSpec {
        model: (*model).into(),
        inner: *inner,
        // The buffers of an incoming body and of read-backs are as large as the largest fragment's body, so several
        // fragments need less memory than one.
        exchange: ExchangeSpec { fragments: 8, sync_every: 1, block: 256, code: Code::Int4, apply },
        data: DataSpec { token_bytes: 2, masks: false, shards: Vec::new() },
        seed: 0,
        frozen: None,
    }
}

/// Trainer of a model on a GPU, created by [`GpuTrainers`].
///
/// Parameters and moments stay on the device. A host copy of the parameters, the mirror, reads accessed ranges from the
/// device once after a step, and writes changed ranges to the device before the next step. [`Trainer::params_at`] and
/// [`Trainer::params_mut_at`] restrict this to the given ranges. Every step except the first returns before the device
/// is done. Its loss and norm are those of the previous step, and the next step reports divergence. If the device is
/// lost, parameters that could not be read are meaningless, and the next step returns the error.
pub struct GpuTrainer {
    engine: RefCell<GpuEngine>,
    layout: Layout,
    ring: RefCell<Ring<Vec<ChunkRange>>>,
    /// The mirror, if all of it is at least as recent as the device's parameters.
    whole: OnceCell<Vec<f32>>,
    /// The mirror, if only the ranges in `fresh` are at least as recent as the device's parameters.
    mirror: Cell<Vec<f32>>,
    fresh: Vec<Range<usize>>,
    /// Changed ranges of the mirror that are not yet written to the device.
    written: Vec<Range<usize>>,
    fault: Cell<Option<EngineError>>,
}

impl GpuTrainer {
    fn new(engine: GpuEngine, gpu: &Gpu) -> Self {
        let layout = Exchange::layout(&engine).clone();
        let len = layout.len();
        Self {
            ring: RefCell::new(reader(gpu, len)),
            engine: RefCell::new(engine),
            layout,
            // New parameters on the device are zero as well.
            whole: OnceCell::from(vec![0.0; len]),
            mirror: Cell::default(),
            fresh: Vec::new(),
            written: Vec::new(),
            fault: Cell::default(),
        }
    }

    fn all(&self) -> Range<usize> {
        0..self.layout.len()
    }

    /// Reads `ranges` from the device into `flat`, the mirror.
    fn read(&self, ranges: &[Range<usize>], flat: &mut [f32]) {
        if ranges.is_empty() {
            return;
        }
        let (mut engine, mut ring) = (self.engine.borrow_mut(), self.ring.borrow_mut());
        if let Err(error) = block_on(engine.read_params(ranges, &mut ring, flat)) {
            self.fault.set(Some(error));
        }
    }

    /// Converts a mirror that is recent as a whole to one with ranges in `fresh`.
    fn split_mirror(&mut self) {
        if let Some(whole) = self.whole.take() {
            self.mirror.set(whole);
            self.fresh = one(self.all());
        }
    }

    /// Updates the mirror in `ranges` and returns it.
    fn fetch(&mut self, ranges: &[Range<usize>]) -> &mut [f32] {
        self.split_mirror();
        let missing = without(ranges, &self.fresh);
        let mut mirror = self.mirror.take();
        self.read(&missing, &mut mirror);
        self.fresh.extend(missing);
        self.mirror.set(mirror);
        self.mirror.get_mut()
    }

    /// Writes the changed ranges of the mirror to the device.
    fn flush(&mut self) {
        self.split_mirror();
        let (engine, mirror) = (self.engine.get_mut(), self.mirror.get_mut());
        for range in self.written.drain(..) {
            engine.write_params(range, mirror);
        }
    }
}

impl Trainer for GpuTrainer {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn params(&self) -> &[f32] {
        self.whole.get_or_init(|| {
            let mut mirror = self.mirror.take();
            self.read(&without(&one(self.all()), &self.fresh), &mut mirror);
            mirror
        })
    }

    fn params_mut(&mut self) -> &mut [f32] {
        self.params_mut_at(&one(self.all()))
    }

    fn params_at(&mut self, ranges: &[Range<usize>]) -> &[f32] {
        self.fetch(ranges)
    }

    fn params_mut_at(&mut self, ranges: &[Range<usize>]) -> &mut [f32] {
        let new = without(ranges, &self.written);
        self.written.extend(new);
        self.fetch(ranges)
    }

    fn step(&mut self, tokens: &[u32], lr: f32) -> Result<StepStats, EngineError> {
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        self.flush();
        self.fresh.clear();
        block_on(self.engine.get_mut().step(tokens, lr))
    }

    fn rehearse(&mut self, tokens: &[u32]) -> Result<bool, EngineError> {
        block_on(self.engine.get_mut().rehearse(tokens))
    }

    fn held_out_loss(&mut self, params: &[f32], windows: &[u32]) -> Result<Option<f32>, EngineError> {
        self.fetch(&one(self.all()));
        // The loss overwrites the device's parameters, so all of the mirror must be written before the next step.
        self.written = one(self.all());
        let engine = self.engine.get_mut();
        engine.set_params(params);
        block_on(engine.loss(windows)).map(Some)
    }

    fn supports_masks(&self) -> bool {
        true
    }

    fn take_expert_counts(&mut self) -> Vec<u64> {
        self.engine.get_mut().take_expert_counts()
    }

    fn describe(&self) -> String {
        Engine::describe(&*self.engine.borrow())
    }
}

/// Returns a list with `range` as its only element.
fn one(range: Range<usize>) -> Vec<Range<usize>> {
    std::iter::once(range).collect()
}

/// Returns the parts of `ranges` that lie in none of the ranges in `taken`.
fn without(ranges: &[Range<usize>], taken: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut left = ranges.to_vec();
    for cut in taken {
        let parts = left
            .into_iter()
            .flat_map(|range| [range.start..range.end.min(cut.start), range.start.max(cut.end)..range.end]);
        left = parts.filter(|range| range.start < range.end).collect();
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "one range is meant, and not what is in it")]
    fn ranges_are_cut() {
        let check = |taken: &[Range<usize>], expected: &[Range<usize>]| {
            assert_eq!(without(&[2..6, 8..9], taken), expected, "{taken:?}");
        };
        check(&[], &[2..6, 8..9]);
        check(&[0..2, 6..8, 9..20], &[2..6, 8..9]);
        check(&[3..4], &[2..3, 4..6, 8..9]);
        check(&[0..3], &[3..6, 8..9]);
        check(&[5..8, 2..3], &[3..5, 8..9]);
        check(&[5..10], &[2..5]);
        check(&[0..10], &[]);
    }
}
