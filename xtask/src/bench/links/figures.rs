//! Figures from the output of two learners.

use archipelago_shaper::Carried;
use serde_json::{Value, json};

use super::grid::Cell;

/// Parsed output of one learner, as `native-learner join --json` prints it.
pub struct Said {
    /// Last report: at its end, or its last progress if it was stopped before that.
    report: Value,
    /// Time to the first step, in milliseconds since the start.
    first_step_ms: Option<f64>,
}

impl Said {
    /// Parses `lines`. Lines that are not JSON are ignored.
    pub fn read(lines: &[String]) -> Self {
        let events: Vec<Value> = lines.iter().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let report = events.iter().rfind(|event| event["event"] == "end" || event["event"] == "progress");
        let first = events.iter().find(|event| event["event"] == "firstStep");
        Self {
            report: report.cloned().unwrap_or_default(),
            first_step_ms: first.and_then(|event| event["elapsedMs"].as_f64()),
        }
    }

    /// Returns true if the learner made any step.
    pub fn has_trained(&self) -> bool {
        self.count("steps") > 0.0
    }

    fn count(&self, key: &str) -> f64 {
        self.report[key].as_f64().unwrap_or(0.0)
    }

    /// Returns the share of time spent in steps since the first step; 0 without any step.
    fn training(&self) -> f64 {
        let Some(first_ms) = self.first_step_ms else { return 0.0 };
        ratio(self.count("trainMs"), self.count("elapsedMs") - first_ms).unwrap_or(0.0).min(1.0)
    }

    /// Returns the traffic on the socket in Mbit per step, sent or received according to `key`.
    fn mbit_per_step(&self, key: &str) -> Option<f64> {
        ratio(self.count(key) * 8e-6, self.count("steps"))
    }

    /// Returns merged over trained tokens, if any were trained.
    fn participation(&self) -> Option<f64> {
        ratio(self.count("tokensMerged"), self.count("tokensTrained"))
    }

    /// Returns the share of late updates among those with a known fate, if there are any.
    fn late(&self) -> Option<f64> {
        let late = self.count("updatesLate");
        ratio(late, late + self.count("updatesMerged") + self.count("updatesRefused"))
    }
}

fn ratio(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}

/// Returns one row: the far learner of `cell` compared with the near one, and the traffic of its link. `load` is the
/// average number of runnable programs on this machine, where the system reports it.
pub fn row(cell: &Cell, far: &Said, near: &Said, carried: Carried, load: Option<f64>) -> Value {
    json!({
        "cell": cell.to_string(),
        "preset": cell.preset,
        "mbit_per_s": cell.mbit_per_s,
        "round_trip_ms": cell.round_trip.as_millis() as u64,
        "step_ms": ratio(far.count("trainMs"), far.count("steps")),
        "training": far.training(),
        "steps": far.count("steps") as u64,
        "steps_of_near": ratio(far.count("steps"), near.count("steps")),
        "participation": far.participation(),
        "late": far.late(),
        "merged_updates": far.count("updatesMerged") as u64,
        "refused_updates": far.count("updatesRefused") as u64,
        "up_bytes": carried.up_bytes,
        "down_bytes": carried.down_bytes,
        "join_s": far.first_step_ms.map(|ms| ms / 1e3),
        // Rate that the link would need for a learner that is asked as often as the near one.
        "near_mbit_per_step_up": near.mbit_per_step("sentBytes"),
        "near_mbit_per_step_down": near.mbit_per_step("receivedBytes"),
        "near_step_ms": ratio(near.count("trainMs"), near.count("steps")),
        "near_training": near.training(),
        "near_steps": near.count("steps") as u64,
        "near_participation": near.participation(),
        "load": load,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn said(lines: &[&str]) -> Said {
        Said::read(&lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn rows_are_ratios_of_what_was_said_last() {
        let cell = Cell { preset: "tiny".into(), mbit_per_s: None, round_trip: Duration::from_millis(80) };
        let far = said(&[
            r#"{"event":"start"}"#,
            r#"{"event":"firstStep","elapsedMs":5000}"#,
            r#"{"event":"progress","elapsedMs":6000,"steps":1,"trainMs":1,"tokensTrained":9,"tokensMerged":9}"#,
            &json!({
                "event": "end", "elapsedMs": 45_000, "steps": 300, "trainMs": 30_000,
                "tokensTrained": 2_000, "tokensMerged": 1_500,
                "updatesMerged": 60, "updatesLate": 30, "updatesRefused": 10,
            })
            .to_string(),
            "not JSON",
        ]);
        let near = said(&[
            r#"{"event":"firstStep","elapsedMs":1000}"#,
            &json!({
                "event": "progress", "elapsedMs": 45_000, "steps": 400, "trainMs": 44_000,
                "tokensTrained": 10, "tokensMerged": 9, "sentBytes": 25_000_000, "receivedBytes": 50_000_000,
            })
            .to_string(),
        ]);
        let carried = Carried { up_bytes: 7, down_bytes: 8 };
        let row = row(&cell, &far, &near, carried, Some(2.5));
        for (key, expected) in [
            ("training", 0.75),
            ("step_ms", 100.0),
            ("steps_of_near", 0.75),
            ("participation", 0.75),
            ("late", 0.3),
            ("up_bytes", 7.0),
            ("down_bytes", 8.0),
            ("join_s", 5.0),
            ("near_training", 1.0),
            ("near_mbit_per_step_up", 0.5),
            ("near_mbit_per_step_down", 1.0),
            ("near_step_ms", 110.0),
            ("near_participation", 0.9),
            ("round_trip_ms", 80.0),
        ] {
            assert_eq!(row[key].as_f64(), Some(expected), "{key} of {row}");
        }
        assert_eq!(row["mbit_per_s"], Value::Null);
    }

    #[test]
    fn who_never_stepped_has_trained_none_of_the_time() {
        let cell = Cell { preset: "small".into(), mbit_per_s: Some(1.0), round_trip: Duration::ZERO };
        let far = said(&[r#"{"event":"progress","elapsedMs":60000,"steps":0,"trainMs":0}"#]);
        let row = row(&cell, &far, &said(&[]), Carried::default(), None);
        assert_eq!((row["training"].as_f64(), row["steps"].as_u64()), (Some(0.0), Some(0)));
        assert!(row["join_s"].is_null() && row["participation"].is_null() && row["late"].is_null());
    }
}
