//! Counters of a learner.

/// Counts of receipts, and the learning rate of the last step.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) updates_merged: u64,
    pub(super) updates_late: u64,
    pub(super) updates_refused: u64,
    /// Merged tokens of each update times its fragment's share of the parameters.
    pub(super) tokens_merged: f64,
    pub(super) learning_rate: f32,
}
