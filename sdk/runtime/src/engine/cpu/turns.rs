//! Deterministic accumulation of several threads into one gradient.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A slice to which several threads add in a fixed order.
///
/// Gradients of many microbatches go into one buffer instead of one per thread. Microbatch `i + 1` adds only after `i`
/// has, so the sum has the same bits regardless of the number of threads and their timing. Threads wait once, at the
/// first tensor; from then on they follow each other at a distance.
pub struct Turns<'a> {
    next: AtomicUsize,
    slice: Mutex<&'a mut [f32]>,
    is_empty: bool,
}

/// Number of polls before a waiting thread yields to another thread.
const SPINS: u32 = 1_000;
/// The value of `next` after a panic, when no further turn will come.
const BROKEN: usize = usize::MAX;

impl<'a> Turns<'a> {
    /// Creates turns on `slice`, starting with turn 0.
    pub fn new(slice: &'a mut [f32]) -> Self {
        Self { next: AtomicUsize::new(0), is_empty: slice.is_empty(), slice: Mutex::new(slice) }
    }

    /// Returns true if there is nothing to add to, because the tensor is frozen.
    pub fn is_empty(&self) -> bool {
        self.is_empty
    }

    /// Waits for turn `turn`, then does `work` on the slice. Each turn is taken once. Every earlier turn must be taken
    /// by a thread that does not wait for this one.
    pub fn take(&self, turn: usize, work: impl FnOnce(&mut [f32])) {
        let mut spins = 0;
        loop {
            match self.next.load(Ordering::Acquire) {
                next if next == turn => break,
                BROKEN => panic!("another thread panicked at its turn"),
                _ if spins < SPINS => std::hint::spin_loop(),
                _ => std::thread::yield_now(),
            }
            spins += 1;
        }
        let mut pass = Pass { next: &self.next, to: BROKEN };
        work(&mut self.slice.lock().expect("a panic breaks the turns first"));
        pass.to = turn + 1;
    }
}

/// Guard that passes the turn on when it is dropped, and therefore also on a panic.
struct Pass<'a> {
    next: &'a AtomicUsize,
    to: usize,
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.next.store(self.to, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_order() {
        let mut values = vec![0.0; 3];
        let turns = Turns::new(&mut values);
        std::thread::scope(|scope| {
            for turn in (0..8_u8).rev() {
                let turns = &turns;
                scope.spawn(move || {
                    turns.take(usize::from(turn), |slice| slice[1] = slice[1] * 2.0 + f32::from(turn));
                });
            }
        });
        assert_eq!(values, [0.0, (0..8_u8).fold(0.0, |sum, turn| sum * 2.0 + f32::from(turn)), 0.0]);
    }

    #[test]
    fn a_panic_frees_those_who_wait() {
        let mut values = vec![0.0];
        let turns = Turns::new(&mut values);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| turns.take(1, |_| ()));
            let failing = scope.spawn(|| turns.take(0, |_| panic!("on purpose")));
            assert!(failing.join().is_err());
            assert!(waiting.join().is_err());
        });
    }
}
