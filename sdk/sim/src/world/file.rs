//! A file that only grows, and what a crash makes of the end of it that was not synced.

use serde::{Deserialize, Serialize};

use super::Rng;

/// What a disk writes at once, in bytes; small, as the files of toys are.
const PAGE: usize = 64;

/// What becomes of writes that were not synced when the power failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// They are there all the same.
    Kept,
    /// They are gone.
    Lost,
    /// Only the beginning of them is there.
    Torn,
    /// In some pages there is what was there before, or what belongs elsewhere.
    Stale,
    /// A bit of them is another one.
    Flipped,
}

impl Loss {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Kept, Self::Lost, Self::Torn, Self::Stale, Self::Flipped];
}

/// A file that only grows.
#[derive(Clone, Debug, Default)]
pub(super) struct File {
    /// What is behind `end` is of writes that failed, and is written over.
    bytes: Vec<u8>,
    /// Where the next byte goes.
    end: usize,
    /// So many of them are on the disk for certain.
    synced: usize,
}

impl File {
    /// What is in it, as far as a process that has not crashed can tell.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Where the next byte goes.
    pub(super) fn len(&self) -> usize {
        self.end
    }

    pub(super) fn append(&mut self, bytes: &[u8]) {
        self.attempt(bytes);
        self.end += bytes.len();
    }

    /// Writes `bytes` where the next byte goes, of which nothing counts.
    pub(super) fn attempt(&mut self, bytes: &[u8]) {
        let until = self.end + bytes.len();
        if self.bytes.len() < until {
            self.bytes.resize(until, 0);
        }
        self.bytes[self.end..until].copy_from_slice(bytes);
    }

    /// All that counts is on the disk from now on.
    pub(super) fn sync(&mut self) {
        self.synced = self.end;
    }

    /// What was not synced was never written.
    pub(super) fn forget_unsynced(&mut self) {
        self.cut(self.synced);
    }

    /// Nothing after the first `len` bytes is there; what is left is on the disk.
    pub(super) fn cut(&mut self, len: usize) {
        self.bytes.truncate(len);
        (self.end, self.synced) = (self.bytes.len(), self.bytes.len());
    }

    /// What is there after a crash, of which `loss` says what became of the writes that were not synced.
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

    /// Another bit stands at byte `at`.
    pub(super) fn flip(&mut self, at: usize, rng: &mut Rng) {
        if let Some(byte) = self.bytes.get_mut(at) {
            *byte ^= 1 << rng.below(8);
        }
    }

    /// From byte `at` on there is `bytes` again.
    pub(super) fn restore(&mut self, at: usize, bytes: &[u8]) {
        if let Some(there) = self.bytes.get_mut(at..at + bytes.len()) {
            there.copy_from_slice(bytes);
        }
    }

    /// In the page around byte `at` there is nothing, or the page before it; only what was not synced changes, unless
    /// byte `at` itself was.
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
        // No byte is like another, so that what comes from elsewhere is seen.
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
