//! Devices that were lost, and what was salvaged from the last one.

use std::ops::RangeInclusive;

use super::Backoff;
use crate::engine::Moments;
use crate::wire::{RunId, RunSpec};

/// Losses without a merged update in between after which a learner gives up.
const LOSSES_MAX: u32 = 8;
/// First and longest wait before the next attempt, in milliseconds.
const WAITS_MS: RangeInclusive<u64> = 1_000..=60_000;

/// Counts losses: a device that is lost again and again is of no use to anyone.
pub(super) struct Losses {
    /// Since an update was merged.
    count: u32,
    backoff: Backoff,
    salvaged: Option<Salvaged>,
}

/// The moments of a run's inner optimiser.
pub(super) struct Salvaged {
    pub(super) run: RunId,
    pub(super) spec: RunSpec,
    pub(super) moments: Moments,
}

impl Losses {
    /// None so far; `seed` spreads the attempts.
    pub(super) fn new(seed: u64) -> Self {
        Self::within(WAITS_MS, seed)
    }

    /// With other waits.
    pub(super) fn within(waits_ms: RangeInclusive<u64>, seed: u64) -> Self {
        Self { count: 0, backoff: Backoff::within(waits_ms, seed), salvaged: None }
    }

    /// One more: how long to wait before the next attempt, in milliseconds; `None` to give up.
    pub(super) fn lose(&mut self, salvaged: Option<Salvaged>) -> Option<u64> {
        let healthy_ms = if self.count == 0 { u64::MAX } else { 0 };
        self.count += 1;
        self.salvaged = salvaged;
        (self.count < LOSSES_MAX).then(|| self.backoff.next_ms(healthy_ms))
    }

    /// An update was merged: the device does work.
    pub(super) fn merged(&mut self) {
        self.count = 0;
    }

    /// The moments to go on with, if they are of this very run; others are dropped.
    pub(super) fn take_moments(&mut self, run: RunId, spec: &RunSpec) -> Option<Moments> {
        let salvaged = self.salvaged.take()?;
        (salvaged.run == run && salvaged.spec == *spec).then_some(salvaged.moments)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake;
    use super::*;

    fn salvaged(run: u64) -> Salvaged {
        let shard = crate::data::encode_shard(&[0; 10], 2).unwrap();
        let moments = Moments { steps: 9, m: vec![1.0], v: vec![2.0] };
        Salvaged { run: RunId(run), spec: fake::spec(&shard), moments }
    }

    #[test]
    fn gives_up_unless_an_update_was_merged_in_between() {
        let mut losses = Losses::new(1);
        for _ in 0..3 {
            for ceiling_ms in [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000] {
                let wait_ms = losses.lose(None).unwrap();
                assert!((ceiling_ms / 2..=ceiling_ms).contains(&wait_ms), "{wait_ms} of {ceiling_ms}");
            }
            losses.merged();
        }
        for _ in 1..LOSSES_MAX {
            assert!(losses.lose(None).is_some());
        }
        assert_eq!(losses.lose(None), None);
    }

    #[test]
    fn moments_go_to_the_run_they_came_from() {
        let mut losses = Losses::new(1);
        let Salvaged { run, spec, moments } = salvaged(7);
        let other_spec = RunSpec { seed: spec.seed + 1, ..spec.clone() };
        losses.lose(Some(salvaged(7)));
        assert_eq!(losses.take_moments(run, &spec), Some(moments));
        assert_eq!(losses.take_moments(run, &spec), None);
        for (run, spec) in [(run, &other_spec), (RunId(8), &spec)] {
            losses.lose(Some(salvaged(7)));
            assert_eq!(losses.take_moments(run, spec), None);
        }
    }
}
