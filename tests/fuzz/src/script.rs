//! Bytes interpreted as decisions. Missing bytes are 0, so that every prefix of a script is a script.

use std::fs;
use std::path::{Path, PathBuf};

use archipelago_sim::world::Rng;
use syncer_server::ServerError;

/// Largest number of changes to a file.
const EDITS_MAX: usize = 16;

/// Remaining bytes of a script.
pub struct Script<'a>(pub &'a [u8]);

impl Script<'_> {
    /// Returns true if no bytes are left.
    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the next byte.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// Returns a number below `bound`, which is 1 to 256.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte()) % bound
    }

    /// Returns two bytes as a big-endian number.
    pub fn short(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    /// Returns a number of any magnitude, small or large with equal probability: a byte rotated by another.
    pub fn long(&mut self) -> u64 {
        let (value, by) = (u64::from(self.byte()), u32::from(self.byte()) % 64);
        value.rotate_left(by)
    }

    /// Returns the next bytes, at most `most`; a length byte precedes them.
    pub fn bytes(&mut self, most: usize) -> Vec<u8> {
        let count = usize::from(self.byte()).min(most).min(self.0.len());
        let (bytes, rest) = self.0.split_at(count);
        self.0 = rest;
        bytes.to_vec()
    }

    /// Returns `bytes` with changes from the rest of the script: in several places, a few bytes are replaced by others.
    pub fn edited(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        for _ in 0..EDITS_MAX {
            if self.is_over() {
                break;
            }
            let at = usize::from(self.short()) % bytes.len().max(1);
            let (lost, new) = (self.below(4), self.bytes(8));
            let end = (at + lost).min(bytes.len());
            bytes.splice(at.min(end)..end, new);
        }
        bytes
    }
}

/// Returns the folder of the golden model.
pub fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden/init/model")
}

/// Returns the path of a text that is long enough for a run.
pub fn text() -> PathBuf {
    model().with_file_name("text.txt")
}

/// Reads the files `names` of the golden model.
pub fn read<const N: usize>(names: [&str; N]) -> [Vec<u8>; N] {
    names.map(|name| fs::read(model().join(name)).unwrap())
}

/// Returns the index of one of `files` and its damaged content: edited in a few places, or replaced by the script's
/// bytes.
pub fn damaged(script: &mut Script<'_>, files: &[Vec<u8>]) -> (usize, Vec<u8>) {
    let (which, is_whole) = (script.below(files.len()), script.byte().is_multiple_of(4));
    (which, if is_whole { script.0.to_vec() } else { script.edited(&files[which]) })
}

/// Checks that a refusal describes a fault of the file, not of the system.
pub fn judge<T>(found: Result<T, ServerError>) {
    if let Err(error) = found {
        let is_of_the_system = matches!(error, ServerError::System { .. } | ServerError::Disk { .. });
        assert!(!is_of_the_system, "a damaged file is no failure of the system: {error}");
        assert!(!error.to_string().trim().is_empty());
    }
}

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
    fn every_beginning_of_a_script_is_one() {
        let mut script = Script(&[3, 1, 2]);
        assert_eq!(script.bytes(9), [1, 2]);
        assert!(script.is_over());
        assert_eq!((script.byte(), script.long(), script.below(7)), (0, 0, 0));
        assert_eq!(Script(&[1, 8]).long(), 256);
        assert_eq!(Script(&[0, 1, 2, 1, b'x']).edited(b"abcd"), b"axd");
        assert_eq!(Script(&[]).edited(b"abcd"), b"abcd");
    }

    #[test]
    fn a_seed_decides_and_seeds_differ() {
        let input = b"some input of a few bytes";
        assert_eq!(vary(input, b"other", 7), vary(input, b"other", 7));
        let differ = (0..100).filter(|&seed| vary(input, b"other", seed) != input).count();
        assert!(differ > 90, "{differ}");
        assert!((0..1_000).all(|seed| vary(&[], &[], seed).len() < 100));
    }
}
