//! Write order of bodies and rows, several decisions at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Blobs, Place, Row, Tape};
use crate::diloco::{Entry, MergeEntry, RemadeEntry};
use crate::wire::Round;

/// Jobs for the writer of a tape.
#[derive(Clone, Debug)]
pub enum TapeJob {
    /// Bodies that are merged in this round, in order.
    Bodies(Round, Vec<Arc<Vec<u8>>>),
    /// A decision.
    Row(Row),
    /// No row before this one is needed for recovery.
    Forget(u64),
}

/// Bodies of a round, and their location once they are written.
type Merging = (Vec<Arc<Vec<u8>>>, Option<Place>);

/// Bodies to which no stored row refers yet, and their locations once they are written.
#[derive(Debug, Default)]
pub struct Held(BTreeMap<Round, Merging>);

impl Held {
    /// Writes the bodies and rows of `batch`. No row is written before its bodies are stored. After an error the same
    /// batch can be tried again.
    ///
    /// # Errors
    /// Errors of `store`.
    pub fn write<E, S>(&mut self, batch: &[TapeJob], store: &mut S) -> Result<(), E>
    where
        S: Tape<Error = E> + Blobs<Error = E>,
    {
        let mut rows = Vec::new();
        for job in batch {
            match job {
                TapeJob::Bodies(round, bodies) => {
                    self.0.entry(*round).or_insert_with(|| (bodies.clone(), None));
                }
                TapeJob::Row(row) if row.seq > store.last() => rows.push(row.clone()),
                TapeJob::Row(_) | TapeJob::Forget(_) => {}
            }
        }
        for (bodies, place) in self.0.values_mut().filter(|(_, place)| place.is_none()) {
            *place = Some(store.append_bodies(bodies)?);
        }
        for row in &mut rows {
            if let Entry::Merged(MergeEntry { round, .. }) | Entry::Remade(RemadeEntry { round, .. }) =
                &row.entry
            {
                row.place = self.0.get(round).and_then(|(_, place)| *place);
            }
        }
        // A row must not refer to missing bodies.
        if rows.iter().any(|row| row.place.is_some())
            && let Err(error) = store.sync_bodies()
        {
            self.0.values_mut().for_each(|(_, place)| *place = None);
            return Err(error);
        }
        if !rows.is_empty() {
            store.append_rows(&rows)?;
        }
        for row in &rows {
            if let Entry::Merged(MergeEntry { round, .. })
            | Entry::Remade(RemadeEntry { round, .. })
            | Entry::Abandoned { round, .. } = &row.entry
            {
                self.0.remove(round);
            }
        }
        Ok(())
    }
}
