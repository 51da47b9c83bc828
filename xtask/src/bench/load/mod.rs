//! A load: learners that train, thousands of sockets that say nothing, and people who read slowly, send slowly, watch
//! and download, all at once on one machine, and then a flood of abandoned requests. The benchmark measures the
//! syncer's memory and the effect on honest learners.

mod crowd;
mod flood;
mod probe;

pub use probe::{Answers, probe};

use std::ffi::OsString;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use archipelago_demo::Process;
use serde_json::{Value, json};

use super::processes::{Programs, all_live, empty_folder, number, status, still_runs};
use super::soak::held;
use crowd::{Crowd, drip, listen, nibble};
use flood::flood;

/// Default number of learners that train.
const LEARNERS: usize = 64;
/// Share of a core for all learners together. The figures are about the syncer, which needs the rest.
const CORES: f64 = 0.8;
/// Number of silent sockets.
const IDLE: usize = 5_000;
/// Number of sockets that come and go, and number of memory samples meanwhile.
const RECONNECTS: usize = 10_000;
const LOOKS: usize = 10;
/// Request that the actor answers: the first learner.
const QUESTION: &str = "/v1/learners?limit=1";
/// Length of each latency measurement.
const PROBED: Duration = Duration::from_secs(15);
/// Number of requested event streams.
const WATCHERS: usize = 1_000;
/// Number of slow readers, slow senders and downloaders, each.
const RUDE: usize = 8;
/// Limits: 99th percentile of the latency, memory per silent socket, and memory growth over ten thousand reconnects.
const CONTROL_MS_MAX: f64 = 1_000.0;
const IDLE_KIB_MAX: f64 = 16.0;
const CHURN_KIB_MAX: f64 = 4_096.0;

/// What the load is made of.
#[derive(clap::Args, Clone, Debug)]
#[group(skip)]
pub struct Args {
    /// Load: learners that train [default: 64].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=256))]
    trained: Option<u32>,
    /// Load: hang up on every route and read slowly, and nothing else.
    #[arg(long)]
    flood: bool,
}

impl Args {
    /// Returns true if any of these flags was given.
    pub fn any(&self) -> bool {
        self.trained.is_some() || self.flood
    }
}

/// Loads a syncer and measures its latency.
///
/// # Errors
/// A message if a program could not be started, or ended.
pub fn run(args: &Args, programs: &Programs) -> Result<Value, String> {
    let learners = args.trained.map_or(LEARNERS, |trained| trained as usize);
    let folder = empty_folder("load")?;
    let flags = ["--learners-max", "8192", "--total-tokens", "400000000"];
    let flags: Vec<OsString> = flags.map(OsString::from).into();
    let (mut syncer, address) = programs.serve("tiny", "127.0.0.1:0", &folder, "syncer", &flags)?;
    let duty = format!("{:.4}", (CORES / learners as f64).min(1.0));
    let join = |number: usize| {
        programs.join(address, &folder, &format!("learner-{number}"), &["--duty-cycle", &duty])
    };
    let mut running = (1..=learners).map(join).collect::<Result<Vec<_>, _>>()?;
    all_live(address, &mut syncer, learners)?;
    if args.flood {
        let flooded = flood(programs, &folder, address, &mut syncer)?;
        return Ok(json!({ "learners": learners, "flood": flooded, "within": flooded["within"] }));
    }
    let calm = timed("learners alone", address, &mut syncer)?;

    let before = held(&syncer);
    let crowd = Crowd::open(address, IDLE);
    let opened = crowd.len();
    // The syncer closes silent sockets after ten seconds.
    let during = held(&syncer);
    let idle = timed("with silent sockets", address, &mut syncer)?;
    let idle_kib = (during.rss_bytes.saturating_sub(before.rss_bytes)) as f64 / 1024.0 / opened.max(1) as f64;

    let (rude, event_streams) = under_rude_ones(address, &mut syncer)?;
    let loaded = held(&syncer);
    drop(crowd);

    let churn_kib = churned_kib(address, &mut syncer)?;
    let after = timed("after it all", address, &mut syncer)?;
    let flooded = flood(programs, &folder, address, &mut syncer)?;
    let last = status(address)?;
    let ended = running.iter_mut().filter_map(Process::exit_code).count();
    running.iter_mut().for_each(Process::kill);
    syncer.kill();
    let slowest = [&idle, &rude].into_iter().map(|answers| answers.p99_ms).fold(0.0, f64::max);
    let calls = slowest < CONTROL_MS_MAX && idle_kib <= IDLE_KIB_MAX && churn_kib <= CHURN_KIB_MAX;
    let within = calls && ended == 0 && flooded["within"] == true;
    Ok(json!({
        "learners": learners,
        "learners_ended": ended,
        "idle_sockets": opened,
        "idle_socket_kib": idle_kib,
        "control_ms_p50_calm": calm.p50_ms,
        "control_ms_p99_calm": calm.p99_ms,
        "control_ms_p50_idle": idle.p50_ms,
        "control_ms_p99_idle": idle.p99_ms,
        "control_ms_p50_rude": rude.p50_ms,
        "control_ms_p99_rude": rude.p99_ms,
        "control_ms_p99_after": after.p99_ms,
        "unanswered": calm.failed + idle.failed + rude.failed + after.failed,
        "merges_per_s_calm": calm.merges_per_s,
        "merges_per_s_idle": idle.merges_per_s,
        "merges_per_s_rude": rude.merges_per_s,
        "event_streams": event_streams,
        "rss_mib_before": before.rss_bytes >> 20,
        "rss_mib_loaded": loaded.rss_bytes >> 20,
        "files_loaded": during.files,
        "reconnects": RECONNECTS,
        "reconnects_grown_kib": churn_kib,
        "flood": flooded,
        "participation": last["participation"],
        "within": within,
    }))
}

