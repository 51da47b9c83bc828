//! Frozen weights in device memory, in the form in which they were fetched.

use std::collections::BTreeMap;
use std::ops::Range;

use archipelago_core::bytes::from_f32s;

use super::Gpu;
use super::arena::ALIGN;
use super::error::GpuError;
use super::matmul::Values;
use super::program::{ALIGN_BYTES, Slice, buffer};
use crate::model::{Dims, FROZEN_BLOCK, FrozenForm, FrozenWeights, Slots};

/// Planned layout of frozen weights on the device.
#[derive(Clone, Debug)]
pub struct FrozenPlan {
    /// Flat range and row length of each matrix, group of adjacent matrices, or slice of embedding or head.
    matrices: Vec<(Range<usize>, usize)>,
    /// Flat ranges of the norms.
    vectors: Vec<Range<usize>>,
    form: FrozenForm,
    /// Number of rows in a slice of the embedding or head. The last slice may have fewer.
    slice_rows: usize,
}

/// Returns the size of `rows` rows of a matrix on the device, in bytes.
fn bytes(form: FrozenForm, rows: usize, cols: usize) -> u64 {
    let bytes = match form {
        FrozenForm::F16 => 2 * rows * cols,
        FrozenForm::Int8 => rows * cols + 4 * rows * cols.div_ceil(FROZEN_BLOCK),
    };
    bytes.next_multiple_of(16) as u64
}

impl FrozenPlan {
    /// Divides the weights of a model into buffers of at most `bytes_max` bytes. `adapter` is the device's name for
    /// errors.
    ///
    /// # Errors
    /// [`GpuError::TensorTooLarge`] if a matrix other than embedding and head, or [`ALIGN`] rows of those, exceed
    /// `bytes_max`.
    pub fn new(
        dims: &Dims,
        slots: &Slots,
        form: FrozenForm,
        bytes_max: u64,
        adapter: &str,
    ) -> Result<Self, GpuError> {
        let (c, f) = (dims.width, dims.ff);
        let most = (bytes_max / bytes(form, ALIGN, c)) as usize * ALIGN;
        let slice_rows = most.min(dims.vocab.next_multiple_of(ALIGN)).max(ALIGN);
        let mut plan = Self { matrices: Vec::new(), vectors: Vec::new(), form, slice_rows };
        let heads = if slots.is_tied() { vec![&slots.embed] } else { vec![&slots.embed, &slots.head] };
        for head in heads {
            plan.matrices.extend(plan.row_slices(dims, head).into_iter().map(|(.., flat)| (flat, c)));
        }
        for layer in &slots.layers {
            let of_layer = [(&layer.qkv, c), (&layer.out, c), (&layer.gate_up, c), (&layer.down, f)];
            plan.matrices.extend(of_layer.map(|(range, cols)| (range.clone(), cols)));
            plan.vectors.extend([layer.norm1.clone(), layer.norm2.clone()]);
        }
        plan.vectors.push(slots.norm.clone());
        let largest = plan.matrices.iter().map(|(flat, cols)| bytes(form, flat.len() / cols, *cols)).max();
        match largest {
            Some(bytes) if bytes > bytes_max => Err(GpuError::TensorTooLarge {
                tensor: "frozen matrix".to_owned(),
                bytes,
                bytes_max,
                adapter: adapter.to_owned(),
            }),
            _ => Ok(plan),
        }
    }

    /// Returns the size of the weights on the device, in bytes.
    pub fn bytes(&self) -> u64 {
        let of = |(flat, cols): &(Range<usize>, usize)| bytes(self.form, flat.len() / cols, *cols);
        let vectors: u64 = self.vectors.iter().map(|flat| vector_bytes(flat.len())).sum();
        self.matrices.iter().map(of).sum::<u64>() + vectors
    }

    /// Returns slices of `matrix` as [`super::arena::Arena::row_slices`] does.
    pub fn row_slices(&self, dims: &Dims, matrix: &Range<usize>) -> Vec<(usize, usize, Range<usize>)> {
        super::arena::row_slices(self.slice_rows, dims, matrix)
    }
}

fn vector_bytes(len: usize) -> u64 {
    (4 * len as u64).next_multiple_of(ALIGN_BYTES)
}

/// Frozen weights on the device.
#[derive(Debug)]
pub struct Frozen {
    plan: FrozenPlan,
    /// Slices on the device, by the start of their flat range.
    slices: BTreeMap<usize, Slice>,
}

