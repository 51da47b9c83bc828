//! Why updates were not merged.

use super::FragmentState;
use crate::diloco::{FragmentId, LearnerId, OuterSpec, Round};

/// A merge that was not done.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("round {round} on fragment {fragment} was not merged: {error}")]
pub struct MergeFailure {
    /// The round.
    pub round: Round,
    /// The fragment.
    pub fragment: FragmentId,
    /// Its state, as it was.
    pub state: FragmentState,
    /// Why.
    pub error: MergeError,
}

/// Why a merge was not done.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum MergeError {
    /// The tape does not give again what was merged.
    #[error("what was merged cannot be read again")]
    Unread,
    /// Nothing to merge.
    #[error("a merge needs at least one update")]
    Empty,
    /// Two updates of one learner.
    #[error("two updates of learner {learner} in one merge")]
    Duplicate {
        /// The learner.
        learner: LearnerId,
    },
    /// A weight that is no positive number, or that makes the sum of weights infinite.
    #[error("weight {weight} of learner {learner}: weights and their sum must be finite and above 0")]
    Weight {
        /// The learner.
        learner: LearnerId,
        /// Its weight.
        weight: f64,
    },
    /// Weights for experts that are none, or are not as many as the segments ask for.
    #[error(
        "the weights of learner {learner} for experts: they are finite, not below 0, and one for each expert"
    )]
    Experts {
        /// The learner.
        learner: LearnerId,
    },
    /// A body that was checked for a fragment of another shape.
    #[error("the update of learner {learner} is for another fragment: {actual} bytes instead of {expected}")]
    Body {
        /// The learner.
        learner: LearnerId,
        /// Bytes of a body of this fragment.
        expected: usize,
        /// Bytes of this one.
        actual: usize,
    },
    /// A sum that was made apart has not the updates of this merge, or was made by another plan.
    #[error("the sum of {actual} updates is not that of the {expected} of this merge")]
    Sum {
        /// Updates of the merge.
        expected: usize,
        /// Updates in the sum.
        actual: usize,
    },
    /// Directions cancel out in a sum that was made apart: it is to be made once more.
    #[error("the directions of updates cancel out on segment {segment}, and were not added up by length")]
    Cancelled {
        /// The first such segment.
        segment: usize,
    },
    /// Θ, Θ̂ or the momentum is not as long as the segments together.
    #[error("a state of {actual} values for a fragment of {expected}")]
    State {
        /// Values in the fragment.
        expected: usize,
        /// Values in the state.
        actual: usize,
    },
    /// Learning rate not finite or not above 0, or momentum outside 0 to below 1.
    #[error(
        "outer step with learning rate {} and momentum {}: need lr > 0, 0 ≤ momentum < 1",
        .spec.lr,
        .spec.momentum
    )]
    Outer {
        /// The offending values.
        spec: OuterSpec,
    },
}

/// Why updates were not added up, or bytes are no sum of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SumError {
    /// The plan, the code or the fragment is another one.
    #[error("the sum is one of another merge, or of another fragment")]
    Plan,
    /// An update would be in the sum twice.
    #[error("the update of learner {learner} is in the sum already")]
    Duplicate {
        /// The learner.
        learner: LearnerId,
    },
    /// An update that was checked for a fragment of another shape, or that has no weights for its experts.
    #[error("the update of learner {learner} is for another fragment")]
    Update {
        /// The learner.
        learner: LearnerId,
    },
    /// A sum that is too large to be exact: the plan was not made for these updates.
    #[error("value {index} of the sum is too large to be exact")]
    Range {
        /// Which value, those of lengths first.
        index: usize,
    },
    /// Bytes of another version of this program.
    #[error("the bytes of a sum are of layout {layout}, which this program does not know")]
    Layout {
        /// The layout that they name.
        layout: u8,
    },
    /// Too few bytes or too many.
    #[error("a sum of {actual} bytes instead of {expected}")]
    Length {
        /// Bytes that it should have.
        expected: usize,
        /// Bytes there are.
        actual: usize,
    },
    /// Learners are not in ascending order.
    #[error("learner {learner} stands in the wrong place of a sum")]
    Order {
        /// The first one that does.
        learner: LearnerId,
    },
}
