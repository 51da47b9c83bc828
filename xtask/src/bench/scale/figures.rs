//! What a crowd comes to: the difference between two moments.

use std::net::SocketAddr;
use std::time::Instant;

use archipelago_demo::Process;
use serde_json::{Value, json};

use crate::bench::load::Answers;
use crate::bench::processes::{number, status};
use crate::bench::soak::{Held, held};
use crate::bench::storm::quantile;

/// One moment of a run.
pub struct Moment {
    at: Instant,
    status: Value,
    syncer: Held,
    cpu_ms: u64,
    crowd_cpu_ms: u64,
    /// What the learners have said by then, a line a second.
    said: Vec<Value>,
}

impl Moment {
    /// Now.
    ///
    /// # Errors
    /// A sentence: the syncer does not answer.
    pub fn of(address: SocketAddr, syncer: &Process, crowd: Option<&Process>) -> Result<Self, String> {
        let lines = crowd.map(Process::stdout).unwrap_or_default();
        Ok(Self {
            at: Instant::now(),
            status: status(address)?,
            syncer: held(syncer),
            cpu_ms: syncer.cpu_ms(),
            crowd_cpu_ms: crowd.map_or(0, Process::cpu_ms),
            said: lines.iter().filter_map(|line| serde_json::from_str(line).ok()).collect(),
        })
    }

    fn said(&self, name: &str) -> u64 {
        self.said.last().map_or(0, |line| number(line, &format!("/{name}")))
    }
}

/// The figures between the second of three moments and the third; at the first nobody was there. `size` and how many
/// there were.
pub fn row(
    [before, from, to]: &[Moment; 3],
    answers: &Answers,
    (size, held): (u32, u64),
    join_s: f64,
) -> Value {
    let span_s = (to.at - from.at).as_secs_f64();
    let counted = |path: &str| number(&to.status, path).saturating_sub(number(&from.status, path)) as f64;
    let said = |name: &str| to.said(name).saturating_sub(from.said(name)) as f64;
    let updates = counted("/fates/merged").max(1.0);
    let cpu_ms = to.cpu_ms.saturating_sub(from.cpu_ms) as f64;
    let times = |name: &str, from: usize| -> Vec<f64> {
        let lists = to.said.iter().skip(from).filter_map(|line| line[name].as_array());
        let mut times: Vec<f64> = lists.flatten().filter_map(Value::as_f64).collect();
        times.sort_by(f64::total_cmp);
        times
    };
    let (arrived, welcomed) = (times("arrived_ms", from.said.len()), times("welcomed_ms", 0));
    let rss = to.syncer.rss_bytes.saturating_sub(before.syncer.rss_bytes) as f64;
    json!({
        "learners": size,
        "held": held.min(number(&to.status, "/live")),
        "join_s": join_s,
        "welcome_ms_p50": quantile(&welcomed, 0.5),
        "welcome_ms_p99": quantile(&welcomed, 0.99),
        "steps_per_s": said("steps") / span_s,
        "rounds_per_s": counted("/rounds") / span_s,
        "updates_merged_per_s": updates / span_s,
        "changes_per_s": said("changes") / span_s,
        "fetched_whole": said("loads"),
        "control_ms_p50": answers.p50_ms,
        "control_ms_p99": answers.p99_ms,
        "unanswered": answers.failed,
        "arrived_ms_p50": quantile(&arrived, 0.5),
        "arrived_ms_p99": quantile(&arrived, 0.99),
        "up_bytes_per_update": counted("/bytesUp") / updates,
        "down_bytes_per_update": counted("/bytesDown") / updates,
        "down_mb_per_s": counted("/bytesDown") / span_s / 1e6,
        "syncer_cores": cpu_ms / 1e3 / span_s,
        "cpu_ms_per_update": cpu_ms / updates,
        "cpu_us_per_learner_s": 1e3 * cpu_ms / span_s / held.max(1) as f64,
        "crowd_cores": to.crowd_cpu_ms.saturating_sub(from.crowd_cpu_ms) as f64 / 1e3 / span_s,
        "rss_kib_per_learner": rss / 1_024.0 / held.max(1) as f64,
        "participation": to.status["participation"],
        "troubles": to.said("troubles"),
    })
}
