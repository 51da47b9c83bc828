//! Snapshot that is taken while merges go on.

use super::Gate;
use crate::diloco::FragmentState;
use crate::diloco::syncer::{Syncer, SyncerRecord};

/// The books at one decision, and each fragment at its first rest after it.
#[derive(Debug)]
pub struct Taking {
    seq: u64,
    record: SyncerRecord,
    /// `[P]`
    states: Vec<Option<FragmentState>>,
    /// Newest row in any of the fragments: everything in a snapshot must be on the tape, too.
    newest: u64,
}

impl Taking {
    /// Begins a snapshot after row `decided`, the newest one.
    #[must_use]
    pub fn begin(syncer: &Syncer, decided: u64) -> Self {
        let states = vec![None; syncer.fragments().count().into()];
        let mut taking = Self { seq: decided, record: syncer.record_amid(), states, newest: decided };
        taking.step(syncer, decided);
        taking
    }

    /// Adds the fragments that are at rest now; `decided` is the newest row.
    pub fn step(&mut self, syncer: &Syncer, decided: u64) {
        for (state, kept) in syncer.rests().zip(&mut self.states) {
            if let Some(state) = state.filter(|_| kept.is_none()) {
                *kept = Some(state.clone());
                self.newest = decided;
            }
        }
    }

    /// Returns true if the snapshot may be written: it has every fragment, and all its decisions are on the tape.
    #[must_use]
    pub fn is_ready<T>(&self, gate: &Gate<T>) -> bool {
        self.states.iter().all(Option::is_some) && gate.is_safe(self.newest)
    }

    /// Returns the last row in the books, the books, and the fragments, `[P]` once it is ready.
    #[must_use]
    pub fn into_parts(self) -> (u64, SyncerRecord, Vec<FragmentState>) {
        (self.seq, self.record, self.states.into_iter().flatten().collect())
    }
}
