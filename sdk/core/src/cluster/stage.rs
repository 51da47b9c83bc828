//! What an owner is at.

use std::sync::Arc;

use super::Record;
use super::work::Work;
use crate::diloco::Rounds;
use crate::wire::Millis;

/// Whether a fragment is led by this owner.
#[derive(Debug)]
pub(super) enum Stage {
    /// Somebody else leads, or nobody.
    Away,
    /// Reads the tape.
    Reading,
    /// Loads the state after the record of this number, whose checksum is known.
    Loading(u64, u64),
    /// Waits for the state that the fragment begins in: nothing is merged of it yet.
    Beginning,
    /// Leads.
    Leading(Box<Leading>),
    /// The last round is over.
    Over,
}

/// A fragment that is led.
#[derive(Debug)]
pub(super) struct Leading {
    pub(super) rounds: Rounds,
    pub(super) step: Step,
    /// Since when.
    pub(super) since: Millis,
    /// The round under way is the last one.
    pub(super) is_last: bool,
}

/// What is under way.
#[derive(Debug)]
pub(super) enum Step {
    /// Nothing is under way since then.
    Resting(Millis),
    /// A round is.
    Working(Box<Work>),
    /// The state that a round led to is being stored, and then its record appended.
    Storing(Arc<Vec<u8>>, Record),
    /// A record is being appended.
    Appending(Record),
}
