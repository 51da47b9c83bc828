//! The run itself: processes, kills, and what is seen of them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use archipelago_demo::{Process, http};
use serde_json::Value;

use super::figures::{History, Kill, Said};
use super::{KILLS, LEARNERS};
use crate::bench::processes::{Programs, empty_folder, still_runs};

/// Longest wait for learners to be back.
const WAIT: Duration = Duration::from_secs(120);
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(20);
/// From then on, after all have joined, tokens count: what happens first is not typical.
const WARM: Duration = Duration::from_secs(10);
/// Then the syncer is first killed: it has saved a snapshot that knows of leases under way.
const STEADY: Duration = Duration::from_secs(35);
/// The time between the return of all learners and the next kill is so much, and 0 to 10 s more. It is less than the
/// time between two snapshots, so that leases come from older and older ones: what is worst for learners.
const GAP: Duration = Duration::from_secs(6);

/// Files of the run, and what is needed to start the syncer again.
struct Stage<'a> {
    programs: &'a Programs,
    folder: PathBuf,
}

/// Kills the syncer again and again; what was seen.
///
/// # Errors
/// A sentence: a program could not be started, a syncer did not come back, or a learner ended.
pub fn run(programs: &Programs) -> Result<History, String> {
    let stage = Stage { programs, folder: empty_folder("crashes")? };
    let (mut syncer, address) = stage.start_syncer("127.0.0.1:0")?;
    let mut learners = Vec::new();
    for number in 1..=LEARNERS {
        learners.push(stage.start_learner(address, number)?);
    }
    all_live(address, &mut syncer)?;
    thread::sleep(WARM);
    let warm: Vec<f64> = learners.iter().map(trained).collect();
    thread::sleep(STEADY);
    let before =
        warm.into_iter().zip(learners.iter().map(trained)).map(|(warm, first)| [warm, first]).collect();
    let (mut kills, mut born) = (Vec::new(), Instant::now());
    for number in 0..KILLS {
        let known = status(address)?;
        let (killed, lived_s) = (Instant::now(), born.elapsed().as_secs_f64());
        syncer.kill();
        (syncer, _) = stage.start_syncer(&address.to_string())?;
        born = Instant::now();
        let first = all_live(address, &mut syncer)?;
        let live_s = killed.elapsed().as_secs_f64();
        let lost = |path: &str| count(&known, path).saturating_sub(count(&first, path));
        let (rounds_lost, updates_lost) = (lost("/rounds"), lost("/fates/merged"));
        println!(
            "   kill {} of {KILLS}: all live after {live_s:.2} s, {rounds_lost} rounds lost",
            number + 1
        );
        kills.push(Kill { lived_s, live_s, rounds_lost, updates_lost });
        if let Some(ended) =
            learners.iter_mut().find_map(|learner| learner.exit_code().map(|_| learner.last_words()))
        {
            return Err(format!("a learner ended: {ended}"));
        }
        // Steps of 7 s in a circle of 11 s.
        thread::sleep(GAP + Duration::from_secs(7 * number as u64 % 11));
    }
    Ok(History { kills, said: learners.iter().map(said).collect(), before })
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

/// Waits until all learners take part in rounds; the first status that was seen.
fn all_live(address: SocketAddr, syncer: &mut Process) -> Result<Value, String> {
    let (start, first) = (Instant::now(), status(address)?);
    while start.elapsed() < WAIT {
        if count(&status(address)?, "/live") == LEARNERS as u64 {
            return Ok(first);
        }
        still_runs(syncer)?;
        thread::sleep(LOOK);
    }
    Err(format!("not all learners are live after {} s", WAIT.as_secs()))
}

fn status(address: SocketAddr) -> Result<Value, String> {
    http::get(address, "/v1/status")
}

fn count(status: &Value, path: &str) -> u64 {
    status.pointer(path).and_then(Value::as_u64).unwrap_or(0)
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
