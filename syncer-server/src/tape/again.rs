//! A part of the tape once more, while the run goes on: what would be without some learners.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use archipelago_core::diloco::syncer::{Remake, senders};
use archipelago_core::diloco::{LearnerId, RunId};

use super::bodies::Reader;
use super::recover::{BODIES, Broken, broken, kept};
use super::{Row, Rows};
use crate::errors::ServerError;
use crate::store::Store;

/// Looks for a row that is on its way to the disk, and the time between two of them.
const LOOKS_MAX: u32 = 200;
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Has `remakes` follow the tape of `run` after row `after`.
///
/// # Errors
/// - `Disk`: it cannot be read.
/// - `DirCorrupt`: it is damaged, or what is needed of it is forgotten.
pub fn remake(store: &Store, run: RunId, remakes: &mut [Remake], after: u64) -> Result<(), ServerError> {
    let mut bodies = Reader::new(&store.dir().join(BODIES));
    read(store, run, after, |row| {
        let mut remakes = remakes.iter_mut();
        let followed =
            remakes.try_for_each(|remake| remake.follow(&row.entry, kept(&mut bodies, row.place, &mut None)));
        followed.map_err(|error| Broken::Row(row.seq, row.entry.kind(), error.to_string()))
    })
}

/// Who has an update in the merges after row `after` up to row `until`; waits until that row is on the disk, for ten
/// seconds.
///
/// # Errors
/// As [`remake`].
pub fn senders_between(
    store: &Store,
    run: RunId,
    after: u64,
    until: u64,
) -> Result<BTreeSet<LearnerId>, ServerError> {
    let path = store.tape_path();
    for _ in 0..LOOKS_MAX {
        if Rows::look(&path, run).map_err(|error| broken(&path, error))?.last() >= until {
            break;
        }
        thread::sleep(LOOK_EVERY);
    }
    let mut found = BTreeSet::new();
    read(store, run, after, |row| {
        found.extend(senders(&row.entry).filter(|_| row.seq <= until));
        Ok(())
    })?;
    Ok(found)
}

fn read(
    store: &Store,
    run: RunId,
    after: u64,
    take: impl FnMut(Row) -> Result<(), Broken>,
) -> Result<(), ServerError> {
    let path = store.tape_path();
    let rows = Rows::look(&path, run).map_err(|error| broken(&path, error))?;
    rows.read(after, take).map_err(|error: Broken| error.at(&path))
}
