//! Storm: a run under faults, compared with the same run without faults. Learners are killed, frozen, cut off, moved
//! far away, or put behind thin and lossy links, and the syncer is killed too.

mod figures;
mod plan;
mod run;

use std::time::Duration;

use serde_json::Value;

use self::plan::plan;
use super::processes::Programs;
pub use figures::quantile;

/// Default number of learners of each run.
const LEARNERS: usize = 32;
/// Default length of each of the two runs in minutes.
const MINUTES: u32 = 8;

/// How large.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// Storm: learners, 2 to 256 [default: 32].
    #[arg(long, value_parser = clap::value_parser!(u16).range(2..=256))]
    islands: Option<u16>,
}

impl Args {
    /// Returns true if any of these flags was given.
    pub fn any(&self) -> bool {
        self.islands.is_some()
    }
}

/// Runs the preset `tiny` twice: without faults, and under faults drawn from `seed`.
///
/// # Errors
/// A message if a program could not be started, a syncer did not come back, or a learner ended by itself.
pub fn run(args: &Args, minutes: Option<u32>, seed: u64, programs: &Programs) -> Result<Value, String> {
    let learners = args.islands.map_or(LEARNERS, usize::from);
    let length = Duration::from_secs(60 * u64::from(minutes.unwrap_or(MINUTES)));
    println!("   fair weather: {learners} learners, {} s", length.as_secs());
    let fair = run::run(programs, learners, length, &[])?;
    let faults = plan(seed, learners, length);
    println!("   storm: {} faults", faults.len());
    let storm = run::run(programs, learners, length, &faults)?;
    Ok(figures::figures(&faults, length, &fair, &storm))
}
