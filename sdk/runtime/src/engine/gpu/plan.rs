//! Layout of a run on a device, its memory use, and plans that need less memory.

use std::fmt;
use std::num::NonZeroU16;
use std::ops::Range;
use std::sync::Arc;

use super::arena::Arena;
use super::exchange::{self, Parts};
use super::frozen::FrozenPlan;
use super::muon::MuonScratch;
use super::step::{BatchShape, QUAD, StepBuffers};
use super::vectors::{Shadow, Vectors};
use super::workspace::Workspace;
use super::{Gpu, GpuError};
use crate::diloco::{Codec, Fragments, Layout};
use crate::engine::{BATCH_MAX, EngineError};
use crate::model::{
    Dims, FrozenForm, ModelSpec, MuonMatrix, Slots, adamw_ranges, check_inner, layout, muon_matrices,
};
use crate::wire::{ApplyPolicy, InnerSpec, RunSpec};

/// Maximum number of values in a head for which the attention kernels are tested.
const HEAD_MAX: u32 = 256;

/// Memory plan of an engine and the device memory that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Memory plan in use.
    pub memory_plan: MemoryPlan,
    /// Total size of the engine's buffers in bytes, without the uniforms of its dispatches (less than 1 MB).
    pub bytes: u64,
}

/// Run that was validated and laid out for one device.
#[derive(Debug)]
pub struct RunPlan {
    pub inner: InnerSpec,
    pub dims: Dims,
    pub slots: Slots,
    pub layout: Layout,
    pub fragments: Arc<Fragments>,
    pub codec: Codec,
    pub apply: ApplyPolicy,
    pub arena: Arena,
    /// Matrices that are trained with Muon.
    pub matrices: Vec<MuonMatrix>,
    /// Flat ranges that are trained with AdamW, each with whether it is decayed.
    pub adamw: Vec<(Range<usize>, bool)>,
    /// Layout of the frozen weights, if adapters are trained.
    pub frozen: Option<FrozenPlan>,
    /// Whether θ is stored as 16-bit floats too.
    pub half: bool,
}

impl RunPlan {
    /// Plans the run that `spec` describes on `gpu`. `form` is the storage form of the frozen weights, if adapters are
    /// trained. With `half_weights`, matrix products read weights as 16-bit floats, unless these are frozen.
    ///
    /// # Errors
    /// [`EngineError::Model`], [`EngineError::Batch`], [`EngineError::NoFragments`], [`EngineError::Codec`], and
    /// [`EngineError::Gpu`] with [`GpuError::Shape`], [`GpuError::Head`], [`GpuError::Code`] or
    /// [`GpuError::TensorTooLarge`].
    pub fn new(gpu: &Gpu, spec: &RunSpec, form: FrozenForm, half_weights: bool) -> Result<Self, EngineError> {
        let (model, inner) = (&ModelSpec::of(&spec.model)?, spec.inner);
        let layout = layout(model)?;
        check_inner(&inner)?;
        if inner.batch == 0 || inner.batch > BATCH_MAX {
            return Err(EngineError::Batch { batch: inner.batch });
        }
        check_shape(model)?;
        let count = NonZeroU16::new(spec.exchange.fragments).ok_or(EngineError::NoFragments)?;
        let codec = Codec::new(&spec.exchange)?;
        exchange::kernel_code(codec.code())?;
        let fragments = Arc::new(Fragments::plan(&layout, count));
        let dims = Dims::new(model);
        let slots = Slots::new(&dims);
        let (bytes_max, name) = (gpu.binding_bytes_max(), &gpu.facts().name);
        let arena = Arena::plan(&dims, &slots, bytes_max, name)?;
        let frozen = match model.lora {
            Some(_) => Some(FrozenPlan::new(&dims, &slots, form, bytes_max, name)?),
            None => None,
        };
        let half = half_weights && frozen.is_none();
        let apply = spec.exchange.apply;
        let (matrices, adamw) =
            (muon_matrices(&layout, inner.optimiser), adamw_ranges(&layout, inner.optimiser));
        Ok(Self { inner, dims, slots, layout, fragments, codec, apply, arena, matrices, adamw, frozen, half })
    }

