//! Errors of merges and of partial sums.

use super::FragmentState;
use crate::diloco::{FragmentId, LearnerId, OuterSpec, Round};

/// A merge that failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("round {round} on fragment {fragment} was not merged: {error}")]
pub struct MergeFailure {
    /// The round.
    pub round: Round,
    /// The fragment.
    pub fragment: FragmentId,
    /// Unchanged state of the fragment.
    pub state: FragmentState,
    /// Reason.
    pub error: MergeError,
}

/// Reasons for a merge to fail.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum MergeError {
    /// The updates cannot be read from the tape again.
    #[error("the merged updates cannot be read from the tape")]
    Unread,
    /// There is no update.
    #[error("a merge needs at least one update")]
    Empty,
    /// There are two updates of one learner.
    #[error("two updates of learner {learner} in one merge")]
    Duplicate {
        /// The learner.
        learner: LearnerId,
    },
    /// A weight is not a positive number, or makes the sum of weights infinite.
    #[error("weight {weight} of learner {learner}: weights and their sum must be finite and above 0")]
    Weight {
        /// The learner.
        learner: LearnerId,
        /// Its weight.
        weight: f64,
    },
    /// Weights for experts are invalid, or there are too few for the segments.
    #[error(
        "the weights of learner {learner} for experts must be finite, not below 0, and one for each expert"
    )]
    Experts {
        /// The learner.
        learner: LearnerId,
    },
    /// A body was checked for a fragment of another shape.
    #[error("the update of learner {learner} is for another fragment: {actual} bytes instead of {expected}")]
    Body {
        /// The learner.
        learner: LearnerId,
        /// Bytes of a body of this fragment.
        expected: usize,
        /// Bytes of this one.
        actual: usize,
    },
    /// A given sum has other updates than this merge, or another plan.
    #[error("the sum of {actual} updates does not match the {expected} of this merge")]
    Sum {
        /// Updates of the merge.
        expected: usize,
        /// Updates in the sum.
        actual: usize,
    },
    /// Directions cancel out in a given sum, which must be computed again.
    #[error(
        "the directions of updates cancel out on segment {segment}, and the sum of their lengths is missing"
    )]
    Cancelled {
        /// The first such segment.
        segment: usize,
    },
    /// Θ, Θ̂ or the momentum does not have the length of all segments.
    #[error("a state of {actual} values for a fragment of {expected}")]
    State {
        /// Values in the fragment.
        expected: usize,
        /// Values in the state.
        actual: usize,
    },
    /// The learning rate is not finite or not above 0, or the momentum is not from 0 to below 1.
    #[error(
        "outer step with learning rate {} and momentum {}: need lr > 0, 0 ≤ momentum < 1",
        .spec.lr,
        .spec.momentum
    )]
    Outer {
        /// The invalid values.
        spec: OuterSpec,
    },
}

/// Reasons for which updates cannot be summed, or bytes are not a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SumError {
    /// The plan, the codec or the fragment differs.
    #[error("the sum is of another merge, or of another fragment")]
    Plan,
    /// An update would be in the sum twice.
    #[error("the update of learner {learner} is in the sum already")]
    Duplicate {
        /// The learner.
        learner: LearnerId,
    },
    /// An update was checked for a fragment of another shape, or has no weights for its experts.
    #[error("the update of learner {learner} is for another fragment")]
    Update {
        /// The learner.
        learner: LearnerId,
    },
    /// A sum is too large to be exact: the plan was not made for these updates.
    #[error("value {index} of the sum is too large to be exact")]
    Range {
        /// Index of the value; sums of lengths come first.
        index: usize,
    },
    /// The bytes are of another version of this program.
    #[error("the sum has layout {layout}, which this program does not know")]
    Layout {
        /// Layout number of the bytes.
        layout: u8,
    },
    /// There are too few or too many bytes.
    #[error("a sum of {actual} bytes instead of {expected}")]
    Length {
        /// Expected number of bytes.
        expected: usize,
        /// Actual number of bytes.
        actual: usize,
    },
    /// Learners are not in ascending order.
    #[error("learner {learner} is out of order in a sum")]
    Order {
        /// First learner in a wrong place.
        learner: LearnerId,
    },
}
