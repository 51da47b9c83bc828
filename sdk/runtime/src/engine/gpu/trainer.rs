//! The GPU engine of one run on one device: construction, steps, and exchange.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use archipelago_core::bytes::to_f32s;

use super::arena::{Arena, ChunkRange};
use super::exchange::Exchange;
use super::frozen::{Frozen, FrozenPlan};
use super::matmul::Matmul;
use super::plan::{MemoryPlan, Room, RunPlan};
use super::program::{DispatchList, KernelTime, StepTimes, profile};
use super::ring::Ring;
use super::step::{BatchShape, STEPS_MAX, StepBuffers, StepParts};
use super::vectors::{Shadow, Vectors, download, read_into, upload};
use super::workspace::Workspace;
use super::{Gpu, GpuError};
use crate::diloco::{FragmentId, Fragments, Layout};
use crate::engine::{Encoded, Engine, EngineError, OptimiserState, StepStats, frozen_for};
use crate::model::{Adjust, Dims, FrozenForm, FrozenWeights, InnerSpec, ModelSpec, MuonAdjust, windows};
use crate::token;
use crate::wire::{RunSpec, Serial};

/// Engine that trains a model on a GPU and exchanges its fragments there.
///
/// It needs 20 bytes of device memory per parameter (parameters, gradient, two moments and Θ̂), plus the bodies of the
/// exchange and the activations of one microbatch, and 8 bytes of host memory per parameter, for the moments.
/// [`super::MemoryPlan`] reduces the device memory. If adapters are trained, only they are parameters, and the frozen
/// weights lie on the device in the form in which they were fetched.
pub struct GpuEngine {
    gpu: Gpu,
    room: Room,
    inner: InnerSpec,
    dims: Dims,
    layout: Layout,
    fragments: Arc<Fragments>,
    arena: Arena,
    /// Flat ranges that are trained with AdamW, each with whether it is decayed.
    adamw: Vec<(Range<usize>, bool)>,
    vectors: Vectors,
    shape: BatchShape,
    buffers: StepBuffers,
    program: DispatchList,
    step_times: StepTimes,
    /// Read-backs of steps, tagged with the number of target tokens of the step.
    ring: Ring<u64>,
    newest: Option<(f32, f32)>,
    exchange: Exchange,
    shadow: Shadow,
    steps: u64,
    /// The device's expert token counts after the newest finished step, modulo 2³², `[layers, E]`. The next field has
    /// the tokens since the last report.
    counted: Vec<u32>,
    seen: Vec<u64>,
}

impl fmt::Debug for GpuEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuEngine").field("gpu", self.gpu.facts()).finish_non_exhaustive()
    }
}

impl GpuEngine {
    /// Overwrites the parameters with `flat`, `[len]`. Moments stay unchanged.
    pub fn set_params(&mut self, flat: &[f32]) {
        self.write_params(0..flat.len(), flat);
    }

    /// Overwrites the parameters in `range` with the same range of `flat`, `[len]`. Moments stay unchanged.
    pub(super) fn write_params(&mut self, range: Range<usize>, flat: &[f32]) {
        upload(&self.gpu, &self.arena, &self.vectors.theta, range, flat);
    }

    /// Reads the parameters in `ranges` into the same ranges of `flat`, `[len]`, as they are after all submitted steps.
    /// `ring` comes from [`super::vectors::reader`].
    ///
    /// # Errors
    /// [`EngineError::Lost`] if the device is gone, and [`EngineError::Gpu`] if it rejects a command.
    pub(super) async fn read_params(
        &mut self,
        ranges: &[Range<usize>],
        ring: &mut Ring<Vec<ChunkRange>>,
        flat: &mut [f32],
    ) -> Result<(), EngineError> {
        Ok(read_into(&self.gpu, &self.arena, (&self.vectors.theta, ranges), ring, flat).await?)
    }

