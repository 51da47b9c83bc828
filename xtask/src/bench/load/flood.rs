//! A flood of requests on every route. Some clients hang up at once, and others hardly read the answers. The benchmark
//! measures the syncer's memory, and how soon learners join meanwhile.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use archipelago_demo::Process;
use serde_json::{Value, json};

use super::crowd::{BYTE_EVERY, asked};
use crate::bench::processes::{Programs, number, status, still_runs};
use crate::bench::soak::held;

/// Abandoned requests on each route, and the time until the client hangs up.
const ABANDONED: usize = 1_000;
const HANG_UP_AFTER: Duration = Duration::from_millis(20);
/// Threads that abandon requests, and simultaneous requests of each thread.
const HANGERS: usize = 4;
const AT_ONCE: usize = 25;
/// Slow readers on all routes together.
const READERS: usize = 640;
/// Threads that read slowly.
const READING: usize = 8;
/// Maximum wait for a learner to take part.
const JOIN_WAIT: Duration = Duration::from_secs(60);
/// Time between two checks.
const LOOK: Duration = Duration::from_millis(20);
/// Limits: memory beyond the need of one export, and seconds until a newcomer and a known learner take part.
const GROWN_MIB_MAX: f64 = 64.0;
const NEWCOMER_S_MAX: f64 = 5.0;
const KNOWN_S_MAX: f64 = 2.0;
/// Bytes that an export needs for each parameter: a copy for writing, and the state that a merge replaces meanwhile.
const EXPORT_BYTES: u64 = 12;

/// The file that declares all routes.
const ROUTES: &str = include_str!("../../../../sdk/core/src/wire/http.rs");

/// Returns the routes that [`ROUTES`] declares, and the run's page.
fn routes() -> impl Iterator<Item = &'static str> {
    let declared =
        |line: &'static str| line.split_once("&str = \"").and_then(|(_, rest)| rest.split('"').next());
    let declared = ROUTES.lines().filter(|line| line.starts_with("pub const")).filter_map(declared);
    ["/"].into_iter().chain(declared.filter(|path| path.starts_with('/')))
}

/// Returns a `GET` and a `POST` with a wrong owner's token for each route of `run`.
fn requests(run: &str) -> Vec<String> {
    let body = "[1, 2, 3]";
    let both = |path: &str| {
        let path = path.replace("{run}", run);
        // Placeholders stand for numbers of fragments, versions, shards, parts and learners.
        let parts = path.split('/').map(|part| if part.starts_with('{') { "0" } else { part });
        let path = parts.collect::<Vec<_>>().join("/");
        let head = format!("{path} HTTP/1.1\r\nHost: localhost\r\n");
        let length = body.len();
        [
            format!("GET {head}\r\n"),
            format!("POST {head}Authorization: Bearer x\r\nContent-Length: {length}\r\n\r\n{body}"),
        ]
    };
    routes().flat_map(both).collect()
}

/// Abandons [`ABANDONED`] requests on each route of the syncer at `address`. Then measures how soon learners join while
/// slow readers and further abandoned requests go on.
///
/// # Errors
/// A message if the syncer ended or a learner did not join at all.
pub fn flood(
    programs: &Programs,
    folder: &Path,
    address: SocketAddr,
    syncer: &mut Process,
) -> Result<Value, String> {
    let now = status(address)?;
    let run = now["run"].as_str().unwrap_or_default();
    let requests = requests(run);
    let before = held(syncer).rss_bytes;
    let (over, most, readers) = (AtomicBool::new(false), AtomicU64::new(before), AtomicUsize::new(0));
    let joined = thread::scope(|scope| {
        let (over, most, readers, requests, watched) = (&over, &most, &readers, &requests, &*syncer);
        scope.spawn(move || {
            while !over.load(Relaxed) {
                most.fetch_max(held(watched).rss_bytes, Relaxed);
                thread::sleep(LOOK);
            }
        });
        requests.iter().for_each(|request| abandon(address, request));
        for reader in 0..READING {
            let mine = requests.iter().cycle().skip(reader * READERS / READING).take(READERS / READING);
            let mine: Vec<&String> = mine.collect();
            scope.spawn(move || read_slowly(address, &mine, readers, over));
        }
        scope.spawn(move || {
            let requests = requests.iter().cycle().take_while(|_| !over.load(Relaxed));
            requests.for_each(|request| hang_up(address, request));
        });
        // Slow readers have begun.
        thread::sleep(4 * BYTE_EVERY);
        let joined = join_twice(programs, folder, address);
        over.store(true, Relaxed);
        joined
    });
    still_runs(syncer)?;
    let (newcomer_s, known_s) = joined?;
    let grown = most.load(Relaxed).saturating_sub(before);
    let export = EXPORT_BYTES * number(&now, "/params");
    let beyond_mib = grown.saturating_sub(export) as f64 / f64::from(1 << 20);
    let within = beyond_mib <= GROWN_MIB_MAX && newcomer_s <= NEWCOMER_S_MAX && known_s <= KNOWN_S_MAX;
    println!(
        "   flooded: {beyond_mib:.1} MiB beyond an export, a newcomer after {newcomer_s:.1} s, a known one after \
         {known_s:.1} s"
    );
    Ok(json!({
        "abandoned": ABANDONED * requests.len(),
        "slow_readers": readers.load(Relaxed),
        "grown_beyond_export_mib": beyond_mib,
        "newcomer_s": newcomer_s,
        "known_s": known_s,
        "within": within,
    }))
}

