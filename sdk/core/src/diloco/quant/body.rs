//! Blocks of a body: their location, coding, decoding and checks.

use std::ops::Range;

use super::{Codec, QuantError, VALUE_ABS_MAX};
use crate::diloco::Segment;
use crate::diloco::block::{self, Alphabet, FourLevels, PowerOfTwo, Sign, Uniform, whole};
use crate::wire::Code;

/// Evaluates `$coded` with the alphabet `$A` of a code, or `$plain` for [`Code::F32`], which has no alphabet.
macro_rules! with_alphabet {
    ($code:expr, $A:ident => $coded:expr, plain => $plain:expr) => {
        match $code {
            Code::Int4 => {
                type $A = Uniform;
                $coded
            }
            Code::E3m0 => {
                type $A = PowerOfTwo;
                $coded
            }
            Code::Int2 => {
                type $A = FourLevels;
                $coded
            }
            Code::Int1 => {
                type $A = Sign;
                $coded
            }
            Code::F32 => $plain,
        }
    };
}

/// Location of a segment in the fragment and its body.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// First block in the fragment.
    pub block: usize,
    /// First value in the fragment.
    pub value: usize,
    /// First code, in bytes of the body.
    pub code: usize,
    /// Number of values.
    pub len: usize,
}

/// One block of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::diloco) struct Block {
    /// Index in the whole body.
    pub index: usize,
    /// Range of its values in the fragment.
    pub values: Range<usize>,
    /// Range of its codes in the body.
    pub codes: Range<usize>,
}

impl Codec {
    /// Returns the location of each segment of a fragment, in order.
    pub fn spans(&self, segments: &[Segment]) -> impl Iterator<Item = Span> {
        let mut next = Span { block: 0, value: 0, code: self.head_bytes(segments), len: 0 };
        segments.iter().map(move |segment| {
            let span = Span { len: segment.len as usize, ..next };
            next.block += span.len.div_ceil(self.block as usize);
            next.value += span.len;
            next.code += self.code_bytes(span.len);
            span
        })
    }

    /// Returns the blocks of `span`, in order. With [`Code::F32`] they only divide the work.
    #[inline(always)]
    pub(in crate::diloco) fn blocks(&self, span: Span) -> impl Iterator<Item = Block> {
        let size = self.block as usize;
        (0..span.len.div_ceil(size)).map(move |i| {
            let len = size.min(span.len - i * size);
            let value = span.value + i * size;
            let code = span.code + self.code_bytes(i * size);
            Block {
                index: span.block + i,
                values: value..value + len,
                codes: code..code + self.code_bytes(len),
            }
        })
    }

    /// Returns the number of values in a whole block.
    pub fn block_len(&self) -> usize {
        self.block as usize
    }

    /// Codes `values`, the values of `block`, into its part of `body`, which is zero.
    #[inline(always)]
    pub(in crate::diloco) fn encode_block(&self, block: &Block, values: &[f32], body: &mut [u8]) {
        with_alphabet!(self.code, A => {
            let scale = scale_bits(A::scale(values, VALUE_ABS_MAX));
            if scale != 0 {
                body[block.index * 2..][..2].copy_from_slice(&scale.to_le_bytes());
                block::pack::<A>(values, scale_value(scale), &mut body[block.codes.clone()]);
            }
        }, plain => block::write_f32(values, VALUE_ABS_MAX, &mut body[block.codes.clone()]));
    }

    /// Decodes `block` of a checked `body` to `values`.
    #[inline(always)]
    pub(in crate::diloco) fn decode_block(&self, block: &Block, body: &[u8], values: &mut [f32]) {
        self.unpack_block(block, body, values, |value, decoded| *value = decoded);
    }

