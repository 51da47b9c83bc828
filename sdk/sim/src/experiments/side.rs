//! Who trains: learners together, or one trainer alone beside them.

use archipelago_sim::lab::{Corpus, LabError, Lookahead, Outcome, Recipe};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Lookahead as its authors use it beside AdamW.
const LOOKAHEAD: Lookahead = Lookahead { steps: 6, share: 0.5 };

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
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Decoupled, Self::DataParallel, Self::Lookahead];

    /// What a recipe of this side has of Lookahead.
    pub fn lookahead(self) -> Option<Lookahead> {
        (self == Self::Lookahead).then_some(LOOKAHEAD)
    }

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
