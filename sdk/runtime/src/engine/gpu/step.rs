//! The dispatch list of a step: all microbatches, then gradient norm, clipping and the optimiser.
//!
//! The kernels read the tokens of a step as words. A microbatch has R rows, one per predicted token. It consists of
//! inputs `[R]`, targets `[R]` (masked ones are marked as in [`crate::token`]), row numbers grouped by input token
//! `[R]`, and a group `(token, begin, end, 0)` for each distinct token `[R, 4]`. R is padded to the alignment of
//! bindings. With the groups, the gradient of the embedding is summed in row order, without atomic additions.

use std::ops::Range;

use super::arena::Arena;
use super::attention::{Attention, Sizes};
use super::frozen::Frozen;
use super::kernels::{self, Call};
use super::matmul::Matmul;
use super::muon::{self, MuonScratch};
use super::network::Network;
use super::program::{ALIGN_BYTES, Builder, Dispatch, DispatchList, Slice, buffer, buffer_bytes};
use super::vectors::{Moments, Vectors};
use super::workspace::Workspace;
use super::{Gpu, params};
use crate::model::{Dims, InnerSpec, MuonMatrix, Slots};
use crate::token;

/// Number of values that a kernel reads at a time.
pub const QUAD: u32 = 4;
/// Maximum number of submitted steps whose loss and norm were not read back yet.
pub const STEPS_MAX: usize = 2;
/// Maximum number of workgroups that sum the squares of a chunk, and minimum number of quads per workgroup.
const SQUARES_GROUPS: usize = 4096;
const SQUARES_QUADS: usize = 1024;

/// Number of inputs of the kernels of a step; see `parts/hyper.wgsl`.
pub const HYPER_WORDS: usize = 11;

/// Inputs for the dispatch list of a step.
pub struct StepParts<'a> {
    /// Device of the engine.
    pub gpu: &'a Gpu,
    /// Settings of the optimiser.
    pub inner: InnerSpec,
    /// Sizes of the model.
    pub dims: &'a Dims,
    /// Ranges of the tensors in the flat vector.
    pub slots: &'a Slots,
    /// Layout of the trained parameters on the device.
    pub arena: &'a Arena,
    /// Frozen weights, if adapters are trained.
    pub frozen: Option<&'a Frozen>,
    /// Parameters, gradient and moments.
    pub vectors: &'a Vectors,
    /// Matrices that are trained with Muon.
    pub matrices: &'a [MuonMatrix],
    /// Flat ranges that are trained with AdamW, each with whether it is decayed.
    pub adamw: &'a [(Range<usize>, bool)],
}

/// Device buffers that the host writes before a step and reads after it.
#[derive(Debug)]
pub struct StepBuffers {
    /// Tokens of the batch, as laid out by [`BatchShape::fill`].
    pub tokens: wgpu::Buffer,
    /// Inputs of the kernels: six for `adamw.wgsl`, the factor of `cross_entropy.wgsl` (one over the number of target
    /// tokens), the step number for `adamw_halves.wgsl`, and three for Muon, `[11]`; see `parts/hyper.wgsl`.
    pub hyper: Slice,
    /// Loss, gradient norm, clipping factor, and flag for finite values, `[4]`; see `finish.wgsl`.
    pub stats: Slice,
    /// Number of tokens routed to each expert so far, modulo 2³², `[layers, E]`; unused in a dense model.
    pub seen: Slice,
}

impl StepBuffers {
    /// Allocates buffers for steps of `shape`.
    pub fn new(gpu: &Gpu, dims: &Dims, shape: &BatchShape) -> Self {
        let tokens = buffer(gpu, "tokens", shape.words() as u64);
        let seen = small(gpu, "seen", dims.layers * dims.experts);
        Self { tokens, hyper: small(gpu, "hyper", HYPER_WORDS), stats: small(gpu, "stats", 4), seen }
    }

