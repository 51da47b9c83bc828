//! Amount of work in one submission to the device.

/// Maximum time that one submission should occupy the device, in microseconds. Other users of the device, such as the
/// screen, wait for it, and browsers revoke a device that does not answer for seconds.
const SUBMISSION_US_MAX: f64 = 100_000.0;
/// Cost that any device handles within that time, in floating-point operations; used for the first step.
const COST_FIRST: u64 = 200_000_000;
/// Weight of the newest step in the average.
const SHARE: f64 = 0.2;

/// Measurement of step times, from which the size of submissions follows.
pub struct Pace {
    now_us: Box<dyn Fn() -> u64>,
    step_cost: u64,
    /// Time when the last step finished; `None` if the device has been idle since.
    done_us: Option<u64>,
    /// Average step time, in microseconds.
    step_us: Option<f64>,
}

impl Pace {
    /// Creates a pace for steps of `step_cost`, with a clock in microseconds.
    pub fn new(now_us: Box<dyn Fn() -> u64>, step_cost: u64) -> Self {
        Self { now_us, step_cost, done_us: None, step_us: None }
    }

    /// Records a finished step after which the device continued with the next one at once.
    pub fn step_done(&mut self) {
        let now_us = (self.now_us)();
        if let Some(done_us) = self.done_us {
            let found = now_us.saturating_sub(done_us) as f64;
            self.step_us = Some(self.step_us.map_or(found, |us| us + SHARE * (found - us)));
        }
        self.done_us = Some(now_us);
    }

    /// Records that the device is idle, so that the next step's time does not count.
    pub fn idle(&mut self) {
        self.done_us = None;
    }

    /// Returns the maximum cost of one submission.
    pub fn cost_max(&self) -> u64 {
        match self.step_us {
            None => COST_FIRST,
            Some(us) => (self.step_cost as f64 * SUBMISSION_US_MAX / us.max(1.0)) as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    #[test]
    fn cuts_by_what_steps_took() {
        let clock = Rc::new(Cell::new(0));
        let now = Rc::clone(&clock);
        let mut pace = Pace::new(Box::new(move || now.get()), 1_000_000_000);
        let step = |pace: &mut Pace, us: u64| {
            clock.set(clock.get() + us);
            pace.step_done();
        };
        step(&mut pace, 77);
        assert_eq!(pace.cost_max(), COST_FIRST, "nothing is known of the time before");
        step(&mut pace, 1_000_000);
        assert_eq!(pace.cost_max(), 100_000_000, "a tenth of a step of one second");
        step(&mut pace, 500_000);
        assert_eq!(pace.cost_max(), 111_111_111);
        pace.idle();
        step(&mut pace, 60_000_000);
        assert_eq!(pace.cost_max(), 111_111_111, "it was idle");
    }
}
