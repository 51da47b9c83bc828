//! Results that rounds report: answers, quorums and decisions.

use crate::diloco::Decision;
use crate::wire::Round;

/// An answer that was admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    /// Its round; `None` if it waits for the next one.
    pub round: Option<Round>,
    /// Tokens of the update that count; 0 for an answer without an update.
    pub tokens: u64,
    /// Time since the question, in milliseconds, if there was one.
    pub after_ms: Option<u64>,
}

/// A round that has just reached its quorum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quorum {
    /// The round.
    pub round: Round,
    /// Updates received so far.
    pub updates: u32,
    /// Time since the round was launched, in milliseconds.
    pub after_ms: u64,
}

/// Decision about the round under way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// The round.
    pub round: Round,
    /// The decision.
    pub decision: Decision,
    /// Whether the kind of decision differs from the previous one.
    pub is_new: bool,
}
