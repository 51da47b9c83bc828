//! Coding and decoding of one block of values, in loops that compilers vectorise.
//!
//! A byte holds several codes, the first in its lowest bits. No result depends on the width of SIMD vectors: each value
//! is computed alone, sums of squares of codes are exact integers, and sums of `f64` always run in the same order.
//!
//! Codes of one and two bits have too few levels to span the range from the smallest to the largest magnitude. Their
//! scale therefore follows the mean magnitude of a block, and larger values are clipped.

/// Number of values that are processed together; a power of two that fits the L1 cache.
const TILE: usize = 256;

/// Quantisation levels of a code with 1, 2 or 4 bits, as integers in units. A unit is a power of two times the scale of
/// the block.
pub(super) trait Alphabet {
    /// Bits of a code: 1, 2 or 4.
    const BITS: usize;
    /// Unit, as a multiple of the scale.
    const UNIT: f32;
    /// Returns the unrounded scale for a block of `values`, each clamped to ±`max`.
    fn scale(values: &[f32], max: f32) -> f32;
    /// Returns the level of `code` in units. `code` has no bits above [`Self::BITS`].
    fn number(code: u8) -> i8;
    /// Returns the code of the level nearest to `x`, both in multiples of the scale. Larger magnitudes are clipped, and
    /// NaN is coded as 0.
    fn nearest(x: f32) -> u8;
    /// Returns true if an unused code is among `codes`.
    fn has_unused(codes: &[u8]) -> bool;
}

/// Levels −7…7, with ties to even; the largest magnitude of a block becomes 7. Code 8 is unused.
pub(super) struct Uniform;

impl Alphabet for Uniform {
    const BITS: usize = 4;
    const UNIT: f32 = 1.0;

    #[inline(always)]
    fn scale(values: &[f32], max: f32) -> f32 {
        abs_max(values).min(max) / 7.0
    }

    #[inline(always)]
    fn has_unused(codes: &[u8]) -> bool {
        has_nibble_8(codes)
    }

    #[inline(always)]
    fn number(nibble: u8) -> i8 {
        (nibble << 4).cast_signed() >> 4
    }

    #[inline(always)]
    fn nearest(x: f32) -> u8 {
        // A sum with 1.5 · 2²³ has no fraction bits. It is rounded to an integer, ties to even, and its lowest bits are
        // that integer in two's complement.
        const ROUND: f32 = 12_582_912.0;
        let x = if x.is_nan() { 0.0 } else { x.clamp(-7.0, 7.0) };
        (x + ROUND).to_bits() as u8 & 15
    }
}

/// Levels 0 and ±2⁻⁶…±1, with ties to even; the largest magnitude of a block becomes 1. Code 8 is unused.
pub(super) struct PowerOfTwo;

impl Alphabet for PowerOfTwo {
    const BITS: usize = 4;
    const UNIT: f32 = 1.0 / 64.0;

    #[inline(always)]
    fn scale(values: &[f32], max: f32) -> f32 {
        abs_max(values).min(max)
    }

    #[inline(always)]
    fn has_unused(codes: &[u8]) -> bool {
        has_nibble_8(codes)
    }

    #[inline(always)]
    fn number(nibble: u8) -> i8 {
        let size = ((1_u8 << (nibble & 7)) >> 1).cast_signed();
        if nibble & 8 == 0 { size } else { -size }
    }

    #[inline(always)]
    fn nearest(x: f32) -> u8 {
        let size = if x.is_nan() { 0.0 } else { x.abs().min(1.0) };
        // Rounds to a power of two, ties to the even exponent; biased exponent 120 is level 0.
        let bits = size.to_bits();
        let level = ((bits + 0x3F_FFFF + (bits >> 23 & 1)) >> 23).max(121) - 120;
        let level = if size <= 1.0 / 128.0 { 0 } else { level | (x.to_bits() >> 28 & 8) };
        level as u8
    }
}

/// Returns the integer nearest to `x`, with ties to even. The magnitude of `x` must be at most 2⁵¹.
#[inline(always)]
pub(super) fn whole(x: f64) -> f64 {
    // Between 2⁵² and 2⁵³ adjacent floats differ by 1, so the sum is rounded to an integer.
    const ROUND: f64 = 1.5 * (1_u64 << 52) as f64;
    (x + ROUND) - ROUND
}

/// Returns the largest magnitude among `values`, ignoring NaN.
#[inline(always)]
pub(super) fn abs_max(values: &[f32]) -> f32 {
    // Non-negative floats are ordered as their bits are, and integer maxima vectorise.
    const INFINITY: u32 = f32::INFINITY.to_bits();
    let mut max = 0;
    for value in values {
        let size = value.to_bits() & !(1 << 31);
        max = max.max(if size > INFINITY { 0 } else { size });
    }
    f32::from_bits(max)
}

