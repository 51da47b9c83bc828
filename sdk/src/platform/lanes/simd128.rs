use std::arch::wasm32::{f32x4, f32x4_extract_lane, f32x4_splat, v128};

#[cfg(target_feature = "relaxed-simd")]
use std::arch::wasm32::f32x4_relaxed_madd;
#[cfg(not(target_feature = "relaxed-simd"))]
use std::arch::wasm32::{f32x4_add, f32x4_mul};

/// Four floats.
#[derive(Clone, Copy)]
pub struct F4(v128);

impl F4 {
    /// `value` four times.
    #[inline(always)]
    pub fn splat(value: f32) -> Self {
        Self(f32x4_splat(value))
    }

    /// Of four values that lie side by side.
    #[inline(always)]
    pub fn load(&[a, b, c, d]: &[f32; 4]) -> Self {
        Self(f32x4(a, b, c, d))
    }

    /// Into four values that lie side by side.
    #[inline(always)]
    pub fn store(self, values: &mut [f32; 4]) {
        *values = [
            f32x4_extract_lane::<0>(self.0),
            f32x4_extract_lane::<1>(self.0),
            f32x4_extract_lane::<2>(self.0),
            f32x4_extract_lane::<3>(self.0),
        ];
    }

    /// `self + a · b`; rounded once or twice, as the target likes best.
    #[cfg(target_feature = "relaxed-simd")]
    #[inline(always)]
    #[must_use]
    pub fn add_product(self, a: Self, b: Self) -> Self {
        Self(f32x4_relaxed_madd(a.0, b.0, self.0))
    }

    /// `self + a · b`; rounded once or twice, as the target likes best.
    #[cfg(not(target_feature = "relaxed-simd"))]
    #[inline(always)]
    #[must_use]
    pub fn add_product(self, a: Self, b: Self) -> Self {
        Self(f32x4_add(self.0, f32x4_mul(a.0, b.0)))
    }
}