    /// Returns the parameters, `[len]`, after all submitted steps.
    ///
    /// # Errors
    /// [`EngineError::Lost`] if the device is gone, and [`EngineError::Gpu`] if it rejects a command.
    pub async fn params(&mut self) -> Result<Vec<f32>, EngineError> {
        Ok(download(&self.gpu, &self.arena, &self.vectors.theta, self.layout.len()).await?)
    }

    /// Returns the gradient of the last step, `[len]`, before clipping.
    ///
    /// # Errors
    /// [`EngineError::Lost`] if the device is gone, and [`EngineError::Gpu`] if it rejects a command.
    pub async fn grad(&mut self) -> Result<Vec<f32>, EngineError> {
        Ok(download(&self.gpu, &self.arena, &self.vectors.grad, self.layout.len()).await?)
    }

    /// Returns the memory plan in use, and the total size of the engine's buffers on the device.
    #[must_use]
    pub fn room(&self) -> Room {
        self.room
    }

    /// Returns the total bytes that the exchange has read back from the device.
    #[must_use]
    pub fn exchange_bytes(&self) -> u64 {
        self.exchange.bytes_read_back()
    }

    /// Runs the last step again with a pass per kernel, and returns the time of each kernel by the device's clock.
    /// Returns `None` if the device has no timestamps.
    ///
    /// # Errors
    /// [`EngineError::Lost`] if the device is gone, [`EngineError::Gpu`] if it rejects a command, and
    /// [`EngineError::NotFinite`] if a pending step diverged.
    pub async fn profile(&mut self) -> Result<Option<BTreeMap<&'static str, KernelTime>>, EngineError> {
        self.synchronise().await?;
        Ok(profile(&self.gpu, &self.program).await?)
    }

    /// Returns the number of windows in `tokens`, after checking that it is the batch size.
    fn check_batch(&self, tokens: &[u32]) -> Result<usize, EngineError> {
        let (found, batch) = (windows(tokens, &self.dims)?, self.inner.batch as usize);
        if found == batch { Ok(batch) } else { Err(EngineError::Windows { found, batch }) }
    }

    /// Submits a step with the settings in `a`, and requests its statistics. The device computes the clipping factor
    /// from its own gradient norm and ignores the one in `a`.
    fn submit(&mut self, tokens: &[u32], a: &Adjust, muon: &MuonAdjust) {
        let words: Vec<u8> = self.shape.fill(tokens).into_iter().flat_map(u32::to_le_bytes).collect();
        self.gpu.queue.write_buffer(&self.buffers.tokens, 0, &words);
        let target_count = token::target_count(tokens, self.dims.context);
        // Without target tokens, all losses are 0, and the divisor must not be.
        let share = 1.0 / target_count.max(1) as f32;
        let step = f32::from_bits(self.steps as u32);
        let adamw = [a.beta1, a.beta2, a.rate, a.root, a.eps, a.keep, share, step];
        let hyper = [&adamw[..], &[muon.momentum, muon.rate, muon.scale]].concat();
        self.gpu.write(&self.buffers.hyper, &hyper);
        self.program.submit(&self.gpu, self.step_times.cost_max());
        let slices = [self.buffers.stats.clone(), self.buffers.seen.clone()];
        let count = if self.counted.is_empty() { 1 } else { 2 };
        self.ring.read(&self.gpu, &slices[..count], target_count);
    }

    /// Processes the statistics of the oldest pending step, which must be finished.
    fn take_stats(&mut self) -> Result<(), EngineError> {
        let rows = (self.shape.microbatches * self.shape.rows_padded()) as f32;
        let stats = self.ring.next(&self.gpu, |target_count, bytes| {
            let (stats, seen) = bytes.split_at(STATS_BYTES);
            let stats = to_f32s(stats);
            let loss = (target_count > 0).then(|| stats[0] * (rows / target_count as f32));
            (loss, stats[1], stats[3] == 1.0, numbers(seen))
        })?;
        let Some((loss, grad_norm, finite, counted)) = stats else { return Ok(()) };
        self.seen.resize(self.counted.len(), 0);
        for ((seen, before), now) in self.seen.iter_mut().zip(&mut self.counted).zip(counted) {
            *seen += u64::from(now.wrapping_sub(*before));
            *before = now;
        }
        let loss = loss.or(self.newest.map(|(loss, _)| loss)).unwrap_or(0.0);
        self.newest = Some((loss, grad_norm));
        if finite { Ok(()) } else { Err(EngineError::NotFinite { loss, grad_norm }) }
    }
}

