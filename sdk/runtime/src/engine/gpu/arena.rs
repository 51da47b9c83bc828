//! Layout of the parameters on the device.
//!
//! A device binds a limited part of a buffer, and only from aligned offsets. So the device uses another layout than the
//! flat vector: matrices first and vectors after them, because the optimiser treats them differently. Each tensor
//! starts at an aligned offset in one of as few *chunks* as the limit allows. Gradient, moments and Θ̂ have the same
//! layout as the parameters. An embedding or separate head that exceeds the limit is cut into slices of rows.

use std::ops::Range;

use super::Gpu;
use super::error::GpuError;
use super::program::{ALIGN_BYTES, Slice, buffer};
use crate::model::{Dims, Slots};

/// Alignment of each tensor's first value, in values. It suffices for 16-bit floats too.
pub const ALIGN: usize = (ALIGN_BYTES / 2) as usize;

/// Location of a tensor, of a group of adjacent tensors, or of a slice of the embedding or head.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TensorLocation {
    flat: Range<usize>,
    chunk: usize,
    start: usize,
}

/// Part of a flat range that lies in one chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkRange {
    /// Index of the chunk.
    pub chunk: usize,
    /// Offset of the first value within the chunk, in values.
    pub start: usize,
    /// Range in the flat vector.
    pub flat: Range<usize>,
}

impl ChunkRange {
    /// Returns the slice of `vector` that holds this range.
    pub fn slice(&self, vector: &[wgpu::Buffer]) -> Slice {
        Slice {
            buffer: vector[self.chunk].clone(),
            start_byte: self.start as u64 * 4,
            bytes: self.flat.len() as u64 * 4,
        }
    }
}

/// Size of one device buffer. Each vector has one buffer per chunk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chunk {
    /// Number of values, padding included.
    pub len: usize,
    /// Number of leading values that belong to matrices and get weight decay.
    pub decayed: usize,
}

/// Layout of the flat vector on the device.
#[derive(Clone, Debug)]
pub struct Arena {
    /// Locations in the order of the flat vector.
    locations: Vec<TensorLocation>,
    chunks: Vec<Chunk>,
    /// Number of rows in a slice of the embedding or head. The last slice may have fewer.
    pub slice_rows: usize,
}

impl Arena {
    /// Lays out the trained parameters of a model (its adapters, if it has any) in chunks of at most `bytes_max` bytes.
    /// `adapter` is the device's name for errors.
    ///
    /// # Errors
    /// [`GpuError::TensorTooLarge`] if a tensor other than embedding and head, or [`ALIGN`] rows of embedding or head,
    /// exceed `bytes_max`.
    pub fn plan(dims: &Dims, slots: &Slots, bytes_max: u64, adapter: &str) -> Result<Self, GpuError> {
        let len_max = (bytes_max / 4) as usize / ALIGN * ALIGN;
        let row = dims.width;
        // With a multiple of the alignment, slices begin at aligned columns of the logits.
        let slice_rows = (len_max / row / ALIGN * ALIGN).min(dims.vocab.next_multiple_of(ALIGN)).max(ALIGN);
        let cut = |tensor, of: Range<usize>| {
            let starts = of.clone().step_by(slice_rows * row);
            starts.map(move |start| (tensor, start..(start + slice_rows * row).min(of.end)))
        };
        let embed = cut("embedding", slots.embed.clone());
        let own_head = if slots.is_tied() { 0..0 } else { slots.head.clone() };
        let matrices = slots.layers.iter().flat_map(|layer| {
            let experts = layer.experts.iter();
            let experts = experts.flat_map(|expert| [("gate_up", &expert.gate_up), ("down", &expert.down)]);
            [("qkv", &layer.qkv), ("out", &layer.out), ("gate_up", &layer.gate_up), ("down", &layer.down)]
                .into_iter()
                .chain([("router", &layer.router)])
                .chain(experts)
                .filter(|(_, range)| !range.is_empty())
                .map(|(name, range)| (name, range.clone()))
        });
        let norms = slots.layers.iter().flat_map(|layer| [&layer.norm1, &layer.norm2]);
        let vectors = norms.chain([&slots.norm]).map(|range| ("norm", range.clone()));

        let adapters = slots.layers.iter().flat_map(|layer| &layer.adapters);
        let adapters = adapters.flat_map(|adapter| [("lora_A", &adapter.a), ("lora_B", &adapter.b)]);
        let adapters = adapters.map(|(name, range)| ((name, range.clone()), true));

        let mut arena = Self { locations: Vec::new(), chunks: vec![Chunk::default()], slice_rows };
        let matrices = embed.chain(matrices).chain(cut("head", own_head)).map(|item| (item, true));
        let items = matrices.chain(vectors.map(|item| (item, false)));
        let items: Vec<_> = if slots.has_adapters() { adapters.collect() } else { items.collect() };
        for ((tensor, flat), decayed) in items {
            let len = flat.len().next_multiple_of(ALIGN);
            if len > len_max {
                return Err(GpuError::TensorTooLarge {
                    tensor: tensor.to_owned(),
                    bytes: len as u64 * 4,
                    bytes_max,
                    adapter: adapter.to_owned(),
                });
            }
            arena.append(flat, len, len_max, decayed);
        }
        arena.locations.sort_by_key(|location| location.flat.start);
        Ok(arena)
    }

