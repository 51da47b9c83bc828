//! Exact audits: a learner whose engine gives the same bits everywhere commits to each span of its training, and who
//! asks can do it again.
//!
//! A **span** is all that an engine was given between two updates, as [`Op`]s. Before each update the learner commits
//! to the state in which the span began, to the list, and to the state in which it ended, see
//! [`crate::wire::Commitment`]. If it is asked after that, it shows the first state and the list as a [`Span`]; whoever
//! asks checks each [`Op`] against what it knows itself ([`Facts`]), does the list again with the same engine, and
//! compares. There is no tolerance in that, and so no false alarm.
//!
//! [`Recorder`] is the learner's side, [`Docket`] the syncer's.

mod docket;
mod facts;
mod recorder;
mod shelf;
mod tally;
mod verdict;

use serde::{Deserialize, Serialize};

pub use docket::{AuditJob, Docket, Judged, Next};
pub use facts::{Claim, Facts};
pub use recorder::Recorder;
pub use tally::Tally;
pub use verdict::{Fault, Verdict};

use crate::wire::{FragmentId, LeaseId, Serial, StateHash, Version};

/// Steps of a span that is audited, at most: a longer one comes of a learner that nobody asked for long.
pub const STEPS_MAX: u32 = 1_024;

/// Something that an engine was given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// A step at the rate of `base + own` merged tokens: what the syncer last said, and own tokens since.
    Step {
        /// The run's merged tokens, as the syncer last said.
        base: u64,
        /// Own tokens since then.
        own: u64,
        /// The windows, in order: so many of a lease, from the first.
        windows: Vec<(LeaseId, u32, u32)>,
    },
    /// The progress on a fragment was coded, for an update.
    Encode {
        /// The update.
        serial: Serial,
        /// The fragment.
        fragment: FragmentId,
    },
    /// The update of a fragment that was coded last is merged (`Replica::include`).
    Include {
        /// The fragment.
        fragment: FragmentId,
    },
    /// A version of a fragment was taken in, whole or as a change, which comes to the same (`Replica::load`).
    Take {
        /// The fragment.
        fragment: FragmentId,
        /// The version.
        version: Version,
        /// Whether progress was kept, as far as the run's policy keeps any.
        keep: bool,
    },
}

/// What a learner shows when it is asked: a span and the state in which it began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// Of its engine; empty for one that was just built.
    #[serde(with = "serde_bytes")]
    pub state: Vec<u8>,
    /// Of its counts.
    pub tally: Tally,
    /// What the engine was given.
    pub ops: Vec<Op>,
}

impl Span {
    /// As it is shown.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        packed(self)
    }

    /// The span that `bytes` are.
    ///
    /// # Errors
    /// [`Fault::Malformed`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Fault> {
        rmp_serde::from_slice(bytes).map_err(|_| Fault::Malformed)
    }

    /// The digest of the state in which it began.
    #[must_use]
    pub fn opening(&self) -> StateHash {
        if self.state.is_empty() { StateHash::FRESH } else { state_hash(&self.state, &self.tally) }
    }

    /// Steps in it.
    #[must_use]
    pub fn steps(&self) -> u32 {
        steps(&self.ops)
    }
}

/// The digest of an engine's state and of the counts beside it.
#[must_use]
pub fn state_hash(state: &[u8], tally: &Tally) -> StateHash {
    StateHash::of(&[state, &packed(tally)])
}

/// The digest of what an engine was given.
#[must_use]
pub fn inputs_hash(ops: &[Op]) -> StateHash {
    StateHash::of(&[&packed(&ops)])
}

fn steps(ops: &[Op]) -> u32 {
    ops.iter().filter(|op| matches!(op, Op::Step { .. })).count() as u32
}

fn packed(value: &impl Serialize) -> Vec<u8> {
    rmp_serde::to_vec(value).expect("memory takes every byte and our types have lengths")
}