impl crate::engine::Exchange for GpuEngine {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn fragments(&self) -> &Arc<Fragments> {
        &self.fragments
    }

    fn encode(&mut self, serial: Serial, fragment: FragmentId) -> Result<(), EngineError> {
        self.gpu.check()?;
        self.exchange.encode(serial, fragment)
    }

    fn encoded(&mut self) -> Result<Option<Encoded>, EngineError> {
        self.exchange.encoded()
    }

    fn include(&mut self, fragment: FragmentId) -> Result<(), EngineError> {
        self.gpu.check()?;
        self.exchange.include(fragment)
    }

    fn apply(&mut self, fragment: FragmentId, body: &[u8]) -> Result<(), EngineError> {
        self.gpu.check()?;
        self.exchange.apply(fragment, body)
    }

    fn load(&mut self, fragment: FragmentId, values: &[f32], keep: bool) -> Result<(), EngineError> {
        self.gpu.check()?;
        self.exchange.load(fragment, values, keep)
    }
}

impl Engine for GpuEngine {
    fn exchange(&self) -> &dyn crate::engine::Exchange {
        self
    }

    fn exchange_mut(&mut self) -> &mut dyn crate::engine::Exchange {
        self
    }

    fn describe(&self) -> String {
        let facts = self.gpu.facts();
        // Browsers may hide the adapter's name.
        let words = ["gpu", &facts.name, facts.backend];
        words.iter().filter(|word| !word.is_empty()).copied().collect::<Vec<_>>().join(" ")
    }

    async fn step(&mut self, tokens: &[u32], lr: f32) -> Result<StepStats, EngineError> {
        if !(lr.is_finite() && lr >= 0.0) {
            return Err(EngineError::Rate { lr });
        }
        let batch = self.check_batch(tokens)?;
        self.gpu.check()?;
        self.steps += 1;
        let adamw = Adjust::new(&self.inner, self.steps, lr, 0.0);
        self.submit(tokens, &adamw, &MuonAdjust::new(&adamw, lr));
        self.shadow.follow(&self.gpu, &self.vectors.moments, self.steps)?;
        // After the first step, one step stays pending on the device while the host prepares the next.
        let pending_max = if self.newest.is_none() { 0 } else { STEPS_MAX - 1 };
        while self.ring.len() > pending_max {
            self.ring.ready(&self.gpu).await?;
            self.step_times.step_done();
            self.take_stats()?;
        }
        let (loss, grad_norm) = self.newest.expect("the first step was waited for");
        Ok(StepStats { loss, grad_norm, tokens: (batch * self.dims.context) as u64 })
    }

    async fn rehearse(&mut self, tokens: &[u32]) -> Result<bool, EngineError> {
        self.check_batch(tokens)?;
        self.synchronise().await?;
        self.submit(tokens, &Adjust::NOTHING, &MuonAdjust::NOTHING);
        self.ring.ready(&self.gpu).await?;
        // Tokens of a rehearsal are not credited to any expert.
        let counted = self.ring.next(&self.gpu, |_, bytes| numbers(&bytes[STATS_BYTES..]))?;
        self.counted.iter_mut().zip(counted.unwrap_or_default()).for_each(|(old, new)| *old = new);
        Ok(true)
    }

