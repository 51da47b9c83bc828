//! Coding the change of a fragment: 4 bits a value in blocks that share a scale.
//!
//! # The body
//! The values of a fragment, segment after segment, are cut into blocks of `block` values; a block
//! never crosses a segment, so the last one of each segment may be shorter. A body is
//!
//! 1. one scale per block, in order: the upper 16 bits of an `f32` (bfloat16), little endian;
//! 2. zero or two zero bytes, up to a multiple of 4;
//! 3. for each block, one 4-bit code per value, two a byte, the first in the low nibble, with zero
//!    codes up to a multiple of 8: every block starts at a multiple of 4 bytes.
//!
//! A value is `number(code) · scale`. That product is exact in `f32`, so adding it to a parameter
//! gives the same bits with and without fused multiply-add: syncer and learners agree on Θ̂.
//!
//! | code | number of nibble `n` | scale |
//! |---|---|---|
//! | [`Code::Int4`] | `n` as two's complement, −7…7 | largest size in the block / 7 |
//! | [`Code::E3m0`] | 0 for `n = 0`; else ±2^(L−7), L = `n & 7`, negative if `n & 8` | largest size in the block |
//!
//! Scales are rounded up, values to the nearest number of the rounded scale, halves to even. A scale
//! is 0 or within 2⁻¹⁰⁰…2⁶⁰; a block whose scale would be smaller is coded as zeros. Nibble 8 (−8, −0)
//! is never used. So a body and what it decodes to determine each other, and a merge of any accepted
//! bodies stays finite.
//!
//! With blocks of 256 a value costs 4 + 16/256 = 4.0625 bits, plus the padding of each segment's last
//! block. [`Code::F32`] has neither blocks nor scales: the values are `f32`, little endian.

use std::ops::Range;

use sha2::{Digest, Sha256};

use super::Segment;
use super::block::{self, Nibble, PowerOfTwo, Uniform};
use crate::wire::{Code, ExchangeSpec};

/// Largest size of a coded value; [`Codec::encode`] saturates there.
pub const VALUE_ABS_MAX: f32 = (1_u64 << 60) as f32;

/// How the values of one fragment are coded; same both ways.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Codec {
    code: Code,
    block: u32,
}

/// Why a codec cannot be had, or a body is none.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum QuantError {
    /// A block size that is not a multiple of 8 within 8…65536.
    #[error("a block of {block} values: choose a multiple of 8 from 8 to 65536")]
    Block {
        /// The size asked for.
        block: u32,
    },
    /// The body is not as long as the fragment's shape demands.
    #[error("a body of {actual} bytes where the fragment takes {expected}")]
    Length {
        /// Bytes the fragment takes.
        expected: usize,
        /// Bytes there are.
        actual: usize,
    },
    /// A scale, or with [`Code::F32`] a value, is infinite or no number.
    #[error("scale or value {block} is not finite")]
    NotFinite {
        /// Index of the block; with [`Code::F32`] of the value.
        block: usize,
    },
    /// A scale is negative or outside 2⁻¹⁰⁰…2⁶⁰, or with [`Code::F32`] a value is above 2⁶⁰ in size.
    #[error("scale or value {block} is {value}, out of range")]
    Range {
        /// Index of the block; with [`Code::F32`] of the value.
        block: usize,
        /// What stands there.
        value: f32,
    },
    /// A code that stands for nothing: nibble 8, or not 0 where the scale is 0.
    #[error("block {block} holds a code that stands for no value")]
    Code {
        /// Index of the block.
        block: usize,
    },
    /// Unused bytes or codes that are not zero.
    #[error("the padding is not zero")]
    Padding,
}

/// Where a segment begins, within the fragment and its body.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    block: usize,
    value: usize,
    code: usize,
    len: usize,
}

/// One block of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// Which one, over the whole body.
    pub index: usize,
    /// Its values, within the fragment.
    pub values: Range<usize>,
    /// Its codes, within the body.
    pub codes: Range<usize>,
}

