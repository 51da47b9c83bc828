//! A soak: a run of light learners for an hour or more, whose syncer is killed now and then. What grows with time is
//! seen here: memory, files, threads, and what the tape takes of the disk.

mod figures;
mod gauge;
mod run;

use std::time::Duration;

use serde_json::Value;

use super::processes::Programs;
pub use gauge::{Held, held};

/// Minutes, unless it is said how many.
const MINUTES: u32 = 60;

/// Has learners of the preset `tiny` train for so many minutes.
///
/// # Errors
/// A sentence: a program could not be started, the syncer did not come back, or a learner ended.
pub fn run(minutes: Option<u32>, programs: &Programs) -> Result<Value, String> {
    let length = Duration::from_secs(60 * u64::from(minutes.unwrap_or(MINUTES)));
    let seen = run::run(programs, length)?;
    Ok(figures::figures(&seen))
}
