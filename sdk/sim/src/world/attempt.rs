//! Writing to a disk that may fail.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Rng;
use super::tape::Tape;
use archipelago_core::diloco::tape::{self, Blobs, Place, Row};

/// How often what a disk fails at fails, so that it works between two failures, too.
const FAILING_SHARE: f64 = 0.6;

/// What a disk fails at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ailment {
    /// It has no room: every write ends with an error, and some of it may be there.
    Full,
    /// Some writes end with an error, of which some part may be there.
    Writes,
    /// Some syncs end with an error. What they were for may be on the disk or not, and no later sync tells.
    Syncs,
}

impl Ailment {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Full, Self::Writes, Self::Syncs];

    /// Whether a write fails, by chance.
    pub(super) fn fails_to_write(self, rng: &mut Rng) -> bool {
        self == Self::Full || self == Self::Writes && rng.chance(FAILING_SHARE)
    }

    /// Whether a sync fails, by chance.
    pub(super) fn fails_to_sync(self, rng: &mut Rng) -> bool {
        self == Self::Syncs && rng.chance(FAILING_SHARE)
    }
}

/// The disk took something not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failed;

/// What is written of the tape to a disk as it is at this moment.
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
