//! What single updates of machines showed.

use archipelago_core::diloco::syncer::Regard;
use serde::Serialize;

/// What one update of one machine showed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MachineShown {
    /// The machine.
    pub machine: u32,
    /// The round.
    pub round: u64,
    /// See [`archipelago_core::diloco::syncer::Shown::own`].
    pub own: f64,
    /// See [`archipelago_core::diloco::syncer::Shown::others`].
    pub others: f64,
    /// What is to be thought of its learner from this look on, if that is another thing than before.
    #[serde(skip)]
    pub regard: Option<Regard>,
}
