//! Load benchmark: learners train next to thousands of silent sockets, slow readers, slow senders, watchers and
//! downloads, and then under a flood of abandoned requests on every route. It measures the syncer's latency and memory,
//! and how soon learners join.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::testbed::{
    Kind, Latency, POLL, Slot, TINY, Testbed, Usage, check_runs, http, number, probe, words,
};
use super::{Args, judge};

/// Default number of learners that train.
const LEARNERS: usize = 64;
/// Cores used by all learners together. The figures are about the syncer, which needs the rest.
const CORES: f64 = 0.8;
/// Number of silent sockets.
const IDLE: usize = 5_000;
/// Number of threads that open the silent sockets.
const OPENERS: usize = 4;
/// Number of sockets that are opened and closed again.
const RECONNECTS: usize = 10_000;
const SAMPLES: usize = 10;
/// Request for the row of the first learner, which the syncer's actor answers.
const REQUEST: &str = "/v1/learners?limit=1";
/// Length of each latency measurement.
const PROBED: Duration = Duration::from_secs(15);
/// Number of requested event streams.
const WATCHERS: usize = 1_000;
/// Number of slow readers, slow senders and downloaders, each.
const SLOW: usize = 8;
/// Maximum wait for an answer.
const ANSWER_WAIT: Duration = Duration::from_secs(20);
/// Time between two bytes of a slow client.
const BYTE_EVERY: Duration = Duration::from_millis(500);
/// Limit of the 99th percentile of the latency, in milliseconds.
const CONTROL_MS_MAX: f64 = 1_000.0;
/// Limit of the memory for each silent socket, in KiB.
const IDLE_KIB_MAX: f64 = 16.0;
/// Limit of the memory growth over [`RECONNECTS`] reconnects, in KiB.
const CHURN_KIB_MAX: f64 = 4_096.0;

/// Number of abandoned requests on each route.
const ABANDONED: usize = 1_000;
/// Time until a client abandons its request.
const HANG_UP_AFTER: Duration = Duration::from_millis(20);
/// Number of threads that abandon requests.
const HANGERS: usize = 4;
/// Number of simultaneous requests of each of these threads.
const AT_ONCE: usize = 25;
/// Number of slow readers on all routes together.
const READERS: usize = 640;
/// Number of threads that serve the slow readers.
const READING: usize = 8;
/// Maximum wait for a learner to take part.
const JOIN_WAIT: Duration = Duration::from_secs(60);
/// Limit of the memory growth beyond the need of one export, in MiB.
const GROWN_MIB_MAX: f64 = 64.0;
/// Limit of the time until a new learner takes part, in seconds.
const NEWCOMER_S_MAX: f64 = 5.0;
/// Limit of the time until a known learner takes part again, in seconds.
const KNOWN_S_MAX: f64 = 2.0;
/// Bytes that an export needs for each parameter: a copy for writing, and the state that a merge replaces meanwhile.
const EXPORT_BYTES: u64 = 12;
/// The file that declares all routes.
const ROUTES: &str = include_str!("../../../sdk/core/src/wire/http.rs");