    fn append(&mut self, flat: Range<usize>, len: usize, len_max: usize, decayed: bool) {
        if self.chunks.last().is_none_or(|chunk| chunk.len + len > len_max) {
            self.chunks.push(Chunk::default());
        }
        let index = self.chunks.len() - 1;
        let chunk = &mut self.chunks[index];
        self.locations.push(TensorLocation { flat, chunk: index, start: chunk.len });
        chunk.len += len;
        if decayed {
            chunk.decayed = chunk.len;
        }
    }

    /// Returns the chunks.
    pub fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    /// Returns the size of one vector on the device, in bytes.
    pub fn bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.len as u64 * 4).sum()
    }

    /// Creates a zeroed vector on the device, with one buffer for each chunk.
    pub fn vector(&self, gpu: &Gpu, label: &str) -> Vec<wgpu::Buffer> {
        self.chunks.iter().map(|chunk| buffer(gpu, label, chunk.len as u64)).collect()
    }

    /// Returns the parts of a flat range, one for each location, in order.
    pub fn runs(&self, flat: Range<usize>) -> impl Iterator<Item = ChunkRange> {
        let first = self.locations.partition_point(|location| location.flat.end <= flat.start);
        self.locations[first..].iter().take_while(move |location| location.flat.start < flat.end).map(
            move |location| {
                let part = location.flat.start.max(flat.start)..location.flat.end.min(flat.end);
                ChunkRange {
                    chunk: location.chunk,
                    start: location.start + part.start - location.flat.start,
                    flat: part,
                }
            },
        )
    }

    /// Returns the slice of `vector` that holds `flat`: one tensor, tensor group, or slice of embedding or head.
    pub fn slice(&self, vector: &[wgpu::Buffer], flat: &Range<usize>) -> Slice {
        let mut runs = self.runs(flat.clone());
        let (Some(run), None) = (runs.next(), runs.next()) else {
            unreachable!("a matrix lies in one piece: {flat:?}")
        };
        Slice {
            buffer: vector[run.chunk].clone(),
            start_byte: run.start as u64 * 4,
            bytes: flat.len().next_multiple_of(4) as u64 * 4,
        }
    }

    /// Returns the same slice as [`Self::slice`], for a vector of 16-bit floats.
    pub fn half_slice(&self, vector: &[wgpu::Buffer], flat: &Range<usize>) -> Slice {
        let Slice { buffer, start_byte, bytes } = self.slice(vector, flat);
        Slice { buffer, start_byte: start_byte / 2, bytes: bytes / 2 }
    }

    /// Returns first row, number of rows, and flat range of each slice of `matrix`, which is the embedding or the head.
    pub fn row_slices(&self, dims: &Dims, matrix: &Range<usize>) -> Vec<(usize, usize, Range<usize>)> {
        row_slices(self.slice_rows, dims, matrix)
    }
}

