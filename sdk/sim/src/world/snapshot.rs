//! What the syncer starts from after a crash, with its tape.

use archipelago_core::diloco::FragmentState;
use archipelago_core::diloco::syncer::SyncerRecord;

/// The books after row `seq` of the tape, and the fragments as they were then or later.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    pub(super) seq: u64,
    pub(super) record: SyncerRecord,
    pub(super) states: Vec<FragmentState>,
}

/// Bytes of parameters in `states`.
pub(super) fn bytes<'a>(states: impl Iterator<Item = &'a FragmentState>) -> u64 {
    states.map(|state| 12 * state.theta.len() as u64).sum()
}
