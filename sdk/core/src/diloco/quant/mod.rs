//! Codec for updates and changes of a fragment: 4, 2 or 1 bits per value, in blocks that share a scale.
//!
//! # Body layout
//! The values of a fragment, segment after segment, are cut into blocks of `block` values. A block never crosses a
//! segment, so the last block of each segment may be shorter. A body consists of
//!
//! 1. one scale for each block, in order: the upper 16 bits of an `f32` (bfloat16), little endian;
//! 2. zero or two zero bytes, up to a multiple of 4;
//! 3. for each block, one code per value, the first in the lowest bits of the first byte, with zero codes up to
//!    a multiple of 32 bits. Every block starts at a multiple of 4 bytes. Therefore `block` is a multiple of 8 for
//!    codes of 4 bits, of 16 for 2 bits, and of 32 for 1 bit.
//!
//! A value is `level(code) · scale`. That product is exact in `f32`, so adding it to a parameter gives the same bits
//! with and without fused multiply-add: syncer and learners agree on Θ̂.
//!
//! | code | level of the bits `n` | scale |
//! |---|---|---|
//! | [`Code::Int4`] | `n` as two's complement, −7…7 | largest magnitude in the block / 7 |
//! | [`Code::E3m0`] | 0 for `n = 0`; else ±2^(L−7), L = `n & 7`, negative if `n & 8` | largest magnitude in the block |
//! | [`Code::Int2`] | 1 + 2 · (`n & 1`), negative if `n & 2`: ±1, ±3 | 0.624 · mean magnitude in the block |
//! | [`Code::Int1`] | 1 for `n = 0`, −1 for `n = 1` | mean magnitude in the block |
//!
//! Scales are rounded up, and values to the nearest level of the rounded scale, with ties to even in 4 bits. A scale is
//! 0 or within 2⁻¹⁰⁰…2⁶⁰; a block with a smaller scale is coded as zeros. Nibble 8 (−8, −0) is unused. A merge of any
//! accepted bodies stays finite. Coding the decoded values of a body gives the same body again, except with
//! [`Code::Int2`], whose scale follows the coded magnitudes.
//!
//! The constant of [`Code::Int2`] gives the levels with the least mean square error for normally distributed values
//! (Max, 1960). The paper does not publish its codes of 1 and 2 bits. Ours are for comparisons in simulations, and a
//! syncer does not offer them.
//!
//! With 4 bits and blocks of 256, a value costs 4 + 16/256 = 4.0625 bits, plus the padding of each segment's last
//! block. [`Code::F32`] has neither scales nor codes: the values are `f32`, little endian.

use std::ops::Range;
use std::sync::Arc;

use super::Segment;
use crate::diloco::block;
use crate::diloco::block::{Alphabet, FourLevels, PowerOfTwo, Sign, Uniform, whole};
use crate::wire::{Code, ExchangeSpec};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Largest magnitude of a coded value. [`Codec::encode`] clips larger values to it.
pub const VALUE_ABS_MAX: f32 = (1_u64 << 60) as f32;

/// Codec of the values of a fragment, for updates and changes alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Codec {
    code: Code,
    block: u32,
}

/// Body that passed [`Codec::check`], with its sums of squares. Serialisation omits its bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckedBody {
    #[serde(skip)]
    bytes: Arc<Vec<u8>>,
    /// Sum of squares of each segment, `[segments]`.
    squares: Vec<f64>,
}

impl CheckedBody {
    /// Returns the bytes of the body.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns shared ownership of the bytes of the body, for use after the merge.
    #[must_use]
    pub fn shared(&self) -> Arc<Vec<u8>> {
        Arc::clone(&self.bytes)
    }

    /// Returns a copy that has the sums of squares but no bytes.
    #[must_use]
    pub fn without_bytes(&self) -> Self {
        Self { bytes: Arc::default(), squares: self.squares.clone() }
    }

    /// Returns the sum of squares of each segment, `[segments]`.
    #[must_use]
    pub(crate) fn squares(&self) -> &[f64] {
        &self.squares
    }

    /// Returns the L2 norm of the decoded values.
    #[must_use]
    pub fn norm(&self) -> f64 {
        self.squares.iter().sum::<f64>().sqrt()
    }
}

