//! Messages between a gateway and the leaders of its rounds.

use serde::{Deserialize, Serialize};

use crate::diloco::{FragmentState, MergeEntry, SenderInfo, Verified};
use crate::wire::{ConnId, FragmentId, Hello, LearnerId, Round};

/// Message from a gateway to the leaders of the rounds.
#[derive(Debug)]
pub enum LeaderRequest {
    /// A learner introduces itself. Reply with [`super::Input::Introduced`] and its number, which is the same at every
    /// gateway. If [`Hello::run`] marks it as returning, first wait until each fragment's possibly open round has ended
    /// and [`super::Input::Followed`] has reported that.
    Introduce(ConnId, Box<Hello>),
    /// A learner takes part from now on, over this connection.
    Came(LearnerId, ConnId),
    /// A learner has left.
    Left(LearnerId, ConnId),
    /// A connection closed that never became a learner.
    Gone(ConnId),
    /// Current paces of the learners.
    Pace(Paces),
    /// The run has its number of merged tokens: each fragment shall have its last round.
    Enough,
    /// Answer of a learner in this round, over this connection.
    Answer(FragmentId, LearnerId, ConnId, Round, Answer),
}

/// Paces of learners; 0 if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Paces {
    /// Median time of a step, in milliseconds.
    pub step_ms: f64,
    /// Typical time of an answer, in milliseconds.
    pub answer_ms: f64,
}

/// Answer of a learner.
#[derive(Debug)]
pub enum Answer {
    /// Verified update, with the facts about its sender.
    Update(Box<Verified>, SenderInfo),
    /// No update.
    Nothing,
}

/// Merge that another process decided on.
#[derive(Debug)]
pub struct Followed {
    /// The merge without the bodies of its updates.
    pub merge: MergeEntry,
    /// New state of the fragment, of which only Θ̂ is kept, and its coded change from the previous version. `None` if a
    /// later version is on its way.
    pub led: Option<(FragmentState, Vec<u8>)>,
}