impl Codec {
    /// The codec that `spec` asks for.
    ///
    /// # Errors
    /// [`QuantError::Block`]: `spec.block` is not a multiple of 8 from 8 to 65536.
    pub fn new(spec: &ExchangeSpec) -> Result<Self, QuantError> {
        let ExchangeSpec { code, block, .. } = *spec;
        if block == 0 || !block.is_multiple_of(8) || block > 1 << 16 {
            return Err(QuantError::Block { block });
        }
        Ok(Self { code, block })
    }

    /// Bytes of the body of a fragment made of `segments`.
    #[must_use]
    pub fn body_bytes(&self, segments: &[Segment]) -> usize {
        let codes = segments.iter().map(|segment| self.code_bytes(segment.len as usize));
        self.head_bytes(segments) + codes.sum::<usize>()
    }

    /// Codes `values`, `[fragment_len]`, which may hold anything: what is no number is coded as 0,
    /// what is larger than 2⁶⁰ in size as ±2⁶⁰. Every result is a body that [`Self::decode`] takes.
    ///
    /// # Panics
    /// If `values` is not as long as `segments` together.
    #[must_use]
    pub fn encode(&self, segments: &[Segment], values: &[f32]) -> Vec<u8> {
        assert_eq!(values.len(), fragment_len(segments), "one value per parameter of the fragment");
        let mut body = vec![0; self.body_bytes(segments)];
        for span in self.spans(segments) {
            encode_span(self, span, values, &mut body);
        }
        body
    }

    /// What `body` stands for, `[fragment_len]`.
    ///
    /// # Errors
    /// As [`Self::decode_into`].
    pub fn decode(&self, segments: &[Segment], body: &[u8]) -> Result<Vec<f32>, QuantError> {
        let mut values = vec![0.0; fragment_len(segments)];
        self.decode_into(segments, body, &mut values)?;
        Ok(values)
    }

    /// Writes what `body` stands for to `values`, `[fragment_len]`; all or nothing.
    ///
    /// # Errors
    /// Each variant of [`QuantError`] but `Block`.
    ///
    /// # Panics
    /// If `values` is not as long as `segments` together.
    pub fn decode_into(
        &self,
        segments: &[Segment],
        body: &[u8],
        values: &mut [f32],
    ) -> Result<(), QuantError> {
        assert_eq!(values.len(), fragment_len(segments), "one value per parameter of the fragment");
        self.squares(segments, body)?;
        for span in self.spans(segments) {
            decode_span(self, span, body, values);
        }
        Ok(())
    }

    /// Checks `body` and gives the L2 norm of what it stands for. Exact but for the rounding of the
    /// sum over blocks, which is in `f64`.
    ///
    /// # Errors
    /// Each variant of [`QuantError`] but `Block`.
    pub fn norm(&self, segments: &[Segment], body: &[u8]) -> Result<f64, QuantError> {
        Ok(self.squares(segments, body)?.iter().sum::<f64>().sqrt())
    }

    /// Where the segments of a fragment lie, in order.
    pub(super) fn spans(&self, segments: &[Segment]) -> impl Iterator<Item = Span> {
        let mut next = Span { block: 0, value: 0, code: self.head_bytes(segments), len: 0 };
        segments.iter().map(move |segment| {
            let span = Span { len: segment.len as usize, ..next };
            next.block += span.len.div_ceil(self.block as usize);
            next.value += span.len;
            next.code += self.code_bytes(span.len);
            span
        })
    }

