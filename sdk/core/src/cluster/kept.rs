//! Which states of a fragment stay in the storage.

use std::collections::VecDeque;
use std::ops::Range;

/// So many keys are cleared at once under which something may have been left.
const CLEARED_MAX: u64 = 64;

/// The keys of the newest states, the oldest first.
#[derive(Debug)]
pub(super) struct Kept {
    keys: VecDeque<u64>,
    /// So many stay, at least 1.
    max: usize,
}

impl Kept {
    /// None yet, of `max`.
    pub(super) fn new(max: usize) -> Self {
        Self { keys: VecDeque::new(), max: max.max(1) }
    }

    /// All states that there ever were have these `keys`, in order. Gives the keys under which may be what those
    /// before left, and what nobody needs any more.
    pub(super) fn recall(&mut self, keys: &[u64]) -> Option<Range<u64>> {
        let first = keys.len().saturating_sub(self.max);
        self.keys = keys[first..].iter().copied().collect();
        let oldest = *self.keys.front().filter(|_| first > 0)?;
        Some(oldest.saturating_sub(CLEARED_MAX).max(1)..oldest)
    }

    /// There is one more. Gives the keys of what may go: one that is too many, and whatever was stored after it and
    /// never got onto the tape.
    pub(super) fn add(&mut self, key: u64) -> Vec<Range<u64>> {
        self.keys.push_back(key);
        if self.keys.len() <= self.max {
            return Vec::new();
        }
        let (Some(gone), Some(&oldest)) = (self.keys.pop_front(), self.keys.front()) else {
            return Vec::new();
        };
        // Rounds that came to nothing, however many, have stored nothing.
        let left = (gone + 1).max(oldest.saturating_sub(CLEARED_MAX));
        vec![gone..gone + 1, left..oldest]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_stay_and_nothing_is_left_between() {
        let mut kept = Kept::new(2);
        assert_eq!((kept.add(2), kept.add(5)), (vec![], vec![]));
        assert_eq!(kept.add(6), [2..3, 3..5], "3 and 4 may have been stored for records that never came");
        assert_eq!(kept.add(7), [5..6, 6..6]);
        assert_eq!(kept.add(9_000), [6..7, 7..7]);
        assert_eq!(
            kept.add(9_001),
            [7..8, 8_936..9_000],
            "of many rounds without a merge the last ones count"
        );
        assert_eq!(kept.recall(&[100, 103]), None, "nobody had more than stay");
        assert_eq!(kept.recall(&[100, 103, 107]), Some(39..103));
        assert_eq!(kept.add(108), [103..104, 104..107]);
        assert_eq!(kept.recall(&[3, 4, 5]), Some(1..4), "there is no key 0");
        assert_eq!(Kept::new(0).add(9), [], "one always stays");
    }
}
