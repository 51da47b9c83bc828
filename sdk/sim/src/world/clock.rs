//! A process's clock: it begins with the process, and runs as fast as its machine's.

use archipelago_core::wire::Millis;

/// A clock that began at some time of the world's, and runs at a rate of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    born: Millis,
    /// Its seconds in one of the world's.
    rate: f64,
}

impl Clock {
    pub(super) fn new(born: Millis, rate: f64) -> Self {
        Self { born, rate }
    }

    /// What it shows, in microseconds.
    pub(super) fn read_us(&self, now: Millis) -> u64 {
        self.span_us(now.since(self.born))
    }

    /// What it shows.
    pub(super) fn read(&self, now: Millis) -> Millis {
        Millis(self.read_us(now) / 1_000)
    }

    /// What it makes of `ms` of the world's milliseconds, in microseconds.
    pub(super) fn span_us(&self, ms: u64) -> u64 {
        // Casting saturates, and a run is far shorter than 2⁵³ microseconds.
        (ms as f64 * 1_000.0 * self.rate) as u64
    }

    /// When, on the world's clock, this one shows `at_us` microseconds at least.
    pub(super) fn when_us(&self, at_us: u64) -> Millis {
        let mut ms = (at_us as f64 / 1_000.0 / self.rate).ceil() as u64;
        // What rounding took must not wake anybody too early.
        while self.span_us(ms) < at_us {
            ms += 1;
        }
        self.born.after(ms)
    }

    /// When, on the world's clock, this one shows `at` at least.
    pub(super) fn when(&self, at: Millis) -> Millis {
        self.when_us(at.0.saturating_mul(1_000))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_woken_early_whatever_the_rate() {
        for rate in [1.0, 0.999, 1.001, 0.9, 1.1] {
            let clock = Clock::new(Millis(5_000), rate);
            for at in [0, 1, 7, 999, 60_000, 3_600_001] {
                let when = clock.when(Millis(at));
                assert!(clock.read(when) >= Millis(at), "{rate}: {at} ms at {when}");
                assert!(at == 0 || clock.read(Millis(when.0 - 1)) < Millis(at), "{rate}: {at} ms at {when}");
            }
        }
        assert_eq!(Clock::new(Millis(100), 1.1).read(Millis(1_100)), Millis(1_100));
    }
}