    /// Returns the inputs of the exchange under the memory plan `memory_plan`.
    pub fn exchange(&self, memory_plan: MemoryPlan) -> Parts<'_> {
        let Self { arena, fragments, codec, apply, .. } = self;
        Parts { arena, fragments, codec: *codec, policy: *apply, host_hat: memory_plan.host_hat }
    }

    /// Returns the device memory under the memory plan `memory_plan` that does not depend on the batch, in bytes.
    pub fn bytes(&self, memory_plan: MemoryPlan) -> u64 {
        self.frozen.as_ref().map_or(0, FrozenPlan::bytes)
            + Vectors::bytes(&self.arena, memory_plan.half_moments, self.half)
            + self.exchange(memory_plan).bytes()
            + Shadow::bytes(self.layout.len(), memory_plan.half_moments)
    }

    /// Returns the device memory for steps of `shape`, in bytes, in addition to [`Self::bytes`]. `binding_bytes_max` is
    /// the device's binding limit.
    pub fn step_bytes(&self, binding_bytes_max: u64, shape: &BatchShape, recompute: bool) -> u64 {
        Workspace::bytes(binding_bytes_max, &self.dims, shape, recompute)
            + StepBuffers::bytes(&self.dims, &self.arena, shape)
            + MuonScratch::bytes(&self.matrices)
    }

    /// Returns every division of the batch into equal microbatches, that with the largest ones first.
    pub fn shapes(&self) -> impl Iterator<Item = BatchShape> {
        let (batch, context) = (self.inner.batch as usize, self.dims.context);
        let counts = (1..=batch).filter(move |count| batch.is_multiple_of(*count));
        counts.map(move |microbatches| BatchShape { microbatches, windows: batch / microbatches, context })
    }

    /// Returns the memory plans that suit the optimiser: Muon's momentum is not packed.
    pub fn suitable<'a>(&self, memory_plans: &'a [MemoryPlan]) -> impl Iterator<Item = MemoryPlan> + use<'a> {
        let has_muon = !self.matrices.is_empty();
        memory_plans.iter().copied().filter(move |memory_plan| !(has_muon && memory_plan.half_moments))
    }

    /// Returns the first of `memory_plans` with which microbatches of one window fit on `gpu` within `bytes_max`. To
    /// find out, it allocates the memory and frees it again.
    ///
    /// # Errors
    /// [`GpuError::Memory`] if none fits.
    pub async fn room(
        &self,
        gpu: &Gpu,
        memory_plans: &[MemoryPlan],
        bytes_max: Option<u64>,
    ) -> Result<Room, GpuError> {
        let shape = self.shapes().last().expect("1 divides every batch");
        let mut needed = 0;
        for memory_plan in self.suitable(memory_plans) {
            let bytes = self.bytes(memory_plan)
                + self.step_bytes(gpu.binding_bytes_max(), &shape, memory_plan.recompute);
            if bytes_max.is_none_or(|bytes_max| bytes <= bytes_max) && gpu.has_free(bytes).await {
                return Ok(Room { memory_plan, bytes });
            }
            needed = bytes;
        }
        Err(gpu.out_of_memory(needed))
    }
}

/// Checks that sizes are multiples of four, because the kernels read four values at a time, and that heads are not too
/// wide.
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

/// Memory plan: which data of an engine is recomputed, kept in host memory, or packed to save device memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Stores only the input of each layer for the backward pass, which recomputes the other activations (Chen et al.
    /// 2016, arXiv 1604.06174). A step then needs about a third more operations. No bit changes.
    pub recompute: bool,
    /// Keeps Θ̂ in host memory, in two bytes per parameter. Exchanging a fragment then takes longer. No bit changes.
    pub host_hat: bool,
    /// Packs both moments into one word; see [`crate::model::moments`]. Stochastic rounding then changes steps
    /// slightly.
    pub half_moments: bool,
}

impl MemoryPlan {
    /// Plan that saves no memory.
    pub const NONE: Self = Self { recompute: false, host_hat: false, half_moments: false };
    /// Plan with all savings that leave the results the same bit for bit.
    pub const EXACT: Self = Self { recompute: true, host_hat: true, half_moments: false };
    /// Plan with all savings.
    pub const ALL: Self = Self { recompute: true, host_hat: true, half_moments: true };
    /// Plans in the order in which they are tried until one fits.
    pub const LADDER: [Self; 3] = [Self::NONE, Self::EXACT, Self::ALL];
}

/// Formats the plan as a part of a sentence.
impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ways = [
            (self.recompute, "activations are recomputed"),
            (self.host_hat, "the syncer's parameters are kept in host memory"),
            (self.half_moments, "moments take 16 bits"),
        ];
        let taken: Vec<&str> = ways.iter().filter(|(is_taken, _)| *is_taken).map(|(_, way)| *way).collect();
        match taken.as_slice() {
            [] => f.write_str("everything is kept on the GPU"),
            [ways @ .., last] if !ways.is_empty() => write!(f, "{} and {last}", ways.join(", ")),
            ways => f.write_str(&ways.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_is_done() {
        let told = MemoryPlan::LADDER.map(|memory_plan| memory_plan.to_string());
        assert_eq!(told[0], "everything is kept on the GPU");
        assert_eq!(told[1], "activations are recomputed and the syncer's parameters are kept in host memory");
        assert!(told[2].ends_with("are kept in host memory and moments take 16 bits"), "{}", told[2]);
        let one = MemoryPlan { recompute: true, ..MemoryPlan::NONE };
        assert_eq!(one.to_string(), "activations are recomputed");
    }
}
