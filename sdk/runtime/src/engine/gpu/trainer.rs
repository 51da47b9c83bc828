//! The GPU engine: its construction, steps and exchange on one device, for one run.

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
use crate::model::{Adjust, Dims, FrozenForm, FrozenWeights, InnerSpec, ModelSpec, windows};
use crate::token;
use crate::wire::{RunSpec, Serial};

/// Engine that trains a model on a GPU and exchanges its fragments there.
///
/// Device memory is 5 × 4 bytes for each parameter (parameters, gradient, two moments and Θ̂), plus the bodies of the
/// exchange and the activations of one microbatch. Host memory is 2 × 4 bytes for each parameter, for the moments.
/// [`super::MemoryPlan`] reduces device memory. If adapters are trained, only they are the parameters, and the frozen
/// weights lie on the device in their given form.
pub struct GpuEngine {
    gpu: Gpu,
    room: Room,
    inner: InnerSpec,
    dims: Dims,
    layout: Layout,
    fragments: Arc<Fragments>,
    arena: Arena,
    vectors: Vectors,
    shape: BatchShape,
    buffers: StepBuffers,
    program: DispatchList,
    pace: StepTimes,
    /// Read-back of each step, tagged with the number of tokens learnt in it.
    ring: Ring<u64>,
    newest: Option<(f32, f32)>,
    exchange: Exchange,
    shadow: Shadow,
    steps: u64,
    /// Expert counts of the device after the newest finished step, `[layers, E]`, followed by the tokens since the last
    /// report.
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

    /// Reads the parameters in `ranges` into the same ranges of `flat`, `[len]`, after all steps taken. `ring` comes
    /// from [`super::vectors::reader`].
    ///
    /// # Errors
    /// - [`EngineError::Lost`]: the device is gone.
    pub(super) async fn read_params(
        &mut self,
        ranges: &[Range<usize>],
        ring: &mut Ring<Vec<ChunkRange>>,
        flat: &mut [f32],
    ) -> Result<(), EngineError> {
        Ok(read_into(&self.gpu, &self.arena, (&self.vectors.theta, ranges), ring, flat).await?)
    }

    /// Returns the parameters, `[len]`, after all steps taken.
    ///
    /// # Errors
    /// - [`EngineError::Lost`]: the device is gone.
    pub async fn params(&mut self) -> Result<Vec<f32>, EngineError> {
        Ok(download(&self.gpu, &self.arena, &self.vectors.theta, self.layout.len()).await?)
    }

    /// Returns the gradient of the last step, `[len]`, before clipping.
    ///
    /// # Errors
    /// - [`EngineError::Lost`]: the device is gone.
    pub async fn grad(&mut self) -> Result<Vec<f32>, EngineError> {
        Ok(download(&self.gpu, &self.arena, &self.vectors.grad, self.layout.len()).await?)
    }

    /// Returns the memory plan, with the bytes of all its buffers on the device.
    #[must_use]
    pub fn room(&self) -> Room {
        self.room
    }

    /// Returns the bytes of bodies read back so far, for the exchange.
    #[must_use]
    pub fn exchange_bytes(&self) -> u64 {
        self.exchange.bytes_read_back()
    }

