//! The memory of one thread, aligned for vector instructions: activations that the forward pass saves for the backward
//! pass, and scratch.

use std::ops::{Deref, DerefMut};

use super::attention::Scratch;
use super::experts::{Mixing, Routes};
use crate::model::Dims;

/// Maximum number of logit values held at once. The head processes the tokens in chunks of this size.
const LOGITS_MAX: usize = 4 << 20;
/// Minimum number of tokens in a chunk, so that the matrix product stays efficient.
const CHUNK_MIN: usize = 64;

/// Activations of one layer for the backward pass, with R rows, one for each token.
#[derive(Default)]
pub struct Layer {
    /// Residual stream on entry, `[R, C]`.
    pub x: Buffer,
    /// Scales of the first norm, `[R]`.
    pub scales1: Buffer,
    /// Queries and keys after rotation, and values, `[R, C + 2 K D]`.
    pub qkv: Buffer,
    /// Logarithms of the sums of the softmax in attention, `[windows, H, T]`.
    pub lse: Buffer,
    /// Output of attention, `[R, C]`.
    pub attended: Buffer,
    /// Residual stream between attention and feed-forward, `[R, C]`.
    pub middle: Buffer,
    /// Scales of the second norm, `[R]`.
    pub scales2: Buffer,
    /// Gates and ups, `[R, 2 F]`, with experts `[R A, 2 F]`. The backward pass overwrites them.
    pub gate_up: Buffer,
    /// Expert assignments of the tokens; empty in a dense model.
    pub routes: Routes,
    /// Products `x Aᵀ` of the adapters, `[adapters, R, r]`; empty without adapters.
    pub low: Buffer,
}

/// The memory of one thread.
pub struct Workspace {
    /// One entry for each layer in training, otherwise a single entry.
    pub layers: Vec<Layer>,
    /// Queries, keys and values of each layer, `[T, C + 2 K D]`, for a text that grows token by token; otherwise empty.
    pub kept: Vec<Buffer>,
    /// Residual stream at the end, `[R, C]`.
    pub x: Buffer,
    /// Scales of the last norm, `[R]`.
    pub scales: Buffer,
    /// Input of the matrices after a norm, `[R, C]`.
    pub normed: Buffer,
    /// Output of a matrix into the residual stream, or gradient of such an input, `[R, C]`.
    pub branch: Buffer,
    /// Input of the down matrix, `[R, F]`, with experts `[R A, F]`.
    pub gated: Buffer,
    /// Gradient of queries, keys and values, `[R, C + 2 K D]`; empty without training.
    pub dqkv: Buffer,
    /// Gradient of a norm's weight, `[C]`; empty without training.
    pub dnorm: Buffer,
    /// Gradient of the products `x Aᵀ` of a layer's adapters, `[adapters, R, r]`; empty without adapters or training.
    pub dlow: Buffer,
    /// Logits of a chunk of tokens, `[chunk, V]`.
    pub logits: Buffer,
    /// Tokens in a chunk.
    pub chunk: usize,
    /// Scratch of a mixture of experts; empty in a dense model.
    pub mixing: Mixing,
    /// Scratch of attention.
    pub attention: Scratch,
    /// The tokens to be predicted, `[R]`.
    pub targets: Vec<u32>,
}

