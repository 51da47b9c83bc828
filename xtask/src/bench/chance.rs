//! Random numbers from a seed: SplitMix64 (Steele, Lea and Flood, 2014). The library also has a generator, but
//! `cargo xtask` must not link the library.

/// Generator of uniform numbers.
pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a uniform number below `bound`; 0 if that is 0. The bias is below `bound / 2⁶⁴`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        // The high half of the product; the cast keeps its 64 bits.
        ((u128::from(bits) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_spread_over_the_range() {
        let mut chance = Chance::new(1);
        let mut seen = [0_u32; 8];
        (0..8_000).for_each(|_| seen[chance.below(8) as usize] += 1);
        assert!(seen.iter().all(|count| (850..1_150).contains(count)), "{seen:?}");
        assert_eq!(chance.below(0), 0);
    }
}