    async fn synchronise(&mut self) -> Result<(), EngineError> {
        while !self.ring.is_empty() {
            self.ring.ready(&self.gpu).await?;
            self.take_stats()?;
        }
        self.step_times.idle();
        self.exchange.ready().await
    }

    fn take_expert_counts(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.seen)
    }

    fn is_busy(&self) -> bool {
        !self.ring.is_empty() || self.exchange.is_busy()
    }

    fn saved_moments(&mut self) -> Option<OptimiserState> {
        self.shadow.saved_moments().map(|state| state.unpadded(&self.adamw))
    }
}

/// Size of a step's statistics in bytes; the expert token counts follow them.
const STATS_BYTES: usize = 16;

/// Returns the little-endian 32-bit words in `bytes`.
fn numbers(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

/// Settings of a GPU engine that are not part of the run.
pub struct GpuSetup {
    /// Choice of the kernels of matrix products.
    pub matmul: Matmul,
    /// Frozen weights; required if the run trains adapters.
    pub frozen: Option<Arc<FrozenWeights>>,
    /// Memory plans to try, in this order, until one fits.
    pub memory_plans: Vec<MemoryPlan>,
    /// Maximum total size of the engine's buffers on the device, in bytes; `None` for no limit.
    pub bytes_max: Option<u64>,
    /// Optimiser state to restore.
    pub moments: Option<OptimiserState>,
    /// Clock in microseconds since an arbitrary origin.
    pub now_us: Box<dyn Fn() -> u64>,
}

impl GpuEngine {
    /// Builds an engine for the run that `spec` describes. The parameters are meaningless until each fragment is
    /// loaded.
    ///
    /// # Errors
    /// - [`EngineError::Model`]: the model of `spec` is invalid, or a number of the optimiser is out of range.
    /// - [`EngineError::Batch`]: the batch is out of range.
    /// - [`EngineError::NoFragments`], [`EngineError::Codec`]: the exchange is invalid.
    /// - [`EngineError::Gpu`]: the model does not suit the device ([`GpuError::Shape`], [`GpuError::Head`],
    ///   [`GpuError::TensorTooLarge`], [`GpuError::Memory`], [`GpuError::Refused`]), or the run exchanges in a code
    ///   without kernels ([`GpuError::Code`]).
    /// - [`EngineError::Frozen`], [`EngineError::FrozenUnfit`]: the run trains adapters, and `setup` has no frozen
    ///   weights, or those of another model.
    /// - [`EngineError::Lost`]: the device is gone.
    pub async fn new(gpu: &Gpu, spec: &RunSpec, setup: GpuSetup) -> Result<Self, EngineError> {
        let weights = frozen_for(&ModelSpec::of(&spec.model)?, setup.frozen)?;
        let form = weights.as_ref().map_or(FrozenForm::F16, |weights| weights.form());
        let plan = RunPlan::new(gpu, spec, form, setup.matmul.half)?;
        let frozen = match &weights {
            Some(weights) => Some(freeze(gpu, &plan, weights).await?),
            None => None,
        };
        let bytes_max = setup.bytes_max.unwrap_or(u64::MAX).saturating_sub(setup.matmul.bytes());
        let allocation = allocate_first(gpu, &plan, &setup.memory_plans, bytes_max).await?;
        let Allocation { memory_plan, vectors, exchange, shape, work, bytes: allocated } = allocation;
        let begun = gpu.allocated_bytes();
        // Moments of another model are ignored.
        let moments = setup.moments.and_then(|moments| moments.padded(plan.layout.len(), &plan.adamw));
        if let Some(both) = moments.as_ref().and_then(|moments| moments.adamw(plan.layout.len())) {
            vectors.moments.upload(gpu, &plan.arena, both);
        }
        let steps = moments.as_ref().map_or(0, |moments| moments.steps);
        let shadow = Shadow::new(gpu, &plan.arena, moments, plan.layout.len(), memory_plan.half_moments);
        let parts = step_parts(gpu, &plan, frozen.as_ref(), &vectors);
        let buffers = StepBuffers::new(gpu, &plan.dims, &shape);
        let program = parts.program(&setup.matmul, shape, &work, &buffers);
        gpu.check()?;
        let ring = Ring::new(gpu, "stats", STEPS_MAX, buffers.stats.bytes + buffers.seen.bytes);
        let frozen_bytes = plan.frozen.as_ref().map_or(0, FrozenPlan::bytes);
        let bytes = setup.matmul.bytes() + frozen_bytes + allocated + gpu.allocated_bytes() - begun;
        let step_times = StepTimes::new(setup.now_us, program.cost());
        let counted = vec![0; plan.dims.layers * plan.dims.experts];
        let RunPlan { inner, dims, layout, fragments, arena, adamw, .. } = plan;
        Ok(Self {
            gpu: gpu.clone(),
            room: Room { memory_plan, bytes },
            inner,
            dims,
            layout,
            fragments,
            arena,
            adamw,
            vectors,
            shape,
            buffers,
            program,
            step_times,
            ring,
            newest: None,
            exchange,
            shadow,
            steps,
            counted,
            seen: Vec::new(),
        })
    }

    /// Returns the memory plan that [`Self::new`] would use for the run that `spec` describes, with microbatches of one
    /// window and at most `bytes_max` bytes, without building an engine.
    ///
    /// # Errors
    /// Those of [`Self::new`], except those of frozen weights.
    pub async fn find_room(gpu: &Gpu, spec: &RunSpec, bytes_max: Option<u64>) -> Result<Room, EngineError> {
        let plan = RunPlan::new(gpu, spec, FrozenForm::F16, false)?;
        Ok(plan.room(gpu, &MemoryPlan::LADDER, bytes_max).await?)
    }
}

/// Buffers of an engine whose size depends on memory plan and microbatch.
struct Allocation {
    memory_plan: MemoryPlan,
    vectors: Vectors,
    exchange: Exchange,
    shape: BatchShape,
    work: Workspace,
    /// Total size in bytes.
    bytes: u64,
}

/// Allocates the buffers of `plan` with the first of `memory_plans` that fits within `bytes_max` bytes.
async fn allocate_first(
    gpu: &Gpu,
    plan: &RunPlan,
    memory_plans: &[MemoryPlan],
    bytes_max: u64,
) -> Result<Allocation, GpuError> {
    let mut refused = None;
    for memory_plan in plan.suitable(memory_plans) {
        match allocate_with(gpu, plan, memory_plan, bytes_max).await {
            Err(error @ GpuError::Memory { .. }) => refused = Some(error),
            allocated => return allocated,
        }
    }
    Err(refused.unwrap_or_else(|| gpu.out_of_memory(plan.bytes(MemoryPlan::NONE))))
}

async fn allocate_with(
    gpu: &Gpu,
    plan: &RunPlan,
    memory_plan: MemoryPlan,
    bytes_max: u64,
) -> Result<Allocation, GpuError> {
    let begun = gpu.allocated_bytes();
    let fixed = plan.bytes(memory_plan);
    let Some(bytes_left) = bytes_max.checked_sub(fixed) else { return Err(gpu.out_of_memory(fixed)) };
    let bytes = Vectors::bytes(&plan.arena, memory_plan.half_moments, plan.half);
    let make = || Vectors::new(gpu, &plan.arena, memory_plan.half_moments, plan.half);
    let vectors = gpu.allocate(bytes, make).await?;
    let exchange = Exchange::new(gpu, &vectors.theta, plan.exchange(memory_plan)).await?;
    let (kept, mut refused) = (gpu.allocated_bytes() - begun, None);
    for shape in plan.shapes() {
        let bytes = plan.step_bytes(gpu.binding_bytes_max(), &shape, memory_plan.recompute);
        if bytes > bytes_left {
            refused = Some(gpu.out_of_memory(fixed + bytes));
            continue;
        }
        let before = gpu.allocated_bytes();
        let make = || Workspace::new(gpu, &plan.dims, &shape, memory_plan.recompute);
        match gpu.allocate(bytes, make).await.and_then(|made| made) {
            Ok(work) => {
                let bytes = kept + gpu.allocated_bytes() - before;
                return Ok(Allocation { memory_plan, vectors, exchange, shape, work, bytes });
            }
            Err(error @ (GpuError::Memory { .. } | GpuError::TensorTooLarge { .. })) => refused = Some(error),
            Err(error) => return Err(error),
        }
    }
    Err(refused.expect("1 divides every batch"))
}

/// Returns the inputs of a step's dispatch list.
fn step_parts<'a>(
    gpu: &'a Gpu,
    plan: &'a RunPlan,
    frozen: Option<&'a Frozen>,
    vectors: &'a Vectors,
) -> StepParts<'a> {
    let RunPlan { inner, dims, slots, arena, matrices, adamw, .. } = plan;
    StepParts { gpu, inner: *inner, dims, slots, arena, frozen, vectors, matrices, adamw }
}

