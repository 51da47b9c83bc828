//! The state that a syncer recovers from, together with its tape.

use archipelago_core::diloco::FragmentState;
use archipelago_core::diloco::syncer::SyncerRecord;

/// The books after row `seq` of the tape, and the fragments at that time or later.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    pub(super) seq: u64,
    pub(super) record: SyncerRecord,
    pub(super) states: Vec<FragmentState>,
}

/// Returns the bytes of parameters in `states`.
pub(super) fn bytes<'a>(states: impl Iterator<Item = &'a FragmentState>) -> u64 {
    states.map(|state| 12 * state.theta.len() as u64).sum()
}
