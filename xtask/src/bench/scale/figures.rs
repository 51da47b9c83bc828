//! Figures of a crowd of learners: the difference between two samples.

use std::collections::BTreeMap;
use std::time::Instant;

use archipelago_demo::Process;
use serde_json::{Value, json};

use super::site::{OWNERS, PARTS, Site};
use super::tap::{Count, Counts};
use crate::bench::load::Answers;
use crate::bench::processes::number;
use crate::bench::soak::Held;
use crate::bench::storm::quantile;

/// Sample of a run at one time.
pub struct Moment {
    at: Instant,
    /// Status of each gateway, in order.
    statuses: Vec<Value>,
    held: Held,
    /// Processor time by [`PARTS`].
    cpu_ms: [u64; PARTS.len()],
    crowd_cpu_ms: u64,
    /// Reports of each learner process so far, one a second.
    said: Vec<Vec<Value>>,
    /// Bus traffic so far.
    bus: Counts,
}

/// Size of a run, and facts from its start and end.
pub struct Ends {
    pub learners: u32,
    /// Number of gateways; 0 means a single process.
    pub gateways: u32,
    pub held: u64,
    pub join_s: f64,
    /// True if all gateways had the same parameters in the end.
    pub same: Option<bool>,
    /// Result of recomputing the merges in a single process.
    pub again: Option<Value>,
}

impl Moment {
    /// Takes a sample.
    ///
    /// # Errors
    /// A message if a gateway does not answer.
    pub fn of(site: &Site, crowd: &[Process]) -> Result<Self, String> {
        let lines = |process: &Process| {
            process.stdout().iter().filter_map(|line| serde_json::from_str(line).ok()).collect()
        };
        Ok(Self {
            at: Instant::now(),
            statuses: site.statuses()?,
            held: site.held(),
            cpu_ms: site.cpu_ms(),
            crowd_cpu_ms: crowd.iter().map(Process::cpu_ms).sum(),
            said: crowd.iter().map(lines).collect(),
            bus: site.said(),
        })
    }

    /// Returns the sum of a learner counter over all learner processes so far.
    fn said(&self, name: &str) -> u64 {
        let last = self.said.iter().filter_map(|lines| lines.last());
        last.map(|line| number(line, &format!("/{name}"))).sum()
    }

    /// Returns the sum of a counter over all gateways.
    fn of_all(&self, path: &str) -> u64 {
        self.statuses.iter().map(|status| number(status, path)).sum()
    }

    /// Returns a value of the whole run, which every gateway knows.
    fn of_one(&self, path: &str) -> u64 {
        self.statuses.first().map_or(0, |status| number(status, path))
    }

    /// Returns the times in learners' reports after those of `from`, in order.
    fn times(&self, name: &str, from: Option<&Self>) -> Vec<f64> {
        let known = |at: usize| from.and_then(|from| from.said.get(at)).map_or(0, Vec::len);
        let lines = self.said.iter().enumerate().flat_map(|(at, lines)| lines.iter().skip(known(at)));
        let mut times: Vec<f64> =
            lines.filter_map(|line| line[name].as_array()).flatten().filter_map(Value::as_f64).collect();
        times.sort_by(f64::total_cmp);
        times
    }
}

