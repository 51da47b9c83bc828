//! The arithmetic of one block of coded values, in loops that compilers turn into vector code.
//!
//! Two codes are a byte, the first in the low half. Nothing here depends on the width of the vectors:
//! each value is computed alone, sums of squares of codes are exact integers, and sums of `f64` always
//! run over the same 32 lanes.

/// Values unpacked at a time; a power of two that stays in the nearest cache.
const TILE: usize = 256;
/// Bytes of their codes.
const HALF: usize = TILE / 2;

/// What a 4-bit code stands for: a whole number of units, the unit being a power of two times the
/// scale. Nibble 0 is 0; nibble 8 is not used.
pub(super) trait Nibble {
    /// The unit, in scales.
    const UNIT: f32;
    /// The largest number, in scales.
    const MAX: f32;
    /// The number of `nibble`, which is below 16, in units.
    fn number(nibble: u8) -> i8;
    /// The nearest nibble to `x` scales, halves to even, larger sizes to ±MAX, what is no number to 0.
    fn nearest(x: f32) -> u8;
}

/// −7…7.
pub(super) struct Uniform;

impl Nibble for Uniform {
    const UNIT: f32 = 1.0;
    const MAX: f32 = 7.0;

    #[inline(always)]
    fn number(nibble: u8) -> i8 {
        (nibble << 4).cast_signed() >> 4
    }

    #[inline(always)]
    fn nearest(x: f32) -> u8 {
        // Adding 1.5 · 2²³ leaves no fraction bits: the sum is rounded to an integer, halves to even,
        // and its lowest bits are that integer in two's complement.
        const ROUND: f32 = 12_582_912.0;
        let x = if x.is_nan() { 0.0 } else { x.clamp(-7.0, 7.0) };
        (x + ROUND).to_bits() as u8 & 15
    }
}

/// 0, ±2⁻⁶…±1.
pub(super) struct PowerOfTwo;

impl Nibble for PowerOfTwo {
    const UNIT: f32 = 1.0 / 64.0;
    const MAX: f32 = 1.0;

    #[inline(always)]
    fn number(nibble: u8) -> i8 {
        let size = ((1_u8 << (nibble & 7)) >> 1).cast_signed();
        if nibble & 8 == 0 { size } else { -size }
    }

    #[inline(always)]
    fn nearest(x: f32) -> u8 {
        let size = if x.is_nan() { 0.0 } else { x.abs().min(1.0) };
        // Rounds the significand away, halves to the even exponent; exponent 120 is level 0.
        let bits = size.to_bits();
        let level = ((bits + 0x3F_FFFF + (bits >> 23 & 1)) >> 23).max(121) - 120;
        let level = if size <= 1.0 / 128.0 { 0 } else { level | (x.to_bits() >> 28 & 8) };
        level as u8
    }
}

/// The largest size among `values`; what is no number does not count.
#[inline(always)]
pub(super) fn abs_max(values: &[f32]) -> f32 {
    // Without its sign a float orders as its bits do, and integers have a maximum in any order.
    const INFINITY: u32 = f32::INFINITY.to_bits();
    let mut max = 0;
    for value in values {
        let size = value.to_bits() & !(1 << 31);
        max = max.max(if size > INFINITY { 0 } else { size });
    }
    f32::from_bits(max)
}

/// Codes `values` in units of `scale` to `codes`, unused nibbles as 0.
#[inline(always)]
pub(super) fn pack<N: Nibble>(values: &[f32], scale: f32, codes: &mut [u8]) {
    let per_scale = 1.0 / scale;
    let (tiles, rest) = values.as_chunks::<TILE>();
    let (full, last) = codes.split_at_mut(tiles.len() * HALF);
    for (tile, codes) in tiles.iter().zip(full.as_chunks_mut::<HALF>().0) {
        pack_tile::<N>(tile, per_scale, codes);
    }
    pack_tile::<N>(rest, per_scale, last);
}

#[inline(always)]
fn pack_tile<N: Nibble>(values: &[f32], per_scale: f32, codes: &mut [u8]) {
    let mut nibbles = [0_u8; TILE];
    for (nibble, value) in nibbles.iter_mut().zip(values) {
        *nibble = N::nearest(value * per_scale);
    }
    for (code, pair) in codes.iter_mut().zip(nibbles.as_chunks::<2>().0) {
        let pair = u16::from_le_bytes(*pair);
        *code = (pair | pair >> 4) as u8;
    }
}