    /// The blocks of `span`, in order. With [`Code::F32`] they only divide the work.
    #[inline(always)]
    pub(super) fn blocks(&self, span: Span) -> impl Iterator<Item = Block> {
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

    /// Values in a whole block.
    pub(super) fn block_len(&self) -> usize {
        self.block as usize
    }

    /// Checks `body` and gives the sum of squares of each segment.
    ///
    /// # Errors
    /// As [`Self::norm`].
    pub(super) fn squares(&self, segments: &[Segment], body: &[u8]) -> Result<Vec<f64>, QuantError> {
        let expected = self.body_bytes(segments);
        if body.len() != expected {
            return Err(QuantError::Length { expected, actual: body.len() });
        }
        let head = self.head_bytes(segments);
        let scales = if self.code == Code::F32 { 0 } else { self.block_count(segments) * 2 };
        if body[scales..head].iter().any(|&byte| byte != 0) {
            return Err(QuantError::Padding);
        }
        self.spans(segments).map(|span| check_span(self, span, body)).collect()
    }

    /// Codes `values`, those of `block`, into its places in `body`, which are zero.
    #[inline(always)]
    pub(super) fn encode_block(&self, block: &Block, values: &[f32], body: &mut [u8]) {
        let scale = match self.code {
            Code::Int4 => scale_bits(block::abs_max(values).min(VALUE_ABS_MAX) / Uniform::MAX),
            Code::E3m0 => scale_bits(block::abs_max(values).min(VALUE_ABS_MAX) / PowerOfTwo::MAX),
            Code::F32 => return block::write_f32(values, VALUE_ABS_MAX, &mut body[block.codes.clone()]),
        };
        if scale == 0 {
            return;
        }
        body[block.index * 2..][..2].copy_from_slice(&scale.to_le_bytes());
        let codes = &mut body[block.codes.clone()];
        match self.code {
            Code::Int4 => block::pack::<Uniform>(values, scale_value(scale), codes),
            Code::E3m0 => block::pack::<PowerOfTwo>(values, scale_value(scale), codes),
            Code::F32 => unreachable!("returned above"),
        }
    }

    /// Writes what `block` of a checked `body` stands for to `values`.
    #[inline(always)]
    pub(super) fn decode_block(&self, block: &Block, body: &[u8], values: &mut [f32]) {
        self.unpack_block(block, body, values, |value, decoded| *value = decoded);
    }

    /// Calls `take(value, decoded)` for each of `values` with what `block` of a checked `body` stands for.
    #[inline(always)]
    pub(super) fn unpack_block(
        &self,
        block: &Block,
        body: &[u8],
        values: &mut [f32],
        take: impl Fn(&mut f32, f32),
    ) {
        let codes = &body[block.codes.clone()];
        let unit = |unit: f32| scale(block, body) * unit;
        match self.code {
            Code::Int4 => {
                let unit = unit(Uniform::UNIT);
                block::unpack::<Uniform, _>(codes, values, |value, n| take(value, f32::from(n) * unit));
            }
            Code::E3m0 => {
                let unit = unit(PowerOfTwo::UNIT);
                block::unpack::<PowerOfTwo, _>(codes, values, |value, n| take(value, f32::from(n) * unit));
            }
            Code::F32 => block::read_f32(codes, values, take),
        }
    }

    /// Adds `factor` times what `block` of a checked `body` stands for to `sums`.
    #[inline(always)]
    pub(super) fn add_block(&self, block: &Block, body: &[u8], factor: f64, sums: &mut [f64]) {
        let codes = &body[block.codes.clone()];
        let unit = |unit: f32| factor * f64::from(scale(block, body) * unit);
        match self.code {
            Code::Int4 => {
                let unit = unit(Uniform::UNIT);
                block::unpack::<Uniform, _>(codes, sums, |sum, n| *sum += f64::from(n) * unit);
            }
            Code::E3m0 => {
                let unit = unit(PowerOfTwo::UNIT);
                block::unpack::<PowerOfTwo, _>(codes, sums, |sum, n| *sum += f64::from(n) * unit);
            }
            Code::F32 => block::read_f32(codes, sums, |sum, value| *sum += f64::from(value) * factor),
        }
    }

    /// Sum of squares of what `block` of a checked `body` stands for.
    #[inline(always)]
    pub(super) fn block_square(&self, block: &Block, body: &[u8]) -> f64 {
        let codes = &body[block.codes.clone()];
        let scale_square = |scale: f32| f64::from(scale) * f64::from(scale);
        match self.code {
            Code::Int4 => block::square::<Uniform>(codes) * scale_square(scale(block, body)),
            Code::E3m0 => block::square::<PowerOfTwo>(codes) * scale_square(scale(block, body)),
            Code::F32 => block::square_f32(codes),
        }
    }

    #[inline(always)]
    fn check_block(&self, block: &Block, body: &[u8]) -> Result<(), QuantError> {
        let codes = &body[block.codes.clone()];
        if self.code == Code::F32 {
            return match block::first_outside(codes, VALUE_ABS_MAX) {
                None => Ok(()),
                Some((at, value)) => Err(out_of_range(block.values.start + at, value)),
            };
        }
        let scale = scale(block, body);
        if scale != 0.0 && !(SCALE_MIN..=SCALE_MAX).contains(&scale) || scale.is_sign_negative() {
            return Err(out_of_range(block.index, scale));
        }
        if block::has_nibble_8(codes) || scale == 0.0 && codes.iter().any(|&byte| byte != 0) {
            return Err(QuantError::Code { block: block.index });
        }
        let used = block.values.len() % 8;
        if used != 0 {
            let (_, last) = codes.split_last_chunk::<4>().expect("a block has at least one word");
            if u32::from_le_bytes(*last) >> (4 * used) != 0 {
                return Err(QuantError::Padding);
            }
        }
        Ok(())
    }

    fn block_count(&self, segments: &[Segment]) -> usize {
        segments.iter().map(|segment| segment.len.div_ceil(self.block) as usize).sum()
    }

    /// Bytes of the codes of `len` values, all of one block or a number of whole blocks.
    #[inline(always)]
    fn code_bytes(&self, len: usize) -> usize {
        match self.code {
            Code::Int4 | Code::E3m0 => len.div_ceil(8) * 4,
            Code::F32 => len * 4,
        }
    }

    /// Bytes before the codes.
    fn head_bytes(&self, segments: &[Segment]) -> usize {
        match self.code {
            Code::Int4 | Code::E3m0 => (self.block_count(segments) * 2).next_multiple_of(4),
            Code::F32 => 0,
        }
    }
}

// The loops over blocks are compiled per instruction set. The bits cannot differ: Rust never fuses a
// multiplication and an addition, and never reorders floating-point sums.

#[cfg_attr(feature = "cpu", multiversion::multiversion(targets = "simd"))]
fn encode_span(codec: &Codec, span: Span, values: &[f32], body: &mut [u8]) {
    for block in codec.blocks(span) {
        codec.encode_block(&block, &values[block.values.clone()], body);
    }
}

#[cfg_attr(feature = "cpu", multiversion::multiversion(targets = "simd"))]
fn decode_span(codec: &Codec, span: Span, body: &[u8], values: &mut [f32]) {
    for block in codec.blocks(span) {
        codec.decode_block(&block, body, &mut values[block.values.clone()]);
    }
}

/// Checks the codes of `span` and gives their sum of squares.
#[cfg_attr(feature = "cpu", multiversion::multiversion(targets = "simd"))]
fn check_span(codec: &Codec, span: Span, body: &[u8]) -> Result<f64, QuantError> {
    let mut sum = 0.0;
    for block in codec.blocks(span) {
        codec.check_block(&block, body)?;
        sum += codec.block_square(&block, body);
    }
    Ok(sum)
}

/// What [`crate::wire::Update::checksum`] holds: the first 8 bytes of the SHA-256 of `body`, big endian.
#[must_use]
pub fn checksum(body: &[u8]) -> u64 {
    let digest = Sha256::digest(body);
    u64::from_be_bytes(digest[..8].try_into().expect("SHA-256 has 32 bytes"))
}

/// Values in a fragment made of `segments`.
pub(super) fn fragment_len(segments: &[Segment]) -> usize {
    segments.iter().map(|segment| segment.len as usize).sum()
}

const SCALE_MIN: f32 = 1.0 / (1_u128 << 100) as f32;
const SCALE_MAX: f32 = (1_u64 << 60) as f32;

/// The smallest bfloat16 that is at least `scale`, 0 below [`SCALE_MIN`].
#[inline(always)]
fn scale_bits(scale: f32) -> u16 {
    if scale < SCALE_MIN { 0 } else { ((scale.to_bits() + 0xFFFF) >> 16) as u16 }
}

#[inline(always)]
fn scale_value(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

#[inline(always)]
fn scale(block: &Block, body: &[u8]) -> f32 {
    scale_value(u16::from_le_bytes([body[block.index * 2], body[block.index * 2 + 1]]))
}

fn out_of_range(block: usize, value: f32) -> QuantError {
    if value.is_finite() { QuantError::Range { block, value } } else { QuantError::NotFinite { block } }
}

#[cfg(test)]
mod tests;
