//! Vectors of WebAssembly, for browsers.

use std::arch::wasm32::{f32x4, f32x4_extract_lane, f32x4_splat, v128};

#[cfg(target_feature = "relaxed-simd")]
use std::arch::wasm32::f32x4_relaxed_madd;
#[cfg(not(target_feature = "relaxed-simd"))]
use std::arch::wasm32::{f32x4_add, f32x4_mul};

use super::{Lanes, Work};

/// Does `work` with pairs of vectors of four values.
pub fn widest(work: impl Work) {
    work.run::<[v128; 2], 8>();
}

impl Lanes<8> for [v128; 2] {
    #[inline(always)]
    fn splat(value: f32) -> Self {
        [f32x4_splat(value); 2]
    }

    #[inline(always)]
    fn load(&[a, b, c, d, e, f, g, h]: &[f32; 8]) -> Self {
        [f32x4(a, b, c, d), f32x4(e, f, g, h)]
    }

    #[inline(always)]
    fn store(self, values: &mut [f32; 8]) {
        for (part, values) in self.into_iter().zip(values.as_chunks_mut::<4>().0) {
            *values = [
                f32x4_extract_lane::<0>(part),
                f32x4_extract_lane::<1>(part),
                f32x4_extract_lane::<2>(part),
                f32x4_extract_lane::<3>(part),
            ];
        }
    }

    #[inline(always)]
    fn add_product(self, a: Self, b: Self) -> Self {
        [add_product(self[0], a[0], b[0]), add_product(self[1], a[1], b[1])]
    }
}

#[cfg(target_feature = "relaxed-simd")]
#[inline(always)]
fn add_product(sum: v128, a: v128, b: v128) -> v128 {
    f32x4_relaxed_madd(a, b, sum)
}

#[cfg(not(target_feature = "relaxed-simd"))]
#[inline(always)]
fn add_product(sum: v128, a: v128, b: v128) -> v128 {
    f32x4_add(sum, f32x4_mul(a, b))
}
