//! Interface of the medium that stores a tape: rows in one place, bodies in another. A server's disk and a simulated
//! one implement it; a store on several machines could.

use std::sync::Arc;

use super::{Place, Row};

/// Stores the rows of a run, in order. Only one process may append at a time. A process that finds rows of another
/// one returns an error and no longer leads the run. No clock decides that.
pub trait Tape {
    /// Reason for which a row cannot be stored.
    type Error;

    /// Returns the newest stored row.
    fn last(&self) -> u64;

    /// Appends `rows`, which follow [`Self::last`], all or none. They are stored when this returns.
    ///
    /// # Errors
    /// Errors of the store.
    fn append_rows(&mut self, rows: &[Row]) -> Result<(), Self::Error>;
}

/// Stores the bodies to which rows refer: the updates of learners. Bodies without a row do no harm.
pub trait Blobs {
    /// Reason for which a body cannot be stored.
    type Error;

    /// Appends `bodies` one after another. They are stored after [`Self::sync_bodies`]. After an error none of them
    /// counts, and they can be appended again.
    ///
    /// # Errors
    /// Errors of the store.
    fn append_bodies(&mut self, bodies: &[Arc<Vec<u8>>]) -> Result<Place, Self::Error>;

    /// Waits until all appended bodies are stored. After an error it is unknown which ones are, so none counts.
    ///
    /// # Errors
    /// Errors of the store.
    fn sync_bodies(&mut self) -> Result<(), Self::Error>;
}
