//! The values that the machines of the syncer hand to each other.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::wire::{Fate, FragmentId, LearnerId, Round, Serial};

/// The order to begin a round, from [`super::Schedule`] to [`super::Rounds`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The round, which also numbers the version that it leads to.
    pub round: Round,
    /// Its fragment.
    pub fragment: FragmentId,
    /// Whose answers it waits for.
    pub invited: BTreeSet<LearnerId>,
    /// For the last round on the fragment, which waits for everyone: how many such rounds were launched together.
    pub last_of: Option<u32>,
}

/// What is thought of the sender of an update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repute {
    /// It has yet to prove itself.
    pub is_new: bool,
    /// It is suspected of not training: what it sends weighs next to nothing.
    pub is_doubted: bool,
    /// Whether its updates show that it trains, `None` if nobody looks at them. Beside one of whom it shows, one of
    /// whom it does not has the mean share of a merge at most.
    pub is_shown: Option<bool>,
}

/// What the roster and the books know of the sender of an update, for the rounds of a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Standing {
    /// The shortest time in which it is believed to take a step, in milliseconds, above 0.
    pub step_ms_least: f64,
    /// Steps that are believed of one update of it beyond H, at most; `None` where that follows from time alone.
    pub steps_max: Option<u64>,
    /// Tokens of one of its steps, above 0.
    pub step_tokens: u64,
    /// For how long it is connected, in milliseconds, if nothing of it was ever merged on the fragment: what it trained
    /// before that does not count.
    pub stranger_ms: Option<u64>,
    /// Tokens that were leased to it and are not merged on this fragment.
    pub unmerged_tokens: u64,
    /// What is thought of it.
    pub repute: Repute,
    /// It has a voice in what is usual: it need not prove itself any more, or nobody is there who need not.
    pub has_voice: bool,
    /// The run's merged tokens that count for its schedule: the clock of the learning rate.
    pub clock_tokens: u64,
}

/// What became of one update, from [`super::Rounds`] to [`super::Books`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settled {
    /// The round that it was part of, if it came to that.
    pub round: Option<Round>,
    /// The fragment.
    pub fragment: FragmentId,
    /// Who sent it.
    pub learner: LearnerId,
    /// As its sender numbered it.
    pub serial: Serial,
    /// Its tokens, as far as they count; those that it named if it was not taken in.
    pub tokens: u64,
    /// Its fate.
    pub fate: Fate,
}
