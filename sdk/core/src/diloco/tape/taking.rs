//! A snapshot, taken while merging goes on.

use super::Gate;
use crate::diloco::FragmentState;
use crate::diloco::syncer::{Syncer, SyncerRecord};

/// The books as they were, and each fragment as it comes to rest after that.
#[derive(Debug)]
pub struct Taking {
    seq: u64,
    record: SyncerRecord,
    /// `[P]`
    states: Vec<Option<FragmentState>>,
    /// The newest row that is in any of them: what is in a snapshot must be on the tape, too.
    newest: u64,
}

impl Taking {
    /// Begins after row `decided`, which is the newest.
    #[must_use]
    pub fn begin(syncer: &Syncer, decided: u64) -> Self {
        let states = vec![None; syncer.fragments().count().into()];
        let mut taking = Self { seq: decided, record: syncer.record_amid(), states, newest: decided };
        taking.step(syncer, decided);
        taking
    }

    /// Takes in the fragments that are at rest by now; `decided` is the newest row.
    pub fn step(&mut self, syncer: &Syncer, decided: u64) {
        for (state, kept) in syncer.rests().zip(&mut self.states) {
            if let Some(state) = state.filter(|_| kept.is_none()) {
                *kept = Some(state.clone());
                self.newest = decided;
            }
        }
    }

    /// Whether it may be written: every fragment is in it, and all that is in it is on the tape.
    #[must_use]
    pub fn is_ready<T>(&self, gate: &Gate<T>) -> bool {
        self.states.iter().all(Option::is_some) && gate.is_safe(self.newest)
    }

    /// The last row that its books know of, the books, and the fragments, `[P]` once it is ready.
    #[must_use]
    pub fn into_parts(self) -> (u64, SyncerRecord, Vec<FragmentState>) {
        (self.seq, self.record, self.states.into_iter().flatten().collect())
    }
}
