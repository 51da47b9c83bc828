//! An append-only file, and the effect of a crash on its unsynced end.

use serde::{Deserialize, Serialize};

use super::Rng;

/// Unit of disk writes, in bytes; small, to suit the small files of toys.
const PAGE: usize = 64;

/// Fate of unsynced writes at a power failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// They survive.
    Kept,
    /// They are gone.
    Lost,
    /// Only their beginning survives.
    Torn,
    /// Some pages have their old content, or the content of another place.
    Stale,
    /// One of their bits is flipped.
    Flipped,
}

impl Loss {
    /// All variants.
    pub const ALL: [Self; 5] = [Self::Kept, Self::Lost, Self::Torn, Self::Stale, Self::Flipped];
}

/// An append-only file.
#[derive(Clone, Debug, Default)]
pub(super) struct File {
    /// Content; bytes after `end` belong to failed writes and will be overwritten.
    bytes: Vec<u8>,
    /// Offset of the next byte.
    end: usize,
    /// Length of the prefix that is certainly on the disk.
    synced: usize,
}

impl File {
    /// Returns the content, as a process that has not crashed sees it.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the offset of the next byte.
    pub(super) fn len(&self) -> usize {
        self.end
    }

    pub(super) fn append(&mut self, bytes: &[u8]) {
        self.attempt(bytes);
        self.end += bytes.len();
    }

    /// Writes `bytes` at the end without advancing it, as a failed write does.
    pub(super) fn attempt(&mut self, bytes: &[u8]) {
        let until = self.end + bytes.len();
        if self.bytes.len() < until {
            self.bytes.resize(until, 0);
        }
        self.bytes[self.end..until].copy_from_slice(bytes);
    }

    /// Puts everything before `end` on the disk.
    pub(super) fn sync(&mut self) {
        self.synced = self.end;
    }

    /// Drops everything unsynced.
    pub(super) fn forget_unsynced(&mut self) {
        self.cut(self.synced);
    }

    /// Truncates the file to its first `len` bytes and treats the rest as synced.
    pub(super) fn cut(&mut self, len: usize) {
        self.bytes.truncate(len);
        (self.end, self.synced) = (self.bytes.len(), self.bytes.len());
    }

    /// Applies `loss` to the unsynced writes, as a crash does.
    pub(super) fn crash(&mut self, loss: Loss, rng: &mut Rng) {
        let unsynced = self.bytes.len() - self.synced;
        if unsynced > 0 {
            match loss {
                Loss::Kept => {}
                Loss::Lost => self.forget_unsynced(),
                Loss::Torn => self.bytes.truncate(self.synced + rng.below(unsynced as u64) as usize),
                Loss::Stale => self.overwrite(self.synced + rng.below(unsynced as u64) as usize, rng),
                Loss::Flipped => self.flip(self.synced + rng.below(unsynced as u64) as usize, rng),
            }
        }
        self.cut(self.bytes.len());
    }

    /// Flips a random bit of byte `at`.
    pub(super) fn flip(&mut self, at: usize, rng: &mut Rng) {
        if let Some(byte) = self.bytes.get_mut(at) {
            *byte ^= 1 << rng.below(8);
        }
    }

    /// Overwrites the content from byte `at` on with `bytes`.
    pub(super) fn restore(&mut self, at: usize, bytes: &[u8]) {
        if let Some(there) = self.bytes.get_mut(at..at + bytes.len()) {
            there.copy_from_slice(bytes);
        }
    }

    /// Overwrites the page around byte `at` with zeros or with the preceding page. Only unsynced bytes change, unless
    /// byte `at` itself was synced.
    pub(super) fn overwrite(&mut self, at: usize, rng: &mut Rng) {
        let floor = if at >= self.synced { self.synced } else { 0 };
        let start = (at / PAGE * PAGE).max(floor);
        let end = (at / PAGE * PAGE + PAGE).min(self.bytes.len());
        let is_blank = start < PAGE || rng.chance(0.5);
        for i in start..end {
            self.bytes[i] = if is_blank { 0 } else { self.bytes[i - PAGE] };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_is_written_over() {
        let mut file = File::default();
        file.append(b"ab");
        file.attempt(b"xyz");
        assert_eq!((file.len(), file.bytes()), (2, &b"abxyz"[..]));
        file.append(b"c");
        file.sync();
        assert_eq!((file.len(), file.bytes()), (3, &b"abcyz"[..]));
        file.crash(Loss::Lost, &mut Rng::new(1));
        assert_eq!((file.len(), file.bytes()), (3, &b"abc"[..]));
    }

    #[test]
    fn a_crash_touches_nothing_that_was_synced() {
        // All bytes differ, so that content from another place is detected.
        let written: Vec<u8> = (0..200).collect();
        let (synced, unsynced) = written.split_at(100);
        for seed in 0..200 {
            for loss in Loss::ALL {
                let mut rng = Rng::new(seed);
                let mut file = File::default();
                file.append(synced);
                file.sync();
                file.append(unsynced);
                file.crash(loss, &mut rng);
                assert_eq!(&file.bytes()[..100], synced, "seed {seed}, {loss:?}");
                let is_whole = &file.bytes()[100..] == unsynced;
                assert_eq!(is_whole, loss == Loss::Kept, "seed {seed}, {loss:?}");
            }
        }
    }
}
