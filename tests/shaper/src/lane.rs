//! When bytes leave a sender of a given rate. Pure: time is an argument.

use std::time::Duration;

/// One way of a link: bytes leave one after the other, at its rate and no faster. Time in which nothing is sent is
/// lost, as it is on a wire.
#[derive(Clone, Debug)]
pub(crate) struct Lane {
    bytes_per_s: Option<f64>,
    /// When all that was put in has left, as time since the link was opened.
    free_at: Duration,
}

impl Lane {
    /// A lane of `bytes_per_s`; `None` is without limit.
    pub(crate) fn new(bytes_per_s: Option<f64>) -> Self {
        Self { bytes_per_s, free_at: Duration::ZERO }
    }

    /// Bytes leave at `bytes_per_s` from now on; those that were put in before keep their time.
    pub(crate) fn set_rate(&mut self, bytes_per_s: Option<f64>) {
        self.bytes_per_s = bytes_per_s;
    }

    /// Puts `bytes` behind what waits already; when the last of them will have left.
    pub(crate) fn put(&mut self, now: Duration, bytes: usize) -> Duration {
        let on_the_wire = self.bytes_per_s.map_or(0.0, |rate| bytes as f64 / rate);
        self.free_at = self.free_at.max(now) + Duration::from_secs_f64(on_the_wire);
        self.free_at
    }

    /// How long until at most `ahead` of what was put in still waits.
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
        // However many come at once, in whatever pieces.
        for (bytes, left_ms) in [(500, 500), (1, 501), (249, 750), (250, 1_000)] {
            assert_eq!(lane.put(ms(0), bytes), ms(left_ms));
        }
        // In the middle of that, more: behind the others.
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
