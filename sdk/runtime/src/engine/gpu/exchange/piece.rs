//! Places of a fragment's values on the device, and its body.

use super::super::Gpu;
use super::super::arena::Arena;
use super::super::params;
use super::super::program::{ALIGN_BYTES, Slice, buffer, buffer_bytes};
use crate::diloco::{Codec, Segment};

/// Bytes in the head of a body that exist only on the device.
pub const FLAG_BYTES: u64 = 4;
/// Bytes of a digest.
pub const DIGEST_BYTES: u64 = 8;
/// Maximum number of values in a span.
pub const SPAN: usize = 1 << 21;

/// A body in device memory.
#[derive(Debug)]
pub struct Body {
    /// One word that is nonzero if a value was not finite, followed by the scales, `[FLAG_BYTES + head_bytes]`.
    pub head: Slice,
    /// The codes.
    pub codes: Slice,
    /// Digest of the base Θ̂, if requested.
    pub digest: Slice,
}

impl Body {
    /// Allocates room for `head_bytes` of scales and `code_bytes` of codes.
    pub fn new(gpu: &Gpu, label: &str, head_bytes: u64, code_bytes: u64) -> Self {
        let slice = |bytes: u64| Slice { buffer: buffer(gpu, label, bytes / 4), start_byte: 0, bytes };
        Self { head: slice(FLAG_BYTES + head_bytes), codes: slice(code_bytes), digest: slice(DIGEST_BYTES) }
    }

    /// Returns the device memory that [`Self::new`] takes, in bytes.
    pub fn bytes(head_bytes: u64, code_bytes: u64) -> u64 {
        [FLAG_BYTES + head_bytes, code_bytes, DIGEST_BYTES].map(|bytes| buffer_bytes(bytes / 4)).iter().sum()
    }
}

/// A part of a segment that lies in one chunk. A piece of at most [`SPAN`] values is a span.
#[derive(Clone, Debug)]
pub struct Piece {
    /// Index of the chunk.
    pub chunk: usize,
    /// First value, within the chunk.
    pub start: u64,
    /// Number of values.
    pub len: u32,
    /// First value, within the segment.
    offset: u32,
    /// The segment's first value, within the fragment.
    value: u32,
    /// The segment's first code, in words.
    code: u32,
    /// The segment's first block, within the fragment.
    block: u32,
}

impl Piece {
    /// Returns the pieces of the fragment that `segments` make up, in order.
    pub fn all(arena: &Arena, codec: &Codec, segments: &[Segment]) -> Vec<Self> {
        let index = |at: usize| u32::try_from(at).expect("a layout has at most 2³² − 1 values");
        let head = codec.head_bytes(segments);
        let spans = segments.iter().zip(codec.spans(segments));
        let pieces = spans.flat_map(|(segment, span)| {
            arena.runs(segment.range()).map(move |run| Self {
                chunk: run.chunk,
                start: run.start as u64,
                len: index(run.flat.len()),
                offset: index(run.flat.start) - segment.start,
                value: index(span.value),
                code: index((span.code - head) / 4),
                block: index(span.block),
            })
        });
        pieces.collect()
    }

    /// Splits the piece into spans, in order.
    pub fn spans(&self) -> impl Iterator<Item = Self> {
        (0..self.len).step_by(SPAN).map(|first| Self {
            start: self.start + u64::from(first),
            len: (SPAN as u32).min(self.len - first),
            offset: self.offset + first,
            ..*self
        })
    }

    /// Returns the range of its values within the fragment.
    pub fn in_fragment(&self) -> std::ops::Range<usize> {
        let first = (self.value + self.offset) as usize;
        first..first + self.len as usize
    }

    /// Returns the slice of a span in `buffer`, which holds nothing else. The span starts as far into it as in a vector
    /// after the nearest aligned offset, so that kernels use the same offset for both.
    pub fn alone(&self, buffer: &Slice) -> Slice {
        Slice { bytes: self.first_byte() + u64::from(self.len) * 4, ..buffer.clone() }
    }

    /// Returns the first byte of a span in its separate buffer.
    pub fn first_byte(&self) -> u64 {
        u64::from(self.start()) * 4
    }

    /// Returns its slice in `vector`, from the nearest preceding aligned offset.
    pub fn slice(&self, vector: &[wgpu::Buffer]) -> Slice {
        let start_byte = self.start * 4 / ALIGN_BYTES * ALIGN_BYTES;
        let bytes = self.bytes().end - start_byte;
        Slice { buffer: vector[self.chunk].clone(), start_byte, bytes }
    }

    /// Returns its first value, within [`Self::slice`].
    pub fn start(&self) -> u32 {
        (self.start % (ALIGN_BYTES / 4)) as u32
    }

    pub fn params(&self, is_hat: bool) -> params::Piece {
        let &Self { len, offset, value, code, block, .. } = self;
        params::Piece { start: self.start(), len, offset, value, code, block, is_hat: is_hat.into() }
    }

    /// Returns the range of its bytes within the chunk.
    pub fn bytes(&self) -> std::ops::Range<u64> {
        self.start * 4..(self.start + u64::from(self.len)) * 4
    }
}
