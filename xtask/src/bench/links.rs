//! Learners over slow and distant links. Each cell of the grid is a separate run of real processes: a syncer, a learner
//! near it, and an equal learner behind a link of a given rate and delay.

use std::str::FromStr;
use std::time::Duration;
use std::{fmt, fs};

use archipelago_link_emulator::LinkBytes;
use serde_json::{Value, json};

use super::Args;
use super::testbed::{Kind, Programs, Slot, Testbed, check_runs};

/// Rates of the grid, in Mbit/s each way.
const RATES: [f64; 5] = [0.5, 1.0, 5.0, 50.0, 1_000.0];
/// Round trips of the grid, in milliseconds.
const ROUND_TRIPS_MS: [u64; 4] = [0, 80, 300, 1_000];
const PRESETS: [&str; 2] = ["tiny", "small"];

/// Default seconds of a cell: enough for some hundred rounds with a near learner.
const SECONDS: u32 = 45;
/// Maximum wait for a learner to end after its training time.
const END_WAIT: Duration = Duration::from_secs(60);

/// Name of a rate without limit.
const UNLIMITED: &str = "unlimited";

/// Cell of the grid: a model, and the link of its far learner.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// Preset of the model, known to the syncer.
    pub preset: String,
    /// Rate each way, in Mbit/s; `None` means no limit.
    pub mbit_per_s: Option<f64>,
    /// Round-trip time to the syncer.
    pub round_trip: Duration,
}

/// Returns all cells, starting with the smallest model and the slowest link.
pub fn grid() -> Vec<Cell> {
    let of = |preset: &str| {
        CellSelection { preset: preset.to_owned(), mbit_per_s: None, round_trip_ms: None }.cells()
    };
    PRESETS.into_iter().flat_map(of).collect()
}

/// Selection of cells: a part of the grid, or a single cell inside or outside it.
#[derive(Clone, Debug, PartialEq)]
pub struct CellSelection {
    preset: String,
    /// The given rate, if any; the inner `None` means no limit.
    mbit_per_s: Option<Option<f64>>,
    round_trip_ms: Option<u64>,
}

impl CellSelection {
    /// Returns the selected cells.
    pub fn cells(&self) -> Vec<Cell> {
        let rates = self.mbit_per_s.map_or_else(|| RATES.map(Some).to_vec(), |rate| vec![rate]);
        let round_trips = self.round_trip_ms.map_or_else(|| ROUND_TRIPS_MS.to_vec(), |ms| vec![ms]);
        let cell = |&mbit_per_s: &Option<f64>, &ms: &u64| Cell {
            preset: self.preset.clone(),
            mbit_per_s,
            round_trip: Duration::from_millis(ms),
        };
        rates.iter().flat_map(|rate| round_trips.iter().map(move |ms| cell(rate, ms))).collect()
    }
}

impl FromStr for CellSelection {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',').map(str::trim);
        let preset = parts.next().filter(|preset| !preset.is_empty()).ok_or("no preset given")?;
        let rate = |rate: &str| match rate.parse() {
            _ if rate == UNLIMITED => Ok(None),
            Ok(mbit) if f64::is_finite(mbit) && mbit > 0.0 => Ok(Some(mbit)),
            _ => Err(format!("invalid rate {rate:?}; give Mbit/s above 0, or {UNLIMITED}")),
        };
        let only = Self {
            preset: preset.to_owned(),
            mbit_per_s: parts.next().map(rate).transpose()?,
            round_trip_ms: parts
                .next()
                .map(|ms| {
                    ms.parse().map_err(|_| format!("invalid round trip {ms:?}; give whole milliseconds"))
                })
                .transpose()?,
        };
        match parts.next() {
            Some(more) => Err(format!("unexpected {more:?}; expected PRESET,MBIT/S,ROUND-TRIP-MS")),
            None => Ok(only),
        }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, ", self.preset)?;
        match self.mbit_per_s {
            Some(rate) => write!(f, "{rate} Mbit/s")?,
            None => write!(f, "{UNLIMITED} rate")?,
        }
        write!(f, ", {} ms", self.round_trip.as_millis())
    }
}

/// Measures the selected cells one by one, and prints each result at once.
pub fn run(args: &Args) -> Result<Value, String> {
    let seconds = args.seconds.unwrap_or(SECONDS);
    let programs = args.programs()?;
    let cells =
        if args.only.is_empty() { grid() } else { args.only.iter().flat_map(CellSelection::cells).collect() };
    let (mut rows, mut failed) = (Vec::new(), Vec::new());
    for (number, cell) in cells.iter().enumerate() {
        println!("   {} of {}: {cell}, {seconds} s", number + 1, cells.len());
        match measure(cell, seconds, args, &programs) {
            Ok(row) => {
                println!("   {row}");
                rows.push(row);
            }
            // The other cells are still useful.
            Err(reason) => failed.push(format!("{cell}: {reason}")),
        }
    }
    match failed.is_empty() || !rows.is_empty() {
        true => Ok(json!({ "seconds": seconds, "cells": rows, "failed": failed })),
        false => Err(failed.join("; ")),
    }
}

