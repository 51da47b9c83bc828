//! The run itself: processes, kills, and what is seen of them.

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

/// From then on, after all have joined, tokens count: what happens first is not typical.
const WARM: Duration = Duration::from_secs(10);
/// Then the syncer is first killed: it has saved a snapshot that knows of leases under way.
const STEADY: Duration = Duration::from_secs(35);
/// The time between the return of all learners and the next kill is up to so many milliseconds. It is less than the
/// time between two snapshots, so that more and more of the tape is followed, until one falls into it.
const GAP_MS: u64 = 3_000;
/// And so many more: learners that are merged in between come back at once, others later and later.
const GAP_MS_MIN: u64 = 1_000;

/// Files of the run, and what is needed to start the syncer again.
struct Stage<'a> {
    programs: &'a Programs,
    folder: PathBuf,
}

/// Kills the syncer `points` times, when `seed` says; what was seen, and what the last of them left.
///
/// # Errors
/// A sentence: a program could not be started, a syncer did not come back, or a learner ended.
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
    // What was seen of the last kill ends a little later.
    thread::sleep(Duration::from_millis(GAP_MS));
    if let Some(last) = kills.last_mut() {
        last.starved_s = (longest_starved(&learners) - last.starved_s).max(0.0);
    }
    // The last kill, under load as all others; then nobody changes anything any more.
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

/// The longest time that any learner stood still for want of data so far, in seconds.
fn longest_starved(learners: &[Process]) -> f64 {
    let starved = learners.iter().filter_map(|learner| said(learner).last().map(|said| said.starved_ms));
    starved.fold(0.0, f64::max) / 1e3
}

impl Stage<'_> {
    /// A syncer that answers at `listen`, and where that is.
    fn start_syncer(&self, listen: &str) -> Result<(Process, SocketAddr), String> {
        // Each life writes files of its own: the first line says where it listens.
        let mut logs = (1_u32..).map(|life| format!("syncer-{life}"));
        let is_free = |log: &String| !self.folder.join(log).with_extension("jsonl").exists();
        let log = logs.find(is_free).expect("one is free");
        self.programs.serve("tiny", listen, &self.folder, &log, &[])
    }

    fn start_learner(&self, address: SocketAddr, number: usize) -> Result<Process, String> {
        self.programs.join(address, &self.folder, &format!("learner-{number}"), &[])
    }
}

/// What `learner` has said so far.
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

/// Tokens that it has trained on so far.
fn trained(learner: &Process) -> f64 {
    said(learner).last().map_or(0.0, |said| said.tokens)
}