    /// Returns the size of these buffers in bytes, including the partial sums of a step and its read-back.
    pub fn bytes(dims: &Dims, arena: &Arena, shape: &BatchShape) -> u64 {
        let (seen, losses) = (dims.layers * dims.experts, shape.microbatches * shape.rows_padded());
        let words = [shape.words(), HYPER_WORDS, 4, seen, losses, arena.chunks().len() * SQUARES_GROUPS];
        let read_back = STEPS_MAX as u64 * (buffer_bytes(4) + buffer_bytes(seen as u64));
        words.iter().map(|&words| buffer_bytes(words as u64)).sum::<u64>() + read_back
    }
}

impl StepParts<'_> {
    /// Returns the dispatches of a step: forward and backward pass of all microbatches, then the optimiser.
    pub fn program(
        &self,
        matmul: &Matmul,
        shape: BatchShape,
        work: &Workspace,
        buffers: &StepBuffers,
    ) -> DispatchList {
        let mut builder = Builder::default();
        self.halve(&mut builder);
        let exact = matmul;
        let matmul = &matmul.clone().for_means_of(shape.microbatches * shape.rows());
        let losses = small(self.gpu, "losses", shape.microbatches * shape.rows_padded());
        let software = self.gpu.facts().software;
        let sizes = Sizes {
            windows: shape.windows as u32,
            context: self.dims.context as u32,
            heads: self.dims.heads as u32,
            kv_heads: self.dims.kv_heads as u32,
            head: self.dims.head as u32,
        };
        let network = Network {
            dims: self.dims,
            slots: self.slots,
            arena: self.arena,
            frozen: self.frozen,
            theta: &self.vectors.theta,
            half: self.vectors.half.as_deref(),
            grad: &self.vectors.grad,
            hyper: &buffers.hyper,
            seen: &buffers.seen,
            work,
            shape,
            matmul,
            lanes: if software { 8 } else { 128 },
            attention: (Attention::new(sizes, software, matmul.strips), sizes),
        };
        for index in 0..shape.microbatches {
            let losses = losses.after((index * shape.rows_padded()) as u64);
            network.microbatch(&mut builder, &shape.microbatch(&buffers.tokens, index), &losses, index == 0);
        }
        let losses_len = shape.microbatches * shape.rows_padded();
        self.finish(&mut builder, buffers, &losses, losses_len);
        if !self.matrices.is_empty() {
            let scratch = MuonScratch::new(self.gpu, self.matrices);
            let state = (self.arena, self.vectors, buffers);
            muon::add_steps(&mut builder, (exact, &scratch), state, self.matrices);
        }
        self.adamw(&mut builder, buffers);
        builder.build(self.gpu)
    }

    /// Adds the conversion of the parameters to 16-bit floats. It is part of each step, because the exchange changes
    /// parameters too.
    fn halve(&self, builder: &mut Builder) {
        let halves = self.vectors.half.iter().flatten();
        for ((chunk, theta), half) in self.arena.chunks().iter().zip(&self.vectors.theta).zip(halves) {
            let quads = chunk.len as u32 / QUAD;
            builder.add(Dispatch {
                call: kernels::HALVE.with(params::Halve { quads }),
                constants: vec![("WG", 64)],
                storage: vec![Slice::whole(theta), Slice::whole(half)],
                groups: [quads.div_ceil(64).min(65_535), 1, 1],
                cost: chunk.len as u64 * 8,
            });
        }
    }

    /// Adds gradient norm, clipping factor and loss.
    fn finish(&self, builder: &mut Builder, buffers: &StepBuffers, losses: &Slice, losses_len: usize) {
        let chunks = self.arena.chunks();
        let partials = small(self.gpu, "partials", chunks.len() * SQUARES_GROUPS);
        for (i, (chunk, grad)) in chunks.iter().zip(&self.vectors.grad).enumerate() {
            let params =
                params::Squares { quads: chunk.len as u32 / QUAD, first: (i * SQUARES_GROUPS) as u32 };
            let storage = [&Slice::whole(grad), &partials];
            // The partial sums of the remaining groups stay 0.
            let groups = (params.quads as usize).div_ceil(SQUARES_QUADS).min(SQUARES_GROUPS);
            add(builder, kernels::SQUARES.with(params), 64, &storage, groups, chunk.len * 4);
        }
        let finish = kernels::FINISH.with(params::Finish {
            partials: (chunks.len() * SQUARES_GROUPS) as u32,
            losses: losses_len as u32,
            clip: self.inner.clip_norm,
        });
        add(builder, finish, 256, &[&partials, losses, &buffers.stats], 1, losses_len);
    }

    /// Adds a step of AdamW of the values that it trains.
    fn adamw(&self, builder: &mut Builder, buffers: &StepBuffers) {
        let (vectors, StepBuffers { hyper, stats, .. }) = (self.vectors, buffers);
        let mut first = 0;
        for (chunk, range, is_decayed) in self.adamw_ranges() {
            let part = |vector: &[wgpu::Buffer]| Slice {
                buffer: vector[chunk].clone(),
                start_byte: range.start as u64 * 4,
                bytes: range.len() as u64 * 4,
            };
            let (quads, decayed) = (range.len() as u32 / QUAD, u32::from(is_decayed));
            let [theta, grad] = [&vectors.theta, &vectors.grad].map(|vector| part(vector));
            let groups = (quads as usize).div_ceil(64);
            match &vectors.moments {
                Moments::Whole(both) => {
                    let [m, v] = both.each_ref().map(|vector| part(vector));
                    let storage = [stats, hyper, &theta, &grad, &m, &v];
                    let call = kernels::ADAMW.with(params::AdamW { quads, decayed });
                    add(builder, call, 64, &storage, groups, range.len() * 24);
                }
                Moments::Packed(packed) => {
                    let params = params::AdamWHalves { quads, decayed, first };
                    let storage = [stats, hyper, &theta, &grad, &part(packed)];
                    let call = kernels::ADAMW_HALVES.with(params);
                    add(builder, call, 64, &storage, groups, range.len() * 40);
                }
            }
            first += range.len() as u32;
        }
    }

    /// Returns the ranges that AdamW trains: index of the chunk, range in it, and whether it is decayed. If AdamW
    /// trains everything, there are two ranges in each chunk, padding included.
    fn adamw_ranges(&self) -> Vec<(usize, Range<usize>, bool)> {
        if self.matrices.is_empty() {
            let chunks = self.arena.chunks().iter().enumerate();
            return chunks
                .flat_map(|(i, chunk)| [(i, 0..chunk.decayed, true), (i, chunk.decayed..chunk.len, false)])
                .collect();
        }
        let runs = self.adamw.iter().flat_map(|(range, decayed)| {
            self.arena
                .runs(range.clone())
                .map(|run| (run.chunk, run.start..run.start + run.flat.len(), *decayed))
        });
        runs.collect()
    }
}

