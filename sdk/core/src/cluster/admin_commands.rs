//! Commands of the owner of the run, and their effect on rounds.

use serde::{Deserialize, Serialize};

use crate::diloco::{MergeRule, QuorumPolicy, RoundTerms};
use crate::wire::{Fingerprint, FragmentId, LearnerId, Share};

/// Id of the tape of decrees, which is separate from the tapes of all fragments. No fragment has this id, since a run
/// has at most 65,535 fragments.
pub const OF_THE_RUN: FragmentId = FragmentId(u16::MAX);

/// Command of the owner of the run, given at any gateway. Each process applies it as soon as it reads it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum AdminCommand {
    /// First decree of a run: the settings, by key, that all processes share.
    Agreed(Vec<(String, String)>),
    /// New values of these settings.
    Settings(Vec<(String, String)>),
    /// Pauses (true) or resumes (false) the run. While paused, owners launch only a last round.
    Hold(bool),
    /// Ends the run after one more round of each fragment, which waits for all learners.
    Finish,
    /// Limits the part of the time in which a learner trains.
    Pace(LearnerId, Share),
    /// Excludes a learner until this time, in milliseconds since 1970; 0 lifts the exclusion.
    Drop(LearnerId, u64),
    /// Bans a key permanently; with the owner's note.
    Ban(Fingerprint, String),
    /// Lifts the ban of a key.
    Lift(Fingerprint),
}

/// Commands in force, as the leaders of fragments need them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdminCommands {
    /// Paused: only a last round is launched.
    pub is_held: bool,
    /// Ending: each fragment has one last round, which waits for all learners.
    pub is_ending: bool,
    /// Policy that decides when rounds end.
    pub quorum: QuorumPolicy,
    /// Merge rule.
    pub merge: MergeRule,
    /// Maximum number of learners invited to one round. Beyond it, a rotating sample is invited.
    pub cohort_max: u32,
}

impl AdminCommands {
    /// Returns the initial orders: the round terms of the run and this cohort limit.
    #[must_use]
    pub fn none(terms: &RoundTerms, cohort_max: u32) -> Self {
        Self { is_held: false, is_ending: false, quorum: terms.quorum, merge: terms.merge, cohort_max }
    }
}
