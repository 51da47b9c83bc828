//! The kernels of matrix products.

use serde::{Deserialize, Serialize};

use super::SCRATCH_BYTES;
use crate::engine::gpu::Gpu;
use crate::engine::gpu::kernels::{self, KernelOf};
use crate::engine::gpu::params;
use crate::engine::gpu::program::Constant;

/// Number of workgroups that keep a device busy; a product with fewer is split along k.
const GROUPS_MIN: u32 = 256;
/// Minimum number of terms in a partial sum, because writing and reading one takes as long as a few terms.
const DEPTH_MIN: u32 = 256;

/// A kernel with its constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Variant {
    /// 4 × 4 values of C in the registers of an invocation.
    Register4,
    /// 8 × 8 values of C in the registers of an invocation.
    Register8,
    /// 8 × 16 values of C in the registers of an invocation.
    Register8x16,
    /// 64 × 64 values of C for a workgroup of 64 invocations; operands pass through workgroup memory.
    Tile64,
    /// 128 × 128 values of C for a workgroup of 256 invocations; operands pass through workgroup memory.
    Tile128,
    /// 64 × 64 values of C for four subgroups on the device's matrix units, which take 16-bit floats and sum in 32
    /// bits.
    Matrix64,
    /// 128 × 128 values of C on the matrix units.
    Matrix128,
}

impl Variant {
    /// All variants.
    pub const ALL: [Self; 7] = [
        Self::Register8x16,
        Self::Register8,
        Self::Register4,
        Self::Tile64,
        Self::Tile128,
        Self::Matrix64,
        Self::Matrix128,
    ];

    pub(super) fn kernel(self) -> KernelOf<params::Product> {
        match self {
            Self::Register4 | Self::Register8 | Self::Register8x16 => kernels::MATMUL_REGISTER,
            Self::Tile64 | Self::Tile128 => kernels::MATMUL_TILE,
            Self::Matrix64 | Self::Matrix128 => kernels::MATMUL_MATRIX,
        }
    }

    pub(super) fn constants(self) -> Vec<Constant> {
        match self {
            Self::Register4 => vec![("DOWN", 1), ("ACROSS", 1), ("WG", 8)],
            Self::Register8 => vec![("DOWN", 2), ("ACROSS", 2), ("WG", 8)],
            Self::Register8x16 => vec![("DOWN", 2), ("ACROSS", 4), ("WG", 8)],
            Self::Tile64 => vec![("WG", 8)],
            Self::Tile128 => vec![("WG", 16)],
            Self::Matrix64 => vec![("COUNT", 2)],
            Self::Matrix128 => vec![("COUNT", 4)],
        }
    }

    /// Returns the variants worth trying on `gpu`. Tiles in workgroup memory only slow down a software GPU.
    pub fn suitable(gpu: &Gpu) -> impl Iterator<Item = Self> {
        let facts = gpu.facts();
        let (tiled, matrices) = (!facts.software, gpu.has_matrices());
        Self::ALL.into_iter().filter(move |variant| match variant {
            Self::Register4 | Self::Register8 | Self::Register8x16 => true,
            Self::Tile64 | Self::Tile128 => tiled,
            Self::Matrix64 | Self::Matrix128 => matrices,
        })
    }

    /// Returns true if it multiplies 16-bit floats.
    pub(in crate::engine::gpu) fn is_half(self) -> bool {
        matches!(self, Self::Matrix64 | Self::Matrix128)
    }

    /// Returns the rows and columns of C in a workgroup.
    pub(super) fn tile(self) -> [u32; 2] {
        match self {
            Self::Register4 => [32, 32],
            Self::Register8 | Self::Tile64 | Self::Matrix64 => [64, 64],
            Self::Register8x16 => [64, 128],
            Self::Tile128 | Self::Matrix128 => [128, 128],
        }
    }

    /// Returns the number of terms in a partial sum. It depends only on the shape, and so do the bits of a product.
    pub(super) fn depth(self, m: u32, n: u32, k: u32) -> u32 {
        let [rows, columns] = self.tile();
        let groups = u64::from(m.div_ceil(rows)) * u64::from(n.div_ceil(columns));
        let fit = SCRATCH_BYTES / (u64::from(m) * u64::from(n.next_multiple_of(4)) * 4).max(1);
        let splits = (u64::from(GROUPS_MIN) / groups.max(1)).min(u64::from(k / DEPTH_MIN)).min(fit).max(1);
        k.div_ceil(splits as u32).next_multiple_of(16)
    }
}
