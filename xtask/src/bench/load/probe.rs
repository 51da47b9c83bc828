//! How long the syncer takes to answer a question that its actor has to be asked.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use archipelago_demo::http;

/// Time between two questions.
const EVERY: Duration = Duration::from_millis(25);

/// Answers that were timed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Answers {
    pub p50_ms: f64,
    pub p99_ms: f64,
    /// Questions without an answer.
    pub failed: usize,
    pub merges_per_s: f64,
}

/// Asks for the first learner again and again, for `time`.
pub fn probe(address: SocketAddr, time: Duration) -> Answers {
    let (began, mut took_ms, mut failed) = (Instant::now(), Vec::new(), 0);
    while began.elapsed() < time {
        let asked = Instant::now();
        match http::get(address, "/v1/learners?limit=1") {
            Ok(_) => took_ms.push(asked.elapsed().as_secs_f64() * 1e3),
            Err(_) => failed += 1,
        }
        thread::sleep(EVERY.saturating_sub(asked.elapsed()));
    }
    let [p50_ms, p99_ms] = [0.5, 0.99].map(|share| quantile(&mut took_ms, share));
    Answers { p50_ms, p99_ms, failed, ..Answers::default() }
}

/// The value that this share of `values` does not exceed; 0 of none.
fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = (share * values.len() as f64).ceil() as usize;
    values.get(rank.max(1) - 1).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_the_value_that_so_many_do_not_exceed() {
        let mut values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!((quantile(&mut values, 0.5), quantile(&mut values, 0.99)), (100.0, 198.0));
        assert_eq!((quantile(&mut [7.0], 0.99), quantile(&mut [], 0.5)), (7.0, 0.0));
    }
}
