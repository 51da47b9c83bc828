//! Values that the state machines of the syncer pass to each other.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::SenderTrust;
use crate::wire::{Fate, FragmentId, LearnerId, Round, Serial};

/// Order to begin a round, from [`super::Schedule`] to [`super::Rounds`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Number of the round. The version that the round produces has the same number.
    pub round: Round,
    /// Fragment to merge.
    pub fragment: FragmentId,
    /// Learners whose answers the round waits for.
    pub invited: BTreeSet<LearnerId>,
    /// Number of last rounds launched together with this one, including it; `None` if this is not a last round. A last
    /// round waits for every learner.
    pub last_of: Option<u32>,
}

/// Facts about the sender of an update, from roster, ledger and trust, for admission on one fragment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SenderInfo {
    /// Lower bound on the time of one training step, in milliseconds, above 0.
    pub step_ms_least: f64,
    /// Upper bound on the steps beyond H in one update; `None` if only elapsed time bounds them.
    pub steps_max: Option<u64>,
    /// Tokens of one step, above 0.
    pub step_tokens: u64,
    /// Time since the learner connected, in milliseconds; `None` once an update of it was merged on the fragment.
    /// Without a merged update, training before the connection is not credited.
    pub stranger_ms: Option<u64>,
    /// Tokens leased to the learner and not yet merged on this fragment.
    pub unmerged_tokens: u64,
    /// Trust in the learner.
    #[serde(rename = "repute")]
    pub trust: SenderTrust,
    /// Whether the update enters the norm statistics: its sender is trusted, or no trusted learner is connected.
    #[serde(rename = "has_voice")]
    pub is_in_norm_stats: bool,
    /// Merged tokens that the run's schedule credits; they determine the learning rate.
    pub clock_tokens: u64,
}

/// Outcome of one update, from [`super::Rounds`] to [`super::Accounting`].
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
    /// Credited tokens of a merged update; claimed tokens of a late or refused one, or 0 if only its gateway has them.
    pub tokens: u64,
    /// Its fate.
    pub fate: Fate,
}
