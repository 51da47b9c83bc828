//! What is believed of a learner's speed.
//!
//! Nothing proves that a peer trained, so its own word on its speed is held against the time that has passed and
//! against what the others say of theirs.

use std::ops::RangeInclusive;

/// Believable times of one step, in milliseconds.
pub(super) const STEP_MS: RangeInclusive<f64> = 0.01..=3_600_000.0;
/// How much faster than believed a learner may have been.
pub(super) const SPEED_SLACK: f64 = 2.0;

/// The lower median of `times`, 0 if there are none. Among three or more, neither one that crawls nor one that boasts
/// moves it.
pub(super) fn lower_median(times: impl Iterator<Item = f64>) -> f64 {
    let mut times: Vec<f64> = times.collect();
    let Some(last) = times.len().checked_sub(1) else { return 0.0 };
    *times.select_nth_unstable_by(last / 2, f64::total_cmp).1
}

/// Weight of the newest value in the moving averages of times.
const TIMING_WEIGHT: f64 = 0.5;

/// The moving average `old`, 0 until known, with `new` taken in.
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
