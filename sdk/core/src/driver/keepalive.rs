//! Silence on a connection, and its limit.

use super::backoff::Doubling;

/// Maximum time between two checks that counts as silence, in microseconds. During a longer step or a sleep of the
/// machine, input could not be seen.
const LOOK_US_MAX: u64 = 5_000_000;
/// Divisor of the first patience; the quotient is the limit for an owner in a hurry.
const HURRY: u64 = 6;
/// Divisor of the first patience. A silence longer than the quotient shows that the peer is slow.
const LIVELY: u64 = 4;

/// Silence of one peer.
#[derive(Clone, Debug)]
pub(super) struct Keepalive {
    heard_us: u64,
    looked_us: u64,
    /// Silence that counts, up to the last check.
    silent_us: u64,
}

impl Keepalive {
    /// Returns a silence that begins now.
    pub(super) fn new(now_us: u64) -> Self {
        Self { heard_us: now_us, looked_us: now_us, silent_us: 0 }
    }

    /// Ends the silence, because input came.
    pub(super) fn end(&mut self, now_us: u64) {
        *self = Self::new(now_us);
    }

    /// Returns the silence that counts, in microseconds. Call it often.
    pub(super) fn look(&mut self, now_us: u64) -> u64 {
        let since_us = now_us.saturating_sub(std::mem::replace(&mut self.looked_us, now_us));
        self.silent_us = self.silent_us.saturating_add(since_us.min(LOOK_US_MAX));
        self.silent_us
    }

    /// Discards the silence up to now.
    pub(super) fn forgive(&mut self, now_us: u64) {
        (self.looked_us, self.silent_us) = (now_us, 0);
    }

    /// Returns the time of the last input, in microseconds.
    pub(super) fn heard_us(&self) -> u64 {
        self.heard_us
    }

    /// Returns the length of the silence by the clock, in microseconds.
    pub(super) fn lasts_us(&self, now_us: u64) -> u64 {
        now_us.saturating_sub(self.heard_us)
    }

    /// Returns the time of the next check, for a limit of `patience_us`.
    pub(super) fn look_at_us(&self, patience_us: u64) -> u64 {
        self.looked_us.saturating_add(patience_us.saturating_sub(self.silent_us).min(LOOK_US_MAX))
    }
}

/// Time limit for silence. It doubles with each connection given up, because a paused or slow run is silent too. It is
/// reset once the peer was lively for the length of the first limit: a peer that returns after an hour is not slow.
#[derive(Clone, Debug)]
pub(super) struct Patience {
    span: Doubling,
    now_ms: u64,
    /// Time for which the peer has been lively, in microseconds.
    lively_us: u64,
}

impl Patience {
    /// Returns a patience that begins at `span.first_ms`.
    pub(super) fn new(span: Doubling) -> Self {
        Self { span, now_ms: span.first_ms, lively_us: 0 }
    }

    /// Forgets the peer's liveliness at the start of a new connection.
    pub(super) fn watch(&mut self) {
        self.lively_us = 0;
    }

    /// Handles the end of a silence of which `silent_us` counted.
    pub(super) fn relieve(&mut self, silent_us: u64) {
        let first_us = self.span.first_ms.saturating_mul(1_000);
        let is_lively = silent_us <= first_us / LIVELY;
        self.lively_us = if is_lively { self.lively_us.saturating_add(silent_us) } else { 0 };
        if self.lively_us >= first_us {
            self.now_ms = self.span.first_ms;
        }
    }

    /// Returns the current limit in microseconds.
    pub(super) fn us(&self) -> u64 {
        self.now_ms.saturating_mul(1_000)
    }

    /// Returns the limit for an owner in a hurry, in microseconds.
    pub(super) fn hurry_us(&self) -> u64 {
        self.span.first_ms.saturating_mul(1_000) / HURRY
    }

    /// Raises the limit after it was exceeded, and returns the exceeded one in seconds.
    pub(super) fn lose(&mut self) -> u64 {
        let lost_s = self.now_ms / 1_000;
        self.now_ms = self.span.after(self.now_ms);
        lost_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::Waits;

    const SECOND_US: u64 = 1_000_000;

    #[test]
    fn a_long_time_between_two_looks_counts_little() {
        let mut silence = Keepalive::new(0);
        assert_eq!(silence.look(3 * SECOND_US), 3 * SECOND_US);
        assert_eq!(silence.look(3_600 * SECOND_US), 8 * SECOND_US);
        assert_eq!(silence.lasts_us(3_600 * SECOND_US), 3_600 * SECOND_US);
        silence.forgive(3_600 * SECOND_US);
        assert_eq!(silence.look(3_601 * SECOND_US), SECOND_US);
        silence.end(3_602 * SECOND_US);
        assert_eq!((silence.look(3_602 * SECOND_US), silence.lasts_us(3_603 * SECOND_US)), (0, SECOND_US));
    }

    #[test]
    fn one_that_looks_when_told_to_misses_nothing() {
        let mut silence = Keepalive::new(0);
        let mut now_us = 0;
        for look_s in [5, 10, 12] {
            assert_eq!(silence.look_at_us(12 * SECOND_US), look_s * SECOND_US);
            now_us = silence.look_at_us(12 * SECOND_US);
            silence.look(now_us);
        }
        assert_eq!(silence.look(now_us), 12 * SECOND_US);
    }

    #[test]
    fn patience_doubles_from_a_minute_to_sixteen() {
        let mut patience = Patience::new(Waits::default().patience);
        for patience_s in [60, 120, 240, 480, 960, 960] {
            assert_eq!(patience.us(), patience_s * SECOND_US);
            assert_eq!(patience.lose(), patience_s);
        }
        assert_eq!(patience.hurry_us(), 10 * SECOND_US);
    }

    #[test]
    fn patience_begins_anew_with_a_lively_peer_and_not_with_a_slow_one() {
        let mut patience = Patience::new(Waits::default().patience);
        (0..3).for_each(|_| _ = patience.lose());
        // A message every five minutes, in bursts: the grown patience is needed.
        for _ in 0..100 {
            patience.relieve(300 * SECOND_US);
            patience.relieve(10 * SECOND_US);
        }
        assert_eq!(patience.us(), 480 * SECOND_US);
        patience.watch();
        for patience_s in [480, 480, 480, 60] {
            patience.relieve(15 * SECOND_US);
            assert_eq!(patience.us(), patience_s * SECOND_US);
        }
        assert_eq!((patience.lose(), patience.us()), (60, 120 * SECOND_US));
    }
}
