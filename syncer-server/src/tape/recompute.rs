//! Replay of a part of the tape without the updates of some learners, for rollbacks while the run continues.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use archipelago_core::diloco::syncer::{Rollback, senders};
use archipelago_core::diloco::{LearnerId, RunId};

use super::bodies::Reader;
use super::recover::{BODIES, Broken, broken, kept};
use super::{Row, Rows};
use crate::errors::ServerError;
use crate::store::Store;

/// Maximum number of checks whether a row is on disk, and the pause between them.
const POLLS_MAX: u32 = 200;
const POLL_EVERY: Duration = Duration::from_millis(50);

/// Replays the rows of `run` after row `after` into each of `rollbacks`.
///
/// # Errors
/// - `Disk`: the tape cannot be read.
/// - `DirCorrupt`: the tape is damaged, or required rows or bodies were deleted.
pub fn rollback(
    store: &Store,
    run: RunId,
    rollbacks: &mut [Rollback],
    after: u64,
) -> Result<(), ServerError> {
    let mut bodies = Reader::new(&store.dir().join(BODIES));
    read(store, run, after, |row| {
        let mut rollbacks = rollbacks.iter_mut();
        let followed = rollbacks
            .try_for_each(|rollback| rollback.follow(&row.entry, kept(&mut bodies, row.place, &mut None)));
        followed.map_err(|error| Broken::Row(row.seq, row.entry.kind(), error.to_string()))
    })
}

/// Returns the learners whose updates are in the merges after row `after` and up to row `until`. Waits up to ten
/// seconds until row `until` is on disk.
///
/// # Errors
/// Those of [`rollback`].
pub fn senders_between(
    store: &Store,
    run: RunId,
    after: u64,
    until: u64,
) -> Result<BTreeSet<LearnerId>, ServerError> {
    let path = store.tape_path();
    for _ in 0..POLLS_MAX {
        if Rows::open_read_only(&path, run).map_err(|error| broken(&path, error))?.last() >= until {
            break;
        }
        thread::sleep(POLL_EVERY);
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
    let rows = Rows::open_read_only(&path, run).map_err(|error| broken(&path, error))?;
    rows.read(after, take).map_err(|error: Broken| error.at(&path))
}