impl Workspace {
    /// Allocates memory for up to `windows` windows at once.
    pub fn new(dims: &Dims, windows: usize, training: bool) -> Self {
        let rows = windows * dims.context;
        let of = |width: usize| Buffer::zeros(rows * width);
        let if_training = |len: usize| Buffer::zeros(if training { len } else { 0 });
        let low = dims.lora.map_or(0, |lora| lora.targets.iter().count() * dims.rank());
        let layer = || Layer {
            x: of(dims.width),
            scales1: of(1),
            qkv: of(dims.qkv_width()),
            lse: of(dims.heads),
            attended: of(dims.width),
            middle: of(dims.width),
            scales2: of(1),
            gate_up: of(2 * dims.ff * dims.active.max(1)),
            routes: Routes::new(dims, rows),
            low: of(low),
        };
        let chunk = (LOGITS_MAX / dims.vocab).max(CHUNK_MIN).min(rows);
        Self {
            layers: (0..if training { dims.layers } else { 1 }).map(|_| layer()).collect(),
            kept: Vec::new(),
            x: of(dims.width),
            scales: of(1),
            normed: of(dims.width),
            branch: of(dims.width),
            gated: of(dims.ff * dims.active.max(1)),
            dqkv: if_training(rows * dims.qkv_width()),
            dnorm: if_training(dims.width),
            dlow: if_training(rows * low),
            logits: Buffer::zeros(chunk * dims.vocab),
            chunk,
            mixing: Mixing::new(dims, rows, training),
            attention: Scratch::new(dims.context, training),
            targets: Vec::with_capacity(rows),
        }
    }

    /// Allocates memory for one text that grows token by token, with saved keys and values of each layer.
    pub fn for_writing(dims: &Dims) -> Self {
        let kept = (0..dims.layers).map(|_| Buffer::zeros(dims.context * dims.qkv_width())).collect();
        Self { kept, ..Self::new(dims, 1, false) }
    }

    /// Swaps the saved values of layer `i` into the layer; a second call swaps them back. Does nothing if no values are
    /// saved.
    pub fn take_kept(&mut self, i: usize) {
        if let Some(kept) = self.kept.get_mut(i) {
            std::mem::swap(kept, &mut self.layers[0].qkv);
        }
    }

    /// Adds the number of tokens that went through each expert, `[layers, E]`.
    pub fn add_expert_counts(&self, seen: &mut [u64]) {
        let found = self.layers.iter().flat_map(|layer| layer.routes.seen());
        seen.iter_mut().zip(found).for_each(|(seen, more)| *seen += more);
    }

    /// Returns the bytes held.
    pub fn bytes(&self) -> usize {
        let layer = |l: &Layer| {
            [&l.x, &l.scales1, &l.qkv, &l.lse, &l.attended, &l.middle, &l.scales2, &l.gate_up, &l.low]
                .into_iter()
                .map(Buffer::bytes)
                .sum::<usize>()
                + l.routes.bytes()
        };
        let own = [&self.x, &self.scales, &self.normed, &self.branch, &self.gated, &self.dqkv, &self.dlow];
        let own = own.into_iter().chain([&self.dnorm]).map(Buffer::bytes).sum::<usize>();
        let kept = self.kept.iter().map(Buffer::bytes).sum::<usize>();
        let layers = self.layers.iter().map(layer).sum::<usize>();
        layers + kept + own + self.mixing.bytes() + self.logits.bytes() + self.attention.bytes()
    }
}

/// Values that start on a cache line, so that no vector load straddles two.
#[derive(Default)]
pub struct Buffer {
    values: Vec<f32>,
    start: usize,
    len: usize,
}

/// Bytes of a cache line, and of the widest vector.
const LINE_BYTES: usize = 64;

impl Buffer {
    /// Allocates `len` zeros.
    pub fn zeros(len: usize) -> Self {
        let values = vec![0.0; len + LINE_BYTES / size_of::<f32>()];
        // At worst (`usize::MAX`) the offset is unknown and the buffer is unaligned, which is only slower.
        let start = values.as_ptr().align_offset(LINE_BYTES).min(LINE_BYTES / size_of::<f32>());
        Self { values, start, len }
    }

    /// Returns the bytes held.
    pub fn bytes(&self) -> usize {
        self.values.len() * size_of::<f32>()
    }
}

impl Deref for Buffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.values[self.start..self.start + self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.values[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_on_a_line() {
        for len in [0, 1, 16, 1000] {
            let buffer = Buffer::zeros(len);
            assert_eq!(buffer.len(), len);
            assert_eq!(buffer.as_ptr() as usize % LINE_BYTES, 0, "{len}");
        }
    }
}
