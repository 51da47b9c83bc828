//! Repeated kills of a syncer under learners that keep training. The benchmark checks that no receipt is lost,
//! how soon all take part again, whether a learner waits for data, and that learners keep their shares of tokens.

mod figures;
mod run;

use serde_json::Value;

use super::processes::Programs;

/// Number of learners under the syncer.
const LEARNERS: usize = 4;
/// Default number of consecutive kills.
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
    /// Returns true if any of these flags was given.
    pub fn any(&self) -> bool {
        self.points.is_some()
    }
}

/// Kills the syncer under [`LEARNERS`] learners of the preset `tiny`, at times drawn from `seed`.
///
/// # Errors
/// A message if a program could not be started, a syncer did not come back, or a learner ended.
pub fn run(args: &Args, seed: u64, programs: &Programs) -> Result<Value, String> {
    let points = args.points.unwrap_or(POINTS);
    let (history, proof) = run::run(programs, points, seed)?;
    Ok(figures::figures(&history, &proof))
}
