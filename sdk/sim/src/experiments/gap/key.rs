//! What tells one run from another.

use archipelago_sim::lab::{Corpus, LabError, Outcome, Recipe};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Who trains.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// M learners under a syncer
    Decoupled,
    /// One trainer with the batches of M
    DataParallel,
    /// The same with Lookahead
    Lookahead,
}

impl Side {
    /// Trains as `recipe` says, alone on `tokens` where it has no learners.
    ///
    /// # Errors
    /// Those of [`Recipe::train`], [`Recipe::train_alone`] and [`Trainers::check`].
    ///
    /// [`Trainers::check`]: archipelago_sim::lab::Trainers::check
    pub fn train(self, recipe: &Recipe, corpus: &Corpus, tokens: u64) -> Result<Outcome, LabError> {
        let found = match self {
            Self::Decoupled => recipe.train(corpus),
            Self::DataParallel | Self::Lookahead => recipe.train_alone(corpus, tokens),
        };
        recipe.trainers.as_ref().map_or(Ok(()), |trainers| trainers.check())?;
        found
    }
}

/// All of them.
pub(super) const SIDES: [Side; 3] = [Side::Decoupled, Side::DataParallel, Side::Lookahead];

/// Which parameters at the end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    Last,
    Averaged,
}

/// What tells one run from another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Key {
    /// Digest of the text.
    pub(super) text: String,
    /// Digest of all settings that are not named here.
    pub(super) settings: String,
    pub(super) side: Side,
    /// M.
    pub(super) learners: u32,
    /// Highest inner learning rate, as written.
    pub(super) lr: String,
    /// Share of the run over which it rises, as written.
    pub(super) warmup: String,
    pub(super) seed: u64,
    /// Whether the part of the text was looked at that is told of.
    pub(super) is_told: bool,
}
