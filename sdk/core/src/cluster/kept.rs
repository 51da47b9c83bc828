//! Which states of a fragment stay in the storage.

use std::collections::VecDeque;
use std::ops::Range;

/// Whoever takes a fragment over has so many keys cleared that those before it may have left.
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
    pub(super) fn add(&mut self, key: u64) -> Option<Range<u64>> {
        self.keys.push_back(key);
        if self.keys.len() <= self.max {
            return None;
        }
        let gone = self.keys.pop_front()?;
        Some(gone..*self.keys.front()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_stay_and_nothing_is_left_between() {
        let mut kept = Kept::new(2);
        assert_eq!(kept.add(2), None);
        assert_eq!(kept.add(5), None);
        assert_eq!(kept.add(6), Some(2..5), "3 and 4 may have been stored for records that never came");
        assert_eq!(kept.add(7), Some(5..6));
        assert_eq!(kept.recall(&[100, 103]), None, "nobody had more than stay");
        assert_eq!(kept.recall(&[100, 103, 107]), Some(39..103));
        assert_eq!(kept.add(108), Some(103..107));
        assert_eq!(kept.recall(&[3, 4, 5]), Some(1..4), "there is no key 0");
        assert_eq!(Kept::new(0).add(9), None, "one always stays");
    }
}
