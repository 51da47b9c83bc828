//! Inner learning rate as a function of the run's merged tokens, not of a learner's own steps.

use std::f64::consts::PI;

use crate::wire::InnerSpec;

/// Learning rate at the start of the warm-up, as a fraction of `lr_max`. It is above 0 so that the first steps have an
/// effect.
const WARMUP_START: f64 = 0.01;

/// Returns the learning rate after `clock_tokens` merged tokens.
///
/// The rate rises linearly from 1 % of `lr_max` to `lr_max` at `warmup_tokens`, then falls along half a cosine to
/// `lr_min_ratio · lr_max` at `total_tokens`, and stays there.
#[must_use]
pub fn learning_rate(inner: &InnerSpec, clock_tokens: u64) -> f32 {
    let (max, min_ratio) = (f64::from(inner.lr_max), f64::from(inner.lr_min_ratio));
    let share = if clock_tokens < inner.warmup_tokens {
        WARMUP_START + (1.0 - WARMUP_START) * clock_tokens as f64 / inner.warmup_tokens as f64
    } else if clock_tokens < inner.total_tokens {
        let done = (clock_tokens - inner.warmup_tokens) as f64;
        let phase = done / (inner.total_tokens - inner.warmup_tokens) as f64;
        min_ratio + (1.0 - min_ratio) * 0.5 * (1.0 + libm::cos(PI * phase))
    } else {
        min_ratio
    };
    (max * share) as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Preset;

    #[test]
    fn warms_up_and_falls() {
        let inner = InnerSpec {
            lr_max: 1.0,
            lr_min_ratio: 0.1,
            warmup_tokens: 100,
            total_tokens: 1100,
            ..Preset::Tiny.inner()
        };
        let check = |clock, expected: f32| {
            let rate = learning_rate(&inner, clock);
            assert!((rate - expected).abs() < 1e-6, "{clock}: {rate} instead of {expected}");
        };
        check(0, 0.01);
        check(50, 0.505);
        check(100, 1.0);
        check(600, 0.55);
        check(1100, 0.1);
        check(u64::MAX, 0.1);
    }

    #[test]
    fn survives_odd_horizons() {
        let at = |warmup_tokens, total_tokens, clock| {
            learning_rate(
                &InnerSpec { lr_max: 1.0, warmup_tokens, total_tokens, ..Preset::Tiny.inner() },
                clock,
            )
        };
        assert_eq!(at(0, 0, 0), 0.1);
        assert_eq!(at(0, 10, 0), 1.0);
        assert!(at(10, 5, 7) > 0.5, "warm-up wins over a shorter horizon");
        assert_eq!(at(10, 5, 10), 0.1);
    }
}
