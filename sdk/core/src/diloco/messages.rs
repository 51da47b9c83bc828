//! Values that the state machines of the syncer pass to each other.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::SenderTrust;
use crate::wire::{Fate, FragmentId, LearnerId, Round, Serial};

/// The order to begin a round, from [`super::Schedule`] to [`super::Rounds`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The round, which also numbers the version that it leads to.
    pub round: Round,
    /// Its fragment.
    pub fragment: FragmentId,
    /// Learners whose answers the round waits for.
    pub invited: BTreeSet<LearnerId>,
    /// In a last round, which waits for every learner: the number of last rounds that were launched together.
    /// Otherwise `None`.
    pub last_of: Option<u32>,
}

/// Facts about the sender of an update from the roster and the books, for the rounds of a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SenderInfo {
    /// Shortest believed time of one step, in milliseconds, above 0.
    pub step_ms_least: f64,
    /// Largest believed number of steps beyond H in one update; `None` if only elapsed time bounds it.
    pub steps_max: Option<u64>,
    /// Tokens of one step, above 0.
    pub step_tokens: u64,
    /// Time since the learner connected, in milliseconds, if none of its updates was ever merged on the fragment.
    /// Training before that does not count.
    pub stranger_ms: Option<u64>,
    /// Tokens leased to the learner and not yet merged on this fragment.
    pub unmerged_tokens: u64,
    /// Trust in the learner.
    #[serde(rename = "repute")]
    pub trust: SenderTrust,
    /// Whether its updates enter the norm statistics: it is trusted, or no trusted learner is connected.
    #[serde(rename = "has_voice")]
    pub is_in_norm_stats: bool,
    /// Merged tokens of the run that count for its schedule: the clock of the learning rate.
    pub clock_tokens: u64,
}

/// Outcome of one update, passed from [`super::Rounds`] to [`super::Books`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UpdateOutcome {
    /// The round that held the update, if one did.
    pub round: Option<Round>,
    /// The fragment.
    pub fragment: FragmentId,
    /// The sender.
    pub learner: LearnerId,
    /// Serial number that the sender gave it.
    pub serial: Serial,
    /// Tokens that count; for an update that was not accepted, the tokens that it claimed.
    pub tokens: u64,
    /// Its fate.
    pub fate: Fate,
}
