//! The run itself: processes, kills, and observations.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use archipelago_demo::{Process, http};
use serde_json::Value;

use super::LEARNERS;
use super::figures::{History, Kill, Said};
use crate::bench::chance::Chance;
use crate::bench::processes::{Programs, all_live, empty_folder, status};
use crate::bench::proof::{Proof, prove, receipts};

/// Warm-up after all learners have joined, before tokens count. The first steps are not typical.
const WARM: Duration = Duration::from_secs(10);
/// Time until the first kill. By then the syncer has saved a snapshot with current leases.
const STEADY: Duration = Duration::from_secs(35);
/// Maximum additional delay from the return of all learners to the next kill, in milliseconds. It is less than the time
/// between two snapshots, so the replayed part of the tape grows until a snapshot falls into the delay.
const GAP_MS: u64 = 3_000;
/// Minimum delay. Learners that are merged in it reconnect at once; others back off.
const GAP_MS_MIN: u64 = 1_000;

/// Files of the run, and the data to restart the syncer.
struct Stage<'a> {
    programs: &'a Programs,
    folder: PathBuf,
}

/// Kills the syncer `points` times, at times drawn from `seed`. Returns the observations and the final state.
///
/// # Errors
/// A message if a program could not be started, a syncer did not come back, or a learner ended.
pub fn run(programs: &Programs, points: u32, seed: u64) -> Result<(History, Proof), String> {
    let stage = Stage { programs, folder: empty_folder("crash")? };
    let (mut syncer, address) = stage.start_syncer("127.0.0.1:0")?;
    let mut learners = Vec::new();
    for number in 1..=LEARNERS {
        learners.push(stage.start_learner(address, number)?);
    }
    all_live(address, &mut syncer, LEARNERS)?;
    thread::sleep(WARM);
    let warm: Vec<f64> = learners.iter().map(trained).collect();
    thread::sleep(STEADY);
    let before =
        warm.into_iter().zip(learners.iter().map(trained)).map(|(warm, first)| [warm, first]).collect();
    let (mut kills, mut born, mut chance) = (Vec::<Kill>::new(), Instant::now(), Chance::new(seed));
    for number in 1..=points {
        thread::sleep(Duration::from_millis(GAP_MS_MIN + chance.below(GAP_MS)));
        let (killed, lived_s) = (Instant::now(), born.elapsed().as_secs_f64());
        let starved = longest_starved(&learners);
        syncer.kill();
        let dead = Instant::now();
        (syncer, _) = stage.start_syncer(&address.to_string())?;
        born = Instant::now();
        let recovery_s = dead.elapsed().as_secs_f64();
        all_live(address, &mut syncer, LEARNERS)?;
        let live_s = killed.elapsed().as_secs_f64();
        if let Some(last) = kills.last_mut() {
            last.starved_s = (starved - last.starved_s).max(0.0);
        }
        println!(
            "   kill {number} of {points}: it answers after {recovery_s:.2} s, all live after {live_s:.2} s"
        );
        kills.push(Kill { lived_s, recovery_s, live_s, starved_s: starved });
        if let Some(ended) =
            learners.iter_mut().find_map(|learner| learner.exit_code().map(|_| learner.last_words()))
        {
            return Err(format!("a learner ended: {ended}"));
        }
    }
    // The last kill is observed a little longer.
    thread::sleep(Duration::from_millis(GAP_MS));
    if let Some(last) = kills.last_mut() {
        last.starved_s = (longest_starved(&learners) - last.starved_s).max(0.0);
    }
    // The final kill happens under load like all others. Afterwards no process changes the files.
    syncer.kill();
    let history = History { kills, said: learners.iter().map(said).collect(), before };
    learners.iter_mut().for_each(Process::kill);
    let told: Vec<_> = learners.iter().flat_map(|learner| receipts(&learner.stdout())).collect();
    let replay = programs.replay(&stage.folder)?;
    let (_syncer, address) = stage.start_syncer("127.0.0.1:0")?;
    let all = http::get(address, "/v1/learners")?;
    let rows = all["learners"].as_array().cloned().unwrap_or_default();
    Ok((history, prove(&told, &replay, &status(address)?, &rows)))
}

/// Returns the longest time that any learner has waited for data so far, in seconds.
fn longest_starved(learners: &[Process]) -> f64 {
    let starved = learners.iter().filter_map(|learner| said(learner).last().map(|said| said.starved_ms));
    starved.fold(0.0, f64::max) / 1e3
}

impl Stage<'_> {
    /// Starts a syncer that listens on `listen`. Returns it with its address.
    fn start_syncer(&self, listen: &str) -> Result<(Process, SocketAddr), String> {
        // Each start has its own log, whose first line has the address.
        let mut logs = (1_u32..).map(|life| format!("syncer-{life}"));
        let is_free = |log: &String| !self.folder.join(log).with_extension("jsonl").exists();
        let log = logs.find(is_free).expect("one is free");
        self.programs.serve("tiny", listen, &self.folder, &log, &[])
    }

    fn start_learner(&self, address: SocketAddr, number: usize) -> Result<Process, String> {
        self.programs.join(address, &self.folder, &format!("learner-{number}"), &[])
    }
}

/// Returns the reports of `learner` so far.
fn said(learner: &Process) -> Vec<Said> {
    let lines = learner.stdout();
    let events = lines.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let reports = events.filter(|event| event["event"] == "progress");
    let number = |report: &Value, key: &str| report[key].as_f64().unwrap_or(0.0);
    reports
        .map(|report| Said {
            tokens: number(&report, "tokensTrained"),
            starved_ms: number(&report, "starvedMs"),
        })
        .collect()
}

/// Returns the tokens that a learner has trained on so far.
fn trained(learner: &Process) -> f64 {
    said(learner).last().map_or(0.0, |said| said.tokens)
}