/// Puts different loads on a syncer, and measures it under each.
pub fn run(args: &Args) -> Result<Value, String> {
    let programs = args.programs()?;
    let learners = args.trained.map_or(LEARNERS, |trained| trained as usize);
    let flags = words(&["--learners-max", "8192", "--total-tokens", "400000000"]);
    let mut testbed = Testbed::start(&programs, "load", TINY, &flags)?;
    let slot = Slot { link: None, kind: Kind::with_duty_cycle(CORES / learners as f64) };
    (0..learners).try_for_each(|_| testbed.add(slot.clone()))?;
    testbed.wait_for_all()?;
    if args.flood {
        let flood = flood(&mut testbed)?;
        return Ok(json!({ "learners": learners, "flood": flood, "within": flood["within"] }));
    }
    let calm = Load::measure("learners alone", &mut testbed)?;
    let before = Usage::of(&testbed.syncer);
    let sockets = open_sockets(testbed.address);
    // The syncer closes silent sockets after ten seconds.
    let during = Usage::of(&testbed.syncer);
    let idle = Load::measure("with silent sockets", &mut testbed)?;
    let idle_kib =
        during.rss_bytes.saturating_sub(before.rss_bytes) as f64 / 1024.0 / sockets.len().max(1) as f64;
    let (slow, event_streams) = with_slow_clients(&mut testbed)?;
    let loaded = Usage::of(&testbed.syncer);
    let opened = sockets.len();
    drop(sockets);
    let churn_kib = churned_kib(&mut testbed)?;
    let after = Load::measure("afterwards", &mut testbed)?;
    let flood = flood(&mut testbed)?;
    let status = testbed.status()?;
    let ended = (0..learners).filter_map(|index| testbed.learner(index)?.exit_code()).count();
    let figures = json!({
        "learners": learners,
        "learners_ended": ended,
        "idle_sockets": opened,
        "idle_socket_kib": idle_kib,
        "control_ms_p50_calm": calm.latency.p50_ms,
        "control_ms_p99_calm": calm.latency.p99_ms,
        "control_ms_p50_idle": idle.latency.p50_ms,
        "control_ms_p99_idle": idle.latency.p99_ms,
        "control_ms_p50_rude": slow.latency.p50_ms,
        "control_ms_p99_rude": slow.latency.p99_ms,
        "control_ms_p99_after": after.latency.p99_ms,
        "unanswered": calm.latency.failed + idle.latency.failed + slow.latency.failed + after.latency.failed,
        "merges_per_s_calm": calm.merges_per_s,
        "merges_per_s_idle": idle.merges_per_s,
        "merges_per_s_rude": slow.merges_per_s,
        "event_streams": event_streams,
        "rss_mib_before": before.rss_bytes >> 20,
        "rss_mib_loaded": loaded.rss_bytes >> 20,
        "files_loaded": during.files,
        "reconnects": RECONNECTS,
        "reconnects_grown_kib": churn_kib,
        "flood": flood,
        "participation": status["participation"],
    });
    let limits = [
        ("learners_ended", ended == 0),
        ("control_ms_p99_idle", idle.latency.p99_ms < CONTROL_MS_MAX),
        ("control_ms_p99_rude", slow.latency.p99_ms < CONTROL_MS_MAX),
        ("idle_socket_kib", idle_kib <= IDLE_KIB_MAX),
        ("reconnects_grown_kib", churn_kib <= CHURN_KIB_MAX),
        ("flood", flood["within"] == true),
    ];
    Ok(judge(figures, &limits))
}

/// Latency and merge rate under one kind of load.
struct Load {
    latency: Latency,
    merges_per_s: f64,
}

impl Load {
    /// Measures for [`PROBED`], and prints the result under the name of the load.
    fn measure(name: &str, testbed: &mut Testbed<'_>) -> Result<Self, String> {
        let rounds = |testbed: &Testbed<'_>| testbed.status().map(|status| number(&status, "/rounds"));
        let before = rounds(testbed).unwrap_or(0);
        let latency = probe(testbed.address, REQUEST, PROBED);
        let merges = rounds(testbed).unwrap_or(before).saturating_sub(before);
        check_runs(&mut testbed.syncer, "the syncer")?;
        let merges_per_s = merges as f64 / PROBED.as_secs_f64();
        let Latency { p50_ms, p99_ms, failed } = latency;
        let mib = Usage::of(&testbed.syncer).rss_bytes >> 20;
        println!(
            "   {name}: p50 {p50_ms:.1} ms, p99 {p99_ms:.1} ms, {failed} unanswered, {merges_per_s:.1} merges/s, \
             {mib} MiB"
        );
        Ok(Self { latency, merges_per_s })
    }
}

