//! How long nothing has been heard on a connection, and how long that is borne.

use super::backoff::Doubling;

/// Time between two looks counts for no more than this, in microseconds: a step that takes longer, or a machine that
/// sleeps, keeps what came from being seen.
const LOOK_US_MAX: u64 = 5_000_000;
/// The part of the first patience that one in a hurry has.
const HURRY: u64 = 6;
/// A silence of more than this part of the first patience shows that the peer is a slow one.
const LIVELY: u64 = 4;

/// The silence of one peer.
#[derive(Clone, Debug)]
pub(super) struct Silence {
    heard_us: u64,
    looked_us: u64,
    /// How much of it counts, up to the last look.
    silent_us: u64,
}

impl Silence {
    /// None yet.
    pub(super) fn new(now_us: u64) -> Self {
        Self { heard_us: now_us, looked_us: now_us, silent_us: 0 }
    }

    /// Something came.
    pub(super) fn end(&mut self, now_us: u64) {
        *self = Self::new(now_us);
    }

    /// How much of it counts, in microseconds; to be called often.
    pub(super) fn look(&mut self, now_us: u64) -> u64 {
        let since_us = now_us.saturating_sub(std::mem::replace(&mut self.looked_us, now_us));
        self.silent_us = self.silent_us.saturating_add(since_us.min(LOOK_US_MAX));
        self.silent_us
    }

    /// Does not count what was up to now.
    pub(super) fn forgive(&mut self, now_us: u64) {
        (self.looked_us, self.silent_us) = (now_us, 0);
    }

    /// When something came last, in microseconds.
    pub(super) fn heard_us(&self) -> u64 {
        self.heard_us
    }

    /// How long it lasts by the clock, in microseconds.
    pub(super) fn lasts_us(&self, now_us: u64) -> u64 {
        now_us.saturating_sub(self.heard_us)
    }

    /// When to look again, if it is borne for `patience_us`.
    pub(super) fn look_at_us(&self, patience_us: u64) -> u64 {
        self.looked_us.saturating_add(patience_us.saturating_sub(self.silent_us).min(LOOK_US_MAX))
    }
}

/// For how long a silence is borne. It doubles with each connection given up, since a run that is held, or slow, is
/// silent too. It begins anew once a peer has been lively for as long as the first one lasts: a peer that was gone for
/// an hour, and is back, is not a slow one.
#[derive(Clone, Debug)]
pub(super) struct Patience {
    span: Doubling,
    now_ms: u64,
    /// For how long the peer has been lively, in microseconds.
    lively_us: u64,
}

impl Patience {
    /// The first is `span.first_ms`.
    pub(super) fn new(span: Doubling) -> Self {
        Self { span, now_ms: span.first_ms, lively_us: 0 }
    }

    /// There is another connection, on which the peer has yet to show what it is.
    pub(super) fn watch(&mut self) {
        self.lively_us = 0;
    }

    /// A silence of which `silent_us` count is over.
    pub(super) fn relieve(&mut self, silent_us: u64) {
        let first_us = self.span.first_ms.saturating_mul(1_000);
        let is_lively = silent_us <= first_us / LIVELY;
        self.lively_us = if is_lively { self.lively_us.saturating_add(silent_us) } else { 0 };
        if self.lively_us >= first_us {
            self.now_ms = self.span.first_ms;
        }
    }

    /// The silence that is borne now, in microseconds.
    pub(super) fn us(&self) -> u64 {
        self.now_ms.saturating_mul(1_000)
    }

    /// The silence that one in a hurry bears, in microseconds.
    pub(super) fn hurry_us(&self) -> u64 {
        self.span.first_ms.saturating_mul(1_000) / HURRY
    }

    /// It was at an end: the next one is longer. How long this one was, in seconds.
    pub(super) fn lose(&mut self) -> u64 {
        let lost_s = self.now_ms / 1_000;
        self.now_ms = self.span.after(self.now_ms);
        lost_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::Waits;

    const SECOND_US: u64 = 1_000_000;

    #[test]
    fn a_long_time_between_two_looks_counts_little() {
        let mut silence = Silence::new(0);
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
        let mut silence = Silence::new(0);
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
        // A word each five minutes, in bursts: it needs the patience that it was given.
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
