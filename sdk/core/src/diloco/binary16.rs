//! Binary16 values of Θ̂. All values of Θ̂ are IEEE 754 binary16 (fp16) numbers, so a whole fragment can be sent
//! exactly in two bytes per parameter.
//!
//! Each new Θ̂ is rounded with [`nearest`]: by the syncer after a merge, and by a learner after a change. The rounding
//! error stays in Θ − Θ̂, like that of the code of changes. `parts/binary16.wgsl` is the same arithmetic for GPU
//! kernels.

use crate::rng::mix_word;

/// Largest finite binary16, to which [`nearest`] clips larger magnitudes.
pub const ABS_MAX: f32 = 65_504.0;

/// Bytes per value in [`to_bytes`].
pub const BYTES: usize = 2;

/// Bits of [`ABS_MAX`] as a binary16.
const CODE_MAX: u32 = 0x7bff;
/// Bits of infinity as a binary16. The bits of NaNs are larger.
const CODE_INFINITY: u32 = 0x7c00;
const SIGN: u32 = 1 << 31;
/// Bits of 2⁻¹⁴ as an `f32`, the smallest normal magnitude of a binary16.
const NORMAL_MIN: u32 = 113 << 23;
/// Distance between adjacent subnormal numbers of a binary16, 2⁻²⁴.
const STEP: f32 = 1.0 / (1 << 24) as f32;

/// Returns the binary16 nearest to `value` as an `f32`, with ties to even. Larger magnitudes become ±[`ABS_MAX`], NaN
/// becomes 0, and −0 becomes 0.
#[inline(always)]
#[must_use]
pub fn nearest(value: f32) -> f32 {
    decode(code(value))
}

/// Returns the bits of [`nearest`] as a binary16.
#[inline(always)]
fn code(value: f32) -> u16 {
    let bits = value.to_bits();
    let size = bits & !SIGN;
    let normal = ((size + 0xfff + (size >> 13 & 1)) >> 13).wrapping_sub(112 << 10).min(CODE_MAX);
    // Between 1/2 and 1 adjacent floats differ by 2⁻²⁴, so the sum is rounded to a multiple of it.
    let small = (f32::from_bits(size) + 0.5).to_bits().wrapping_sub(0.5_f32.to_bits());
    let code = if size < NORMAL_MIN { small } else { normal };
    let code = if value.is_nan() { 0 } else { code };
    let sign = if code == 0 { 0 } else { bits >> 16 & 0x8000 };
    (code | sign) as u16
}

/// Returns the value of the binary16 with the bits `code`.
#[inline(always)]
pub(crate) fn decode(code: u16) -> f32 {
    let size = u32::from(code & 0x7fff);
    let normal = (size << 13) + (112 << 23);
    // The product of a number of at most 10 bits and a power of two is exact.
    let small = (size as f32 * STEP).to_bits();
    let bits = if size < 0x400 { small } else { normal };
    let bits = if size < CODE_INFINITY { bits } else { size << 13 | f32::INFINITY.to_bits() };
    f32::from_bits(bits | u32::from(code & 0x8000) << 16)
}

/// Rounds each of `values` with [`nearest`].
#[cfg_attr(feature = "simd", multiversion::multiversion(targets = "simd"))]
pub fn round(values: &mut [f32]) {
    for value in values {
        *value = nearest(*value);
    }
}

/// Adds `hat` to `values` of the same length, and rounds each sum with [`nearest`].
#[cfg_attr(feature = "simd", multiversion::multiversion(targets = "simd"))]
pub(crate) fn add(values: &mut [f32], hat: &[f32]) {
    for (value, hat) in values.iter_mut().zip(hat) {
        *value = nearest(*value + hat);
    }
}

/// Returns `values`, each rounded with [`nearest`], as little-endian binary16, [`BYTES`] per value.
#[cfg_attr(feature = "simd", multiversion::multiversion(targets = "simd"))]
#[must_use]
pub fn to_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().map(|value| code(*value).to_le_bytes()).collect::<Vec<_>>().into_flattened()
}

/// Returns the values of little-endian binary16 `bytes`. The function is the inverse of [`to_bytes`] and ignores an
/// incomplete last value. Bytes that [`to_bytes`] did not write may hold infinities and NaN.
#[cfg_attr(feature = "simd", multiversion::multiversion(targets = "simd"))]
#[must_use]
pub fn from_bytes(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|word| decode(u16::from_le_bytes(*word))).collect()
}

/// Writes the values of little-endian binary16 `bytes` to `values`, as many as both have.
#[cfg_attr(feature = "simd", multiversion::multiversion(targets = "simd"))]
pub fn widen(bytes: &[u8], values: &mut [f32]) {
    let (words, _) = bytes.as_chunks();
    for (value, word) in values.iter_mut().zip(words) {
        *value = decode(u16::from_le_bytes(*word));
    }
}

