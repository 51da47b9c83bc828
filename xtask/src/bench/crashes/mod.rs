//! A syncer that is killed again and again, under learners that train on: how soon all take part again, whether one
//! stands still for want of data, and whether one comes to train more than the others.

mod figures;
mod run;

use serde_json::Value;

use super::processes::Programs;

/// Learners under the syncer.
const LEARNERS: usize = 4;
/// Kills, one after the other.
const KILLS: usize = 20;

/// Kills the syncer [`KILLS`] times under [`LEARNERS`] learners of the preset `tiny`.
///
/// # Errors
/// A sentence: a program could not be started, a syncer did not come back, or a learner ended.
pub fn run(programs: &Programs) -> Result<Value, String> {
    let history = run::run(programs)?;
    Ok(figures::figures(&history))
}
