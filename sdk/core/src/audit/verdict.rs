//! What an audit finds.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How an audit ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The span was done again and led to the same bits.
    Passed,
    /// It was not as the learner says.
    Failed(Fault),
    /// It rests on something that this syncer does not keep any more, or the verifier could not run: nothing is said
    /// of the learner.
    Undecided,
    /// The learner left before it had answered: nothing is said of it.
    Left,
}

/// Which check failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The commitment does not begin where the one before ended.
    Chain,
    /// An update came without a commitment, from one that had agreed.
    Uncommitted,
    /// It was asked and did not answer in time.
    Unanswered,
    /// The answer is no span.
    Malformed,
    /// The state shown is not the one committed to before.
    Opening,
    /// The list shown is not the one committed to.
    Inputs,
    /// The list has other steps than were committed to.
    Steps,
    /// It trained on windows that were not leased to it, or on some of them twice.
    Window,
    /// A step was taken at a rate that the run's schedule did not give.
    Rate,
    /// A version was taken in that was never published.
    Version,
    /// What was merged was not taken out of its progress, or something else was.
    Include,
    /// The update claims other steps or tokens than were trained.
    Count,
    /// The list cannot be done again.
    Training,
    /// The steps lead to another state than was committed to.
    Closing,
    /// The update does not follow from its state.
    Codes,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Chain => "its commitment does not begin where the one before ended",
            Self::Uncommitted => "an update came without a commitment, though it had agreed to audits",
            Self::Unanswered => "it was asked and did not answer in time",
            Self::Malformed => "its answer makes no sense",
            Self::Opening => "the state that it shows is not the one that it committed to",
            Self::Inputs => "the list of steps that it shows is not the one that it committed to",
            Self::Steps => "it committed to other steps than it took",
            Self::Window => "it trained on text that was not leased to it, or on some of it twice",
            Self::Rate => "it trained at a learning rate that the run did not give",
            Self::Version => "it took in parameters that were never published",
            Self::Include => "it sent progress again that was merged, or took out some that was not",
            Self::Count => "its update claims other steps or tokens than it trained",
            Self::Training => "its steps cannot be taken again",
            Self::Closing => "its steps, taken again, lead to another state",
            Self::Codes => "its update does not follow from its state",
        })
    }
}