/// Measures the latency under slow readers, slow senders, endless downloads and as many watchers as allowed. Returns it
/// with the number of watchers.
fn under_rude_ones(address: SocketAddr, syncer: &mut Process) -> Result<(Answers, usize), String> {
    let over = AtomicBool::new(false);
    let watching = AtomicUsize::new(0);
    let rude = thread::scope(|scope| {
        let (over, watching) = (&over, &watching);
        let begin = |act: fn(SocketAddr, &AtomicBool)| {
            for _ in 0..RUDE {
                scope.spawn(move || act(address, over));
            }
        };
        begin(nibble);
        begin(drip);
        begin(download);
        scope.spawn(move || watching.store(listen(address, WATCHERS, over), Relaxed));
        let timed = timed("with rude ones too", address, syncer);
        over.store(true, Relaxed);
        timed
    })?;
    Ok((rude, watching.load(Relaxed)))
}

/// Returns the syncer's memory growth over many reconnects, in KiB.
fn churned_kib(address: SocketAddr, syncer: &mut Process) -> Result<f64, String> {
    let mut memory = Vec::new();
    for _ in 0..LOOKS {
        crowd::churn(address, RECONNECTS / LOOKS);
        memory.push(held(syncer).rss_bytes);
        still_runs(syncer)?;
    }
    // Later connections reuse the memory of the first tenth.
    let grown = memory.last().zip(memory.get(1)).map_or(0, |(last, first)| last.saturating_sub(*first));
    Ok(grown as f64 / 1024.0)
}

/// Measures the latency, and counts merges meanwhile.
fn timed(what: &str, address: SocketAddr, syncer: &mut Process) -> Result<Answers, String> {
    let before = status(address).map_or(0, |status| number(&status, "/rounds"));
    let mut answers = probe(address, QUESTION, PROBED);
    let after = status(address).map_or(before, |status| number(&status, "/rounds"));
    answers.merges_per_s = after.saturating_sub(before) as f64 / PROBED.as_secs_f64();
    still_runs(syncer)?;
    println!(
        "   {what}: p50 {:.1} ms, p99 {:.1} ms, {} unanswered, {:.1} merges/s, {} MiB",
        answers.p50_ms,
        answers.p99_ms,
        answers.failed,
        answers.merges_per_s,
        held(syncer).rss_bytes >> 20
    );
    Ok(answers)
}

/// Downloads the model repeatedly.
fn download(address: SocketAddr, over: &AtomicBool) {
    while !over.load(Relaxed) {
        // Most requests are refused because another download is in progress.
        let _ = archipelago_demo::http::fetch(address, "/v1/export.zip");
        thread::sleep(Duration::from_millis(10));
    }
}