/// Codes `values / scale` into `codes`, whose bytes must be zero.
#[inline(always)]
pub(super) fn pack<A: Alphabet>(values: &[f32], scale: f32, codes: &mut [u8]) {
    let per_scale = 1.0 / scale;
    let (tiles, rest) = values.as_chunks::<TILE>();
    let (full, last) = codes.split_at_mut(tiles.len() * tile_bytes::<A>());
    for (tile, codes) in tiles.iter().zip(full.chunks_exact_mut(tile_bytes::<A>())) {
        pack_tile::<A>(tile, per_scale, codes);
    }
    pack_tile::<A>(rest, per_scale, last);
}

#[inline(always)]
const fn tile_bytes<A: Alphabet>() -> usize {
    TILE * A::BITS / 8
}

#[inline(always)]
fn pack_tile<A: Alphabet>(values: &[f32], per_scale: f32, codes: &mut [u8]) {
    let mut single = [0_u8; TILE];
    for (code, value) in single.iter_mut().zip(values) {
        *code = A::nearest(value * per_scale);
    }
    match A::BITS {
        4 => {
            for (code, pair) in codes.iter_mut().zip(single.as_chunks::<2>().0) {
                let pair = u16::from_le_bytes(*pair);
                *code = (pair | pair >> 4) as u8;
            }
        }
        2 => {
            for (code, four) in codes.iter_mut().zip(single.as_chunks::<4>().0) {
                let four = u32::from_le_bytes(*four);
                *code = (four | four >> 6 | four >> 12 | four >> 18) as u8;
            }
        }
        _ => {
            for (code, eight) in codes.iter_mut().zip(single.as_chunks::<8>().0) {
                let eight = u64::from_le_bytes(*eight);
                *code = (0..8).fold(0, |bits, i| bits | (eight >> (7 * i)) as u8 & 1 << i);
            }
        }
    }
}

/// Returns the levels of at most [`TILE`] `codes`, in units.
#[inline(always)]
fn numbers<A: Alphabet>(codes: &[u8]) -> [i8; TILE] {
    match A::BITS {
        4 => spread::<A, 2>(codes),
        2 => spread::<A, 4>(codes),
        _ => spread::<A, 8>(codes),
    }
}

#[inline(always)]
fn spread<A: Alphabet, const PER_BYTE: usize>(codes: &[u8]) -> [i8; TILE] {
    let mask = u8::MAX >> (8 - 8 / PER_BYTE);
    let mut numbers = [0; TILE];
    for (group, code) in numbers.as_chunks_mut::<PER_BYTE>().0.iter_mut().zip(codes) {
        *group = std::array::from_fn(|i| A::number(code >> (i * 8 / PER_BYTE) & mask));
    }
    numbers
}

/// Calls `take(item, level)` for each of `items` with the level of its code, in units. Further codes are padding.
#[inline(always)]
pub(super) fn unpack<A: Alphabet, T>(codes: &[u8], items: &mut [T], take: impl Fn(&mut T, i8)) {
    for (items, codes) in items.chunks_mut(TILE).zip(codes.chunks(tile_bytes::<A>())) {
        let numbers = &numbers::<A>(codes)[..items.len()];
        for (item, number) in items.iter_mut().zip(numbers) {
            take(item, *number);
        }
    }
}

/// Returns the sum of squared levels of the first `len` of `codes`, in squared scales; the other codes must be zero.
/// The sum is exact: a block has at most 2¹⁶ values, whose squares are at most 2¹² units.
#[inline(always)]
pub(super) fn square<A: Alphabet>(codes: &[u8], len: usize) -> f64 {
    let mut sum = 0_i32;
    let tiles = codes.chunks_exact(tile_bytes::<A>());
    let rest = tiles.remainder();
    for codes in tiles {
        sum += square_tile::<A>(codes);
    }
    sum += square_tile::<A>(rest);
    // The level of code 0, which fills the padding, need not be 0.
    let padding = (codes.len() * 8 / A::BITS - len) as i32;
    sum -= padding * i32::from(A::number(0)) * i32::from(A::number(0));
    f64::from(sum) * f64::from(A::UNIT * A::UNIT)
}

#[inline(always)]
fn square_tile<A: Alphabet>(codes: &[u8]) -> i32 {
    let square = |number: &i8| i32::from(*number) * i32::from(*number);
    numbers::<A>(codes).iter().map(square).sum()
}

