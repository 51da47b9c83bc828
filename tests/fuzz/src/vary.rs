//! Seeded variations of corpus inputs, which the tests try in addition.

use archipelago_sim::world::Rng;

/// Returns a variation of `input`: some bits flipped, and some bytes duplicated, dropped or replaced by part of
/// `other`.
#[must_use]
pub fn vary(input: &[u8], other: &[u8], seed: u64) -> Vec<u8> {
    let mut rng = Rng::stream(seed, 0xf022);
    let mut bytes = input.to_vec();
    for _ in 0..=rng.between(0, 3) {
        let at = rng.between(0, bytes.len() as u64) as usize;
        let end = (at + rng.between(1, 16) as usize).min(bytes.len());
        match rng.between(0, 4) {
            0 if at < bytes.len() => bytes[at] ^= 1 << rng.between(0, 7),
            1 if at < bytes.len() => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][rng.between(0, 4) as usize],
            2 => drop(bytes.drain(at.min(end)..end)),
            3 if at < end => {
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
            _ if !other.is_empty() => {
                let from = rng.between(0, other.len() as u64 - 1) as usize;
                let to = (from + rng.between(1, 16) as usize).min(other.len());
                bytes.splice(at.min(end)..end, other[from..to].iter().copied());
            }
            _ => bytes.push(rng.between(0, 255) as u8),
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_and_seeds_differ() {
        let input = b"some input of a few bytes";
        assert_eq!(vary(input, b"other", 7), vary(input, b"other", 7));
        let differ = (0..100).filter(|&seed| vary(input, b"other", seed) != input).count();
        assert!(differ > 90, "{differ}");
        assert!((0..1_000).all(|seed| vary(&[], &[], seed).len() < 100));
    }
}
