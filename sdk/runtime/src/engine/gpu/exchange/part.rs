//! One fragment on the device: where its values lie, its body, and the dispatches over both.

use super::super::arena::Arena;
use super::super::kernels::{Call, DECODE_ADD, DELTA_CODE, DELTA_MAX, DIGEST, KernelOf, REBASE};
use super::super::params;
use super::super::program::{ALIGN_BYTES, Builder, Constant, Dispatch, Program, Slice, buffer};
use super::super::{Gpu, GpuError};
use crate::diloco::{Codec, Segment};
use crate::wire::Code;

/// Threads of a workgroup.
const WG: u32 = 64;
/// WebGPU's limit.
const GROUPS_MAX: u32 = 65_535;
/// In the head of a body, what belongs to the device alone.
pub const FLAG_BYTES: u64 = 4;

/// Bytes of a digest.
pub const DIGEST_BYTES: u64 = 8;
/// Values that one invocation takes into a digest.
const DIGEST_VALUES: u32 = 16;

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
}

/// A part of a segment that lies in one chunk.
#[derive(Debug)]
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

    /// Its values in `vector`, from the nearest place on that can be bound.
    fn slice(&self, vector: &[wgpu::Buffer]) -> Slice {
        let start_byte = self.start * 4 / ALIGN_BYTES * ALIGN_BYTES;
        let bytes = self.bytes().end - start_byte;
        Slice { buffer: vector[self.chunk].clone(), start_byte, bytes }
    }

    /// Its first value, within [`Self::slice`].
    fn start(&self) -> u32 {
        (self.start % (ALIGN_BYTES / 4)) as u32
    }

    fn params(&self, is_hat: bool) -> params::Piece {
        let &Self { len, offset, value, code, block, .. } = self;
        params::Piece { start: self.start(), len, offset, value, code, block, is_hat: is_hat.into() }
    }

    /// Its bytes, within the chunk.
    pub fn bytes(&self) -> std::ops::Range<u64> {
        self.start * 4..(self.start + u64::from(self.len)) * 4
    }
}

/// What the dispatches of all fragments have in common.
#[derive(Debug)]
pub struct Plan<'a> {
    pub gpu: &'a Gpu,
    pub codec: Codec,
    /// θ.
    pub theta: &'a [wgpu::Buffer],
    /// Θ̂.
    pub hat: &'a [wgpu::Buffer],
    /// What progress is measured from.
    pub reference: &'a [wgpu::Buffer],
    /// One word for each block of the fragment that is being coded.
    pub largest: &'a Slice,
    /// The body that is being taken in.
    pub incoming: &'a Body,
}

impl Plan<'_> {
    /// Codes Θ̂ − θ of `pieces` to `body` with the digest of Θ̂. `body` is zero before, as is `largest`.
    pub fn encode(&self, pieces: &[Piece], body: &Body) -> Program {
        let mut builder = Builder::default();
        let (theta, hat) = (self.theta, self.hat);
        let mut add = |kernel: KernelOf<params::Piece>, piece: &Piece, codes: Option<&Slice>| {
            let storage = [piece.slice(theta), piece.slice(hat), self.largest.clone(), body.head.clone()];
            let storage = storage.into_iter().chain(codes.cloned()).collect();
            let call = kernel.with(piece.params(false));
            builder.add(self.dispatch(call, piece.len / 8 + 2, storage));
        };
        pieces.iter().for_each(|piece| add(DELTA_MAX, piece, None));
        pieces.iter().for_each(|piece| add(DELTA_CODE, piece, Some(&body.codes)));
        for piece in pieces {
            let storage = vec![piece.slice(hat), body.digest.clone()];
            builder.add(self.dispatch(
                DIGEST.with(piece.params(false)),
                piece.len / DIGEST_VALUES + 1,
                storage,
            ));
        }
        builder.build(self.gpu)
    }

    /// `θ += body`: what it reported is no progress of θ any more.
    pub fn give_back(&self, pieces: &[Piece], body: &Body) -> Program {
        self.decode_add(pieces, body, false, self.theta)
    }

    /// `Θ̂ = nearest(Θ̂ + incoming)`.
    pub fn add(&self, pieces: &[Piece]) -> Program {
        self.decode_add(pieces, self.incoming, true, self.hat)
    }

    fn decode_add(&self, pieces: &[Piece], body: &Body, is_hat: bool, values: &[wgpu::Buffer]) -> Program {
        let mut builder = Builder::default();
        for piece in pieces {
            let storage = vec![body.head.clone(), body.codes.clone(), piece.slice(values)];
            builder.add(self.dispatch(DECODE_ADD.with(piece.params(is_hat)), piece.len, storage));
        }
        builder.build(self.gpu)
    }

    /// `θ = Θ̂ + share (θ − reference)`.
    pub fn rebase(&self, pieces: &[Piece], share: f32) -> Program {
        let mut builder = Builder::default();
        for piece in pieces {
            let call = REBASE.with(params::Rebase { start: piece.start(), len: piece.len, share });
            let storage = [self.hat, self.reference, self.theta].map(|vector| piece.slice(vector)).to_vec();
            builder.add(Dispatch { constants: vec![("WG", WG)], ..self.dispatch(call, piece.len, storage) });
        }
        builder.build(self.gpu)
    }

    /// `threads` invocations of a kernel of pieces.
    fn dispatch(&self, call: Call, threads: u32, storage: Vec<Slice>) -> Dispatch {
        let groups = [threads.div_ceil(WG).min(GROUPS_MAX), 1, 1];
        let constants = constants_of(&self.codec).to_vec();
        Dispatch { call, constants, storage, groups, cost: u64::from(threads) }
    }
}

/// The `override`s of the kernels of pieces.
fn constants_of(codec: &Codec) -> [Constant; 3] {
    let code = kernel_code(codec.code()).expect("an engine with another code is not built");
    let block = u32::try_from(codec.block_len()).expect("a block has at most 2¹⁶ values");
    [("WG", WG), ("BLOCK", block), ("CODE", code)]
}

/// What the kernels call `code`.
///
/// # Errors
/// [`GpuError::Code`]: they do not know it.
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
