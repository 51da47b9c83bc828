//! The two sides of a comparison: learners together, or a single trainer.

use archipelago_sim::lab::{Corpus, LabError, Lookahead, Outcome, Recipe};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Lookahead with its authors' settings for AdamW.
const LOOKAHEAD: Lookahead = Lookahead { steps: 6, share: 0.5 };

/// Training method.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// M learners under a syncer
    Decoupled,
    /// One trainer with the batches of M learners
    DataParallel,
    /// The same with Lookahead
    Lookahead,
}

impl Side {
    /// All variants.
    pub const ALL: [Self; 3] = [Self::Decoupled, Self::DataParallel, Self::Lookahead];

    /// Returns the Lookahead settings of this side, if any.
    pub fn lookahead(self) -> Option<Lookahead> {
        (self == Self::Lookahead).then_some(LOOKAHEAD)
    }

    /// Trains by `recipe`; a side without learners trains alone on `tokens` tokens.
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
