//! The arithmetic of one block of coded values, in loops that compilers turn into vector code.
//!
//! Eight codes are one 32-bit word, the first in the lowest bits. Nothing here depends on the width of
//! the vectors: each value is computed alone, sums of squares are exact integers, and sums of `f64`
//! always run over eight lanes.

/// What a 4-bit code stands for, in units of the scale. Nibble 0 is 0; nibble 8 is not used.
pub(super) trait Nibble {
    /// The largest number.
    const MAX: f32;
    /// The number of `nibble`, which is below 16.
    fn number(nibble: u32) -> f32;
    /// The nearest nibble to `x`, halves to even, larger sizes to ±MAX, what is no number to 0.
    fn nearest(x: f32) -> u32;
    /// The square of the number, in units of [`Self::SQUARE_UNIT`].
    fn square(nibble: u32) -> u32;
    /// The unit of [`Self::square`].
    const SQUARE_UNIT: f64;
}

/// −7…7.
pub(super) struct Uniform;

impl Nibble for Uniform {
    const MAX: f32 = 7.0;
    const SQUARE_UNIT: f64 = 1.0;

    #[inline(always)]
    fn number(nibble: u32) -> f32 {
        ((nibble << 28).cast_signed() >> 28) as f32
    }

    #[inline(always)]
    fn nearest(x: f32) -> u32 {
        // Adding 1.5 · 2²³ leaves no fraction bits: the sum is rounded to an integer, halves to even,
        // and its lowest bits are that integer in two's complement.
        const ROUND: f32 = 12_582_912.0;
        let x = if x.is_nan() { 0.0 } else { x.clamp(-7.0, 7.0) };
        (x + ROUND).to_bits() & 15
    }

    #[inline(always)]
    fn square(nibble: u32) -> u32 {
        let number = (nibble << 28).cast_signed() >> 28;
        (number * number).cast_unsigned()
    }
}

/// 0, ±2⁻⁶…±1.
pub(super) struct PowerOfTwo;

impl Nibble for PowerOfTwo {
    const MAX: f32 = 1.0;
    const SQUARE_UNIT: f64 = 1.0 / 4096.0;

    #[inline(always)]
    fn number(nibble: u32) -> f32 {
        let level = nibble & 7;
        let size = if level == 0 { 0 } else { (level + 120) << 23 };
        f32::from_bits(size | (nibble & 8) << 28)
    }

    #[inline(always)]
    fn nearest(x: f32) -> u32 {
        let size = if x.is_nan() { 0.0 } else { x.abs().min(1.0) };
        // Rounds the significand away, halves to the even exponent; exponent 120 is level 0.
        let bits = size.to_bits();
        let level = ((bits + 0x3F_FFFF + (bits >> 23 & 1)) >> 23).max(121) - 120;
        if size <= 1.0 / 128.0 { 0 } else { level | (x.to_bits() >> 28 & 8) }
    }

    #[inline(always)]
    fn square(nibble: u32) -> u32 {
        let level = nibble & 7;
        if level == 0 { 0 } else { 1 << (2 * (level - 1)) }
    }
}

/// The largest size among `values`; what is no number does not count.
#[inline(always)]
pub(super) fn abs_max(values: &[f32]) -> f32 {
    let (chunks, rest) = values.as_chunks::<16>();
    let mut lanes = [0.0_f32; 16];
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane = if value.abs() > *lane { value.abs() } else { *lane };
        }
    }
    lanes.iter().chain(rest).fold(0.0, |max, value| if value.abs() > max { value.abs() } else { max })
}

/// Codes `values` in units of `scale` to `codes`, whose unused nibbles stay as they are.
#[inline(always)]
pub(super) fn pack<N: Nibble>(values: &[f32], scale: f32, codes: &mut [u8]) {
    let per_scale = 1.0 / scale;
    let (chunks, rest) = values.as_chunks::<8>();
    let (words, last) = codes.as_chunks_mut::<4>().0.split_at_mut(chunks.len());
    for (chunk, word) in chunks.iter().zip(words) {
        *word = pack_word::<N>(chunk, per_scale).to_le_bytes();
    }
    if let Some(word) = last.first_mut() {
        let mut chunk = [0.0; 8];
        chunk[..rest.len()].copy_from_slice(rest);
        *word = pack_word::<N>(&chunk, per_scale).to_le_bytes();
    }
}

