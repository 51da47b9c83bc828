//! Construction of an engine on a device.

use std::sync::Arc;

use super::super::batch::BatchShape;
use super::super::exchange::Exchange;
use super::super::frozen::{Frozen, FrozenPlan};
use super::super::matmul::Matmul;
use super::super::memory_plan::MemoryPlan;
use super::super::moments::Shadow;
use super::super::pace::Pace;
use super::super::plan::{Room, RunPlan};
use super::super::ring::Ring;
use super::super::step::{STEPS_MAX, StepBuffers, StepParts};
use super::super::vectors::Vectors;
use super::super::workspace::Workspace;
use super::super::{Gpu, GpuError};
use super::GpuEngine;
use crate::engine::frozen::needed;
use crate::engine::{EngineError, OptimiserState};
use crate::model::{FrozenForm, FrozenWeights, ModelSpec};
use crate::wire::RunSpec;

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
    ///   in a code without kernels: [`GpuError::Code`].
    /// - [`EngineError::Frozen`], [`EngineError::FrozenUnfit`]: the run trains adapters, and `setup` has no weights, or
    ///   weights of another model.
    /// - [`EngineError::Lost`]: the device is gone.
    pub async fn new(gpu: &Gpu, spec: &RunSpec, setup: GpuSetup) -> Result<Self, EngineError> {
        let weights = needed(&ModelSpec::of(&spec.model)?, setup.frozen)?;
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
        let pace = Pace::new(setup.now_us, program.cost());
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
