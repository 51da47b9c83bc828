//! Latency of a request that the syncer's actor must answer.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use archipelago_demo::http;

use crate::bench::storm::quantile;

/// Time between two requests.
const EVERY: Duration = Duration::from_millis(25);

/// Latency of a series of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Answers {
    pub p50_ms: f64,
    pub p99_ms: f64,
    /// Number of requests without an answer.
    pub failed: usize,
    pub merges_per_s: f64,
}

/// Requests `path` repeatedly for `time`.
pub fn probe(address: SocketAddr, path: &str, time: Duration) -> Answers {
    let (began, mut took_ms, mut failed) = (Instant::now(), Vec::new(), 0);
    while began.elapsed() < time {
        let asked = Instant::now();
        match http::get(address, path) {
            Ok(_) => took_ms.push(asked.elapsed().as_secs_f64() * 1e3),
            Err(_) => failed += 1,
        }
        thread::sleep(EVERY.saturating_sub(asked.elapsed()));
    }
    took_ms.sort_by(f64::total_cmp);
    let [p50_ms, p99_ms] = [0.5, 0.99].map(|share| quantile(&took_ms, share).unwrap_or(f64::INFINITY));
    Answers { p50_ms, p99_ms, failed, ..Answers::default() }
}