    /// Calls `take(value, decoded)` for each of `values` with the decoded value in `block` of a checked `body`.
    #[inline(always)]
    pub(in crate::diloco) fn unpack_block(
        &self,
        block: &Block,
        body: &[u8],
        values: &mut [f32],
        take: impl Fn(&mut f32, f32),
    ) {
        let codes = &body[block.codes.clone()];
        with_alphabet!(self.code, A => {
            let unit = scale(block, body) * A::UNIT;
            block::unpack::<A, _>(codes, values, |value, n| take(value, f32::from(n) * unit));
        }, plain => block::read_f32(codes, values, take));
    }

    /// Adds `factor` times the decoded values in `block` of a checked `body` to `sums`. Each term is rounded to a
    /// whole number, so the sums are exact as long as they stay below 2⁵³.
    #[inline(always)]
    pub(in crate::diloco) fn add_whole_block(
        &self,
        block: &Block,
        body: &[u8],
        factor: f64,
        sums: &mut [f64],
    ) {
        let codes = &body[block.codes.clone()];
        with_alphabet!(self.code, A => {
            // Numbers are integers, so it is enough to round their factor.
            let unit = whole(factor * f64::from(scale(block, body) * A::UNIT));
            block::unpack::<A, _>(codes, sums, |sum, n| *sum += f64::from(n) * unit);
        }, plain => block::read_f32(codes, sums, |sum, value| *sum += whole(f64::from(value) * factor)));
    }

    /// Returns the sum of squares of the decoded values in `block` of a checked `body`.
    #[inline(always)]
    pub(in crate::diloco) fn block_square(&self, block: &Block, body: &[u8]) -> f64 {
        let codes = &body[block.codes.clone()];
        with_alphabet!(self.code, A => {
            let scale = f64::from(scale(block, body));
            block::square::<A>(codes, block.values.len()) * (scale * scale)
        }, plain => block::square_f32(codes))
    }

    #[inline(always)]
    pub(super) fn check_block(&self, block: &Block, body: &[u8]) -> Result<(), QuantError> {
        let codes = &body[block.codes.clone()];
        with_alphabet!(self.code, A => check_codes::<A>(block, scale(block, body), codes), plain => {
            match block::first_outside(codes, VALUE_ABS_MAX) {
                None => Ok(()),
                Some((at, value)) => Err(out_of_range(block.values.start + at, value)),
            }
        })
    }
}

#[inline(always)]
fn check_codes<A: Alphabet>(block: &Block, scale: f32, codes: &[u8]) -> Result<(), QuantError> {
    if scale != 0.0 && !(SCALE_MIN..=SCALE_MAX).contains(&scale) || scale.is_sign_negative() {
        return Err(out_of_range(block.index, scale));
    }
    if A::has_unused(codes) || scale == 0.0 && codes.iter().any(|&byte| byte != 0) {
        return Err(QuantError::Code { block: block.index });
    }
    let used = block.values.len() * A::BITS % 32;
    if used != 0 {
        let (_, last) = codes.split_last_chunk::<4>().expect("a block has at least one word");
        if u32::from_le_bytes(*last) >> used != 0 {
            return Err(QuantError::Padding);
        }
    }
    Ok(())
}

/// Smallest scale except 0.
pub(super) const SCALE_MIN: f32 = 1.0 / (1_u128 << 100) as f32;
const SCALE_MAX: f32 = (1_u64 << 60) as f32;

/// Returns the bits of the smallest bfloat16 that is at least `scale`, or 0 below [`SCALE_MIN`].
#[inline(always)]
fn scale_bits(scale: f32) -> u16 {
    if scale < SCALE_MIN { 0 } else { ((scale.to_bits() + 0xFFFF) >> 16) as u16 }
}

#[inline(always)]
fn scale_value(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

#[inline(always)]
pub(super) fn scale(block: &Block, body: &[u8]) -> f32 {
    scale_value(u16::from_le_bytes([body[block.index * 2], body[block.index * 2 + 1]]))
}

fn out_of_range(block: usize, value: f32) -> QuantError {
    if value.is_finite() { QuantError::Range { block, value } } else { QuantError::NotFinite { block } }
}