/// Writes the frozen weights to the device.
async fn freeze(gpu: &Gpu, plan: &RunPlan, weights: &FrozenWeights) -> Result<Frozen, GpuError> {
    let plan = plan.frozen.clone().expect("only adapters have frozen weights");
    gpu.allocate(plan.bytes(), || Frozen::new(gpu, plan, weights)).await
}

impl GpuEngine {
    /// Returns the mean loss of the current parameters over the target tokens of `tokens`, `[n, context + 1]`, in nats
    /// per token, for any n. Returns 0 if there are no target tokens. It runs steps that change neither parameters nor
    /// moments.
    ///
    /// # Errors
    /// - [`EngineError::Model`]: `tokens` has another shape or a token outside the vocabulary.
    /// - [`EngineError::NotFinite`]: an earlier step diverged.
    /// - [`EngineError::Lost`]: the device is gone.
    /// - [`EngineError::Gpu`]: the device rejected a command.
    pub async fn loss(&mut self, tokens: &[u32]) -> Result<f32, EngineError> {
        windows(tokens, &self.dims)?;
        self.synchronise().await?;
        let mut sum = 0.0;
        for batch in tokens.chunks(self.inner.batch as usize * (self.dims.context + 1)) {
            if self.ring.is_full() {
                sum += self.take_loss().await?;
            }
            self.submit(&self.whole_batch(batch), &Adjust::NOTHING, &MuonAdjust::NOTHING);
        }
        while !self.ring.is_empty() {
            sum += self.take_loss().await?;
        }
        Ok((sum / token::target_count(tokens, self.dims.context).max(1) as f64) as f32)
    }

    /// Returns `tokens`, padded to the batch size with windows without target tokens.
    fn whole_batch(&self, tokens: &[u32]) -> Vec<u32> {
        let mut batch = tokens.to_vec();
        batch.resize(self.inner.batch as usize * (self.dims.context + 1), token::MASKED);
        batch
    }

    /// Returns the sum of the losses in the oldest pending batch, in nats.
    async fn take_loss(&mut self) -> Result<f64, EngineError> {
        self.ring.ready(&self.gpu).await?;
        let rows = self.shape.microbatches * self.shape.rows_padded();
        let found = self.ring.next(&self.gpu, |_, bytes| {
            let (stats, seen) = bytes.split_at(STATS_BYTES);
            (f64::from(to_f32s(stats)[0]) * rows as f64, numbers(seen))
        })?;
        let (sum, counted) = found.expect("it was waited for");
        // Tokens of a loss measurement are not credited to any expert.
        self.counted.iter_mut().zip(counted).for_each(|(old, new)| *old = new);
        Ok(sum)
    }
}
