//! Phases of an owner.

use std::sync::Arc;

use super::Record;
use super::active_round::ActiveRound;
use crate::diloco::Rounds;
use crate::wire::Millis;

/// Phase of this owner for its fragment.
#[derive(Debug)]
pub(super) enum LeaderPhase {
    /// Not leading; another owner may lead.
    Away,
    /// Reading the tape.
    Reading,
    /// Loading the state after the record of this number, with the known checksum.
    Loading(u64, u64),
    /// Waiting for the initial state of a fragment without a merge.
    Beginning,
    /// Leading.
    Leading(Box<Leading>),
    /// The last round is over.
    Over,
}

/// Data of a fragment while this owner leads it.
#[derive(Debug)]
pub(super) struct Leading {
    pub(super) rounds: Rounds,
    pub(super) step: Step,
    /// Start of the lead.
    pub(super) since: Millis,
    /// True if the current round is the last one.
    pub(super) is_last: bool,
}

/// Current step of a leading owner.
#[derive(Debug)]
pub(super) enum Step {
    /// Idle since this time.
    Resting(Millis),
    /// In a round.
    Working(Box<ActiveRound>),
    /// Storing the merged state, before its record is appended.
    Storing(Arc<Vec<u8>>, Record),
    /// Appending a record.
    Appending(Record),
}