/// The numbers of `codes`, at most half a tile of them, in units.
#[inline(always)]
fn numbers<N: Nibble>(codes: &[u8]) -> [i8; TILE] {
    let mut numbers = [0; TILE];
    for (pair, code) in numbers.as_chunks_mut::<2>().0.iter_mut().zip(codes) {
        *pair = [N::number(code & 15), N::number(code >> 4)];
    }
    numbers
}

/// Calls `take(item, number)` for each of `items` with the number of its code, in units; codes beyond
/// them are padding.
#[inline(always)]
pub(super) fn unpack<N: Nibble, T>(codes: &[u8], items: &mut [T], take: impl Fn(&mut T, i8)) {
    for (items, codes) in items.chunks_mut(TILE).zip(codes.chunks(HALF)) {
        let numbers = &numbers::<N>(codes)[..items.len()];
        for (item, number) in items.iter_mut().zip(numbers) {
            take(item, *number);
        }
    }
}

/// Sum of the squares of the numbers, in scales squared. Exact: a block has at most 2¹⁶ values of at
/// most 2¹² units.
#[inline(always)]
pub(super) fn square<N: Nibble>(codes: &[u8]) -> f64 {
    let mut sum = 0_i32;
    let (tiles, rest) = codes.as_chunks::<HALF>();
    for codes in tiles {
        sum += square_tile::<N>(codes);
    }
    sum += square_tile::<N>(rest);
    f64::from(sum) * f64::from(N::UNIT * N::UNIT)
}

#[inline(always)]
fn square_tile<N: Nibble>(codes: &[u8]) -> i32 {
    let square = |number: &i8| i32::from(*number) * i32::from(*number);
    numbers::<N>(codes).iter().map(square).sum()
}

/// Whether a nibble is 8, in whole words.
#[inline(always)]
pub(super) fn has_nibble_8(codes: &[u8]) -> bool {
    const LOW: u32 = 0x7777_7777;
    // Xor turns 8 into 0. Adding 7 to the low three bits of a nibble sets its top bit unless they are
    // 0, and never carries into the next.
    let free = codes.as_chunks::<4>().0.iter().fold(u32::MAX, |free, word| {
        let x = u32::from_le_bytes(*word) ^ !LOW;
        free & (((x & LOW) + LOW) | x)
    });
    free | LOW != u32::MAX
}

/// Writes `values` as little-endian `f32`, held within ±`max`, what is no number as 0.
#[inline(always)]
pub(super) fn write_f32(values: &[f32], max: f32, codes: &mut [u8]) {
    for (value, word) in values.iter().zip(codes.as_chunks_mut::<4>().0) {
        let value = if value.is_nan() { 0.0 } else { value.clamp(-max, max) };
        *word = value.to_le_bytes();
    }
}

/// [`unpack`] for values coded by [`write_f32`].
#[inline(always)]
pub(super) fn read_f32<T>(codes: &[u8], items: &mut [T], take: impl Fn(&mut T, f32)) {
    for (item, word) in items.iter_mut().zip(codes.as_chunks::<4>().0) {
        take(item, f32::from_le_bytes(*word));
    }
}

/// Sum of squares of values coded by [`write_f32`].
#[inline(always)]
pub(super) fn square_f32(codes: &[u8]) -> f64 {
    sum_squares(codes.as_chunks::<4>().0, |word| f64::from(f32::from_le_bytes(*word)))
}

/// The first value coded by [`write_f32`] that is above `max` in size or no number.
#[inline(always)]
pub(super) fn first_outside(codes: &[u8], max: f32) -> Option<(usize, f32)> {
    let values = codes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word));
    let outside = |value: f32| value.is_nan() || value.abs() > max;
    let any = values.clone().fold(false, |any, value| any | outside(value));
    if any { values.enumerate().find(|(_, value)| outside(*value)) } else { None }
}

/// `Σ value(item)²`: tile by tile, within a tile by halves, so that neither order nor rounding depends
/// on the width of vectors.
#[inline(always)]
pub(super) fn sum_squares<T>(items: &[T], value: impl Fn(&T) -> f64) -> f64 {
    let (tiles, rest) = items.as_chunks::<TILE>();
    let mut sum = 0.0;
    for items in tiles {
        sum += sum_tile(std::array::from_fn(|i| value(&items[i]) * value(&items[i])));
    }
    let mut last = [0.0; TILE];
    for (square, item) in last.iter_mut().zip(rest) {
        *square = value(item) * value(item);
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
