//! One cell of the grid: a syncer and two learners as processes, one of them behind a link.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::time::Duration;

use archipelago_shaper::{Link, Shape};
use serde_json::Value;

use super::figures::{Said, row};
use super::grid::Cell;
use crate::bench::processes::{Programs, empty_folder, still_runs};

/// Maximum wait for a learner to end after its time.
const END_WAIT: Duration = Duration::from_secs(60);
/// File with the number of programs that want to compute.
const LOAD: &str = "/proc/loadavg";

/// Runs both learners for `seconds`. Returns the row of the table.
///
/// # Errors
/// A message if a program could not be started, the syncer ended, or the near learner never trained.
pub fn measure(cell: &Cell, seconds: u32, data: Option<&Path>, programs: &Programs) -> Result<Value, String> {
    let folder = empty_folder("links")?;
    let data: Vec<OsString> = data.into_iter().flat_map(|data| ["--data".into(), data.into()]).collect();
    let (mut syncer, address) = programs.serve(&cell.preset, "127.0.0.1:0", &folder, "syncer", &data)?;
    let failed = |error| format!("no link to {address}: {error}");
    let link = Link::open(address, Shape::new(cell.mbit_per_s, cell.round_trip)).map_err(failed)?;
    let span = format!("{seconds}s");
    let learner = |name, address| programs.join(address, &folder, name, &["--for", &span]);
    let (mut near, mut far) = (learner("near", address)?, learner("far", link.address())?);
    for process in [&mut near, &mut far] {
        // A learner that has not ended by then is measured by its last report.
        process.wait(Duration::from_secs(seconds.into()) + END_WAIT);
    }
    still_runs(&mut syncer)?;
    let said = [&near, &far].map(|process| Said::read(&process.stdout()));
    let [near_said, far_said] = &said;
    if !near_said.has_trained() {
        return Err(format!("the near learner never trained: {}", near.last_words()));
    }
    Ok(row(cell, far_said, near_said, link.carried(), load()))
}

/// Returns the number of runnable programs, averaged over the last minute, the learners and the syncer included.
fn load() -> Option<f64> {
    fs::read_to_string(LOAD).ok()?.split(' ').next()?.parse().ok()
}