/// Runs both learners for `seconds`. Returns the row of the table.
fn measure(cell: &Cell, seconds: u32, args: &Args, programs: &Programs) -> Result<Value, String> {
    let data: Vec<_> = args.data.iter().flat_map(|data| ["--data".into(), data.into()]).collect();
    let mut testbed = Testbed::start(programs, "links", &cell.preset, &data)?;
    let kind = Kind::Native(vec!["--for".to_owned(), format!("{seconds}s")]);
    testbed.add(Slot { link: None, kind: kind.clone() })?;
    testbed.add(Slot { link: Some((cell.mbit_per_s, cell.round_trip)), kind })?;
    for index in [0, 1] {
        // A learner that has not ended by then is measured by its last report.
        let wait = Duration::from_secs(seconds.into()) + END_WAIT;
        testbed.learner(index).and_then(|learner| learner.wait(wait));
    }
    check_runs(&mut testbed.syncer, "the syncer")?;
    let [near, far] = [0, 1].map(|index| Output::of(&testbed.events()[index]));
    if near.count("steps") <= 0.0 {
        let words = testbed.learner(0).map(|near| near.last_words()).unwrap_or_default();
        return Err(format!("the near learner never trained: {words}"));
    }
    Ok(row(cell, &far, &near, testbed.carried(1), load()))
}

/// Returns the load average of this machine over the last minute, if the system reports it. It includes the measured
/// programs.
fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

/// Parsed output of one learner, as `native-learner join --json` prints it.
struct Output {
    /// Last report: at its end, or its last progress if it was stopped before that.
    report: Value,
    /// Time to the first step, in milliseconds since the start.
    first_step_ms: Option<f64>,
}

impl Output {
    fn of(events: &[Value]) -> Self {
        let report = events.iter().rfind(|event| event["event"] == "end" || event["event"] == "progress");
        let first = events.iter().find(|event| event["event"] == "firstStep");
        Self {
            report: report.cloned().unwrap_or_default(),
            first_step_ms: first.and_then(|event| event["elapsedMs"].as_f64()),
        }
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
/// load average of this machine.
fn row(cell: &Cell, far: &Output, near: &Output, carried: LinkBytes, load: Option<f64>) -> Value {
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
        // Traffic that the far link would have if its learner were asked as often as the near one.
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
    use super::*;

    #[test]
    fn rows_are_ratios_of_the_last_report() {
        let cell = Cell { preset: "tiny".into(), mbit_per_s: None, round_trip: Duration::from_millis(80) };
        let far = Output::of(&[
            json!({ "event": "start" }),
            json!({ "event": "firstStep", "elapsedMs": 5_000 }),
            json!({ "event": "progress", "elapsedMs": 6_000, "steps": 1, "trainMs": 1, "tokensTrained": 9 }),
            json!({
                "event": "end", "elapsedMs": 45_000, "steps": 300, "trainMs": 30_000,
                "tokensTrained": 2_000, "tokensMerged": 1_500,
                "updatesMerged": 60, "updatesLate": 30, "updatesRefused": 10,
            }),
        ]);
        let near = Output::of(&[
            json!({ "event": "firstStep", "elapsedMs": 1_000 }),
            json!({
                "event": "progress", "elapsedMs": 45_000, "steps": 400, "trainMs": 44_000,
                "tokensTrained": 10, "tokensMerged": 9, "sentBytes": 25_000_000, "receivedBytes": 50_000_000,
            }),
        ]);
        let carried = LinkBytes { up_bytes: 7, down_bytes: 8 };
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
    fn a_learner_without_steps_has_no_ratios() {
        let cell = Cell { preset: "small".into(), mbit_per_s: Some(1.0), round_trip: Duration::ZERO };
        let far =
            Output::of(&[json!({ "event": "progress", "elapsedMs": 60_000, "steps": 0, "trainMs": 0 })]);
        let row = row(&cell, &far, &Output::of(&[]), LinkBytes::default(), None);
        assert_eq!((row["training"].as_f64(), row["steps"].as_u64()), (Some(0.0), Some(0)));
        assert!(row["join_s"].is_null() && row["participation"].is_null() && row["late"].is_null());
    }

    fn cells(text: &str) -> Vec<String> {
        text.parse::<CellSelection>().unwrap().cells().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_grid_has_each_model_on_each_link_once() {
        let grid: Vec<String> = grid().iter().map(ToString::to_string).collect();
        assert_eq!(grid.len(), 2 * 5 * 4);
        assert_eq!(grid[0], "tiny, 0.5 Mbit/s, 0 ms");
        assert!((1..grid.len()).all(|at| !grid[..at].contains(&grid[at])));
    }

    #[test]
    fn a_prefix_selects_a_part_of_the_grid() {
        assert_eq!(cells("small").len(), 20);
        let row = cells("small,5");
        assert_eq!((row.len(), row[3].as_str()), (4, "small, 5 Mbit/s, 1000 ms"));
        assert_eq!(cells("medium,0.25,80"), ["medium, 0.25 Mbit/s, 80 ms"]);
        assert_eq!(cells("tiny, unlimited, 80"), ["tiny, unlimited rate, 80 ms"]);
    }

    #[test]
    fn invalid_cells_are_refused() {
        for (text, reason) in [
            ("", "no preset"),
            ("small,0", "invalid rate"),
            ("small,fast", "invalid rate"),
            ("small,inf", "invalid rate"),
            ("small,1,1.5", "invalid round trip"),
            ("small,1,80,3", "unexpected"),
        ] {
            let error = text.parse::<CellSelection>().unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