/// Returns the figures between the second and the third sample; the first one is before the learners joined.
pub fn row([before, from, to]: &[Moment; 3], answers: &Answers, ends: &Ends) -> Value {
    let span_s = (to.at - from.at).as_secs_f64();
    let all = |path: &str| to.of_all(path).saturating_sub(from.of_all(path)) as f64;
    let one = |path: &str| to.of_one(path).saturating_sub(from.of_one(path)) as f64;
    let said = |name: &str| to.said(name).saturating_sub(from.said(name)) as f64;
    let updates = one("/fates/merged").max(1.0);
    let spent = |at: usize| to.cpu_ms[at].saturating_sub(from.cpu_ms[at]) as f64;
    let cpu_ms: f64 = (0..PARTS.len()).map(spent).sum();
    let (arrived, welcomed) = (to.times("arrived_ms", Some(from)), to.times("welcomed_ms", None));
    let rss = to.held.rss_bytes.saturating_sub(before.held.rss_bytes) as f64;
    let held = ends.held.min(to.of_all("/live"));
    let learners = held.max(1) as f64;
    let mut row = json!({
        "learners": ends.learners,
        "gateways": ends.gateways,
        "held": held,
        "join_s": ends.join_s,
        "welcome_ms_p50": quantile(&welcomed, 0.5),
        "welcome_ms_p99": quantile(&welcomed, 0.99),
        "steps_per_s": said("steps") / span_s,
        "rounds_per_s": one("/rounds") / span_s,
        "updates_merged_per_s": updates / span_s,
        "changes_per_s": said("changes") / span_s,
        "fetched_whole": said("loads"),
        "control_ms_p50": answers.p50_ms,
        "control_ms_p99": answers.p99_ms,
        "unanswered": answers.failed,
        "arrived_ms_p50": quantile(&arrived, 0.5),
        "arrived_ms_p99": quantile(&arrived, 0.99),
        "up_bytes_per_update": all("/bytesUp") / updates,
        "down_bytes_per_update": all("/bytesDown") / updates,
        "up_bytes_per_learner_s": all("/bytesUp") / span_s / learners,
        "down_bytes_per_learner_s": all("/bytesDown") / span_s / learners,
        "down_mb_per_s": all("/bytesDown") / span_s / 1e6,
        "syncer_cores": cpu_ms / 1e3 / span_s,
        "cpu_ms_per_update": cpu_ms / updates,
        "cpu_us_per_learner_s": 1e3 * cpu_ms / span_s / learners,
        "crowd_cores": to.crowd_cpu_ms.saturating_sub(from.crowd_cpu_ms) as f64 / 1e3 / span_s,
        "rss_kib_per_learner": rss / 1_024.0 / learners,
        "participation": to.statuses.first().map(|status| &status["participation"]),
        "sent": said("updates"),
        "late": said("late"),
        "troubles": to.said("troubles"),
    });
    if let (Some(same), Some(row)) = (ends.same, row.as_object_mut()) {
        let parts = (0..).zip(PARTS).map(|(at, (_, name))| (name, json!(spent(at) / 1e3 / span_s)));
        row.insert("cores".into(), parts.collect());
        row.insert("bus_bytes_per_round".into(), bus(&from.bus, &to.bus, one("/rounds")));
        row.insert("owners".into(), OWNERS.into());
        row.insert("same_parameters".into(), same.into());
        row.insert("made_again".into(), json!(ends.again));
    }
    row
}

/// Returns the bus traffic per round in bytes, by kind of message, and the part that owners received from gateways.
fn bus(from: &Counts, to: &Counts, rounds: f64) -> Value {
    let since = |name: &str, count: &Count| {
        let before = from.get(name).copied().unwrap_or_default();
        (count.bytes - before.bytes) as f64 / rounds.max(1.0)
    };
    let kinds: BTreeMap<&str, f64> =
        to.iter().map(|(name, count)| (name.as_str(), since(name, count))).collect();
    let notices = ["Collect", "Weigh", "Ended"];
    let to_owners: f64 =
        kinds.iter().filter(|(name, _)| !notices.contains(name)).map(|(_, bytes)| bytes).sum();
    let mut value = json!(kinds);
    value["to_owner"] = to_owners.into();
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_owners_get_is_told_apart() {
        let counts = |offers, sums, notices| {
            let count = |bytes| Count { messages: 1, bytes };
            let kinds = [("Offer", offers), ("Sum", sums), ("Weigh", notices)];
            kinds.map(|(name, bytes)| (name.to_owned(), count(bytes))).into_iter().collect::<Counts>()
        };
        let told = bus(&counts(10, 0, 5), &counts(30, 100, 9), 2.0);
        assert_eq!((&told["Offer"], &told["Sum"], &told["Weigh"]), (&json!(10.0), &json!(50.0), &json!(2.0)));
        assert_eq!(told["to_owner"], 60.0);
    }
}
