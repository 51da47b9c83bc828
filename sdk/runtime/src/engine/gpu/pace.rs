//! How much goes to the device at a time.

/// Longest that the device should be busy with one submission, in microseconds: others, the screen among
/// them, wait for it, and browsers take a device away that does not answer for seconds.
const SUBMISSION_US_MAX: f64 = 100_000.0;
/// Cost that any device does within that, in floating-point operations; the first step goes by it.
const COST_FIRST: u64 = 200_000_000;
/// Share of the newest step in the average.
const SHARE: f64 = 0.2;

/// Measures steps, and cuts submissions accordingly.
pub struct Pace {
    now_us: Box<dyn Fn() -> u64>,
    step_cost: u64,
    /// When the last step was done; `None` if the device had nothing to do since.
    done_us: Option<u64>,
    /// Average, in microseconds.
    step_us: Option<f64>,
}

impl Pace {
    /// For steps of `step_cost`, by a clock that gives microseconds.
    pub fn new(now_us: Box<dyn Fn() -> u64>, step_cost: u64) -> Self {
        Self { now_us, step_cost, done_us: None, step_us: None }
    }

    /// A step is done; the device went on with the next at once.
    pub fn step_done(&mut self) {
        let now_us = (self.now_us)();
        if let Some(done_us) = self.done_us {
            let found = now_us.saturating_sub(done_us) as f64;
            self.step_us = Some(self.step_us.map_or(found, |us| us + SHARE * (found - us)));
        }
        self.done_us = Some(now_us);
    }

    /// The device has nothing to do: the next step's time says nothing.
    pub fn idle(&mut self) {
        self.done_us = None;
    }

    /// Most cost of one submission.
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
