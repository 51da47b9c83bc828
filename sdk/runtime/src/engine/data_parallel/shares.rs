//! Division of a batch among workers of different speed.

/// Number of windows of a batch for each worker, derived from each worker's time per window.
pub struct Shares {
    workers: Vec<Worker>,
    windows: usize,
    /// Steps since the last attempt to improve the division.
    steps: u32,
}

struct Worker {
    windows: usize,
    /// Smoothed time for one window, in microseconds; `None` before the first measurement.
    window_us: Option<f64>,
}

/// Steps between two attempts to improve the division. It changes seldom, because each change affects bits.
const BALANCE_STEPS: u32 = 32;
/// Weight of the newest time in the smoothed time.
const NEWEST: f64 = 0.125;
/// Fraction of the step time that a new division must save.
const GAIN: f64 = 0.1;
/// Factor on the time of an idle worker at each attempt, so that it eventually gets windows again.
const FORGIVEN: f64 = 0.95;

impl Shares {
    /// Divides `windows` among `workers` as evenly as possible.
    pub fn new(windows: usize, workers: usize) -> Self {
        let worker = |_| Worker { windows: 0, window_us: None };
        let mut shares = Self { workers: (0..workers).map(worker).collect(), windows, steps: 0 };
        shares.cut();
        shares
    }

    /// Returns the number of windows of a worker.
    pub fn of(&self, worker: usize) -> usize {
        self.workers[worker].windows
    }

    /// Returns the expected time of a worker for its windows, in microseconds, if any measurement exists.
    pub fn expected_us(&self, worker: usize) -> Option<f64> {
        let worker = &self.workers[worker];
        worker.window_us.map(|window_us| window_us * worker.windows as f64)
    }

    /// Records the time that a worker took for its windows.
    pub fn measured(&mut self, worker: usize, busy_us: u64) {
        let worker = &mut self.workers[worker];
        let newest = busy_us.max(1) as f64 / worker.windows as f64;
        worker.window_us = Some(worker.window_us.map_or(newest, |old| old + NEWEST * (newest - old)));
    }

    /// Removes a worker and gives its windows to the others. Worker 0 always stays.
    pub fn remove(&mut self, worker: usize) {
        self.workers.remove(worker);
        self.cut();
    }

    /// Divides the batch again from time to time, if that pays. Must be called once per step.
    pub fn balance(&mut self) {
        self.steps += 1;
        if self.steps < BALANCE_STEPS {
            return;
        }
        self.steps = 0;
        for idle in self.workers.iter_mut().filter(|worker| worker.windows == 0) {
            idle.window_us = idle.window_us.map(|window_us| window_us * FORGIVEN);
        }
        let (before_us, before) = (self.slowest_us(), self.counts());
        self.cut();
        if self.slowest_us() > before_us * (1.0 - GAIN) {
            for (worker, windows) in self.workers.iter_mut().zip(before) {
                worker.windows = windows;
            }
        }
    }

    /// Assigns the windows one by one to the worker that would finish it first, and at least one to worker 0.
    fn cut(&mut self) {
        let known = self.workers.iter().filter_map(|worker| worker.window_us);
        let typical = known.fold(f64::INFINITY, f64::min);
        let typical = if typical.is_finite() { typical } else { 1.0 };
        let mut counts = vec![0; self.workers.len()];
        counts[0] = 1;
        for _ in 1..self.windows {
            let done = |i: usize| (counts[i] + 1) as f64 * self.workers[i].window_us.unwrap_or(typical);
            let first = (0..counts.len()).min_by(|&a, &b| done(a).total_cmp(&done(b)));
            counts[first.expect("worker 0 stays")] += 1;
        }
        for (worker, count) in self.workers.iter_mut().zip(counts) {
            worker.windows = count;
        }
    }

    fn counts(&self) -> Vec<usize> {
        self.workers.iter().map(|worker| worker.windows).collect()
    }

    fn slowest_us(&self) -> f64 {
        (0..self.workers.len()).filter_map(|worker| self.expected_us(worker)).fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates steps in which each worker takes the given time per window.
    fn work(shares: &mut Shares, steps: u32, window_us: &[u64]) {
        for _ in 0..steps {
            for (worker, window_us) in window_us.iter().enumerate() {
                let windows = shares.of(worker) as u64;
                if windows > 0 {
                    shares.measured(worker, windows * window_us);
                }
            }
            shares.balance();
        }
    }

    #[test]
    fn every_window_goes_to_one_worker() {
        for (windows, workers, expected) in [
            (8, 1, vec![8]),
            (8, 2, vec![4, 4]),
            (7, 3, vec![3, 2, 2]),
            (2, 4, vec![1, 1, 0, 0]),
            (1, 2, vec![1, 0]),
        ] {
            assert_eq!(Shares::new(windows, workers).counts(), expected);
        }
        let mut shares = Shares::new(8, 3);
        shares.remove(1);
        assert_eq!(shares.counts(), [4, 4]);
        shares.remove(1);
        assert_eq!(shares.counts(), [8]);
    }

    #[test]
    fn the_fast_get_more_but_not_at_once() {
        let mut shares = Shares::new(8, 2);
        work(&mut shares, BALANCE_STEPS - 1, &[100, 300]);
        assert_eq!(shares.counts(), [4, 4]);
        work(&mut shares, 1, &[100, 300]);
        assert_eq!(shares.counts(), [6, 2]);
        assert_eq!(shares.expected_us(1), Some(600.0));
        work(&mut shares, 10 * BALANCE_STEPS, &[300, 100]);
        assert_eq!(shares.counts(), [2, 6]);
    }

    /// Windows of 5 and 3 would take 500 µs instead of 504.
    #[test]
    fn a_small_gain_is_no_reason_to_change_bits() {
        let mut shares = Shares::new(8, 2);
        work(&mut shares, 10 * BALANCE_STEPS, &[100, 126]);
        assert_eq!(shares.counts(), [4, 4]);
    }

    #[test]
    fn whoever_was_too_slow_is_tried_again() {
        let mut shares = Shares::new(4, 2);
        work(&mut shares, BALANCE_STEPS, &[100, 1_000]);
        assert_eq!(shares.counts(), [4, 0]);
        work(&mut shares, 40 * BALANCE_STEPS, &[100, 100]);
        assert_eq!(shares.counts(), [2, 2]);
    }
}