/// Returns true if any nibble of `codes`, a multiple of 4 bytes, is 8.
#[inline(always)]
pub(super) fn has_nibble_8(codes: &[u8]) -> bool {
    const LOW: u32 = 0x7777_7777;
    // Xor turns 8 into 0. Adding 7 to the low three bits of a nibble sets its top bit unless those bits are 0, and
    // never carries into the next nibble.
    let free = codes.as_chunks::<4>().0.iter().fold(u32::MAX, |free, word| {
        let x = u32::from_le_bytes(*word) ^ !LOW;
        free & (((x & LOW) + LOW) | x)
    });
    free | LOW != u32::MAX
}

/// Writes `values` as little-endian `f32`, clamped to ±`max`; NaN becomes 0.
#[inline(always)]
pub(super) fn write_f32(values: &[f32], max: f32, codes: &mut [u8]) {
    for (value, word) in values.iter().zip(codes.as_chunks_mut::<4>().0) {
        let value = if value.is_nan() { 0.0 } else { value.clamp(-max, max) };
        *word = value.to_le_bytes();
    }
}

/// Calls `take(item, value)` for each of `items` with its value from [`write_f32`].
#[inline(always)]
pub(super) fn read_f32<T>(codes: &[u8], items: &mut [T], take: impl Fn(&mut T, f32)) {
    for (item, word) in items.iter_mut().zip(codes.as_chunks::<4>().0) {
        take(item, f32::from_le_bytes(*word));
    }
}

/// Returns the sum of squares of values from [`write_f32`].
#[inline(always)]
pub(super) fn square_f32(codes: &[u8]) -> f64 {
    sum_squares(codes.as_chunks::<4>().0, |word| f64::from(f32::from_le_bytes(*word)))
}

/// Returns the index and value of the first `f32` in `codes` that is NaN or whose magnitude is above `max`.
#[inline(always)]
pub(super) fn first_outside(codes: &[u8], max: f32) -> Option<(usize, f32)> {
    let values = codes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word));
    let outside = |value: f32| value.is_nan() || value.abs() > max;
    let any = values.clone().fold(false, |any, value| any | outside(value));
    if any { values.enumerate().find(|(_, value)| outside(*value)) } else { None }
}

/// Returns `Σ value(item)²`, in the order of [`sum_of`].
#[inline(always)]
pub(super) fn sum_squares<T>(items: &[T], value: impl Fn(&T) -> f64) -> f64 {
    sum_of(items, |item| value(item) * value(item))
}

/// Returns `Σ value(item)`, summed tile by tile and pairwise within a tile, so that the rounding does not depend on the
/// width of SIMD vectors.
#[inline(always)]
fn sum_of<T>(items: &[T], value: impl Fn(&T) -> f64) -> f64 {
    let (tiles, rest) = items.as_chunks::<TILE>();
    let mut sum = 0.0;
    for items in tiles {
        sum += sum_tile(std::array::from_fn(|i| value(&items[i])));
    }
    let mut last = [0.0; TILE];
    for (term, item) in last.iter_mut().zip(rest) {
        *term = value(item);
    }
    if rest.is_empty() { sum } else { sum + sum_tile(last) }
}

#[inline(always)]
fn sum_tile(mut values: [f64; TILE]) -> f64 {
    let mut width = TILE / 2;
    while width > 0 {
        let (low, high) = values.split_at_mut(width);
        for (low, high) in low.iter_mut().zip(high) {
            *low += *high;
        }
        width /= 2;
    }
    values[0]
}

/// Levels ±1 and ±3. The lower bit of a code selects the magnitude, the upper bit the sign.
pub(in crate::diloco) struct FourLevels;

/// Scale of [`FourLevels`] as a multiple of the mean magnitude. For normally distributed values, it is half of the step
/// size with the least mean square error, 0.9957 σ (Max, 1960); their mean magnitude is √(2/π) σ.
const HALF_STEP: f32 = 0.624;

impl Alphabet for FourLevels {
    const BITS: usize = 2;
    const UNIT: f32 = 1.0;

    #[inline(always)]
    fn scale(values: &[f32], max: f32) -> f32 {
        mean_magnitude(values, max) * HALF_STEP
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

/// Levels ±1, with the mean magnitude of the block as the scale. Code 0 is +1.
pub(in crate::diloco) struct Sign;

impl Alphabet for Sign {
    const BITS: usize = 1;
    const UNIT: f32 = 1.0;

    #[inline(always)]
    fn scale(values: &[f32], max: f32) -> f32 {
        mean_magnitude(values, max)
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

/// Returns the mean magnitude of `values`, each clamped to `max`; NaN enters the mean as 0.
#[inline(always)]
fn mean_magnitude(values: &[f32], max: f32) -> f32 {
    let size = |value: &f32| if value.is_nan() { 0.0 } else { f64::from(value.abs().min(max)) };
    (sum_of(values, size) / values.len().max(1) as f64) as f32
}