/// Error in the settings of a codec or in a body.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum QuantError {
    /// The block size is 0, above 65536, or not a multiple of the values in a word.
    #[error("a block of {block} values: choose a multiple of {multiple} from {multiple} to 65536")]
    Block {
        /// Requested number of values in a block.
        block: u32,
        /// Number of values in a word of 4 bytes; 8 with [`Code::F32`].
        multiple: u32,
    },
    /// The length of the body is not that for the fragment.
    #[error("a body of {actual} bytes where the fragment takes {expected}")]
    Length {
        /// Expected number of bytes.
        expected: usize,
        /// Actual number of bytes.
        actual: usize,
    },
    /// A scale is infinite or NaN, or a value with [`Code::F32`] is.
    #[error("scale or value {block} is not finite")]
    NotFinite {
        /// Index of the block, or of the value with [`Code::F32`].
        block: usize,
    },
    /// A scale is negative, or neither 0 nor within 2⁻¹⁰⁰…2⁶⁰. With [`Code::F32`], the magnitude of a value is above
    /// 2⁶⁰.
    #[error("scale or value {block} is {value}, out of range")]
    Range {
        /// Index of the block, or of the value with [`Code::F32`].
        block: usize,
        /// The invalid scale or value.
        value: f32,
    },
    /// A code is invalid: it is nibble 8, or it is not 0 although its scale is 0.
    #[error("block {block} holds an invalid code")]
    Code {
        /// Index of the block.
        block: usize,
    },
    /// Unused bytes or codes are not zero.
    #[error("the padding is not zero")]
    Padding,
}

impl Codec {
    /// Creates the codec of `spec`.
    ///
    /// # Errors
    /// [`QuantError::Block`] if `spec.block` is 0, above 65536, or not a multiple of 8 (16 for [`Code::Int2`], 32 for
    /// [`Code::Int1`]).
    pub fn new(spec: &ExchangeSpec) -> Result<Self, QuantError> {
        let ExchangeSpec { code, block, .. } = *spec;
        let multiple = match code {
            Code::Int4 | Code::E3m0 | Code::F32 => 8,
            Code::Int2 => 16,
            Code::Int1 => 32,
        };
        if block == 0 || !block.is_multiple_of(multiple) || block > 1 << 16 {
            return Err(QuantError::Block { block, multiple });
        }
        Ok(Self { code, block })
    }

    /// Returns the code of the values.
    #[must_use]
    pub fn code(&self) -> Code {
        self.code
    }

    /// Returns the number of bytes in a body of the fragment with these segments.
    #[must_use]
    pub fn body_bytes(&self, segments: &[Segment]) -> usize {
        let codes = segments.iter().map(|segment| self.code_bytes(segment.len as usize));
        self.head_bytes(segments) + codes.sum::<usize>()
    }

    /// Codes `values`, `[fragment_len]`. NaN is coded as 0, and magnitudes above 2⁶⁰ are clipped to 2⁶⁰.
    /// [`Self::decode`] accepts every result.
    ///
    /// # Panics
    /// If the number of `values` is not that of the fragment.
    #[must_use]
    pub fn encode(&self, segments: &[Segment], values: &[f32]) -> Vec<u8> {
        assert_eq!(values.len(), fragment_len(segments), "one value per parameter of the fragment");
        let mut body = vec![0; self.body_bytes(segments)];
        for span in self.spans(segments) {
            encode_span(self, span, values, &mut body);
        }
        body
    }

    /// Returns the values of `body`, `[fragment_len]`.
    ///
    /// # Errors
    /// Those of [`Self::decode_into`].
    pub fn decode(&self, segments: &[Segment], body: &[u8]) -> Result<Vec<f32>, QuantError> {
        let mut values = vec![0.0; fragment_len(segments)];
        self.decode_into(segments, body, &mut values)?;
        Ok(values)
    }

    /// Writes the values of `body` to `values`, `[fragment_len]`. After an error, `values` are unchanged.
    ///
    /// # Errors
    /// Any variant of [`QuantError`] except `Block`.
    ///
    /// # Panics
    /// If the number of `values` is not that of the fragment.
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

    /// Checks `body`, and returns the L2 norm of its values. The norm is exact except for the rounding of the `f64` sum
    /// over blocks.
    ///
    /// # Errors
    /// Any variant of [`QuantError`] except `Block`.
    pub fn norm(&self, segments: &[Segment], body: &[u8]) -> Result<f64, QuantError> {
        Ok(self.squares(segments, body)?.iter().sum::<f64>().sqrt())
    }

    /// Checks `body`. The type of the result records that the check has passed.
    ///
    /// # Errors
    /// Any variant of [`QuantError`] except `Block`.
    pub fn check(&self, segments: &[Segment], body: Vec<u8>) -> Result<CheckedBody, QuantError> {
        let squares = self.squares(segments, &body)?;
        Ok(CheckedBody { bytes: Arc::new(body), squares })
    }

