//! Both moments of AdamW in one word: 16 bits each, as bfloat16.
//!
//! A second moment that decays by 1 − β2 = 1 % a step moves by less than the resolution of a bfloat16, so rounding to
//! the nearest would hold it in place. It is rounded stochastically instead (Gupta et al. 2015, arXiv 1502.02551), up
//! or down with probabilities that preserve the mean. The random number is a hash of the parameter's index and the
//! step, so that a step is a function of its inputs. The kernel `adamw_halves` does the same.

use half::bf16;

use super::Adjust;
use crate::rng::mix_word;

/// Bits of a float without its sign.
const SIZE: u32 = !(1 << 31);
/// Largest finite absolute value.
const SIZE_MAX: u32 = f32::MAX.to_bits();

/// Packs the first and the second moment into one word, each rounded to the nearest.
#[must_use]
pub fn pack(m: f32, v: f32) -> u32 {
    let [m, v] = [m, v].map(|moment| u32::from(bf16::from_f32(moment).to_bits()));
    v << 16 | m
}

/// Unpacks the first and the second moment of a word.
#[inline(always)]
#[must_use]
pub fn unpack(word: u32) -> [f32; 2] {
    [f32::from_bits(word << 16), f32::from_bits(word & 0xffff_0000)]
}

/// Updates parameters as [`super::adjust`] does, on packed moments, `[len]`. They begin at index `first` of the whole
/// vector, in step `step`.
#[inline(always)]
pub fn adjust_halves(
    params: &mut [f32],
    grad: &[f32],
    moments: &mut [u32],
    a: &Adjust,
    (first, step): (u32, u32),
) {
    let seed = mix_word(step);
    for (((p, &g), word), index) in params.iter_mut().zip(grad).zip(moments).zip(0..) {
        let g = g * a.scale;
        let [m, v] = unpack(*word);
        let m = a.beta1 * m + (1.0 - a.beta1) * g;
        let v = a.beta2 * v + (1.0 - a.beta2) * g * g;
        *p = a.keep * *p - a.rate * m / (v.sqrt() * a.root + a.eps);
        let noise = mix_word(first.wrapping_add(index).wrapping_add(seed));
        *word = by_chance(v, noise >> 16) & 0xffff_0000 | by_chance(m, noise & 0xffff) >> 16;
    }
}

/// Returns bits whose upper 16 are those of a bfloat16 next to the finite `value`. They are those of the larger
/// neighbour if `noise`, below 2¹⁶, is at least the distance to it.
#[inline(always)]
fn by_chance(value: f32, noise: u32) -> u32 {
    let bits = value.to_bits();
    ((bits & SIZE) + noise).min(SIZE_MAX) | bits & !SIZE
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Preset, adjust};

    #[test]
    fn what_fits_comes_back_to_the_bit() {
        for (m, v) in [(0.0, 0.0), (-1.5, 2.0), (1e-30_f32, 3e38), (-0.0, 1e-40)] {
            let [m, v] = [m, v].map(|value: f32| bf16::from_f32(value).to_f32());
            assert_eq!(unpack(pack(m, v)).map(f32::to_bits), [m, v].map(f32::to_bits));
        }
    }

    /// A second moment follows squares that move it by a hundredth of a bfloat16 step, without bias from rounding.
    /// Means over many parameters equal those of unrounded moments within 0.2 %.
    #[test]
    fn moments_follow_in_the_mean() {
        const LEN: usize = 4_096;
        let a = Adjust::new(&Preset::Tiny.inner(), 1, 0.0, 0.0);
        let slow = Adjust { beta2: 0.999_9, ..a };
        let (mut whole, mut packed) = ((vec![0.0; LEN], vec![1.0; LEN]), vec![pack(0.0, 1.0); LEN]);
        let mut params = vec![0.0; LEN];
        for step in 0..200 {
            let grad: Vec<f32> = (0..LEN).map(|i| 0.5 + ((i * 31 + step * 7) % 64) as f32 / 64.0).collect();
            adjust(&mut params, &grad, &mut whole.0, &mut whole.1, &slow);
            adjust_halves(&mut params, &grad, &mut packed, &slow, (9, step as u32));
        }
        let mean = |values: &mut dyn Iterator<Item = f32>| values.map(f64::from).sum::<f64>() / LEN as f64;
        let found = [0, 1].map(|i| mean(&mut packed.iter().map(|word| unpack(*word)[i])));
        let expected = [mean(&mut whole.0.iter().copied()), mean(&mut whole.1.iter().copied())];
        for (found, expected) in found.into_iter().zip(expected) {
            assert!((found / expected - 1.0).abs() < 2e-3, "{found} instead of {expected}");
        }
        assert!((expected[1] - 1.0).abs() > 1e-3, "the second moment had something to follow");
    }

    /// The same step gives the same bits; another step or index gives others.
    #[test]
    fn chance_is_of_place_and_step() {
        let a = Adjust::new(&Preset::Tiny.inner(), 1, 1e-3, 0.0);
        let moments = |at: (u32, u32)| {
            let mut moments = vec![0; 64];
            adjust_halves(&mut [0.0; 64], &[0.3; 64], &mut moments, &a, at);
            moments
        };
        assert_eq!(moments((5, 7)), moments((5, 7)));
        assert_eq!(moments((5, 7))[1..], moments((6, 7))[..63], "by place");
        assert!(moments((5, 7)) != moments((5, 8)));
        let mut kept = vec![pack(0.25, 3.0); 64];
        adjust_halves(&mut [0.0; 64], &[0.3; 64], &mut kept, &Adjust::NOTHING, (5, 7));
        assert_eq!(kept, vec![pack(0.25, 3.0); 64], "nothing changes nothing");
    }

    /// No finite moment is rounded to infinity.
    #[test]
    fn the_largest_stay_finite() {
        for value in [f32::MAX, -f32::MAX, 3.39e38] {
            assert!(f32::from_bits(by_chance(value, 0xffff) & 0xffff_0000).is_finite());
        }
    }
}
