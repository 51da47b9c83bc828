//! Lost devices, and the time of the next attempt.

use super::backoff::{Backoff, Doubling};

/// Number of losses without a merged update in between after which a learner gives up.
const LOSSES_MAX: u32 = 8;

/// Counts losses, because a device that is lost again and again is useless.
#[derive(Clone, Debug)]
pub(super) struct Losses {
    /// Losses since an update was merged.
    count: u32,
    backoff: Backoff,
}

impl Losses {
    /// Returns a count of zero; `seed` spreads the attempts.
    pub(super) fn new(waits: Doubling, seed: u64) -> Self {
        Self { count: 0, backoff: Backoff::new(waits, seed) }
    }

    /// Counts a loss and returns the wait before the next attempt, in milliseconds, or `None` to give up.
    pub(super) fn lose(&mut self) -> Option<u64> {
        let healthy_ms = if self.count == 0 { u64::MAX } else { 0 };
        self.count += 1;
        (self.count < LOSSES_MAX).then(|| self.backoff.next_ms(healthy_ms))
    }

    /// Resets the count, because a merged update shows that the device works.
    pub(super) fn merged(&mut self) {
        self.count = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Waits;

    #[test]
    fn gives_up_unless_an_update_was_merged_in_between() {
        let mut losses = Losses::new(Waits::default().losses, 1);
        for _ in 0..3 {
            for ceiling_ms in [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000] {
                let wait_ms = losses.lose().unwrap();
                assert!((ceiling_ms / 2..=ceiling_ms).contains(&wait_ms), "{wait_ms} of {ceiling_ms}");
            }
            losses.merged();
        }
        for _ in 1..LOSSES_MAX {
            assert!(losses.lose().is_some());
        }
        assert_eq!(losses.lose(), None);
    }
}