impl Frozen {
    /// Writes `weights` to the device according to `plan`.
    pub fn new(gpu: &Gpu, plan: FrozenPlan, weights: &FrozenWeights) -> Self {
        let mut slices = BTreeMap::new();
        for (flat, cols) in &plan.matrices {
            let size = bytes(plan.form, flat.len() / cols, *cols);
            let buffer = buffer(gpu, "frozen", size / 4);
            let mut at = 0;
            let scales = from_f32s(&weights.scales(flat));
            for part in weights.codes(flat.clone()).chain([&scales[..]]).filter(|part| !part.is_empty()) {
                gpu.queue.write_buffer(&buffer, at, part);
                at += part.len() as u64;
            }
            // The queue holds written data in separate memory until a submission. An empty one releases it.
            gpu.queue.submit([]);
            slices.insert(flat.start, Slice::whole(&buffer));
        }
        let vectors = buffer(gpu, "frozen", plan.vectors.iter().map(|v| vector_bytes(v.len()) / 4).sum());
        let mut start_byte = 0;
        for flat in &plan.vectors {
            let mut values = vec![0.0; flat.len()];
            weights.read(flat.clone(), &mut values);
            let slice = Slice { buffer: vectors.clone(), start_byte, bytes: 4 * flat.len() as u64 };
            gpu.write(&slice, &values);
            slices.insert(flat.start, slice);
            start_byte += vector_bytes(flat.len());
        }
        Self { plan, slices }
    }

    /// Returns the layout.
    pub fn plan(&self) -> &FrozenPlan {
        &self.plan
    }

    /// Returns the number format of the matrices.
    pub fn values(&self) -> Values {
        match self.plan.form {
            FrozenForm::F16 => Values::Half,
            FrozenForm::Int8 => Values::Int8,
        }
    }

    /// Returns the device slice whose flat range begins at the start of `flat`. It holds a tensor, a group of tensors,
    /// or a part of the embedding or the head.
    pub fn slice(&self, flat: &Range<usize>) -> Slice {
        self.slices.get(&flat.start).cloned().unwrap_or_else(|| unreachable!("no tensor begins at {flat:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ModelSpec, Preset};

    fn plan(
        spec: &ModelSpec,
        form: FrozenForm,
        bytes_max: u64,
    ) -> (Dims, Slots, Result<FrozenPlan, GpuError>) {
        let dims = Dims::new(spec);
        let slots = Slots::new(&dims);
        let plan = FrozenPlan::new(&dims, &slots, form, bytes_max, "test");
        (dims, slots, plan)
    }

    /// The model has 134.5 million values of 2 bytes, or of 1.125 bytes as 8-bit codes with scales.
    #[test]
    fn size_is_that_of_the_form() {
        let spec = Preset::Llama135m.model(49_152);
        let bytes = |form| plan(&spec, form, 128 << 20).2.unwrap().bytes();
        assert_eq!(bytes(FrozenForm::F16) / 1_000_000, 269);
        assert_eq!(bytes(FrozenForm::Int8) / 1_000_000, 151);
    }

    /// Each tensor other than embedding and head lies in one buffer, whatever the binding limit. Embedding and head lie
    /// in slices.
    #[test]
    fn every_tensor_lies_in_one_buffer() {
        for (untied_head, form, bytes_max, slices) in [
            (false, FrozenForm::F16, 128 << 20, 1),
            (true, FrozenForm::F16, 48 << 10, 3),
            (true, FrozenForm::Int8, 48 << 10, 2),
        ] {
            let spec = ModelSpec { untied_head, ..Preset::Tiny.model(1_000) };
            let (dims, slots, plan) = plan(&spec, form, bytes_max);
            let plan = plan.unwrap();
            let mut flat: Vec<Range<usize>> = plan.matrices.iter().map(|(flat, _)| flat.clone()).collect();
            flat.extend(plan.vectors.clone());
            flat.sort_by_key(|flat| flat.start);
            assert!(flat.windows(2).all(|pair| pair[0].end == pair[1].start));
            assert_eq!((flat[0].start, flat.last().unwrap().end), (0, slots.len));
            let of_head = plan.row_slices(&dims, &slots.head);
            assert_eq!(of_head.len(), slices);
            assert!(of_head.iter().all(|(first, ..)| first % ALIGN == 0));
        }
        let (.., refused) = plan(&Preset::Base.model(256), FrozenForm::F16, 1 << 20);
        assert!(matches!(refused, Err(GpuError::TensorTooLarge { bytes_max: 1_048_576, .. })));
    }
}