/// Adds a dispatch with `groups` workgroups of `wg` invocations.
fn add(builder: &mut Builder, call: Call, wg: u32, storage: &[&Slice], groups: usize, cost: usize) {
    builder.add(Dispatch {
        call,
        constants: vec![("WG", wg)],
        storage: storage.iter().map(|&slice| slice.clone()).collect(),
        groups: [groups.min(65_535) as u32, 1, 1],
        cost: cost as u64,
    });
}

/// Allocates a buffer of `words` words.
fn small(gpu: &Gpu, label: &str, words: usize) -> Slice {
    Slice::whole(&buffer(gpu, label, words as u64))
}

/// Number of words per row of a microbatch.
const WORDS: usize = 7;

/// Division of a step's tokens into microbatches and windows.
#[derive(Clone, Copy, Debug)]
pub struct BatchShape {
    /// Number of microbatches in a step.
    pub microbatches: usize,
    /// Number of windows in a microbatch.
    pub windows: usize,
    /// Number of predicted tokens in a window.
    pub context: usize,
}

/// Device slices of the parts of a microbatch, R rows padded.
#[derive(Debug)]
pub struct Microbatch {
    /// Input tokens, `[R]`.
    pub inputs: Slice,
    /// Tokens to be predicted, `[R]`.
    pub targets: Slice,
    /// Row numbers grouped by input token, `[R]`.
    pub order: Slice,
    /// Groups `(token, begin, end, 0)`, one per distinct token, `[R, 4]`. The rest is zero.
    pub runs: Slice,
}

