//! Retention of a fragment's states in storage.

use std::collections::VecDeque;
use std::ops::Range;

/// Maximum number of keys cleared at once that may hold leftovers.
const CLEARED_MAX: u64 = 64;

/// Keys of the newest states, oldest first.
#[derive(Debug)]
pub(super) struct Retention {
    keys: VecDeque<u64>,
    /// Maximum number of retained states, at least 1.
    max: usize,
}

impl Retention {
    /// Creates an empty list that retains `max` states.
    pub(super) fn new(max: usize) -> Self {
        Self { keys: VecDeque::new(), max: max.max(1) }
    }

    /// Restores the list from the `keys` of all states so far, in order. Returns older keys that may still hold states,
    /// to be deleted.
    pub(super) fn recall(&mut self, keys: &[u64]) -> Option<Range<u64>> {
        let first = keys.len().saturating_sub(self.max);
        self.keys = keys[first..].iter().copied().collect();
        let oldest = *self.keys.front().filter(|_| first > 0)?;
        Some(oldest.saturating_sub(CLEARED_MAX).max(1)..oldest)
    }

    /// Adds a state. Returns the keys to delete: the oldest state beyond the maximum, and states stored after it that
    /// never reached the tape.
    pub(super) fn add(&mut self, key: u64) -> Vec<Range<u64>> {
        self.keys.push_back(key);
        if self.keys.len() <= self.max {
            return Vec::new();
        }
        let (Some(gone), Some(&oldest)) = (self.keys.pop_front(), self.keys.front()) else {
            return Vec::new();
        };
        // Any number of abandoned rounds may lie between; they stored nothing.
        let left = (gone + 1).max(oldest.saturating_sub(CLEARED_MAX));
        vec![gone..gone + 1, left..oldest]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_stay_and_nothing_is_left_between() {
        let mut kept = Retention::new(2);
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
        assert_eq!(Retention::new(0).add(9), [], "one always stays");
    }
}
