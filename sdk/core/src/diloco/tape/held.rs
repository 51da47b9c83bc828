//! In which order bodies and rows are written, several decisions at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Blobs, Place, Row, Tape};
use crate::diloco::{Entry, MergeEntry, RemadeEntry};
use crate::wire::Round;

/// What there is to write.
#[derive(Clone, Debug)]
pub enum TapeJob {
    /// These are merged in this round, in order.
    Bodies(Round, Vec<Arc<Vec<u8>>>),
    /// A decision.
    Row(Row),
    /// Nothing before this row is needed to go on.
    Forget(u64),
}

/// What is merged in a round, and where it is once it is written.
type Merging = (Vec<Arc<Vec<u8>>>, Option<Place>);

/// Bodies that no row that is kept speaks of yet, and where they are once they are written.
#[derive(Debug, Default)]
pub struct Held(BTreeMap<Round, Merging>);

impl Held {
    /// Writes the bodies and rows of `batch`: no row is written before what it speaks of is kept. After an error the
    /// same batch can be tried again.
    ///
    /// # Errors
    /// Those of `store`.
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
        // A row must not speak of what is not there.
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
