//! Writes to a disk that may fail.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Rng;
use super::tape::Tape;
use archipelago_core::diloco::tape::{self, Blobs, Place, Row};

/// Share of the affected operations that fail. The rest succeed, so that the disk works between failures.
const FAILING_SHARE: f64 = 0.6;

/// A fault of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ailment {
    /// No free space: every write fails, and may leave a part behind.
    Full,
    /// Some writes fail, and may leave a part behind.
    Writes,
    /// Some syncs fail. Their data may or may not be on the disk, and later syncs do not report it.
    Syncs,
}

impl Ailment {
    /// All variants.
    pub const ALL: [Self; 3] = [Self::Full, Self::Writes, Self::Syncs];

    /// Returns true if a write fails, at random.
    pub(super) fn fails_to_write(self, rng: &mut Rng) -> bool {
        self == Self::Full || self == Self::Writes && rng.chance(FAILING_SHARE)
    }

    /// Returns true if a sync fails, at random.
    pub(super) fn fails_to_sync(self, rng: &mut Rng) -> bool {
        self == Self::Syncs && rng.chance(FAILING_SHARE)
    }
}

/// A failed write or sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failed;

/// The tape on a disk in its present condition.
pub(super) struct Attempt<'a> {
    pub(super) tape: &'a mut Tape,
    pub(super) ailment: Option<Ailment>,
    pub(super) rng: &'a mut Rng,
}

impl Attempt<'_> {
    fn fails_to_write(&mut self) -> bool {
        self.ailment.is_some_and(|ailment| ailment.fails_to_write(self.rng))
    }

    fn fails_to_sync(&mut self) -> bool {
        self.ailment.is_some_and(|ailment| ailment.fails_to_sync(self.rng))
    }
}

impl tape::Tape for Attempt<'_> {
    type Error = Failed;

    fn last(&self) -> u64 {
        self.tape.last()
    }

    fn append_rows(&mut self, rows: &[Row]) -> Result<(), Failed> {
        if self.fails_to_write() {
            self.tape.try_rows(rows, Some(&mut *self.rng));
            return Err(Failed);
        }
        if self.fails_to_sync() {
            self.tape.try_rows(rows, None);
            return Err(Failed);
        }
        self.tape.append_rows(rows);
        Ok(())
    }
}

impl Blobs for Attempt<'_> {
    type Error = Failed;

    fn append_bodies(&mut self, bodies: &[Arc<Vec<u8>>]) -> Result<Place, Failed> {
        if self.fails_to_write() {
            self.tape.try_bodies(bodies, self.rng);
            return Err(Failed);
        }
        Ok(self.tape.append_bodies(bodies))
    }

    fn sync_bodies(&mut self) -> Result<(), Failed> {
        if self.fails_to_sync() {
            self.tape.abandon_bodies();
            return Err(Failed);
        }
        self.tape.await_bodies();
        Ok(())
    }
}