    /// Repeats the last step kernel by kernel, and returns the time of each kernel on the device's own clock. Returns
    /// `None` if the device has no such clock.
    ///
    /// # Errors
    /// - [`EngineError::Lost`]: the device is gone.
    pub async fn profile(&mut self) -> Result<Option<BTreeMap<&'static str, KernelTime>>, EngineError> {
        self.settle().await?;
        Ok(profile(&self.gpu, &self.program).await?)
    }

    /// Returns the number of windows in `tokens`, which must equal the batch.
    fn check_batch(&self, tokens: &[u32]) -> Result<usize, EngineError> {
        let (found, batch) = (windows(tokens, &self.dims)?, self.inner.batch as usize);
        if found == batch { Ok(batch) } else { Err(EngineError::Windows { found, batch }) }
    }

    /// Submits a step to the device and requests its statistics. The device computes the clipping factor from its own
    /// norm and ignores the one in `a`.
    fn submit(&mut self, tokens: &[u32], a: &Adjust) {
        let words: Vec<u8> = self.shape.fill(tokens).into_iter().flat_map(u32::to_le_bytes).collect();
        self.gpu.queue.write_buffer(&self.buffers.tokens, 0, &words);
        let learnt = token::learnt(tokens, self.dims.context);
        // Without learnt tokens, no loss is divided.
        let share = 1.0 / learnt.max(1) as f32;
        let step = f32::from_bits(self.steps as u32);
        let hyper = [a.beta1, a.beta2, a.rate, a.root, a.eps, a.keep, share, step];
        self.gpu.write(&self.buffers.hyper, &hyper);
        self.program.submit(&self.gpu, self.pace.cost_max());
        let slices = [self.buffers.stats.clone(), self.buffers.seen.clone()];
        let count = if self.counted.is_empty() { 1 } else { 2 };
        self.ring.read(&self.gpu, &slices[..count], learnt);
    }

    /// Processes the statistics of the oldest pending step, which is done.
    fn take_stats(&mut self) -> Result<(), EngineError> {
        let rows = (self.shape.microbatches * self.shape.rows_padded()) as f32;
        let stats = self.ring.next(&self.gpu, |learnt, bytes| {
            let (stats, seen) = bytes.split_at(STATS_BYTES);
            let stats = to_f32s(stats);
            let loss = (learnt > 0).then(|| stats[0] * (rows / learnt as f32));
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
        // Browsers may give no name.
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
        self.submit(tokens, &Adjust::new(&self.inner, self.steps, lr, 0.0));
        self.shadow.follow(&self.gpu, &self.vectors.moments, self.steps)?;
        // One step stays with the device while the host prepares the next.
        let on_way = if self.newest.is_none() { 0 } else { STEPS_MAX - 1 };
        while self.ring.len() > on_way {
            self.ring.ready(&self.gpu).await?;
            self.pace.step_done();
            self.take_stats()?;
        }
        let (loss, grad_norm) = self.newest.expect("the first step was waited for");
        Ok(StepStats { loss, grad_norm, tokens: (batch * self.dims.context) as u64 })
    }

    async fn rehearse(&mut self, tokens: &[u32]) -> Result<bool, EngineError> {
        self.check_batch(tokens)?;
        self.settle().await?;
        self.submit(tokens, &Adjust::NOTHING);
        self.ring.ready(&self.gpu).await?;
        // Tokens of a rehearsal count for no expert.
        let counted = self.ring.next(&self.gpu, |_, bytes| numbers(&bytes[STATS_BYTES..]))?;
        self.counted.iter_mut().zip(counted.unwrap_or_default()).for_each(|(old, new)| *old = new);
        Ok(true)
    }

    async fn settle(&mut self) -> Result<(), EngineError> {
        while !self.ring.is_empty() {
            self.ring.ready(&self.gpu).await?;
            self.take_stats()?;
        }
        self.pace.idle();
        self.exchange.ready().await
    }

    fn take_seen(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.seen)
    }

    fn is_busy(&self) -> bool {
        !self.ring.is_empty() || self.exchange.is_busy()
    }

    fn salvage(&mut self) -> Option<OptimiserState> {
        self.shadow.salvage()
    }
}

/// Bytes of a step's statistics, before the expert counts.
const STATS_BYTES: usize = 16;

