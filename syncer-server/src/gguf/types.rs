//! Types of tensors, and the bytes of their values.

use half::{bf16, f16};

use crate::llama::{Precision, f16_of};

/// Number of values in a block of [`TensorType::Q8_0`].
const BLOCK: usize = 32;

/// Largest code of [`TensorType::Q8_0`].
const CODE_MAX: f32 = 127.0;

/// Type of the parameters in an exported file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum TensorType {
    /// 32 bits, as in training.
    #[default]
    F32,
    /// 16 bits with 10 bits of fraction, rounded to nearest.
    F16,
    /// 16 bits with 7 bits of fraction, rounded to nearest.
    Bf16,
    /// 8 bits, in blocks of 32 values with a 16-bit scale each; only in GGUF files.
    #[value(name = "q8_0")]
    Q8_0,
}

impl TensorType {
    /// Returns the type of the values in a safetensors file; `None` if such a file cannot hold them.
    #[must_use]
    pub fn precision(self) -> Option<Precision> {
        match self {
            Self::F32 => Some(Precision::F32),
            Self::F16 => Some(Precision::F16),
            Self::Bf16 => Some(Precision::Bf16),
            Self::Q8_0 => None,
        }
    }

    /// Returns ggml's number of this type.
    pub(super) fn ggml_type(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q8_0 => 8,
            Self::Bf16 => 30,
        }
    }

    /// Returns llama.cpp's number for a file whose matrices are mostly of this type.
    pub(super) fn file_type(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q8_0 => 7,
            Self::Bf16 => 32,
        }
    }

    /// Returns the type for rows of `cols` values. As in llama.cpp, rows that are not whole blocks are f16.
    pub(super) fn of_rows(self, cols: usize) -> Self {
        match self {
            Self::Q8_0 if !cols.is_multiple_of(BLOCK) => Self::F16,
            _ => self,
        }
    }

    /// Returns the number of bytes of `values` values.
    pub(super) fn bytes(self, values: u64) -> u64 {
        match self {
            Self::F32 => 4 * values,
            Self::F16 | Self::Bf16 => 2 * values,
            Self::Q8_0 => values / BLOCK as u64 * (size_of::<f16>() + BLOCK) as u64,
        }
    }

    /// Appends the bytes of `row` to `out`. A row of [`Self::Q8_0`] has whole blocks.
    pub(super) fn encode(self, row: &[f32], out: &mut Vec<u8>) {
        match self {
            Self::F32 => out.extend(row.iter().flat_map(|value| value.to_le_bytes())),
            Self::F16 => out.extend(row.iter().flat_map(|value| f16_of(*value).to_le_bytes())),
            Self::Bf16 => out.extend(row.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes())),
            Self::Q8_0 => row.chunks_exact(BLOCK).for_each(|block| encode_block(block, out)),
        }
    }
}

/// Appends a block: its scale, and a code for each value. The codes are those of ggml's `quantize_row_q8_0_ref`, which
/// computes them from the scale before its rounding to f16.
fn encode_block(block: &[f32], out: &mut Vec<u8>) {
    let largest = block.iter().fold(0.0, |largest: f32, value| largest.max(value.abs()));
    let scale = largest / CODE_MAX;
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    out.extend(f16_of(scale).to_le_bytes());
    out.extend(block.iter().map(|value| (value * inverse).round() as i8 as u8));
}
