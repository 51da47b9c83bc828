//! Places of a fragment's values on the device, and its body.

use super::super::arena::Arena;
use super::super::kernels::{Call, DECODE_ADD, DELTA_CODE, DELTA_MAX, DIGEST, KernelOf, REBASE};
use super::super::program::{
    ALIGN_BYTES, Builder, Constant, Dispatch, DispatchList, Slice, buffer, buffer_bytes,
};
use super::super::{Gpu, GpuError, params};
use super::Hat;
use crate::diloco::{Codec, Segment};
use crate::wire::Code;

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
pub struct SegmentSlice {
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

impl SegmentSlice {
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

/// Threads of a workgroup.
const WG: u32 = 64;
/// WebGPU's limit.
const GROUPS_MAX: u32 = 65_535;
/// Number of values that one invocation adds to a digest.
const DIGEST_VALUES: u32 = 16;

/// Common inputs of the dispatches of all fragments.
#[derive(Debug)]
pub struct DispatchInputs<'a> {
    pub gpu: &'a Gpu,
    pub codec: Codec,
    /// θ.
    pub theta: &'a [wgpu::Buffer],
    /// Θ̂.
    pub hat: &'a Hat,
    /// One word for each block of the fragment that is being coded.
    pub largest: &'a Slice,
}

impl DispatchInputs<'_> {
    /// Computes the scales of the blocks of Θ̂ − θ, and checks that all values are finite: a dispatch for each of
    /// `spans`. `body` and `largest` must be zero before.
    pub fn measure(&self, spans: &[SegmentSlice], body: &Body) -> DispatchList {
        self.each(spans, |span| self.code_with(DELTA_MAX, span, body, None))
    }

    /// Encodes Θ̂ − θ to `body`, once all spans are measured: a dispatch for each of `spans`.
    pub fn code(&self, spans: &[SegmentSlice], body: &Body) -> DispatchList {
        self.each(spans, |span| self.code_with(DELTA_CODE, span, body, Some(&body.codes)))
    }

    fn code_with(
        &self,
        kernel: KernelOf<params::Piece>,
        span: &SegmentSlice,
        body: &Body,
        codes: Option<&Slice>,
    ) -> Dispatch {
        let storage = [span.slice(self.theta), self.hat.slice(span), self.largest.clone(), body.head.clone()];
        let storage = storage.into_iter().chain(codes.cloned()).collect();
        self.dispatch(kernel.with(span.params(false)), span.len / 8 + 2, storage)
    }

    /// Adds the values of `spans` to the digest of Θ̂.
    pub fn digest(&self, spans: &[SegmentSlice], body: &Body) -> DispatchList {
        self.each(spans, |span| {
            let storage = vec![self.hat.slice(span), body.digest.clone()];
            self.dispatch(DIGEST.with(span.params(false)), span.len / DIGEST_VALUES + 1, storage)
        })
    }

    /// Computes `θ += body`, so that the reported progress is no longer part of θ's progress.
    pub fn give_back(&self, spans: &[SegmentSlice], body: &Body) -> DispatchList {
        self.each(spans, |span| self.decode_add(span, body, false, span.slice(self.theta)))
    }

    /// Computes `Θ̂ = nearest(Θ̂ + incoming)`: a dispatch for each of `spans`.
    pub fn add(&self, spans: &[SegmentSlice], incoming: &Body) -> DispatchList {
        self.each(spans, |span| self.decode_add(span, incoming, true, self.hat.slice(span)))
    }

    fn decode_add(&self, span: &SegmentSlice, body: &Body, is_hat: bool, values: Slice) -> Dispatch {
        let storage = vec![body.head.clone(), body.codes.clone(), values];
        self.dispatch(DECODE_ADD.with(span.params(is_hat)), span.len, storage)
    }

    /// Computes `θ = Θ̂ + share (θ − reference)`: a dispatch for each of `spans`.
    pub fn rebase(
        &self,
        spans: &[SegmentSlice],
        share: f32,
        reference: impl Fn(&SegmentSlice) -> Slice,
    ) -> DispatchList {
        self.each(spans, |span| {
            let call = REBASE.with(params::Rebase { start: span.start(), len: span.len, share });
            let storage = vec![self.hat.slice(span), reference(span), span.slice(self.theta)];
            Dispatch { constants: vec![("WG", WG)], ..self.dispatch(call, span.len, storage) }
        })
    }

    fn each(&self, spans: &[SegmentSlice], dispatch: impl Fn(&SegmentSlice) -> Dispatch) -> DispatchList {
        let mut builder = Builder::default();
        spans.iter().for_each(|span| builder.add(dispatch(span)));
        builder.build(self.gpu)
    }

    /// Returns a dispatch of a piece kernel with `threads` invocations.
    fn dispatch(&self, call: Call, threads: u32, storage: Vec<Slice>) -> Dispatch {
        let groups = [threads.div_ceil(WG).min(GROUPS_MAX), 1, 1];
        let constants = constants_of(&self.codec).to_vec();
        Dispatch { call, constants, storage, groups, cost: u64::from(threads) }
    }
}

/// Returns the `override`s of the piece kernels.
fn constants_of(codec: &Codec) -> [Constant; 3] {
    let code = kernel_code(codec.code()).expect("an engine with another code is not built");
    let block = u32::try_from(codec.block_len()).expect("a block has at most 2¹⁶ values");
    [("WG", WG), ("BLOCK", block), ("CODE", code)]
}

/// Returns the value of `code` in the kernels.
///
/// # Errors
/// [`GpuError::Code`]: there are no kernels for it.
pub fn kernel_code(code: Code) -> Result<u32, GpuError> {
    match code {
        Code::Int4 => Ok(0),
        Code::E3m0 => Ok(1),
        Code::F32 => Ok(2),
        Code::Int2 | Code::Int1 => Err(GpuError::Code { code }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_codes_without_kernels() {
        let known = [Code::Int4, Code::E3m0, Code::F32].map(kernel_code);
        assert_eq!(known, [Ok(0), Ok(1), Ok(2)]);
        for code in [Code::Int2, Code::Int1] {
            let error = kernel_code(code).unwrap_err();
            assert_eq!(error, GpuError::Code { code });
            assert!(error.to_string().contains("use the CPU engine"), "{error}");
        }
    }
}