/// Returns the words as numbers.
fn numbers(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

/// Settings of a GPU engine besides the run.
pub struct GpuSetup {
    /// Matrix products.
    pub matmul: Matmul,
    /// Frozen weights, for a run that trains adapters.
    pub frozen: Option<Arc<FrozenWeights>>,
    /// Memory savings to try; the first that fits is used.
    pub thrifts: Vec<MemoryPlan>,
    /// Maximum device memory of its buffers, in bytes; `None` for no limit.
    pub bytes_max: Option<u64>,
    /// Optimiser state to resume from.
    pub moments: Option<OptimiserState>,
    /// Clock in microseconds since an arbitrary time.
    pub now_us: Box<dyn Fn() -> u64>,
}

impl GpuEngine {
    /// Builds an engine for the run that `spec` describes. The parameters are meaningless until each fragment has been
    /// loaded.
    ///
    /// # Errors
    /// - [`EngineError::Model`]: the model of `spec` is invalid, or a number of the optimiser is out of range.
    /// - [`EngineError::Batch`]: the batch is out of range.
    /// - [`EngineError::NoFragments`], [`EngineError::Codec`]: the exchange is invalid.
    /// - [`EngineError::Gpu`]: the model does not fit the device: [`GpuError::Shape`], [`GpuError::Head`],
    ///   [`GpuError::TensorTooLarge`], [`GpuError::Memory`], or [`GpuError::Refused`]; or the run exchanges
    ///   in a code without kernels: [`GpuError::Code`]; or it trains with an optimiser without kernels:
    ///   [`GpuError::Optimiser`].
    /// - [`EngineError::Frozen`], [`EngineError::FrozenUnfit`]: the run trains adapters, and `setup` has no weights, or
    ///   weights of another model.
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
        let placed = place(gpu, &plan, &setup.thrifts, bytes_max).await?;
        let Placed { thrift, vectors, exchange, shape, work, bytes: placed } = placed;
        let begun = gpu.taken();
        // Moments of another model are ignored.
        let moments = setup.moments.filter(|moments| moments.adamw(plan.layout.len()).is_some());
        if let Some(both) = moments.as_ref().and_then(|moments| moments.adamw(plan.layout.len())) {
            vectors.moments.upload(gpu, &plan.arena, both);
        }
        let steps = moments.as_ref().map_or(0, |moments| moments.steps);
        let shadow = Shadow::new(gpu, &plan.arena, moments, plan.layout.len(), thrift.half_moments);
        let parts = step_parts(gpu, &plan, frozen.as_ref(), &vectors);
        let buffers = StepBuffers::new(gpu, &plan.dims, &shape);
        let program = parts.program(&setup.matmul, shape, &work, &buffers);
        gpu.check()?;
        let ring = Ring::new(gpu, "stats", STEPS_MAX, buffers.stats.bytes + buffers.seen.bytes);
        let frozen_bytes = plan.frozen.as_ref().map_or(0, FrozenPlan::bytes);
        let bytes = setup.matmul.bytes() + frozen_bytes + placed + gpu.taken() - begun;
        let pace = StepTimes::new(setup.now_us, program.cost());
        let counted = vec![0; plan.dims.layers * plan.dims.experts];
        let RunPlan { inner, dims, layout, fragments, arena, .. } = plan;
        Ok(Self {
            gpu: gpu.clone(),
            room: Room { thrift, bytes },
            inner,
            dims,
            layout,
            fragments,
            arena,
            vectors,
            shape,
            buffers,
            program,
            pace,
            ring,
            newest: None,
            exchange,
            shadow,
            steps,
            counted,
            seen: Vec::new(),
        })
    }

    /// Returns the memory plan that [`Self::new`] would try for the run of `spec` on `gpu`, without building an engine.
    /// It assumes one window in a microbatch and at most `bytes_max` bytes.
    ///
    /// # Errors
    /// Those of [`Self::new`], except those of frozen weights.
    pub async fn find_room(gpu: &Gpu, spec: &RunSpec, bytes_max: Option<u64>) -> Result<Room, EngineError> {
        let plan = RunPlan::new(gpu, spec, FrozenForm::F16, false)?;
        Ok(plan.room(gpu, &MemoryPlan::LADDER, bytes_max).await?)
    }
}

/// Parts of an engine that may not fit.
struct Placed {
    thrift: MemoryPlan,
    vectors: Vectors,
    exchange: Exchange,
    shape: BatchShape,
    work: Workspace,
    /// Total bytes.
    bytes: u64,
}

/// Allocates the buffers of `plan` with the first of `thrifts` that fits within `bytes_max`.
async fn place(
    gpu: &Gpu,
    plan: &RunPlan,
    thrifts: &[MemoryPlan],
    bytes_max: u64,
) -> Result<Placed, GpuError> {
    let mut refused = None;
    for &thrift in thrifts {
        match place_with(gpu, plan, thrift, bytes_max).await {
            Err(error @ GpuError::Memory { .. }) => refused = Some(error),
            placed => return placed,
        }
    }
    Err(refused.unwrap_or_else(|| gpu.no_room(plan.bytes(MemoryPlan::NONE))))
}