/// Returns a digest of Θ̂ of one fragment, `[fragment_len]`: two sums modulo 2³² of hashes of each rounded value and
/// its index. The sums can be computed in any order.
///
/// The digest detects accidental damage: a single flipped bit always, other damage except with a probability of about
/// 2⁻⁶⁴. It does not resist deliberate collisions.
#[cfg_attr(feature = "simd", multiversion::multiversion(targets = "simd"))]
#[must_use]
pub fn digest(values: &[f32]) -> u64 {
    let (mut low, mut high) = (0_u32, 0_u32);
    for (place, value) in (0_u32..).zip(values) {
        let code = u32::from(code(*value));
        low = low.wrapping_add(mix_word(place.wrapping_mul(0x9e37_79b1).wrapping_add(code)));
        high = high.wrapping_add(mix_word(place.wrapping_mul(0x85eb_ca77) ^ (code << 16 | 0x5bd1)));
    }
    u64::from(high) << 32 | u64::from(low)
}

#[cfg(test)]
mod tests {
    use half::f16;
    use proptest::prelude::*;

    use super::*;

    /// Returns all finite binary16 values except −0.
    fn all() -> impl Iterator<Item = f32> {
        let halves = (0..=u16::MAX).map(f16::from_bits);
        halves.filter(|half| half.is_finite() && half.to_bits() != 0x8000).map(f16::to_f32)
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    /// Computes [`nearest`] with the crate `half`.
    fn reference(value: f32) -> f32 {
        let half = f16::from_f32(value).to_f32();
        match half {
            _ if half.is_nan() || half == 0.0 => 0.0,
            _ if half.is_infinite() => ABS_MAX.copysign(half),
            _ => half,
        }
    }

    #[test]
    fn binary16_values_survive_rounding_and_bytes() {
        let values: Vec<f32> = all().collect();
        assert_eq!(values.len(), 2 * 0x7c00 - 1);
        assert!(values.iter().all(|&value| nearest(value).to_bits() == value.to_bits()));
        let bytes = to_bytes(&values);
        assert_eq!(bytes.len(), BYTES * values.len());
        assert_eq!(bits(&from_bytes(&bytes)), bits(&values));
        assert_eq!(to_bytes(&[1.0, -2.0]), [0x00, 0x3c, 0x00, 0xc0]);
        assert_eq!(from_bytes(&[0x00, 0x3c, 0x00]), [1.0]);
    }

    #[test]
    fn bytes_are_decoded_by_ieee_754() {
        for code in 0..=u16::MAX {
            let [found, expected] = [from_bytes(&code.to_le_bytes())[0], f16::from_bits(code).to_f32()];
            assert!(
                found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan(),
                "{code:#x}"
            );
        }
    }

    #[test]
    fn rounds_ties_to_even_and_saturates() {
        let mut sizes: Vec<f32> = all().filter(|value| *value >= 0.0).collect();
        sizes.sort_by(f32::total_cmp);
        for pair in sizes.windows(2) {
            let middle = (pair[0] + pair[1]) / 2.0;
            for near in [middle.next_down(), middle, middle.next_up(), pair[0].next_up(), pair[1].next_down()]
            {
                for value in [near, -near] {
                    assert_eq!(nearest(value).to_bits(), reference(value).to_bits(), "{value:e}");
                }
            }
        }
        let large = [65_504.0, 65_519.99, 65_520.0, 1e30, f32::MAX, f32::INFINITY];
        assert!(large.iter().all(|&value| [nearest(value), -nearest(-value)] == [ABS_MAX; 2]));
        assert_eq!(bits(&[-0.0, f32::NAN, -1e-9, 1e-45].map(nearest)), [0; 4]);
    }

    #[test]
    fn digest_depends_on_values_and_indices() {
        assert_eq!(digest(&[]), 0);
        assert_eq!(digest(&[1.0, -0.5, 0.0, 65_504.0]), 0xd9ee_65ac_4894_5110);
        let values: Vec<f32> = (0..1_000_u16).map(|i| f32::from(i % 7) * 0.25).collect();
        let whole = digest(&values);
        let mut other = values.clone();
        other.swap(3, 5);
        assert_ne!(digest(&other), whole);
        assert_ne!(digest(&values[..999]), whole, "a shorter one");
        for place in [0, 1, 500, 999] {
            for bit in 0..16 {
                let mut other = values.clone();
                let code = code(other[place]) ^ 1 << bit;
                other[place] = decode(code);
                assert_eq!(digest(&other) == whole, code == 0x8000, "bit {bit} of value {place}");
            }
        }
    }

    proptest! {
        #[test]
        fn rounds_by_ieee_754(values in prop::collection::vec(any::<u32>().prop_map(f32::from_bits), 1..300)) {
            let expected: Vec<f32> = values.iter().map(|value| reference(*value)).collect();
            let mut rounded = values.clone();
            round(&mut rounded);
            prop_assert_eq!(bits(&rounded), bits(&expected));
            prop_assert_eq!(bits(&from_bytes(&to_bytes(&values))), bits(&expected));
            prop_assert_eq!(digest(&values), digest(&expected));
        }
    }
}
