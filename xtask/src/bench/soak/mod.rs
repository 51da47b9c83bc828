//! Soak: a run of light learners for an hour or more, whose syncer is killed now and then. It shows growth over time of
//! memory, files, threads, and the tape on disk.

mod figures;
mod gauge;
mod run;

use std::time::Duration;

use serde_json::Value;

use super::processes::Programs;
pub use gauge::{Held, held};

/// Default length in minutes.
const MINUTES: u32 = 60;

/// Runs learners of the preset `tiny` for `minutes`.
///
/// # Errors
/// A message if a program could not be started, the syncer did not come back, or a learner ended.
pub fn run(minutes: Option<u32>, programs: &Programs) -> Result<Value, String> {
    let length = Duration::from_secs(60 * u64::from(minutes.unwrap_or(MINUTES)));
    let seen = run::run(programs, length)?;
    Ok(figures::figures(&seen))
}
