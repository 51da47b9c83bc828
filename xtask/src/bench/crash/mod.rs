//! A syncer that is killed again and again, under learners that train on: whether it knows afterwards what it told
//! them, how soon all take part again, whether one stands still for want of data, and whether one comes to train more
//! than the others.

mod figures;
mod run;

use serde_json::Value;

use super::processes::Programs;

/// Learners under the syncer.
const LEARNERS: usize = 4;
/// Kills, one after the other, unless it is said how many.
const POINTS: u32 = 20;

/// How often.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// Crash: kills of the syncer [default: 20].
    #[arg(long)]
    points: Option<u32>,
}

impl Args {
    /// Whether any of these was given.
    pub fn any(&self) -> bool {
        self.points.is_some()
    }
}

/// Kills the syncer under [`LEARNERS`] learners of the preset `tiny`, when `seed` says.
///
/// # Errors
/// A sentence: a program could not be started, a syncer did not come back, or a learner ended.
pub fn run(args: &Args, seed: u64, programs: &Programs) -> Result<Value, String> {
    let points = args.points.unwrap_or(POINTS);
    let (history, proof) = run::run(programs, points, seed)?;
    Ok(figures::figures(&history, &proof))
}
