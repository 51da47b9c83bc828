//! What the owner of a run orders, and what that means to those who lead rounds.

use serde::{Deserialize, Serialize};

use crate::diloco::{MergeRule, QuorumPolicy, RoundTerms};
use crate::wire::{Fingerprint, FragmentId, LearnerId, Share};

/// Decrees are on a tape of their own, beside those of all fragments: no fragment has this number, for there are at
/// most 65,535 of them.
pub const OF_THE_RUN: FragmentId = FragmentId(u16::MAX);

/// What the owner of the run ordered at some gateway. It holds at every process, from when that reads it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Decree {
    /// The first one of a run: the settings, by their keys, on which all processes agree.
    Agreed(Vec<(String, String)>),
    /// These settings are so from now on.
    Settings(Vec<(String, String)>),
    /// Whether the run is held: then nothing but a last round is launched.
    Hold(bool),
    /// Each fragment has one more round, which waits for everyone, and then the run is over.
    Finish,
    /// A learner trains for this part of its time.
    Pace(LearnerId, Share),
    /// A learner stays away until that moment, in milliseconds since 1970; 0 lets it come back.
    Drop(LearnerId, u64),
    /// Whoever has this key stays away for good; with what the owner notes of it.
    Ban(Fingerprint, String),
    /// Whoever has this key may come back.
    Lift(Fingerprint),
}

/// What is ordered by now, for those who lead rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Orders {
    /// Nothing but a last round is launched.
    pub is_held: bool,
    /// Each fragment has one more round, which waits for everyone, and then none.
    pub is_ending: bool,
    /// When rounds end.
    pub quorum: QuorumPolicy,
    /// How updates are merged.
    pub merge: MergeRule,
    /// Learners that are asked in one round; of more, a sample that moves on.
    pub cohort_max: u32,
}

impl Orders {
    /// Nothing was ordered: rounds go by their terms, and ask so many.
    #[must_use]
    pub fn none(terms: &RoundTerms, cohort_max: u32) -> Self {
        Self { is_held: false, is_ending: false, quorum: terms.quorum, merge: terms.merge, cohort_max }
    }
}
