//! Layout of a run on a device, its memory use, and options that take less memory.

use std::fmt;
use std::num::NonZeroU16;
use std::sync::Arc;

use super::arena::Arena;
use super::exchange::{self, Parts};
use super::frozen::FrozenPlan;
use super::step::{BatchShape, QUAD, StepBuffers};
use super::vectors::{Shadow, Vectors};
use super::workspace::Workspace;
use super::{Gpu, GpuError};
use crate::diloco::{Codec, Fragments, Layout};
use crate::engine::{BATCH_MAX, EngineError};
use crate::model::{Dims, FrozenForm, ModelSpec, Slots, check_inner, layout};
use crate::wire::{ApplyPolicy, InnerSpec, Optimiser, RunSpec};

/// Maximum head width for which attention is tested.
const HEAD_MAX: u32 = 256;

/// Memory plan of an engine on its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Memory savings in use.
    pub thrift: MemoryPlan,
    /// Resulting size of its buffers, in bytes, without the parameters of its dispatches (less than 1 MB).
    pub bytes: u64,
}

/// A run, validated and laid out for one device.
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
    /// Layout of the frozen weights, if adapters are trained.
    pub frozen: Option<FrozenPlan>,
    /// Whether θ is also stored as 16-bit floats.
    pub half: bool,
}

impl RunPlan {
    /// Plans the run that `spec` describes on `gpu`. `form` is the form of the frozen weights under adapters. With
    /// `half_weights`, matrix products read weights as 16-bit floats.
    ///
    /// # Errors
    /// [`EngineError::Model`], [`EngineError::Batch`], [`EngineError::NoFragments`], [`EngineError::Codec`], and
    /// [`EngineError::Gpu`] with [`GpuError::Optimiser`], [`GpuError::Shape`], [`GpuError::Head`], [`GpuError::Code`]
    /// or [`GpuError::TensorTooLarge`].
    pub fn new(gpu: &Gpu, spec: &RunSpec, form: FrozenForm, half_weights: bool) -> Result<Self, EngineError> {
        let (model, inner) = (&ModelSpec::of(&spec.model)?, spec.inner);
        let layout = layout(model)?;
        check_inner(&inner)?;
        if inner.batch == 0 || inner.batch > BATCH_MAX {
            return Err(EngineError::Batch { batch: inner.batch });
        }
        check_optimiser(&inner)?;
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
        Ok(Self { inner, dims, slots, layout, fragments, codec, apply, arena, frozen, half })
    }

    /// Returns the inputs of the exchange.
    pub fn exchange(&self, thrift: MemoryPlan) -> Parts<'_> {
        let Self { arena, fragments, codec, apply, .. } = self;
        Parts { arena, fragments, codec: *codec, policy: *apply, host_hat: thrift.host_hat }
    }

    /// Returns the device memory that does not depend on the batch, in bytes.
    pub fn bytes(&self, thrift: MemoryPlan) -> u64 {
        self.frozen.as_ref().map_or(0, FrozenPlan::bytes)
            + Vectors::bytes(&self.arena, thrift.half_moments, self.half)
            + self.exchange(thrift).bytes()
            + Shadow::bytes(self.layout.len(), thrift.half_moments)
    }

    /// Returns the additional device memory of steps of `shape`, in bytes, on a device that binds at most
    /// `binding_bytes_max`.
    pub fn step_bytes(&self, binding_bytes_max: u64, shape: &BatchShape, recompute: bool) -> u64 {
        Workspace::bytes(binding_bytes_max, &self.dims, shape, recompute)
            + StepBuffers::bytes(&self.dims, &self.arena, shape)
    }

    /// Returns every division of the batch into microbatches, the largest first.
    pub fn shapes(&self) -> impl Iterator<Item = BatchShape> {
        let (batch, context) = (self.inner.batch as usize, self.dims.context);
        let counts = (1..=batch).filter(move |count| batch.is_multiple_of(*count));
        counts.map(move |microbatches| BatchShape { microbatches, windows: batch / microbatches, context })
    }

    /// Returns the first of `thrifts` with which the smallest microbatch fits on `gpu` within `bytes_max`. Tests this
    /// by an allocation that is freed again.
    ///
    /// # Errors
    /// [`GpuError::Memory`]: memory is too small with each of them.
    pub async fn room(
        &self,
        gpu: &Gpu,
        thrifts: &[MemoryPlan],
        bytes_max: Option<u64>,
    ) -> Result<Room, GpuError> {
        let shape = self.shapes().last().expect("1 divides every batch");
        let mut needed = 0;
        for &thrift in thrifts {
            let bytes =
                self.bytes(thrift) + self.step_bytes(gpu.binding_bytes_max(), &shape, thrift.recompute);
            if bytes_max.is_none_or(|bytes_max| bytes <= bytes_max) && gpu.has_free(bytes).await {
                return Ok(Room { thrift, bytes });
            }
            needed = bytes;
        }
        Err(gpu.no_room(needed))
    }
}

/// Checks that the optimiser has kernels.
///
/// # Errors
/// [`GpuError::Optimiser`]
pub(in crate::engine) fn check_optimiser(inner: &InnerSpec) -> Result<(), GpuError> {
    match inner.optimiser {
        Optimiser::AdamW => Ok(()),
        optimiser @ Optimiser::Muon => Err(GpuError::Optimiser { optimiser }),
    }
}

/// Checks the shape, because the kernels read four values at a time.
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

/// Memory savings. Without any, an engine keeps all its data on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Saves only the input of each layer for the backward pass, which recomputes the rest (Chen et al. 2016, arXiv
    /// 1604.06174). Takes about a third more operations and changes no bit.
    pub recompute: bool,
    /// Keeps Θ̂ in host memory, in two bytes per parameter. Takes time when a fragment is exchanged, and changes no
    /// bit.
    pub host_hat: bool,
    /// Packs both moments into one word, see [`crate::model::moments`]. Changes steps slightly, by stochastic rounding.
    pub half_moments: bool,
}

impl MemoryPlan {
    /// No saving.
    pub const NONE: Self = Self { recompute: false, host_hat: false, half_moments: false };
    /// All savings that change no bit.
    pub const EXACT: Self = Self { recompute: true, host_hat: true, half_moments: false };
    /// All savings.
    pub const ALL: Self = Self { recompute: true, host_hat: true, half_moments: true };
    /// Steps from no saving to all, in the order in which they are tried if memory is short.
    pub const LADDER: [Self; 3] = [Self::NONE, Self::EXACT, Self::ALL];
}

/// Describes the savings as a part of a sentence.
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
        let told = MemoryPlan::LADDER.map(|thrift| thrift.to_string());
        assert_eq!(told[0], "everything is kept on the GPU");
        assert_eq!(told[1], "activations are recomputed and the syncer's parameters are kept in host memory");
        assert!(told[2].ends_with("are kept in host memory and moments take 16 bits"), "{}", told[2]);
        let one = MemoryPlan { recompute: true, ..MemoryPlan::NONE };
        assert_eq!(one.to_string(), "activations are recomputed");
    }
}
