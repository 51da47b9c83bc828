//! What a link is like.

use std::time::Duration;

/// How far ahead of the wire bytes are taken in: the queue of a router, and what a thread that wakes up late may be
/// late by without wasting the link.
pub(crate) const AHEAD: Duration = Duration::from_millis(20);

/// Time on the wire of what is taken in at once, so that connections share the link finely.
const TURN: Duration = Duration::from_millis(10);

/// What is taken in at once, in bytes: at least so much that a slow link is no storm of tiny writes, at most so much
/// that reading stays cheap.
const CHUNK_MIN: f64 = 512.0;
const CHUNK_MAX: f64 = 65_536.0;

/// Buffers of sockets, in bytes. Systems round the smallest up.
const BUFFER_MIN: f64 = 4_096.0;
const BUFFER_MAX: f64 = 262_144.0;

/// Most bytes of one connection on their way, each way: what systems give a connection's window at most, or twice that.
const FLIGHT_MAX: f64 = 16_777_216.0;

/// Rate and delay of a link, the same both ways.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    bytes_per_s: Option<f64>,
    one_way: Duration,
}

impl Shape {
    /// A link of `mbit_per_s` each way, or one without a limit of rate, whose round trip takes `round_trip`.
    ///
    /// # Panics
    /// If the rate is not a positive number.
    #[must_use]
    pub fn new(mbit_per_s: Option<f64>, round_trip: Duration) -> Self {
        assert!(mbit_per_s.is_none_or(|rate| rate > 0.0), "a link carries something");
        Self { bytes_per_s: mbit_per_s.map(|rate| rate * 1e6 / 8.0), one_way: round_trip / 2 }
    }

    /// Bytes a second each way; `None` is without limit.
    pub(crate) fn bytes_per_s(&self) -> Option<f64> {
        self.bytes_per_s
    }

    /// Time from one end to the other.
    pub(crate) fn one_way(&self) -> Duration {
        self.one_way
    }

    /// Time to the other end and back.
    pub(crate) fn round_trip(&self) -> Duration {
        self.one_way * 2
    }

    /// Bytes that are taken in at once.
    pub(crate) fn chunk_bytes(&self) -> usize {
        self.carried_in(TURN).unwrap_or(CHUNK_MAX).clamp(CHUNK_MIN, CHUNK_MAX) as usize
    }

    /// Size of the buffers of the proxy's own sockets, in bytes.
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.carried_in(AHEAD).unwrap_or(BUFFER_MAX).clamp(BUFFER_MIN, BUFFER_MAX) as usize
    }

    /// Most bytes of one connection on their way, each way: what the wire holds, and twice what is taken in ahead.
    pub(crate) fn flight_bytes_max(&self) -> usize {
        let on_the_wire = self.carried_in(self.one_way + AHEAD * 2).unwrap_or(FLIGHT_MAX);
        (on_the_wire + CHUNK_MAX).min(FLIGHT_MAX) as usize
    }

    /// Bytes that the link carries in `time`, if its rate is limited.
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
        // A slow link holds what is on its wire, not seconds of it.
        assert!(shape(Some(1.0)).flight_bytes_max() < 100_000);
        // A fast and long one must hold much, or the buffer and not the rate would be its limit.
        assert!(shape(Some(1_000.0)).flight_bytes_max() > 15_000_000);
        assert_eq!(shape(None).flight_bytes_max(), 16_777_216);
    }
}
