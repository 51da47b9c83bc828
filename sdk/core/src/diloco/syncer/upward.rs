//! What a syncer whose rounds are led elsewhere passes on, and what it is told.

use serde::{Deserialize, Serialize};

use crate::diloco::{FragmentState, MergeEntry, Standing, Verified};
use crate::wire::{ConnId, FragmentId, Hello, LearnerId, Round};

/// What is passed on to those who lead the rounds.
#[derive(Debug)]
pub enum Upward {
    /// Somebody introduces itself. Say by [`super::Input::Introduced`] which number it has, the same wherever it
    /// comes; one whose [`Hello::run`] says that it comes back once each fragment's round that may be under way by now
    /// has ended, and [`super::Input::Followed`] has told of it.
    Introduce(ConnId, Box<Hello>),
    /// A learner takes part from now on, by this connection.
    Came(LearnerId, ConnId),
    /// It does no more.
    Left(LearnerId, ConnId),
    /// A connection is gone by which nobody took part.
    Gone(ConnId),
    /// How fast its learners are by now.
    Pace(Paces),
    /// As many tokens are merged as the run was to have: each fragment is to have its last round.
    Enough,
    /// A learner answered in this round, by this connection.
    Answer(FragmentId, LearnerId, ConnId, Round, Answer),
}

/// How fast learners are; 0 while that is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Paces {
    /// What a step takes the median of them, in milliseconds.
    pub step_ms: f64,
    /// What an answer takes as a rule, in milliseconds.
    pub answer_ms: f64,
}

/// What a learner answered.
#[derive(Debug)]
pub enum Answer {
    /// With an update, looked into, and what is known of its sender.
    Update(Box<Verified>, Standing),
    /// It has nothing to report.
    Nothing,
}

/// A merge that others decided on.
#[derive(Debug)]
pub struct Followed {
    /// All of it but the bodies of its updates.
    pub merge: MergeEntry,
    /// What the fragment's Θ̂ is by now, of whose state nothing else is kept, and its coded change from the version
    /// before; `None` if a later one is on its way.
    pub led: Option<(FragmentState, Vec<u8>)>,
}
