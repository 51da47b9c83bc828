//! Where the values of a fragment lie on the device, and its body.

use super::super::Gpu;
use super::super::arena::Arena;
use super::super::params;
use super::super::program::{ALIGN_BYTES, Slice, buffer, buffer_bytes};
use crate::diloco::{Codec, Segment};

/// In the head of a body, what belongs to the device alone.
pub const FLAG_BYTES: u64 = 4;
/// Bytes of a digest.
pub const DIGEST_BYTES: u64 = 8;
/// Values of a span, at most.
pub const SPAN: usize = 1 << 21;

/// A body in device memory.
#[derive(Debug)]
pub struct Body {
    /// One word that says whether something was not finite, then the scales, `[FLAG_BYTES + head_bytes]`.
    pub head: Slice,
    /// The codes.
    pub codes: Slice,
    /// The digest of the Θ̂ that it is relative to, where that is asked for.
    pub digest: Slice,
}

impl Body {
    /// Room for `head_bytes` of scales and `code_bytes` of codes.
    pub fn new(gpu: &Gpu, label: &str, head_bytes: u64, code_bytes: u64) -> Self {
        let slice = |bytes: u64| Slice { buffer: buffer(gpu, label, bytes / 4), start_byte: 0, bytes };
        Self { head: slice(FLAG_BYTES + head_bytes), codes: slice(code_bytes), digest: slice(DIGEST_BYTES) }
    }

    /// Bytes of the device that [`Self::new`] takes.
    pub fn bytes(head_bytes: u64, code_bytes: u64) -> u64 {
        [FLAG_BYTES + head_bytes, code_bytes, DIGEST_BYTES].map(|bytes| buffer_bytes(bytes / 4)).iter().sum()
    }
}

/// A part of a segment that lies in one chunk. One of at most [`SPAN`] values is a span.
#[derive(Clone, Debug)]
pub struct Piece {
    /// Which chunk.
    pub chunk: usize,
    /// Its first value, within the chunk.
    pub start: u64,
    /// Its values.
    pub len: u32,
    /// Its first value, within the segment.
    offset: u32,
    /// The segment's first value, within the fragment.
    value: u32,
    /// The segment's first code, in words.
    code: u32,
    /// The segment's first block, within the fragment.
    block: u32,
}

impl Piece {
    /// The pieces of the fragment that `segments` make up, in its order.
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

    /// Cut into spans, in order.
    pub fn spans(&self) -> impl Iterator<Item = Self> {
        (0..self.len).step_by(SPAN).map(|first| Self {
            start: self.start + u64::from(first),
            len: (SPAN as u32).min(self.len - first),
            offset: self.offset + first,
            ..*self
        })
    }

    /// Its values within the fragment.
    pub fn in_fragment(&self) -> std::ops::Range<usize> {
        let first = (self.value + self.offset) as usize;
        first..first + self.len as usize
    }

    /// Where a span lies that has `buffer` for itself: as far behind its start as in a vector it lies behind the
    /// nearest place that can be bound, so that kernels find both in one place.
    pub fn alone(&self, buffer: &Slice) -> Slice {
        Slice { bytes: self.first_byte() + u64::from(self.len) * 4, ..buffer.clone() }
    }

    /// The first byte of a span in a buffer for itself.
    pub fn first_byte(&self) -> u64 {
        u64::from(self.start()) * 4
    }

    /// Its values in `vector`, from the nearest place on that can be bound.
    pub fn slice(&self, vector: &[wgpu::Buffer]) -> Slice {
        let start_byte = self.start * 4 / ALIGN_BYTES * ALIGN_BYTES;
        let bytes = self.bytes().end - start_byte;
        Slice { buffer: vector[self.chunk].clone(), start_byte, bytes }
    }

    /// Its first value, within [`Self::slice`].
    pub fn start(&self) -> u32 {
        (self.start % (ALIGN_BYTES / 4)) as u32
    }

    pub fn params(&self, is_hat: bool) -> params::Piece {
        let &Self { len, offset, value, code, block, .. } = self;
        params::Piece { start: self.start(), len, offset, value, code, block, is_hat: is_hat.into() }
    }

    /// Its bytes, within the chunk.
    pub fn bytes(&self) -> std::ops::Range<u64> {
        self.start * 4..(self.start + u64::from(self.len)) * 4
    }
}
