//! Bytes in flight from one end of a link to the other: ordered and bounded.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Piece of a stream, and its arrival time since the link was opened.
pub(crate) type Piece = (Duration, Vec<u8>);

/// Bytes of one connection in flight in one direction, with one writing and one reading thread.
pub(crate) struct Flight {
    bytes_max: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    pieces: VecDeque<Piece>,
    bytes: usize,
    /// True once no more pieces are written, or the reader is gone.
    closed: bool,
}

impl Flight {
    /// Creates a queue for `bytes_max` bytes, or for one piece that is larger.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Waits for room and adds `piece`. Returns false once closed.
    pub(crate) fn push(&self, piece: Piece) -> bool {
        let full = |state: &mut State| {
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

    /// Waits for the oldest piece. Returns `None` once closed and empty.
    pub(crate) fn pop(&self) -> Option<Piece> {
        let empty = |state: &mut State| !state.closed && state.pieces.is_empty();
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
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};
    use std::thread;

    use super::*;

    fn piece(number: u8) -> Piece {
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
    fn a_piece_larger_than_the_room_still_travels() {
        let flight = Flight::new(5);
        assert!(flight.push(piece(1)));
        assert_eq!(flight.pop(), Some(piece(1)));
    }

    #[test]
    fn closing_frees_who_waits_for_room() {
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
}