/// Returns the slices of `matrix` with `slice_rows` rows each, in the form of [`Arena::row_slices`].
pub fn row_slices(
    slice_rows: usize,
    dims: &Dims,
    matrix: &Range<usize>,
) -> Vec<(usize, usize, Range<usize>)> {
    (0..dims.vocab)
        .step_by(slice_rows)
        .map(|first| {
            let rows = slice_rows.min(dims.vocab - first);
            let start = matrix.start + first * dims.width;
            (first, rows, start..start + rows * dims.width)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ModelSpec, Preset};

    fn plan(preset: Preset, vocab: u32, bytes_max: u64) -> (Dims, Slots, Result<Arena, GpuError>) {
        plan_of(&preset.model(vocab), bytes_max)
    }

    fn plan_of(spec: &ModelSpec, bytes_max: u64) -> (Dims, Slots, Result<Arena, GpuError>) {
        let dims = Dims::new(spec);
        let slots = Slots::new(&dims);
        let arena = Arena::plan(&dims, &slots, bytes_max, "test");
        (dims, slots, arena)
    }

    /// Every value has exactly one location, each tensor starts at an aligned offset, and locations do not overlap.
    #[test]
    fn every_value_has_one_location() {
        for (preset, vocab, untied_head, bytes_max, chunks) in [
            (Preset::Tiny, 37, false, 128 << 20, 1),
            (Preset::Tiny, 37, true, 128 << 20, 1),
            (Preset::Tiny, 1000, false, 100 << 10, 9),
            (Preset::Tiny, 1000, true, 100 << 10, 12),
            (Preset::Base, 50_257, false, 128 << 20, 4),
        ] {
            let (dims, slots, arena) = plan_of(&ModelSpec { untied_head, ..preset.model(vocab) }, bytes_max);
            let arena = arena.unwrap();
            assert_eq!(arena.chunks().len(), chunks, "{preset} {untied_head}");
            assert!(arena.chunks().iter().all(|chunk| chunk.len as u64 * 4 <= bytes_max));
            let runs: Vec<ChunkRange> = arena.runs(0..slots.len).collect();
            assert_eq!(runs[0].flat.start, 0);
            assert!(runs.windows(2).all(|pair| pair[0].flat.end == pair[1].flat.start));
            assert_eq!(runs.last().unwrap().flat.end, slots.len);
            assert!(runs.iter().all(|run| run.start % ALIGN == 0));
            let mut taken: Vec<_> =
                runs.iter().map(|run| (run.chunk, run.start, run.start + run.flat.len())).collect();
            taken.sort_unstable();
            assert!(taken.windows(2).all(|pair| pair[0].0 < pair[1].0 || pair[0].2 <= pair[1].1));
            for matrix in [&slots.embed, &slots.head] {
                let slices = arena.row_slices(&dims, matrix);
                assert!(
                    slices
                        .iter()
                        .all(|slice| slice.0 % ALIGN == 0 && arena.runs(slice.2.clone()).count() == 1)
                );
                assert_eq!(slices.iter().map(|slice| slice.1).sum::<usize>(), dims.vocab);
            }
        }
    }

    #[test]
    fn only_matrices_are_decayed() {
        let untied = ModelSpec { untied_head: true, ..Preset::Tiny.model(256) };
        let (_, slots, arena) = plan_of(&untied, 128 << 20);
        let arena = arena.unwrap();
        let decayed = |flat: &Range<usize>| {
            arena
                .runs(flat.clone())
                .all(|run| run.start + run.flat.len() <= arena.chunks()[run.chunk].decayed)
        };
        assert!(decayed(&slots.embed) && decayed(&slots.head));
        assert!(slots.layers.iter().all(|layer| decayed(&layer.down)));
        assert!(!decayed(&slots.norm) && slots.layers.iter().all(|layer| !decayed(&layer.norm1)));
    }

    #[test]
    fn a_matrix_above_the_limit_is_refused() {
        let (.., arena) = plan(Preset::Base, 256, 4 << 20);
        assert!(matches!(arena, Err(GpuError::TensorTooLarge { bytes_max: 4_194_304, .. })));
    }
}
