//! Departure times of bytes from a sender with a given rate. Pure: time is an argument.

use std::time::Duration;

/// One direction of a link: bytes leave in order and at its rate. Idle time is lost, as on a wire.
#[derive(Clone, Debug)]
pub(crate) struct Lane {
    bytes_per_s: Option<f64>,
    /// Time when all accepted bytes have left, since the link was opened.
    free_at: Duration,
}

impl Lane {
    /// Creates a lane of `bytes_per_s`; `None` is unlimited.
    pub(crate) fn new(bytes_per_s: Option<f64>) -> Self {
        Self { bytes_per_s, free_at: Duration::ZERO }
    }

    /// Sets the rate to `bytes_per_s`. Bytes accepted before keep their departure times.
    pub(crate) fn set_rate(&mut self, bytes_per_s: Option<f64>) {
        self.bytes_per_s = bytes_per_s;
    }

    /// Appends `bytes` to the queue. Returns the time when the last of them will have left.
    pub(crate) fn put(&mut self, now: Duration, bytes: usize) -> Duration {
        let on_the_wire = self.bytes_per_s.map_or(0.0, |rate| bytes as f64 / rate);
        self.free_at = self.free_at.max(now) + Duration::from_secs_f64(on_the_wire);
        self.free_at
    }

    /// Returns the time until at most `ahead` of queued bytes is left.
    pub(crate) fn wait(&self, now: Duration, ahead: Duration) -> Duration {
        self.free_at.saturating_sub(now + ahead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn bytes_leave_at_the_rate_and_no_faster() {
        let mut lane = Lane::new(Some(1_000.0));
        // The split into pieces does not matter.
        for (bytes, left_ms) in [(500, 500), (1, 501), (249, 750), (250, 1_000)] {
            assert_eq!(lane.put(ms(0), bytes), ms(left_ms));
        }
        // More bytes in the middle of that queue behind the others.
        assert_eq!(lane.put(ms(400), 1_000), ms(2_000));
    }

    #[test]
    fn time_without_bytes_is_lost() {
        let mut lane = Lane::new(Some(1_000.0));
        lane.put(ms(0), 100);
        assert_eq!(lane.put(ms(5_000), 1_000), ms(6_000));
    }

    #[test]
    fn more_is_taken_in_when_little_waits() {
        let mut lane = Lane::new(Some(1_000.0));
        lane.put(ms(0), 1_000);
        assert_eq!(lane.wait(ms(0), ms(20)), ms(980));
        assert_eq!(lane.wait(ms(900), ms(20)), ms(80));
        assert_eq!(lane.wait(ms(980), ms(20)), ms(0));
        assert_eq!(lane.wait(ms(2_000), ms(20)), ms(0));
    }

    #[test]
    fn without_a_limit_nothing_waits() {
        let mut lane = Lane::new(None);
        assert_eq!(lane.put(ms(7), usize::MAX), ms(7));
        assert_eq!(lane.wait(ms(7), ms(0)), ms(0));
    }
}
