//! Bytes interpreted as decisions. Missing bytes are 0, so that every prefix of a script is a script.

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
}
