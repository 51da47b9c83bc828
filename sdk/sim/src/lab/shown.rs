//! Results of checks of single updates.

use archipelago_core::diloco::syncer::ContributionVerdict;
use serde::Serialize;

/// The result of the check of one machine's update.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MachineShown {
    /// The machine.
    pub machine: u32,
    /// The round.
    pub round: u64,
    /// See [`archipelago_core::diloco::syncer::UpdateScore::own`].
    pub own: f64,
    /// See [`archipelago_core::diloco::syncer::UpdateScore::others`].
    pub others: f64,
    /// The syncer's new verdict on the learner, if this check changed it.
    #[serde(skip)]
    pub regard: Option<ContributionVerdict>,
}
