//! Coding the change of a fragment: 4, 2 or 1 bits a value in blocks that share a scale.
//!
//! # The body
//! The values of a fragment, segment after segment, are cut into blocks of `block` values; a block
//! never crosses a segment, so the last one of each segment may be shorter. A body is
//!
//! 1. one scale per block, in order: the upper 16 bits of an `f32` (bfloat16), little endian;
//! 2. zero or two zero bytes, up to a multiple of 4;
//! 3. for each block, one code per value, the first in the lowest bits of the first byte, with zero
//!    codes up to a multiple of 32 bits: every block starts at a multiple of 4 bytes. So `block` is a
//!    multiple of 8 for codes of 4 bits, of 16 for 2 bits, of 32 for 1 bit.
//!
//! A value is `number(code) · scale`. That product is exact in `f32`, so adding it to a parameter
//! gives the same bits with and without fused multiply-add: syncer and learners agree on Θ̂.
//!
//! | code | number of the bits `n` | scale |
//! |---|---|---|
//! | [`Code::Int4`] | `n` as two's complement, −7…7 | largest size in the block / 7 |
//! | [`Code::E3m0`] | 0 for `n = 0`; else ±2^(L−7), L = `n & 7`, negative if `n & 8` | largest size in the block |
//! | [`Code::Int2`] | 1 + 2 · (`n & 1`), negative if `n & 2`: ±1, ±3 | 0.624 · mean size in the block |
//! | [`Code::Int1`] | 1 for `n = 0`, −1 for `n = 1` | mean size in the block |
//!
//! Scales are rounded up, values to the nearest number of the rounded scale, in 4 bits halves to even.
//! A scale is 0 or within 2⁻¹⁰⁰…2⁶⁰; a block whose scale would be smaller is coded as zeros. Nibble 8
//! (−8, −0) is never used. A merge of any accepted bodies stays finite. What a body decodes to is coded
//! as that body again, except with [`Code::Int2`], whose scale follows the sizes that are coded.
//!
//! The constant of [`Code::Int2`] gives the steps with the least mean square error for normally
//! distributed values (Max, 1960). The paper's codes of 1 and 2 bits are not published; ours are for
//! comparison in simulations, and a syncer does not offer them.
//!
//! With blocks of 256 a value costs 4 + 16/256 = 4.0625 bits, plus the padding of each segment's last
//! block. [`Code::F32`] has neither blocks nor scales: the values are `f32`, little endian.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Segment;
use crate::wire::{Code, ExchangeSpec};

mod body;

pub(super) use body::{Block, Span};

/// Largest size of a coded value; [`Codec::encode`] saturates there.
pub const VALUE_ABS_MAX: f32 = (1_u64 << 60) as f32;

/// How the values of one fragment are coded; same both ways.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Codec {
    code: Code,
    block: u32,
}

/// A body that [`Codec::check`] found to be one, with what it learnt on the way. From one machine to another that goes
/// without its bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckedBody {
    #[serde(skip)]
    bytes: Arc<Vec<u8>>,
    squares: Vec<f64>,
}

impl CheckedBody {
    /// The body.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The body, for whoever keeps it longer than the merge.
    #[must_use]
    pub fn shared(&self) -> Arc<Vec<u8>> {
        Arc::clone(&self.bytes)
    }

    /// What is known of it where it is not: its norms without its bytes.
    #[must_use]
    pub fn without_bytes(&self) -> Self {
        Self { bytes: Arc::default(), squares: self.squares.clone() }
    }

    /// The sum of squares of each segment, `[segments]`.
    #[must_use]
    pub(crate) fn squares(&self) -> &[f64] {
        &self.squares
    }

    /// The L2 norm of what it stands for.
    #[must_use]
    pub fn norm(&self) -> f64 {
        self.squares.iter().sum::<f64>().sqrt()
    }
}

/// Why a codec cannot be had, or a body is none.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum QuantError {
    /// A block size that does not fill whole words, or is above 65536.
    #[error("a block of {block} values: choose a multiple of {multiple} from {multiple} to 65536")]
    Block {
        /// The size asked for.
        block: u32,
        /// Values in a word of 4 bytes; with [`Code::F32`] 8.
        multiple: u32,
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
    /// A code that stands for nothing: a nibble 8, or not 0 where the scale is 0.
    #[error("block {block} holds a code that stands for no value")]
    Code {
        /// Index of the block.
        block: usize,
    },
    /// Unused bytes or codes that are not zero.
    #[error("the padding is not zero")]
    Padding,
}

impl Codec {
    /// The codec that `spec` asks for.
    ///
    /// # Errors
    /// [`QuantError::Block`]: `spec.block` is not a multiple of 8, with [`Code::Int2`] of 16, with
    /// [`Code::Int1`] of 32, up to 65536.
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

    /// How a value is coded.
    #[must_use]
    pub fn code(&self) -> Code {
        self.code
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

    /// Looks through `body` once, so that nobody need do it again.
    ///
    /// # Errors
    /// Each variant of [`QuantError`] but `Block`.
    pub fn check(&self, segments: &[Segment], body: Vec<u8>) -> Result<CheckedBody, QuantError> {
        let squares = self.squares(segments, &body)?;
        Ok(CheckedBody { bytes: Arc::new(body), squares })
    }

    /// Checks `body` and gives the sum of squares of each segment.
    ///
    /// # Errors
    /// As [`Self::norm`].
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

    /// Blocks of a fragment made of `segments`.
    pub fn block_count(&self, segments: &[Segment]) -> usize {
        segments.iter().map(|segment| segment.len.div_ceil(self.block) as usize).sum()
    }

    /// Bytes of the codes of `len` values, all of one block or a number of whole blocks.
    #[inline(always)]
    fn code_bytes(&self, len: usize) -> usize {
        match self.code {
            Code::Int4 | Code::E3m0 => len.div_ceil(8) * 4,
            Code::Int2 => len.div_ceil(16) * 4,
            Code::Int1 => len.div_ceil(32) * 4,
            Code::F32 => len * 4,
        }
    }

    /// Bytes before the codes.
    pub fn head_bytes(&self, segments: &[Segment]) -> usize {
        match self.code {
            Code::Int4 | Code::E3m0 | Code::Int2 | Code::Int1 => {
                (self.block_count(segments) * 2).next_multiple_of(4)
            }
            Code::F32 => 0,
        }
    }
}

// The loops over blocks are compiled per instruction set. The bits cannot differ: Rust never fuses a
// multiplication and an addition, and never reorders floating-point sums.

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

/// Checks the codes of `span` and gives their sum of squares.
#[cfg_attr(feature = "simd", multiversion::multiversion(targets = "simd"))]
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
pub(crate) fn fragment_len(segments: &[Segment]) -> usize {
    segments.iter().map(|segment| segment.len as usize).sum()
}

#[cfg(test)]
mod tests;
