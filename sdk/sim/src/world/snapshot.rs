//! What the syncer starts from after a crash.

use super::books::Books;
use archipelago::diloco::FragmentState;
use archipelago::diloco::syncer::{Syncer, SyncerRecord};

/// What the syncer starts from after a crash, and what was true then.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    pub(super) record: SyncerRecord,
    pub(super) states: Vec<FragmentState>,
    /// The checker's.
    pub(super) books: Books,
}

impl Snapshot {
    /// Of `syncer` now; `None` while anything is being merged.
    pub(super) fn of(syncer: &Syncer, books: &Books) -> Option<Self> {
        let record = syncer.record()?;
        Some(Self { record, states: syncer.states().cloned().collect(), books: books.clone() })
    }

    /// Bytes of parameters in it.
    pub(super) fn bytes(&self) -> u64 {
        self.states.iter().map(|state| 12 * state.theta.len() as u64).sum()
    }
}
