//! Rate and delay of a link.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Queue ahead of the wire, as in a router. It also absorbs late wake-ups of a thread without wasting capacity.
pub(crate) const AHEAD: Duration = Duration::from_millis(20);

/// Time that one read takes on the wire. It is short, so that connections share the link evenly.
const TURN: Duration = Duration::from_millis(10);

/// Minimum size of one read in bytes, large enough that a slow link does not cause many tiny writes.
const CHUNK_MIN: f64 = 512.0;
/// Maximum size of one read in bytes, small enough that reads stay cheap.
const CHUNK_MAX: f64 = 65_536.0;

/// Minimum size of a socket's buffer in bytes. Systems round it up.
const BUFFER_MIN: f64 = 4_096.0;
/// Maximum size of a socket's buffer in bytes.
const BUFFER_MAX: f64 = 262_144.0;

/// Largest number of bytes in flight in one direction of a connection: the usual maximum of a connection's window, or
/// twice that.
const FLIGHT_MAX: f64 = 16_777_216.0;

/// Rate and delay of a link, the same in both directions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkProfile {
    bytes_per_s: Option<f64>,
    one_way: Duration,
}

impl LinkProfile {
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

/// One direction of a link: bytes leave in order and at its rate. Idle time is lost, as on a wire.
#[derive(Clone, Debug)]
pub(crate) struct RateLimiter {
    bytes_per_s: Option<f64>,
    /// Time when all accepted bytes have left, since the link was opened.
    free_at: Duration,
}

impl RateLimiter {
    /// Creates a rate limiter of `bytes_per_s`; `None` is unlimited.
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

/// Piece of a stream, and its arrival time since the link was opened.
pub(crate) type DelayedBytes = (Duration, Vec<u8>);

/// Bytes of one connection in flight in one direction, with one writing and one reading thread.
pub(crate) struct Flight {
    bytes_max: usize,
    state: Mutex<StreamState>,
    changed: Condvar,
}

#[derive(Default)]
struct StreamState {
    pieces: VecDeque<DelayedBytes>,
    bytes: usize,
    /// True once no more pieces are written, or the reader is gone.
    closed: bool,
}

impl Flight {
    /// Creates a queue for `bytes_max` bytes, or for one piece that is larger.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Waits until the queue has space, and adds `piece`. Returns false if the queue is closed.
    pub(crate) fn push(&self, piece: DelayedBytes) -> bool {
        let full = |state: &mut StreamState| {
            !state.closed && state.bytes > 0 && state.bytes + piece.1.len() > self.bytes_max
        };
        let mut state = self.changed.wait_while(self.state(), full).unwrap_or_else(PoisonError::into_inner);
        if state.closed {
            return false;
        }
        state.bytes += piece.1.len();
        state.pieces.push_back(piece);
        self.changed.notify_all();
        true
    }

    /// Waits for the oldest piece. Returns `None` if the queue is closed and empty.
    pub(crate) fn pop(&self) -> Option<DelayedBytes> {
        let empty = |state: &mut StreamState| !state.closed && state.pieces.is_empty();
        let mut state = self.changed.wait_while(self.state(), empty).unwrap_or_else(PoisonError::into_inner);
        let piece = state.pieces.pop_front()?;
        state.bytes -= piece.1.len();
        self.changed.notify_all();
        Some(piece)
    }

    /// Closes the queue for new pieces; pieces in flight can still be taken.
    pub(crate) fn close(&self) {
        self.state().closed = true;
        self.changed.notify_all();
    }

    /// Locks the state. No thread panics while it holds the lock, and even then the state would be consistent.
    fn state(&self) -> MutexGuard<'_, StreamState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Payload bytes of a packet, for counting losses.
const PACKET_BYTES: usize = 1_460;
/// Shortest time until a lost packet is sent again, as in TCP if no later packet arrives.
const SENT_AGAIN: Duration = Duration::from_millis(200);

/// Conditions that apply without breaking open connections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkConditions {
    /// True if nothing passes. Sent bytes wait, as behind a router that has lost its line.
    pub cut: bool,
    /// Additional delay in each direction.
    pub delay: Duration,
    /// Rate in each direction in Mbit/s, in place of the shape's rate.
    pub mbit_per_s: Option<f64>,
    /// Fraction of lost packets, 0 to 1. In a stream, loss appears as delay: bytes behind a lost packet wait for its
    /// retransmission.
    pub lost: f64,
}

impl LinkConditions {
    /// Conditions that leave the link's shape unchanged.
    pub const FAIR: Self = Self { cut: false, delay: Duration::ZERO, mbit_per_s: None, lost: 0.0 };

