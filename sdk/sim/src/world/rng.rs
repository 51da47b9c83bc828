//! Seeded random numbers that do not use the platform's maths library, so that a seed gives the same world on every
//! target.

use archipelago_core::rng;

/// SplitMix64 generator (Steele, Lea and Flood, 2014) with 64 bits of state. Every seed is suitable.
#[derive(Clone, Debug)]
pub struct Rng(rng::Rng);

impl Rng {
    /// Creates a generator for `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(rng::Rng::new(seed))
    }

    /// Creates a generator for the part of a world with number `stream`, independent of other parts.
    #[must_use]
    pub fn stream(seed: u64, stream: u64) -> Self {
        Self::new(rng::key(&[seed, stream]))
    }

    /// Returns 64 uniform bits.
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a uniform number in `0..bound`, or 0 if `bound` is 0. The bias is below `bound / 2⁶⁴`.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The result is the high half of the 128-bit product.
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a uniform number in `low..=high`, or `low` if the range is empty.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// Returns a uniform number in `[0, 1)`, a multiple of 2⁻⁵³.
    pub fn unit(&mut self) -> f64 {
        self.0.unit()
    }

    /// Returns true with probability `share`.
    pub fn chance(&mut self, share: f64) -> bool {
        self.unit() < share
    }

    /// Returns an exponentially distributed number with mean 1, by von Neumann's comparison method (1951).
    pub fn exponential(&mut self) -> f64 {
        let mut whole = 0.0;
        loop {
            let first = self.unit();
            let (mut last, mut falls) = (first, 1_u32);
            loop {
                let next = self.unit();
                if next >= last {
                    break;
                }
                (last, falls) = (next, falls + 1);
            }
            if falls % 2 == 1 {
                return whole + first;
            }
            whole += 1.0;
        }
    }

    /// Returns a roughly normal number with mean 0 and variance 1: the scaled sum of four uniform numbers.
    pub fn normal(&mut self) -> f32 {
        let bits = self.bits();
        let sum: u64 = (0..4).map(|i| (bits >> (16 * i)) & 0xffff).sum();
        // A uniform number has variance 1/12, and the sum of four has 1/3. The factor √3 makes that 1.
        (sum as f32 / 65_536.0 - 2.0) * 1.732_050_8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean_and_variance(values: impl Iterator<Item = f64>) -> (f64, f64) {
        let values: Vec<f64> = values.collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        (mean, values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / values.len() as f64)
    }

    #[test]
    fn numbers_have_the_moments_they_promise() {
        let mut rng = Rng::new(1);
        let (mean, variance) = mean_and_variance((0..100_000).map(|_| rng.exponential()));
        assert!((mean - 1.0).abs() < 0.02 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
        let (mean, variance) = mean_and_variance((0..100_000).map(|_| f64::from(rng.normal())));
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
        let (mean, _) = mean_and_variance((0..100_000).map(|_| rng.between(3, 7) as f64));
        assert!((mean - 5.0).abs() < 0.02, "{mean}");
    }

    #[test]
    fn bounds_hold() {
        let mut rng = Rng::new(2);
        assert!((0..1_000).all(|_| rng.below(3) < 3));
        assert!((0..1_000).all(|_| (5..=6).contains(&rng.between(5, 6))));
        assert_eq!(rng.below(0), 0);
        assert_eq!(rng.between(9, 2), 9);
    }

    #[test]
    fn streams_differ() {
        let first = |seed, stream| Rng::stream(seed, stream).bits();
        assert_ne!(first(1, 0), first(1, 1));
        assert_ne!(first(1, 0), first(2, 0));
    }
}
