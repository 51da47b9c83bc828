//! Codes of one and two bits. So few numbers cannot reach from the smallest to the largest value, so
//! their scales follow the mean size of a block instead, and larger values are cut off.

use super::{Alphabet, sum_of};

/// ±1 and ±3 times the scale, as bits 01 and 11 for the sizes with the sign in the upper bit.
pub(in crate::diloco) struct FourLevels;

/// The scale of [`FourLevels`], in mean sizes: half of the step with the least mean square error for
/// normally distributed values, 0.9957 σ (Max, 1960), whose mean size is √(2/π) σ.
const HALF_STEP: f32 = 0.624;

impl Alphabet for FourLevels {
    const BITS: usize = 2;
    const UNIT: f32 = 1.0;

    #[inline(always)]
    fn scale(values: &[f32], max: f32) -> f32 {
        mean_size(values, max) * HALF_STEP
    }

    #[inline(always)]
    fn number(code: u8) -> i8 {
        let size = 1 + 2 * (code & 1).cast_signed();
        if code & 2 == 0 { size } else { -size }
    }

    #[inline(always)]
    fn nearest(x: f32) -> u8 {
        u8::from(x.abs() >= 2.0) | u8::from(x < 0.0) << 1
    }

    #[inline(always)]
    fn has_unused(_codes: &[u8]) -> bool {
        false
    }
}

/// ±1 times the scale, which is the mean size: bit 0 is +1.
pub(in crate::diloco) struct Sign;

impl Alphabet for Sign {
    const BITS: usize = 1;
    const UNIT: f32 = 1.0;

    #[inline(always)]
    fn scale(values: &[f32], max: f32) -> f32 {
        mean_size(values, max)
    }

    #[inline(always)]
    fn number(code: u8) -> i8 {
        1 - 2 * code.cast_signed()
    }

    #[inline(always)]
    fn nearest(x: f32) -> u8 {
        u8::from(x < 0.0)
    }

    #[inline(always)]
    fn has_unused(_codes: &[u8]) -> bool {
        false
    }
}

/// The mean of the sizes of `values`, each held to `max`; what is no number counts as 0.
#[inline(always)]
fn mean_size(values: &[f32], max: f32) -> f32 {
    let size = |value: &f32| if value.is_nan() { 0.0 } else { f64::from(value.abs().min(max)) };
    (sum_of(values, size) / values.len().max(1) as f64) as f32
}
