//! Codes of one and two bits. They have too few numbers to reach from the smallest to the largest value. So their
//! scales follow the mean size of a block, and larger values are cut off.

use super::{Alphabet, sum_of};

/// ±1 and ±3 times the scale. The lower bit is the size, and the upper bit the sign.
pub(in crate::diloco) struct FourLevels;

/// Scale of [`FourLevels`] in mean sizes: half of the step with the least mean square error for normally distributed
/// values, 0.9957 σ (Max, 1960), whose mean size is √(2/π) σ.
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

/// ±1 times the scale, which is the mean size; bit 0 stands for +1.
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

/// Returns the mean size of `values`, each clamped to `max`; NaN counts as 0.
#[inline(always)]
fn mean_size(values: &[f32], max: f32) -> f32 {
    let size = |value: &f32| if value.is_nan() { 0.0 } else { f64::from(value.abs().min(max)) };
    (sum_of(values, size) / values.len().max(1) as f64) as f32
}
