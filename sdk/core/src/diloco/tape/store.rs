//! Where a tape is kept: rows in one place, bodies in another. A server's disk and a simulated one are two such places;
//! a store on several machines would be a third.

use std::sync::Arc;

use super::{Place, Row};

/// Keeps the rows of a run, in order. Only one process may append at a time: who finds that another one has appended
/// since says so with an error, and leads the run no more. No clock decides that.
pub trait Tape {
    /// Why a row cannot be kept.
    type Error;

    /// The newest row that is kept.
    fn last(&self) -> u64;

    /// Appends `rows`, which follow on [`Self::last`], all or none; they are kept when this returns.
    ///
    /// # Errors
    /// What the store says.
    fn append_rows(&mut self, rows: &[Row]) -> Result<(), Self::Error>;
}

/// Keeps the bodies that rows speak of: what learners sent. What no row speaks of does no harm.
pub trait Blobs {
    /// Why a body cannot be kept.
    type Error;

    /// Appends `bodies` one after another; they are kept after [`Self::sync_bodies`]. After an error nothing of them
    /// counts, and they can be appended again.
    ///
    /// # Errors
    /// What the store says.
    fn append_bodies(&mut self, bodies: &[Arc<Vec<u8>>]) -> Result<Place, Self::Error>;

    /// Waits until all bodies that were appended are kept. After an error nobody knows which of them are: none counts.
    ///
    /// # Errors
    /// What the store says.
    fn sync_bodies(&mut self) -> Result<(), Self::Error>;
}