#[inline(always)]
fn pack_word<N: Nibble>(values: &[f32; 8], per_scale: f32) -> u32 {
    let mut word = 0;
    for (i, value) in values.iter().enumerate() {
        word |= N::nearest(value * per_scale) << (4 * i);
    }
    word
}

/// Writes number times `scale` for each code to `values`.
#[inline(always)]
pub(super) fn unpack<N: Nibble>(codes: &[u8], scale: f32, values: &mut [f32]) {
    let (chunks, rest) = values.as_chunks_mut::<8>();
    let (words, last) = codes.as_chunks::<4>().0.split_at(chunks.len());
    for (chunk, word) in chunks.iter_mut().zip(words) {
        *chunk = numbers::<N>(*word).map(|number| number * scale);
    }
    if let Some(word) = last.first() {
        let chunk = numbers::<N>(*word).map(|number| number * scale);
        rest.copy_from_slice(&chunk[..rest.len()]);
    }
}

#[inline(always)]
fn numbers<N: Nibble>(word: [u8; 4]) -> [f32; 8] {
    let word = u32::from_le_bytes(word);
    std::array::from_fn(|i| N::number(word >> (4 * i) & 15))
}

/// Adds number times `factor` for each code to `sums`, which has room for the padding.
#[inline(always)]
pub(super) fn add<N: Nibble>(codes: &[u8], factor: f64, sums: &mut [f64]) {
    for (chunk, word) in sums.as_chunks_mut::<8>().0.iter_mut().zip(codes.as_chunks::<4>().0) {
        let numbers = numbers::<N>(*word);
        for (sum, number) in chunk.iter_mut().zip(numbers) {
            *sum += factor * f64::from(number);
        }
    }
}

/// Sum of the squares of the numbers. An integer in units of [`Nibble::SQUARE_UNIT`], at most 2²⁸.
#[inline(always)]
pub(super) fn square<N: Nibble>(codes: &[u8]) -> f64 {
    let mut lanes = [0_u32; 8];
    for word in codes.as_chunks::<4>().0 {
        let word = u32::from_le_bytes(*word);
        for (i, lane) in lanes.iter_mut().enumerate() {
            *lane += N::square(word >> (4 * i) & 15);
        }
    }
    f64::from(lanes.iter().sum::<u32>()) * N::SQUARE_UNIT
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

/// Undoes [`write_f32`].
#[inline(always)]
pub(super) fn read_f32(codes: &[u8], values: &mut [f32]) {
    for (value, word) in values.iter_mut().zip(codes.as_chunks::<4>().0) {
        *value = f32::from_le_bytes(*word);
    }
}

/// [`add`] for values coded by [`write_f32`].
#[inline(always)]
pub(super) fn add_f32(codes: &[u8], factor: f64, sums: &mut [f64]) {
    for (sum, word) in sums.iter_mut().zip(codes.as_chunks::<4>().0) {
        *sum += factor * f64::from(f32::from_le_bytes(*word));
    }
}

/// Sum of squares of values coded by [`write_f32`].
#[inline(always)]
pub(super) fn square_f32(codes: &[u8]) -> f64 {
    let mut lanes = [0.0; 8];
    for words in codes.as_chunks::<4>().0.chunks(8) {
        for (lane, word) in lanes.iter_mut().zip(words) {
            let value = f64::from(f32::from_le_bytes(*word));
            *lane += value * value;
        }
    }
    sum_lanes(lanes)
}

/// The first value coded by [`write_f32`] that is above `max` in size or no number.
pub(super) fn first_outside(codes: &[u8], max: f32) -> Option<(usize, f32)> {
    let values = codes.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word));
    values.enumerate().find(|(_, value)| value.is_nan() || value.abs() > max)
}

/// Sum of the squares of `values`, over eight lanes.
#[inline(always)]
pub(super) fn sum_squares(values: &[f64]) -> f64 {
    let (chunks, rest) = values.as_chunks::<8>();
    let mut lanes = [0.0; 8];
    for chunk in chunks {
        for (lane, value) in lanes.iter_mut().zip(chunk) {
            *lane += value * value;
        }
    }
    for (lane, value) in lanes.iter_mut().zip(rest) {
        *lane += value * value;
    }
    sum_lanes(lanes)
}

#[inline(always)]
fn sum_lanes(lanes: [f64; 8]) -> f64 {
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}