async fn place_with(
    gpu: &Gpu,
    plan: &RunPlan,
    thrift: MemoryPlan,
    bytes_max: u64,
) -> Result<Placed, GpuError> {
    let begun = gpu.taken();
    let fixed = plan.bytes(thrift);
    let Some(bytes_left) = bytes_max.checked_sub(fixed) else { return Err(gpu.no_room(fixed)) };
    let bytes = Vectors::bytes(&plan.arena, thrift.half_moments, plan.half);
    let make = || Vectors::new(gpu, &plan.arena, thrift.half_moments, plan.half);
    let vectors = gpu.allocate(bytes, make).await?;
    let exchange = Exchange::new(gpu, &vectors.theta, plan.exchange(thrift)).await?;
    let (kept, mut refused) = (gpu.taken() - begun, None);
    for shape in plan.shapes() {
        let bytes = plan.step_bytes(gpu.binding_bytes_max(), &shape, thrift.recompute);
        if bytes > bytes_left {
            refused = Some(gpu.no_room(fixed + bytes));
            continue;
        }
        let before = gpu.taken();
        let make = || Workspace::new(gpu, &plan.dims, &shape, thrift.recompute);
        match gpu.allocate(bytes, make).await.and_then(|made| made) {
            Ok(work) => {
                let bytes = kept + gpu.taken() - before;
                return Ok(Placed { thrift, vectors, exchange, shape, work, bytes });
            }
            Err(error @ (GpuError::Memory { .. } | GpuError::TensorTooLarge { .. })) => refused = Some(error),
            Err(error) => return Err(error),
        }
    }
    Err(refused.expect("1 divides every batch"))
}

/// Returns the inputs for the dispatch list of a step.
fn step_parts<'a>(
    gpu: &'a Gpu,
    plan: &'a RunPlan,
    frozen: Option<&'a Frozen>,
    vectors: &'a Vectors,
) -> StepParts<'a> {
    let RunPlan { inner, dims, slots, arena, .. } = plan;
    StepParts { gpu, inner: *inner, dims, slots, arena, frozen, vectors }
}

/// Writes the frozen weights to the device.
async fn freeze(gpu: &Gpu, plan: &RunPlan, weights: &FrozenWeights) -> Result<Frozen, GpuError> {
    let plan = plan.frozen.clone().expect("only adapters have frozen weights");
    gpu.allocate(plan.bytes(), || Frozen::new(gpu, plan, weights)).await
}

impl GpuEngine {
    /// Returns the mean loss of the parameters over the learnt tokens of `tokens`, `[n, context + 1]`, in nats per
    /// token, for any n. It is 0 if no token is learnt. Parameters and moments stay unchanged, because it runs steps
    /// that change nothing.
    ///
    /// # Errors
    /// - [`EngineError::Model`]: `tokens` has another shape or a token outside the vocabulary.
    /// - [`EngineError::NotFinite`]: an earlier step diverged.
    /// - [`EngineError::Lost`]: the device is gone.
    pub async fn loss(&mut self, tokens: &[u32]) -> Result<f32, EngineError> {
        windows(tokens, &self.dims)?;
        self.settle().await?;
        let mut sum = 0.0;
        for batch in tokens.chunks(self.inner.batch as usize * (self.dims.context + 1)) {
            if self.ring.is_full() {
                sum += self.take_loss().await?;
            }
            self.submit(&self.whole_batch(batch), &Adjust::NOTHING);
        }
        while !self.ring.is_empty() {
            sum += self.take_loss().await?;
        }
        Ok((sum / token::learnt(tokens, self.dims.context).max(1) as f64) as f32)
    }

    /// Returns `tokens`, padded to a whole batch with windows without learnt tokens.
    fn whole_batch(&self, tokens: &[u32]) -> Vec<u32> {
        let mut batch = tokens.to_vec();
        batch.resize(self.inner.batch as usize * (self.dims.context + 1), token::GIVEN);
        batch
    }

    /// Returns the sum of the losses of the oldest pending batch, in nats.
    async fn take_loss(&mut self) -> Result<f64, EngineError> {
        self.ring.ready(&self.gpu).await?;
        let rows = self.shape.microbatches * self.shape.rows_padded();
        let found = self.ring.next(&self.gpu, |_, bytes| {
            let (stats, seen) = bytes.split_at(STATS_BYTES);
            (f64::from(to_f32s(stats)[0]) * rows as f64, numbers(seen))
        })?;
        let (sum, counted) = found.expect("it was waited for");
        // Tokens that are only read count for no expert.
        self.counted.iter_mut().zip(counted).for_each(|(old, new)| *old = new);
        Ok(sum)
    }
}
