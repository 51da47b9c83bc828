//! Duty cycle of a learner, and the rest that it owes.

use crate::wire::Share;

/// A duty cycle without rest, in millionths.
const FULL_PPM: u64 = 1_000_000;
/// Maximum rest in advance that is deducted later, in microseconds. A sleep ends late, never early.
const CREDIT_US_MAX: i64 = 250_000;

/// Duty cycle of a learner, and the rest that it owes.
///
/// The effective duty cycle is the learner's own duty cycle times the share that the run's owner allows. A share of a
/// quarter thus makes a learner four times slower at any duty cycle of its own.
#[derive(Clone, Debug)]
pub(super) struct DutyCycle {
    duty_permille: u16,
    share: Share,
    /// Owed rest in microseconds; negative after rest in advance.
    rest_us: i64,
}

impl DutyCycle {
    /// Returns a duty cycle without rest.
    pub(super) fn new() -> Self {
        Self { duty_permille: 1_000, share: Share::FULL, rest_us: 0 }
    }

    /// Sets the learner's own duty cycle, in thousandths, 1 to 1000; 0 is taken as 1.
    pub(super) fn set_duty(&mut self, permille: u16) {
        self.change(|pace| pace.duty_permille = permille.clamp(1, 1_000));
    }

    /// Sets the share that the run's owner allows.
    pub(super) fn set_share(&mut self, share: Share) {
        self.change(|pace| pace.share = share);
    }

    /// Changes a factor. If the effective duty cycle increases, the rest owed so far is cancelled.
    fn change(&mut self, change: impl FnOnce(&mut Self)) {
        let before_ppm = self.ppm();
        change(self);
        if self.ppm() > before_ppm {
            self.rest_us = self.rest_us.min(0);
        }
    }

    /// Returns the effective duty cycle in millionths, 1 to 1,000,000.
    fn ppm(&self) -> u64 {
        u64::from(self.duty_permille) * u64::from(self.share.permille())
    }

    /// Returns the rest owed for `busy_us` of work, in microseconds.
    pub(super) fn rest_of(&self, busy_us: u64) -> u64 {
        let ppm = self.ppm();
        busy_us.saturating_mul(FULL_PPM - ppm) / ppm
    }

    /// Adds the rest for `busy_us` of work.
    pub(super) fn work(&mut self, busy_us: u64) {
        self.rest_us = self.rest_us.saturating_add_unsigned(self.rest_of(busy_us));
    }

    /// Deducts `us` of rest.
    pub(super) fn rest(&mut self, us: u64) {
        self.rest_us = self.rest_us.saturating_sub_unsigned(us).max(-CREDIT_US_MAX);
    }

    /// Returns the owed rest in microseconds, or `None` if the learner may train.
    pub(super) fn owed_us(&self) -> Option<u64> {
        u64::try_from(self.rest_us).ok().filter(|&rest_us| rest_us > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(ratio: f64) -> Share {
        Share::new(ratio).unwrap()
    }

    #[test]
    fn work_and_rest_make_the_duty_cycle() {
        let mut pace = DutyCycle::new();
        pace.work(7_000);
        assert_eq!(pace.owed_us(), None);
        pace.set_duty(250);
        pace.work(1_000);
        assert_eq!(pace.owed_us(), Some(3_000));
        // The share multiplies the duty cycle; it is not a minimum of the two.
        pace.set_share(share(0.25));
        assert_eq!(pace.rest_of(1_000), 15_000);
        pace.rest(2_999);
        assert_eq!(pace.owed_us(), Some(1));
        pace.rest(1);
        assert_eq!(pace.owed_us(), None);
    }

    #[test]
    fn a_quarter_of_the_pace_is_a_quarter_of_the_steps() {
        let mut pace = DutyCycle::new();
        pace.set_share(share(0.25));
        let (mut now_us, mut steps) = (0, 0);
        while now_us < 10_000_000 {
            // A sleep ends 7 ms late; the excess is deducted from the next one.
            if let Some(owed_us) = pace.owed_us() {
                pace.rest(owed_us + 7_000);
                now_us += owed_us + 7_000;
            } else {
                pace.work(10_000);
                now_us += 10_000;
                steps += 1;
            }
        }
        assert!((248..=252).contains(&steps), "{steps} of 1,000 steps");
    }

    #[test]
    fn rest_in_advance_counts_for_a_quarter_of_a_second_at_most() {
        let mut pace = DutyCycle::new();
        pace.set_share(share(0.5));
        pace.rest(3_600_000_000);
        pace.work(250_000);
        assert_eq!(pace.owed_us(), None);
        pace.work(1);
        assert_eq!(pace.owed_us(), Some(1));
    }

    #[test]
    fn increase_cancels_owed_rest_and_decrease_does_not() {
        let mut pace = DutyCycle::new();
        pace.set_duty(10);
        pace.work(1_000_000);
        pace.set_share(share(0.5));
        assert_eq!(pace.owed_us(), Some(99_000_000));
        pace.set_share(share(0.5));
        assert_eq!(pace.owed_us(), Some(99_000_000), "nothing changed");
        pace.set_duty(11);
        assert_eq!(pace.owed_us(), None);
        // Surplus rest is kept.
        pace.rest(200_000);
        pace.set_duty(500);
        pace.set_share(Share::FULL);
        pace.work(200_000);
        assert_eq!(pace.owed_us(), None);
    }

    #[test]
    fn no_number_is_too_large() {
        let mut pace = DutyCycle::new();
        pace.set_duty(0);
        pace.work(u64::MAX);
        pace.work(u64::MAX);
        assert!(pace.owed_us().is_some());
        pace.rest(u64::MAX);
        assert_eq!(pace.owed_us(), None);
    }
}
