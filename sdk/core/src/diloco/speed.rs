//! Constants and averages for checks of a learner's claimed speed.
//!
//! Nothing proves that a peer trained. Its claimed speed is therefore checked against elapsed time and against the
//! claims of other learners.

use std::ops::RangeInclusive;

/// Accepted times of one training step, in milliseconds; claims are clamped to this range.
pub(super) const STEP_MS: RangeInclusive<f64> = 0.01..=3_600_000.0;
/// Factor by which a learner's speed may exceed the syncer's estimate.
pub(super) const SPEED_SLACK: f64 = 2.0;

/// Returns the lower median of `times`, or 0 if it is empty. Among three or more times, a single outlier in either
/// direction cannot shift it beyond the others.
pub(super) fn lower_median(times: impl Iterator<Item = f64>) -> f64 {
    let mut times: Vec<f64> = times.collect();
    let Some(last) = times.len().checked_sub(1) else { return 0.0 };
    *times.select_nth_unstable_by(last / 2, f64::total_cmp).1
}

/// Weight of the newest value in the moving averages of times.
const TIMING_WEIGHT: f64 = 0.5;

/// Returns the moving average `old` updated with `new`; an `old` of 0 means that nothing was measured yet.
pub(crate) fn average(old: f64, new: f64) -> f64 {
    if old == 0.0 { new } else { old + TIMING_WEIGHT * (new - old) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lower_of_two_is_their_median() {
        let check = |times: &[f64], expected| assert_eq!(lower_median(times.iter().copied()), expected);
        check(&[], 0.0);
        check(&[3.0], 3.0);
        check(&[9.0, 1.0], 1.0);
        check(&[9.0, 1.0, 5.0], 5.0);
        check(&[9.0, 1.0, 5.0, 7.0], 5.0);
    }
}
