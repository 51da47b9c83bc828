//! The only pseudorandom numbers in pure code: seeded SplitMix64, with the same output on every machine.

/// A stream of pseudorandom numbers, unsuitable for secrets.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// Returns the stream for `seed`.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Returns the next number, uniform over all `u64`.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GAMMA);
        mix(self.state)
    }

    /// Skips `count` numbers at once.
    pub(crate) fn skip(&mut self, count: u64) {
        self.state = self.state.wrapping_add(GAMMA.wrapping_mul(count));
    }

    /// Returns a number in `0.0..1.0`, a multiple of 2⁻⁵³.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a number exactly uniform over `0..n`; `n` is at least 1.
    pub fn below(&mut self, n: u32) -> u32 {
        // The high half of a product is uniform after rejection of the few surplus low halves.
        let n = u64::from(n);
        let too_often = (1_u64 << 32) % n;
        loop {
            let product = (self.next_u64() >> 32) * n;
            if product & 0xffff_ffff >= too_often {
                return (product >> 32) as u32;
            }
        }
    }
}

/// Combines several numbers into one seed of a stream. Different inputs give different seeds up to chance.
pub fn key(parts: &[u64]) -> u64 {
    parts.iter().fold(0, |key, part| mix(key.wrapping_add(GAMMA) ^ mix(part.wrapping_add(GAMMA))))
}

/// Increment of SplitMix64's state: 2⁶⁴ divided by the golden ratio, made odd.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// Finaliser of SplitMix64: a bijection of `u64` in which each input bit affects all output bits (Steele, Lea and
/// Flood, 2014).
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Bijection of `u32` in which each input bit affects all output bits (Wellons, `lowbias32`).
#[inline(always)]
pub(crate) fn mix_word(mut word: u32) -> u32 {
    word = (word ^ word >> 16).wrapping_mul(0x7feb_352d);
    word = (word ^ word >> 15).wrapping_mul(0x846c_a68b);
    word ^ word >> 16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first numbers of the reference implementation for seed 1234567.
    #[test]
    fn is_splitmix64() {
        let mut rng = Rng::new(1_234_567);
        let first: Vec<u64> = (0..3).map(|_| rng.next_u64()).collect();
        assert_eq!(first, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn numbers_can_be_skipped() {
        let (mut one, mut other) = (Rng::new(u64::MAX - 3), Rng::new(u64::MAX - 3));
        for _ in 0..1_000 {
            one.next_u64();
        }
        other.skip(1_000);
        assert_eq!(one.next_u64(), other.next_u64());
    }

    #[test]
    fn below_is_even() {
        let mut rng = Rng::new(5);
        let mut counts = [0_u32; 7];
        for _ in 0..70_000 {
            counts[rng.below(7) as usize] += 1;
        }
        // Five standard deviations of a binomial count around 10,000.
        assert!(counts.iter().all(|count| count.abs_diff(10_000) < 5 * 93), "{counts:?}");
        assert_eq!(rng.below(1), 0);
    }

    #[test]
    fn keys_depend_on_each_part_and_their_order() {
        let keys = [key(&[]), key(&[0]), key(&[1]), key(&[0, 1]), key(&[1, 0]), key(&[0, 0])];
        for (i, a) in keys.iter().enumerate() {
            assert!(keys[..i].iter().all(|b| a != b), "{keys:x?}");
        }
    }
}
