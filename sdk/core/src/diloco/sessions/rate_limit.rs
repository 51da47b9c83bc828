//! Rate limit for the messages of a learner.

use super::Roster;
use crate::wire::{ConnId, Millis};

/// Largest burst of messages from one learner. Our own constant, far above the needs of a learner that trains.
const MESSAGES_MAX: f64 = 1_024.0;
/// Messages that are allowed per second, in addition to the burst. Our own constant.
const MESSAGES_PER_S: f64 = 50.0;
/// Messages that are allowed per launched round, in addition. A learner needs two: `Update` or `NoUpdate`, and
/// `VersionAck`. Our own constant.
const MESSAGES_PER_ROUND: f64 = 4.0;

/// Token bucket of messages of one connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    /// Number of messages that are allowed now.
    messages: f64,
    /// Time of the last message, and the number of rounds launched by then.
    since: Option<(Millis, u64)>,
}

impl Default for Allowance {
    fn default() -> Self {
        Self { messages: MESSAGES_MAX, since: None }
    }
}

impl Allowance {
    fn take(&mut self, now: Millis, rounds: u64) -> bool {
        let (since, before) = self.since.replace((now, rounds)).unwrap_or((now, rounds));
        let by_time = MESSAGES_PER_S * now.since(since) as f64 / 1e3;
        let by_rounds = MESSAGES_PER_ROUND * rounds.saturating_sub(before) as f64;
        self.messages = (self.messages + by_time + by_rounds).min(MESSAGES_MAX) - 1.0;
        self.messages >= 0.0
    }
}

impl Roster {
    /// Takes a message of the learner behind `conn` from its rate limit and returns true if it is allowed. `rounds` is
    /// the number of rounds launched so far.
    pub fn allows(&mut self, now: Millis, conn: ConnId, rounds: u64) -> bool {
        self.sessions.get_mut(&conn).is_none_or(|session| session.allowance.take(now, rounds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst_is_allowed_and_a_flood_is_not() {
        let mut allowance = Allowance::default();
        assert!((0..1_024).all(|_| allowance.take(Millis(0), 5)));
        assert!(!allowance.take(Millis(0), 5));
        assert!((0..40).all(|i| allowance.take(Millis(1_000 + i), 5)), "a second later");
        let mut busy = Allowance::default();
        assert!((0..100_000).all(|i| busy.take(Millis(i / 100), i / 3)), "each round has its answers");
    }
}
