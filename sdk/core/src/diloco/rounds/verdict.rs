//! What rounds say of answers and decisions.

use crate::diloco::Decision;
use crate::wire::Round;

/// An answer that was taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The round that it is part of; `None` if it waits for the next one.
    pub round: Option<Round>,
    /// Tokens of the update that count; 0 for an answer without one.
    pub tokens: u64,
    /// Time since it was asked for, in milliseconds, if it was.
    pub after_ms: Option<u64>,
}

/// A round that has just reached its quorum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quorum {
    /// The round.
    pub round: Round,
    /// Updates that are in.
    pub updates: u32,
    /// Time since the round was launched, in milliseconds.
    pub after_ms: u64,
}

/// What was decided about the round under way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// The round.
    pub round: Round,
    /// What to do now.
    pub decision: Decision,
    /// Whether this is another kind of decision than the one before.
    pub is_new: bool,
}