    /// Returns the rate in bytes per second, if it is set.
    pub(crate) fn bytes_per_s(&self) -> Option<f64> {
        self.mbit_per_s.map(|rate| rate * 1e6 / 8.0)
    }

    /// Returns the extra delay of `bytes` on a link with the delay `one_way`. `chance` is uniform from 0 to 1.
    pub(crate) fn later(&self, bytes: usize, chance: f64, one_way: Duration) -> Duration {
        let packets = bytes.div_ceil(PACKET_BYTES).min(1_000) as i32;
        let all_arrive = (1.0 - self.lost).powi(packets);
        if chance < all_arrive {
            return self.delay;
        }
        self.delay + SENT_AGAIN.max((one_way + self.delay) * 2)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};
    use std::thread;

    use super::*;

    #[test]
    fn buffers_follow_the_rate() {
        let shape = |mbit_per_s| LinkProfile::new(mbit_per_s, Duration::from_millis(300));
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

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn bytes_leave_at_the_rate_and_no_faster() {
        let mut lane = RateLimiter::new(Some(1_000.0));
        // The split into pieces does not matter.
        for (bytes, left_ms) in [(500, 500), (1, 501), (249, 750), (250, 1_000)] {
            assert_eq!(lane.put(ms(0), bytes), ms(left_ms));
        }
        // More bytes in the middle of that queue behind the others.
        assert_eq!(lane.put(ms(400), 1_000), ms(2_000));
    }

    #[test]
    fn time_without_bytes_is_lost() {
        let mut lane = RateLimiter::new(Some(1_000.0));
        lane.put(ms(0), 100);
        assert_eq!(lane.put(ms(5_000), 1_000), ms(6_000));
    }

    #[test]
    fn bytes_are_accepted_while_the_queue_is_short() {
        let mut lane = RateLimiter::new(Some(1_000.0));
        lane.put(ms(0), 1_000);
        assert_eq!(lane.wait(ms(0), ms(20)), ms(980));
        assert_eq!(lane.wait(ms(900), ms(20)), ms(80));
        assert_eq!(lane.wait(ms(980), ms(20)), ms(0));
        assert_eq!(lane.wait(ms(2_000), ms(20)), ms(0));
    }

    #[test]
    fn without_a_limit_nothing_waits() {
        let mut lane = RateLimiter::new(None);
        assert_eq!(lane.put(ms(7), usize::MAX), ms(7));
        assert_eq!(lane.wait(ms(7), ms(0)), ms(0));
    }

    fn piece(number: u8) -> DelayedBytes {
        (Duration::from_millis(number.into()), vec![number; 10])
    }

    #[test]
    fn pieces_come_out_in_order_and_never_too_many_wait() {
        let flight = Flight::new(25);
        thread::scope(|scope| {
            scope.spawn(|| {
                assert!((0..100).all(|number| flight.push(piece(number))));
                flight.close();
            });
            for number in 0..100 {
                assert!(flight.state().bytes <= 25);
                assert_eq!(flight.pop(), Some(piece(number)));
            }
            assert_eq!(flight.pop(), None);
        });
    }

    #[test]
    fn a_piece_larger_than_the_queue_is_delivered() {
        let flight = Flight::new(5);
        assert!(flight.push(piece(1)));
        assert_eq!(flight.pop(), Some(piece(1)));
    }

    #[test]
    fn closing_a_queue_releases_a_waiting_writer() {
        let flight = Arc::new(Flight::new(10));
        assert!(flight.push(piece(1)));
        let (says, said) = mpsc::channel();
        thread::spawn({
            let flight = Arc::clone(&flight);
            move || says.send(flight.push(piece(2)))
        });
        // The thread waits or has not started to; in both cases the piece must be rejected.
        flight.close();
        assert_eq!(said.recv_timeout(Duration::from_secs(60)), Ok(false));
        assert_eq!((flight.pop(), flight.pop()), (Some(piece(1)), None));
    }

    #[test]
    fn a_lost_packet_delays_its_piece() {
        let one_way = Duration::from_millis(20);
        let rain = LinkConditions { lost: 0.1, delay: Duration::from_millis(5), ..LinkConditions::FAIR };
        assert_eq!(LinkConditions::FAIR.later(100_000, 0.999, one_way), Duration::ZERO);
        // One packet arrives in 0.9 of the cases, two together in 0.81.
        assert_eq!(rain.later(1_460, 0.89, one_way), Duration::from_millis(5));
        assert_eq!(rain.later(1_460, 0.91, one_way), Duration::from_millis(205));
        assert_eq!(rain.later(1_461, 0.82, one_way), Duration::from_millis(205));
        // On a long link the loss is known only after a round trip.
        assert_eq!(rain.later(1, 0.95, Duration::from_millis(300)), Duration::from_millis(615));
    }
}