impl BatchShape {
    /// Returns the number of rows in a microbatch, R.
    pub fn rows(&self) -> usize {
        self.windows * self.context
    }

    /// Returns R, padded to the alignment of bindings.
    pub fn rows_padded(&self) -> usize {
        self.rows().next_multiple_of((ALIGN_BYTES / 4) as usize)
    }

    /// Returns the number of words of all microbatches.
    pub fn words(&self) -> usize {
        self.microbatches * self.rows_padded() * WORDS
    }

    /// Returns the slices of microbatch `index` in `buffer`.
    pub fn microbatch(&self, buffer: &wgpu::Buffer, index: usize) -> Microbatch {
        let bytes = self.rows_padded() as u64 * 4;
        let part = |first: u64, count: u64| Slice {
            buffer: buffer.clone(),
            start_byte: (index as u64 * WORDS as u64 + first) * bytes,
            bytes: count * bytes,
        };
        Microbatch { inputs: part(0, 1), targets: part(1, 1), order: part(2, 1), runs: part(3, 4) }
    }

    /// Returns the words of a step for `tokens`, `[microbatches · windows, context + 1]`.
    pub fn fill(&self, tokens: &[u32]) -> Vec<u32> {
        let (rows, padded) = (self.rows(), self.rows_padded());
        let mut words = vec![0; self.words()];
        let parts = tokens.chunks_exact(self.windows * (self.context + 1));
        for (tokens, words) in parts.zip(words.chunks_exact_mut(padded * WORDS)) {
            let (inputs, words) = words.split_at_mut(padded);
            let (targets, words) = words.split_at_mut(padded);
            let (order, runs) = words.split_at_mut(padded);
            for (i, window) in tokens.chunks_exact(self.context + 1).enumerate() {
                let inputs = &mut inputs[i * self.context..][..self.context];
                inputs.iter_mut().zip(window).for_each(|(input, &token)| *input = token::id(token));
                targets[i * self.context..][..self.context].copy_from_slice(&window[1..]);
            }
            let (inputs, order) = (&inputs[..rows], &mut order[..rows]);
            order.iter_mut().zip(0..).for_each(|(row, index)| *row = index);
            // The sort is stable: the rows of one token stay in order.
            order.sort_by_key(|&row| inputs[row as usize]);
            let mut begin = 0;
            for (same, run) in order
                .chunk_by(|&a, &b| inputs[a as usize] == inputs[b as usize])
                .zip(runs.as_chunks_mut::<4>().0)
            {
                let end = begin + same.len() as u32;
                *run = [inputs[same[0] as usize], begin, end, 0];
                begin = end;
            }
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_rows_by_token() {
        let shape = BatchShape { microbatches: 2, windows: 1, context: 3 };
        let given = token::MASKED;
        let words = shape.fill(&[5 | given, 1, 5 | given, 9, 2, 2, 2, 2]);
        let part = |index: usize, first: usize, len| &words[index * 448 + first * 64..][..len];
        assert_eq!(words.len(), 2 * 7 * 64);
        assert_eq!(part(0, 0, 4), [5, 1, 5, 0]);
        assert_eq!(part(0, 1, 4), [1, 5 | given, 9, 0]);
        assert_eq!(part(0, 2, 4), [1, 0, 2, 0]);
        assert_eq!(part(0, 3, 12), [1, 0, 1, 0, 5, 1, 3, 0, 0, 0, 0, 0]);
        assert_eq!(part(1, 2, 3), [0, 1, 2]);
        assert_eq!(part(1, 3, 8), [2, 0, 3, 0, 0, 0, 0, 0]);
    }
}
