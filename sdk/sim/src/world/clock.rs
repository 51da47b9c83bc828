//! Clocks of processes, and the queue of scheduled events.

use std::collections::BTreeMap;

use archipelago_core::wire::Millis;

/// Clock of a process, with a start time and a rate relative to the world's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct DriftingClock {
    born: Millis,
    /// Seconds of this clock per second of the world's clock.
    rate: f64,
}

impl DriftingClock {
    pub(super) fn new(born: Millis, rate: f64) -> Self {
        Self { born, rate }
    }

    /// Returns this clock's time in microseconds when the world's clock shows `now`.
    pub(super) fn read_us(&self, now: Millis) -> u64 {
        self.span_us(now.since(self.born))
    }

    /// Returns this clock's time when the world's clock shows `now`.
    pub(super) fn read(&self, now: Millis) -> Millis {
        Millis(self.read_us(now) / 1_000)
    }

    /// Converts `ms` milliseconds of the world's clock to microseconds of this clock.
    pub(super) fn span_us(&self, ms: u64) -> u64 {
        // The cast saturates. A run is far shorter than 2⁵³ microseconds.
        (ms as f64 * 1_000.0 * self.rate) as u64
    }

    /// Returns the earliest time on the world's clock at which this clock reads at least `at_us` microseconds.
    pub(super) fn when_us(&self, at_us: u64) -> Millis {
        let mut ms = (at_us as f64 / 1_000.0 / self.rate).ceil() as u64;
        // Rounding must not cause an early wake-up.
        while self.span_us(ms) < at_us {
            ms += 1;
        }
        self.born.after(ms)
    }

    /// Returns the earliest time on the world's clock at which this clock reads at least `at`.
    pub(super) fn when(&self, at: Millis) -> Millis {
        self.when_us(at.0.saturating_mul(1_000))
    }
}

/// Queue of scheduled events.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    planned: BTreeMap<(Millis, u64), T>,
    next: u64,
}

impl<T> Queue<T> {
    pub(crate) fn new() -> Self {
        Self { planned: BTreeMap::new(), next: 0 }
    }

    /// Returns the number of scheduled events.
    pub(crate) fn len(&self) -> usize {
        self.planned.len()
    }

    /// Schedules `what` for `at`. Events with equal times keep the order of scheduling.
    pub(crate) fn plan(&mut self, at: Millis, what: T) {
        self.planned.insert((at, self.next), what);
        self.next += 1;
    }

    /// Removes and returns the next event, if its time is at most `until`.
    pub(crate) fn next_until(&mut self, until: Millis) -> Option<(Millis, T)> {
        let entry = self.planned.first_entry()?;
        let at = entry.key().0;
        (at <= until).then(|| (at, entry.remove()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wake_up_is_never_early_at_any_rate() {
        for rate in [1.0, 0.999, 1.001, 0.9, 1.1] {
            let clock = DriftingClock::new(Millis(5_000), rate);
            for at in [0, 1, 7, 999, 60_000, 3_600_001] {
                let when = clock.when(Millis(at));
                assert!(clock.read(when) >= Millis(at), "{rate}: {at} ms at {when}");
                assert!(at == 0 || clock.read(Millis(when.0 - 1)) < Millis(at), "{rate}: {at} ms at {when}");
            }
        }
        assert_eq!(DriftingClock::new(Millis(100), 1.1).read(Millis(1_100)), Millis(1_100));
    }

    #[test]
    fn sorts_by_time_then_by_planning() {
        let mut queue = Queue::new();
        for (at, what) in [(5, 'b'), (3, 'a'), (5, 'c'), (9, 'd')] {
            queue.plan(Millis(at), what);
        }
        let mut order = Vec::new();
        while let Some((at, what)) = queue.next_until(Millis(5)) {
            order.push((at.0, what));
        }
        assert_eq!(order, [(3, 'a'), (5, 'b'), (5, 'c')]);
    }
}
