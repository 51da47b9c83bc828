//! Rate and delay of a link.

use std::time::Duration;

/// Queue ahead of the wire, as in a router. It also absorbs late wake-ups of a thread without wasting capacity.
pub(crate) const AHEAD: Duration = Duration::from_millis(20);

/// Time on the wire of one read, small enough that connections share the link finely.
const TURN: Duration = Duration::from_millis(10);

/// Bounds on the size of one read in bytes: large enough that a slow link does not cause many tiny writes, small enough
/// that reads stay cheap.
const CHUNK_MIN: f64 = 512.0;
const CHUNK_MAX: f64 = 65_536.0;

/// Bounds on socket buffers in bytes. Systems round the smallest up.
const BUFFER_MIN: f64 = 4_096.0;
const BUFFER_MAX: f64 = 262_144.0;

/// Largest number of bytes in flight in one direction of a connection: the usual maximum of a connection's window, or
/// twice that.
const FLIGHT_MAX: f64 = 16_777_216.0;

/// Rate and delay of a link, the same in both directions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    bytes_per_s: Option<f64>,
    one_way: Duration,
}

impl Shape {
    /// Creates a link of `mbit_per_s` in each direction, or of unlimited rate, with the round-trip time `round_trip`.
    ///
    /// # Panics
    /// If the rate is not a positive number.
    #[must_use]
    pub fn new(mbit_per_s: Option<f64>, round_trip: Duration) -> Self {
        assert!(mbit_per_s.is_none_or(|rate| rate > 0.0), "a link carries something");
        Self { bytes_per_s: mbit_per_s.map(|rate| rate * 1e6 / 8.0), one_way: round_trip / 2 }
    }

    /// Returns the bytes per second in each direction; `None` is unlimited.
    pub(crate) fn bytes_per_s(&self) -> Option<f64> {
        self.bytes_per_s
    }

    /// Returns the delay from one end to the other.
    pub(crate) fn one_way(&self) -> Duration {
        self.one_way
    }

    /// Returns the round-trip time.
    pub(crate) fn round_trip(&self) -> Duration {
        self.one_way * 2
    }

    /// Returns the size of one read in bytes.
    pub(crate) fn chunk_bytes(&self) -> usize {
        self.carried_in(TURN).unwrap_or(CHUNK_MAX).clamp(CHUNK_MIN, CHUNK_MAX) as usize
    }

    /// Returns the size of the buffers of the proxy's sockets, in bytes.
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.carried_in(AHEAD).unwrap_or(BUFFER_MAX).clamp(BUFFER_MIN, BUFFER_MAX) as usize
    }

    /// Returns the largest number of bytes in flight in one direction of a connection: the content of the wire, and
    /// twice the queue ahead of it.
    pub(crate) fn flight_bytes_max(&self) -> usize {
        let on_the_wire = self.carried_in(self.one_way + AHEAD * 2).unwrap_or(FLIGHT_MAX);
        (on_the_wire + CHUNK_MAX).min(FLIGHT_MAX) as usize
    }

    /// Returns the bytes that the link carries in `time`, if its rate is limited.
    fn carried_in(&self, time: Duration) -> Option<f64> {
        self.bytes_per_s.map(|rate| rate * time.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_follow_the_rate() {
        let shape = |mbit_per_s| Shape::new(mbit_per_s, Duration::from_millis(300));
        assert_eq!(shape(Some(8.0)).bytes_per_s(), Some(1e6));
        assert_eq!(shape(Some(8.0)).one_way(), Duration::from_millis(150));
        // 10 ms of 125 kB/s, and 20 ms of it, which is less than the smallest buffer.
        assert_eq!((shape(Some(1.0)).chunk_bytes(), shape(Some(1.0)).buffer_bytes()), (1_250, 4_096));
        // A slow link holds the content of its wire, not seconds of data.
        assert!(shape(Some(1.0)).flight_bytes_max() < 100_000);
        // A fast and long link must hold much, or the buffer would be its limit instead of the rate.
        assert!(shape(Some(1_000.0)).flight_bytes_max() > 15_000_000);
        assert_eq!(shape(None).flight_bytes_max(), 16_777_216);
    }
}