/// Sends `head` on a new connection. Returns the connection if the answer begins with `answer`.
fn request(address: SocketAddr, head: &str, answer: &str) -> Option<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_WAIT).ok()?;
    stream.set_read_timeout(Some(ANSWER_WAIT)).ok()?;
    stream.write_all(head.as_bytes()).ok()?;
    let mut begin = vec![0; answer.len()];
    stream.read_exact(&mut begin).ok()?;
    (begin == answer.as_bytes()).then_some(stream)
}

/// Opens a learner's socket; `None` if it is refused.
fn open_socket(address: SocketAddr) -> Option<TcpStream> {
    let head = "GET /v1/ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    request(address, head, "HTTP/1.1 101")
}

/// Opens up to [`IDLE`] sockets of silent learners, as many as the system and the syncer allow.
fn open_sockets(address: SocketAddr) -> Vec<TcpStream> {
    let open = || (0..IDLE / OPENERS).map_while(|_| open_socket(address)).collect::<Vec<_>>();
    thread::scope(|scope| {
        let openers: Vec<_> = (0..OPENERS).map(|_| scope.spawn(open)).collect();
        openers.into_iter().filter_map(|opener| opener.join().ok()).flatten().collect()
    })
}

/// Measures the syncer under slow readers, slow senders, repeated downloads and as many watchers as it accepts. Returns
/// the measurement and the number of watchers.
fn with_slow_clients(testbed: &mut Testbed<'_>) -> Result<(Load, usize), String> {
    let (over, watchers, address) = (AtomicBool::new(false), AtomicUsize::new(0), testbed.address);
    let load = thread::scope(|scope| {
        let (over, watchers) = (&over, &watchers);
        for client in [read_slowly, send_slowly, download] {
            for _ in 0..SLOW {
                scope.spawn(move || client(address, over));
            }
        }
        scope.spawn(move || watchers.store(watch(address, over), Relaxed));
        let load = Load::measure("with slow clients, too", testbed);
        over.store(true, Relaxed);
        load
    })?;
    Ok((load, watchers.into_inner()))
}

/// Requests the model and reads it byte by byte.
fn read_slowly(address: SocketAddr, over: &AtomicBool) {
    while !over.load(Relaxed) {
        let head = "GET /v1/export.zip HTTP/1.1\r\nHost: localhost\r\n\r\n";
        let mut stream = request(address, head, "HTTP/1.1 200");
        while let Some(stream) = stream.as_mut().filter(|_| !over.load(Relaxed)) {
            thread::sleep(BYTE_EVERY);
            if !stream.read(&mut [0]).is_ok_and(|count| count > 0) {
                break;
            }
        }
        thread::sleep(BYTE_EVERY);
    }
}

/// Starts a request and sends it byte by byte.
fn send_slowly(address: SocketAddr, over: &AtomicBool) {
    while !over.load(Relaxed) {
        let Ok(mut stream) = TcpStream::connect_timeout(&address, ANSWER_WAIT) else { continue };
        for byte in b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\nX-Slow: ".iter().cycle() {
            if over.load(Relaxed) || stream.write_all(&[*byte]).is_err() {
                break;
            }
            thread::sleep(BYTE_EVERY);
        }
    }
}