    /// Checks `body`, and returns the sum of squares of each segment, `[segments]`.
    ///
    /// # Errors
    /// Those of [`Self::norm`].
    fn squares(&self, segments: &[Segment], body: &[u8]) -> Result<Vec<f64>, QuantError> {
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

    /// Returns the number of blocks in the fragment with these segments.
    pub fn block_count(&self, segments: &[Segment]) -> usize {
        segments.iter().map(|segment| segment.len.div_ceil(self.block) as usize).sum()
    }

    /// Returns the number of bytes of the codes of `len` values, which are one block or several whole blocks.
    #[inline(always)]
    fn code_bytes(&self, len: usize) -> usize {
        match self.code {
            Code::Int4 | Code::E3m0 => len.div_ceil(8) * 4,
            Code::Int2 => len.div_ceil(16) * 4,
            Code::Int1 => len.div_ceil(32) * 4,
            Code::F32 => len * 4,
        }
    }

    /// Returns the number of bytes before the codes in a body: the scales and their padding.
    pub fn head_bytes(&self, segments: &[Segment]) -> usize {
        match self.code {
            Code::Int4 | Code::E3m0 | Code::Int2 | Code::Int1 => {
                (self.block_count(segments) * 2).next_multiple_of(4)
            }
            Code::F32 => 0,
        }
    }
}

// The following loops over blocks are compiled for several instruction sets. Their results are bit-identical, because
// Rust neither fuses multiplications and additions nor reorders floating-point sums.

#[cfg_attr(feature = "simd", multiversion::multiversion(targets = "simd"))]
fn encode_span(codec: &Codec, span: Span, values: &[f32], body: &mut [u8]) {
    for block in codec.blocks(span) {
        codec.encode_block(&block, &values[block.values.clone()], body);
    }
}

#[cfg_attr(feature = "simd", multiversion::multiversion(targets = "simd"))]
fn decode_span(codec: &Codec, span: Span, body: &[u8], values: &mut [f32]) {
    for block in codec.blocks(span) {
        codec.decode_block(&block, body, &mut values[block.values.clone()]);
    }
}

/// Checks the codes of `span`, and returns their sum of squares.
#[cfg_attr(feature = "simd", multiversion::multiversion(targets = "simd"))]
fn check_span(codec: &Codec, span: Span, body: &[u8]) -> Result<f64, QuantError> {
    let mut sum = 0.0;
    for block in codec.blocks(span) {
        codec.check_block(&block, body)?;
        sum += codec.block_square(&block, body);
    }
    Ok(sum)
}

/// Returns the checksum for [`crate::wire::Update::checksum`]: the first 8 bytes of the SHA-256 of `body`, big endian.
#[must_use]
pub fn checksum(body: &[u8]) -> u64 {
    let digest = Sha256::digest(body);
    u64::from_be_bytes(digest[..8].try_into().expect("SHA-256 has 32 bytes"))
}

/// Returns the number of values in the fragment with these segments.
pub(crate) fn fragment_len(segments: &[Segment]) -> usize {
    segments.iter().map(|segment| segment.len as usize).sum()
}

/// Evaluates `$coded` with `$A` as the alphabet of a code, or `$plain` for [`Code::F32`], which has no alphabet.
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

/// Location of a segment in its fragment and in a body.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Index of the segment's first block in the fragment.
    pub block: usize,
    /// Index of the segment's first value in the fragment.
    pub value: usize,
    /// Offset of the segment's first code in the body, in bytes.
    pub code: usize,
    /// Number of values.
    pub len: usize,
}

/// Location of one block in its fragment and in a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::diloco) struct Block {
    /// Index of the block in the fragment.
    pub index: usize,
    /// Range of the block's values in the fragment.
    pub values: Range<usize>,
    /// Range of the block's codes in the body, in bytes.
    pub codes: Range<usize>,
}

impl Codec {
    /// Returns the location of each of `segments`, in order.
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

    /// Returns the blocks of `span`, in order. With [`Code::F32`], blocks have no scales and only divide the work.
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

    /// Codes `values`, the values of `block`, into the scale and the codes of `block` in `body`, which must be zero.
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

    /// Calls `take(value, decoded)` for each of `values` with the corresponding decoded value of `block` in a checked
    /// `body`.
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

    /// Adds `factor` times the decoded values of `block` in a checked `body` to `sums`. Each term is rounded to an
    /// integer, so the sums are exact as long as their magnitudes stay below 2⁵³.
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
            // Levels are integers, so it is enough to round their factor.
            let unit = whole(factor * f64::from(scale(block, body) * A::UNIT));
            block::unpack::<A, _>(codes, sums, |sum, n| *sum += f64::from(n) * unit);
        }, plain => block::read_f32(codes, sums, |sum, value| *sum += whole(f64::from(value) * factor)));
    }

    /// Returns the sum of squares of the decoded values of `block` in a checked `body`.
    #[inline(always)]
    pub(in crate::diloco) fn block_square(&self, block: &Block, body: &[u8]) -> f64 {
        let codes = &body[block.codes.clone()];
        with_alphabet!(self.code, A => {
            let scale = f64::from(scale(block, body));
            block::square::<A>(codes, block.values.len()) * (scale * scale)
        }, plain => block::square_f32(codes))
    }

    #[inline(always)]
    fn check_block(&self, block: &Block, body: &[u8]) -> Result<(), QuantError> {
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

/// Smallest scale above 0.
const SCALE_MIN: f32 = 1.0 / (1_u128 << 100) as f32;
/// Largest scale.
const SCALE_MAX: f32 = (1_u64 << 60) as f32;

/// Returns the bits of the smallest bfloat16 that is at least `scale`, or 0 if `scale` is below [`SCALE_MIN`].
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
