//! An engine put together on a device.

use std::sync::Arc;

use super::super::arena::Arena;
use super::super::exchange::{self, Exchange};
use super::super::frozen::{Frozen, FrozenPlan};
use super::super::matmul::Matmul;
use super::super::pace::Pace;
use super::super::ring::Ring;
use super::super::step::{QUAD, StepBuffers, StepParts};
use super::super::thrift::Thrift;
use super::super::vectors::{Shadow, Vectors, upload};
use super::super::{Gpu, GpuError};
use super::{GpuEngine, STEPS_MAX};
use crate::diloco::{Codec, Fragments};
use crate::engine::frozen::needed;
use crate::engine::{BATCH_MAX, EngineError, OptimiserState};
use crate::model::{Dims, FrozenForm, FrozenWeights, ModelSpec, Slots, check_inner, layout};
use crate::wire::RunSpec;

/// Widest head that attention keeps in registers.
const HEAD_MAX: u32 = 128;

/// What a GPU engine needs beside the run.
pub struct GpuSetup {
    /// How matrix products are computed.
    pub matmul: Matmul,
    /// The weights, for a run that trains adapters.
    pub frozen: Option<Arc<FrozenWeights>>,
    /// What it does to take less memory of the device.
    pub thrift: Thrift,
    /// OptimiserState to go on with.
    pub moments: Option<OptimiserState>,
    /// Microseconds since any moment.
    pub now_us: Box<dyn Fn() -> u64>,
}

impl GpuEngine {
    /// An engine for the run that `spec` describes. The parameters mean nothing until each fragment was
    /// loaded.
    ///
    /// # Errors
    /// - [`EngineError::Model`]: `spec` describes no valid model, or a number of the optimiser is out of range.
    /// - [`EngineError::Batch`]: the batch is out of range.
    /// - [`EngineError::NoFragments`], [`EngineError::Codec`]: the exchange makes no sense.
    /// - [`EngineError::Gpu`]: the model does not fit the device: [`GpuError::Shape`], [`GpuError::Head`],
    ///   [`GpuError::TensorTooLarge`], [`GpuError::Memory`], or [`GpuError::Refused`]; or the run exchanges
    ///   in a code without kernels: [`GpuError::Code`].
    /// - [`EngineError::Frozen`], [`EngineError::FrozenUnfit`]: it trains adapters, and `setup` has no weights, or
    ///   those of another model.
    /// - [`EngineError::Lost`]: the device is gone.
    pub async fn new(gpu: &Gpu, spec: &RunSpec, setup: GpuSetup) -> Result<Self, EngineError> {
        let (model, inner) = (&ModelSpec::of(&spec.model)?, spec.inner);
        let layout = layout(model)?;
        check_inner(&inner)?;
        if inner.batch == 0 || inner.batch > BATCH_MAX {
            return Err(EngineError::Batch { batch: inner.batch });
        }
        check_shape(model)?;
        let weights = needed(model, setup.frozen)?;
        let count = std::num::NonZeroU16::new(spec.exchange.fragments).ok_or(EngineError::NoFragments)?;
        let codec = Codec::new(&spec.exchange)?;
        exchange::kernel_code(codec.code())?;
        let fragments = Arc::new(Fragments::plan(&layout, count));
        let dims = Dims::new(model);
        let slots = Slots::new(&dims);
        let arena = Arena::plan(&dims, &slots, gpu.binding_bytes_max(), &gpu.facts().name)?;
        let frozen = match weights {
            Some(weights) => Some(freeze(gpu, &dims, &slots, &weights).await?),
            None => None,
        };
        let half = setup.matmul.half && frozen.is_none();
        let vectors = gpu.allocate(arena.bytes() * 5, || Vectors::new(gpu, &arena, half)).await?;
        let held = exchange::Vectors { arena: &arena, theta: &vectors.theta, hat: &vectors.hat };
        let apply = spec.exchange.apply;
        let exchange = Exchange::new(gpu, held, Arc::clone(&fragments), codec, apply).await?;
        // Moments of another model say nothing.
        let moments = setup.moments.filter(|moments| moments.adamw(layout.len()).is_some());
        if let Some([m, v]) = moments.as_ref().and_then(|moments| moments.adamw(layout.len())) {
            upload(gpu, &arena, &vectors.m, m);
            upload(gpu, &arena, &vectors.v, v);
        }
        let steps = moments.as_ref().map_or(0, |moments| moments.steps);
        let shadow = Shadow::new(gpu, &arena, moments, layout.len());
        let (dims_of, frozen) = (&dims, frozen.as_ref());
        let parts =
            StepParts { gpu, inner, dims: dims_of, slots: &slots, arena: &arena, frozen, vectors: &vectors };
        let (shape, work) = parts.fit(setup.thrift.recompute).await?;
        let buffers = StepBuffers::new(gpu, &dims, &shape);
        let program = parts.program(&setup.matmul, shape, &work, &buffers);
        gpu.check()?;
        let ring = Ring::new(gpu, "stats", STEPS_MAX, buffers.stats.bytes + buffers.seen.bytes);
        let counted = vec![0; dims.layers * dims.experts];
        let pace = Pace::new(setup.now_us, program.cost());
        Ok(Self {
            gpu: gpu.clone(),
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

    /// Whether `gpu` binds each matrix of `model`.
    ///
    /// # Errors
    /// - [`EngineError::Gpu`]: one is larger than that.
    /// - [`EngineError::Model`]: there is no such model.
    pub fn binds(gpu: &Gpu, model: &ModelSpec) -> Result<(), EngineError> {
        layout(model)?;
        let dims = Dims::new(model);
        let (slots, bytes_max, name) = (Slots::new(&dims), gpu.binding_bytes_max(), &gpu.facts().name);
        Arena::plan(&dims, &slots, bytes_max, name)?;
        if slots.has_adapters() {
            FrozenPlan::new(&dims, &slots, FrozenForm::F16, bytes_max, name)?;
        }
        Ok(())
    }
}

/// Puts the weights that stay as they are on the device.
async fn freeze(gpu: &Gpu, dims: &Dims, slots: &Slots, weights: &FrozenWeights) -> Result<Frozen, GpuError> {
    let (bytes_max, name) = (gpu.binding_bytes_max(), &gpu.facts().name);
    let plan = FrozenPlan::new(dims, slots, weights.form(), bytes_max, name)?;
    gpu.allocate(plan.bytes(), || Frozen::new(gpu, plan, weights)).await
}

/// The kernels read four values at a time.
fn check_shape(model: &ModelSpec) -> Result<(), GpuError> {
    let head = model.d_model / model.heads;
    let rank = model.lora.map_or(QUAD, |lora| lora.rank);
    let sizes =
        [("d_model", model.d_model), ("d_ff", model.d_ff), ("d_model / heads", head), ("lora.rank", rank)];
    for (field, value) in sizes {
        if !value.is_multiple_of(QUAD) {
            return Err(GpuError::Shape { field, value });
        }
    }
    if head > HEAD_MAX {
        return Err(GpuError::Head { width: head, width_max: HEAD_MAX });
    }
    Ok(())
}