/// Downloads the model repeatedly.
fn download(address: SocketAddr, over: &AtomicBool) {
    while !over.load(Relaxed) {
        // Most requests are refused because another download is in progress.
        let _ = http::fetch(address, "/v1/export.zip");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Requests [`WATCHERS`] event streams, and reads none of them. Returns the number of accepted streams.
fn watch(address: SocketAddr, over: &AtomicBool) -> usize {
    let head = "GET /v1/events HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: 192.0.2.1\r\n\r\n";
    let streams: Vec<_> = (0..WATCHERS).filter_map(|_| request(address, head, "HTTP/1.1 200")).collect();
    while !over.load(Relaxed) {
        thread::sleep(BYTE_EVERY);
    }
    streams.len()
}

/// Returns the syncer's memory growth over many reconnects, in KiB.
fn churned_kib(testbed: &mut Testbed<'_>) -> Result<f64, String> {
    let mut memory = Vec::new();
    for _ in 0..SAMPLES {
        (0..RECONNECTS / SAMPLES).for_each(|_| drop(open_socket(testbed.address)));
        memory.push(Usage::of(&testbed.syncer).rss_bytes);
        check_runs(&mut testbed.syncer, "the syncer")?;
    }
    // Later connections reuse the memory of the first tenth.
    let grown = memory.last().zip(memory.get(1)).map_or(0, |(last, first)| last.saturating_sub(*first));
    Ok(grown as f64 / 1024.0)
}

/// Returns a `GET` and a `POST` with an invalid owner token, for the run's page and each route that [`ROUTES`]
/// declares.
fn requests(run: &str) -> Vec<String> {
    let declared =
        |line: &'static str| line.split_once("&str = \"").and_then(|(_, rest)| rest.split('"').next());
    let declared = ROUTES.lines().filter(|line| line.starts_with("pub const")).filter_map(declared);
    let routes = ["/"].into_iter().chain(declared.filter(|path| path.starts_with('/')));
    let body = "[1, 2, 3]";
    let both = |path: &str| {
        let path = path.replace("{run}", run);
        // Placeholders stand for numbers of fragments, versions, shards, parts and learners.
        let parts = path.split('/').map(|part| if part.starts_with('{') { "0" } else { part });
        let head = format!("{} HTTP/1.1\r\nHost: localhost\r\n", parts.collect::<Vec<_>>().join("/"));
        let length = body.len();
        [
            format!("GET {head}\r\n"),
            format!("POST {head}Authorization: Bearer x\r\nContent-Length: {length}\r\n\r\n{body}"),
        ]
    };
    routes.flat_map(both).collect()
}

/// Abandons [`ABANDONED`] requests on each route. Then measures how soon learners join while slow readers and further
/// abandoned requests go on.
fn flood(testbed: &mut Testbed<'_>) -> Result<Value, String> {
    let (status, address) = (testbed.status()?, testbed.address);
    let requests = requests(status["run"].as_str().unwrap_or_default());
    let before = Usage::of(&testbed.syncer).rss_bytes;
    let (over, most, readers) = (AtomicBool::new(false), AtomicU64::new(before), AtomicUsize::new(0));
    let shared = &*testbed;
    let joined = thread::scope(|scope| {
        let (over, most, readers, requests) = (&over, &most, &readers, &requests);
        scope.spawn(move || {
            while !over.load(Relaxed) {
                most.fetch_max(Usage::of(&shared.syncer).rss_bytes, Relaxed);
                thread::sleep(POLL);
            }
        });
        requests.iter().for_each(|request| abandon(address, request));
        for reader in 0..READING {
            let own = requests.iter().cycle().skip(reader * READERS / READING).take(READERS / READING);
            let own: Vec<&String> = own.collect();
            scope.spawn(move || read_all_slowly(address, &own, readers, over));
        }
        scope.spawn(move || {
            let requests = requests.iter().cycle().take_while(|_| !over.load(Relaxed));
            requests.for_each(|request| hang_up(address, request));
        });
        // Slow readers have begun.
        thread::sleep(4 * BYTE_EVERY);
        let joined = join_twice(shared);
        over.store(true, Relaxed);
        joined
    });
    check_runs(&mut testbed.syncer, "the syncer")?;
    let (newcomer_s, known_s) = joined?;
    let grown = most.into_inner().saturating_sub(before);
    let export = EXPORT_BYTES * number(&status, "/params");
    let beyond_mib = grown.saturating_sub(export) as f64 / f64::from(1 << 20);
    println!(
        "   flood: {beyond_mib:.1} MiB beyond an export, newcomer after {newcomer_s:.1} s, known learner after \
         {known_s:.1} s"
    );
    let figures = json!({
        "abandoned": ABANDONED * requests.len(),
        "slow_readers": readers.into_inner(),
        "grown_beyond_export_mib": beyond_mib,
        "newcomer_s": newcomer_s,
        "known_s": known_s,
    });
    let limits = [
        ("grown_beyond_export_mib", beyond_mib <= GROWN_MIB_MAX),
        ("newcomer_s", newcomer_s <= NEWCOMER_S_MAX),
        ("known_s", known_s <= KNOWN_S_MAX),
    ];
    Ok(judge(figures, &limits))
}

/// Sends `request` [`ABANDONED`] times without waiting for answers.
fn abandon(address: SocketAddr, request: &str) {
    thread::scope(|scope| {
        for _ in 0..HANGERS {
            scope.spawn(|| (0..ABANDONED / HANGERS / AT_ONCE).for_each(|_| hang_up(address, request)));
        }
    });
}

/// Sends `request` on several connections and closes them soon after.
fn hang_up(address: SocketAddr, request: &str) {
    let begin = |_| {
        let mut stream = TcpStream::connect(address).ok()?;
        stream.write_all(request.as_bytes()).ok()?;
        Some(stream)
    };
    let begun: Vec<_> = (0..AT_ONCE).filter_map(begin).collect();
    thread::sleep(HANG_UP_AFTER);
    drop(begun);
}

/// Sends each of `requests` and reads one byte of each answer at a time, slowly. Sends a request again once its answer
/// has ended.
fn read_all_slowly(address: SocketAddr, requests: &[&String], readers: &AtomicUsize, over: &AtomicBool) {
    let open = |head: &&String| request(address, head, "HTTP/1.1 ");
    let mut streams: Vec<_> = requests.iter().map(open).collect();
    readers.fetch_add(streams.iter().flatten().count(), Relaxed);
    while !over.load(Relaxed) {
        for (stream, head) in streams.iter_mut().zip(requests) {
            let goes_on = stream.as_mut().is_some_and(|stream| {
                let waits = stream.set_nonblocking(true).is_ok();
                match stream.read(&mut [0]) {
                    Ok(count) => waits && count > 0,
                    Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
                }
            });
            if !goes_on && !over.load(Relaxed) {
                *stream = open(head);
            }
        }
        thread::sleep(BYTE_EVERY);
    }
}

/// Returns the seconds until a new learner takes part, and until it takes part again after a kill.
fn join_twice(testbed: &Testbed<'_>) -> Result<(f64, f64), String> {
    let live = || testbed.status().map(|status| number(&status, "/live"));
    let wait_for = |is_right: &dyn Fn(u64) -> bool| {
        let begun = Instant::now();
        while begun.elapsed() < JOIN_WAIT {
            if live().is_ok_and(is_right) {
                return Ok(());
            }
            thread::sleep(POLL);
        }
        Err(format!("a learner did not join or leave within {} s of a flood", JOIN_WAIT.as_secs()))
    };
    let join = || {
        let (before, begun) = (live()?, Instant::now());
        let learner = testbed.start_extra_learner("flooded", &Kind::with_duty_cycle(0.05))?;
        wait_for(&|now| now > before)?;
        Ok::<_, String>((learner, before, begun.elapsed().as_secs_f64()))
    };
    let (mut learner, before, newcomer_s) = join()?;
    learner.kill();
    wait_for(&|now| now <= before)?;
    let (mut learner, _, known_s) = join()?;
    learner.kill();
    Ok((newcomer_s, known_s))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_is_flooded() {
        let requests = requests("0a");
        let has = |line: &str| requests.iter().any(|request| request.starts_with(line));
        assert!(has("GET / ") && has("GET /v1/export.zip ") && has("POST /v1/runs/0a/tokens "));
        assert!(has("GET /v1/runs/0a/fragments/0/0 ") && !requests.iter().any(|line| line.contains('{')));
    }
}