/// Sends `request` repeatedly without waiting for answers.
fn abandon(address: SocketAddr, request: &str) {
    thread::scope(|scope| {
        for _ in 0..HANGERS {
            scope.spawn(|| {
                (0..ABANDONED / HANGERS / AT_ONCE).for_each(|_| hang_up(address, request));
            });
        }
    });
}

/// Sends `request` on several connections and closes them soon after.
fn hang_up(address: SocketAddr, request: &str) {
    let begun: Vec<_> = (0..AT_ONCE).filter_map(|_| begin(address, request)).collect();
    thread::sleep(HANG_UP_AFTER);
    drop(begun);
}

fn begin(address: SocketAddr, request: &str) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.write_all(request.as_bytes()).ok()?;
    Some(stream)
}

/// Sends each of `requests` and reads one byte of each answer at a time, slowly. Sends a request again once its answer
/// has ended.
fn read_slowly(address: SocketAddr, requests: &[&String], readers: &AtomicUsize, over: &AtomicBool) {
    let open = |request: &&String| asked(address, request, "HTTP/1.1 ");
    let mut streams: Vec<_> = requests.iter().map(open).collect();
    readers.fetch_add(streams.iter().flatten().count(), Relaxed);
    while !over.load(Relaxed) {
        for (stream, request) in streams.iter_mut().zip(requests) {
            let goes_on = stream.as_mut().is_some_and(|stream| {
                let waits = stream.set_nonblocking(true).is_ok();
                match stream.read(&mut [0]) {
                    Ok(count) => waits && count > 0,
                    Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
                }
            });
            if !goes_on && !over.load(Relaxed) {
                *stream = open(request);
            }
        }
        thread::sleep(BYTE_EVERY);
    }
}

/// Returns the seconds until a newcomer takes part, and until it takes part again after it was killed.
fn join_twice(programs: &Programs, folder: &Path, address: SocketAddr) -> Result<(f64, f64), String> {
    let join = || {
        let live = number(&status(address)?, "/live");
        let begun = Instant::now();
        let learner = programs.join(address, folder, "flooded", &["--duty-cycle", "0.05"])?;
        wait_for(address, |now| now > live)?;
        Ok::<_, String>((learner, live, begun.elapsed().as_secs_f64()))
    };
    let (mut learner, live, newcomer_s) = join()?;
    learner.kill();
    wait_for(address, |now| now <= live)?;
    let (mut learner, _, known_s) = join()?;
    learner.kill();
    Ok((newcomer_s, known_s))
}

/// Waits until `right` accepts the number of learners in rounds.
fn wait_for(address: SocketAddr, right: impl Fn(u64) -> bool) -> Result<(), String> {
    let begun = Instant::now();
    while begun.elapsed() < JOIN_WAIT {
        if status(address).is_ok_and(|now| right(number(&now, "/live"))) {
            return Ok(());
        }
        thread::sleep(LOOK);
    }
    Err(format!("a learner does not join or leave within {} s of a flood", JOIN_WAIT.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_is_flooded() {
        let requests = requests("0a");
        let asks = |line: &str| requests.iter().any(|request| request.starts_with(line));
        assert!(asks("GET / ") && asks("GET /v1/export.zip ") && asks("POST /v1/runs/0a/tokens "));
        assert!(asks("GET /v1/runs/0a/fragments/0/0 ") && !requests.iter().any(|line| line.contains('{')));
    }
}
