//! One run under a schedule of faults, and its observations.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::thread;
use std::time::{Duration, Instant};

use archipelago_shaper::Weather;
use serde_json::Value;

use super::plan::{Fault, Kind};
use crate::bench::processes::{Programs, number};
use crate::bench::proof::{Proof, prove, receipts};
use crate::bench::sea::{Berth, COMPUTES, LOOK, Learner, Sea};

/// Tokens of the learning-rate schedule: more than any of these runs merges.
const TOTAL_TOKENS: &str = "400000000";
/// Round trip of all learners to the syncer: two places in one country.
const ROUND_TRIP: Duration = Duration::from_millis(20);
/// Warm-up after all learners take part. The first merges are not typical.
const WARM: Duration = Duration::from_secs(20);

/// Results of one run.
pub struct Outcome {
    /// Tokens merged and trained after the warm-up.
    pub merged: f64,
    pub trained: f64,
    /// Merged tokens and held-out loss, in order.
    pub losses: Vec<(f64, f64)>,
    /// For each fault in order, the seconds from the end of its cause until the affected learners are merged again;
    /// `None` if that was never seen.
    pub rejoins_s: Vec<Option<f64>>,
    pub proof: Proof,
}

/// Runs `learners` learners for `length` under `faults`.
///
/// # Errors
/// A message if a program could not be started, a syncer did not come back, or a learner ended by itself.
pub fn run(
    programs: &Programs,
    learners: usize,
    length: Duration,
    faults: &[Fault],
) -> Result<Outcome, String> {
    let duty_cycle = (COMPUTES / learners as f64).min(1.0);
    let learner = Learner::Native { duty_cycle };
    let berth = Berth { round_trip: ROUND_TRIP, mbit_per_s: None, learner };
    let flags = ["--total-tokens", TOTAL_TOKENS, "--eval-every", "10s", "--keep", "4GiB"].map(OsString::from);
    let mut sea = Sea::new(programs, "storm", &vec![berth; learners], flags.into())?;
    sea.wait_for_all()?;
    thread::sleep(WARM);
    let first = sea.get("/v1/status")?;
    let mut watch = Watch { states: vec![State::Ahead; faults.len()], start: Instant::now() };
    while watch.start.elapsed() < length {
        watch.act(&mut sea, faults)?;
        watch.look(&sea, faults)?;
        sea.all_run()?;
        thread::sleep(LOOK);
    }
    let last = sea.get("/v1/status")?;
    let series = sea.get("/v1/series")?;
    let told: Vec<_> = sea.end()?.iter().flat_map(|lines| receipts(lines)).collect();
    let (replay, status, rows) = sea.books()?;
    let grown = |path: &str| (number(&last, path) - number(&first, path)) as f64;
    Ok(Outcome {
        merged: grown("/tokensMerged"),
        trained: grown("/tokensTrained"),
        losses: losses(&series),
        rejoins_s: watch.states.iter().map(State::rejoin_s).collect(),
        proof: prove(&told, &replay, &status, &rows),
    })
}

/// Progress of a fault.
#[derive(Clone)]
enum State {
    Ahead,
    Under,
    /// End of the cause, and the number of merged updates of each affected learner at that time.
    Over(Duration, BTreeMap<String, u64>),
    /// Time after which all affected learners were merged again.
    Healed(Duration),
}

impl State {
    fn rejoin_s(&self) -> Option<f64> {
        match self {
            Self::Healed(after) => Some(after.as_secs_f64()),
            _ => None,
        }
    }
}

struct Watch {
    states: Vec<State>,
    start: Instant,
}

impl Watch {
    /// Starts and ends due faults.
    fn act(&mut self, sea: &mut Sea<'_>, faults: &[Fault]) -> Result<(), String> {
        for (at, fault) in faults.iter().enumerate() {
            if matches!(self.states[at], State::Ahead) && self.start.elapsed() >= fault.from {
                let who = fault.island().map(|island| format!("island {island} ")).unwrap_or_default();
                println!("   {:>4} s: {who}{}", fault.from.as_secs(), fault.kind.name());
                match fault.kind {
                    Kind::Killed => sea.kill(fault.learner),
                    Kind::Frozen => sea.freeze(fault.learner, true)?,
                    Kind::Link(_, weather) => sea.weather(fault.learner, weather),
                    Kind::Syncer => {}
                }
                self.states[at] = State::Under;
            }
            if matches!(self.states[at], State::Under) && self.start.elapsed() >= fault.until {
                match fault.kind {
                    Kind::Killed => sea.start(fault.learner)?,
                    Kind::Frozen => sea.freeze(fault.learner, false)?,
                    Kind::Link(..) => sea.weather(fault.learner, Weather::FAIR),
                    Kind::Syncer => sea.restart_syncer()?,
                }
                let ended = self.start.elapsed();
                let mut merged = merged(&sea.learners()?);
                let name = format!("island-{}", fault.learner + 1);
                merged.retain(|who, _| match fault.kind {
                    // Learners under a fault of their own are not waited for.
                    Kind::Syncer => !self.is_under(who, faults),
                    _ => *who == name,
                });
                self.states[at] = State::Over(ended, merged);
            }
        }
        Ok(())
    }

    /// Updates the faults whose learners are merged again.
    fn look(&mut self, sea: &Sea<'_>, faults: &[Fault]) -> Result<(), String> {
        if !self.states.iter().any(|state| matches!(state, State::Over(..))) {
            return Ok(());
        }
        let now = merged(&sea.learners()?);
        for at in 0..self.states.len() {
            let State::Over(ended, before) = &self.states[at] else { continue };
            let is_merged = |who: &String, count: &u64| now.get(who).is_some_and(|now| now > count);
            let excused = |who: &String| faults[at].kind == Kind::Syncer && self.is_under(who, faults);
            if before.iter().all(|(who, count)| is_merged(who, count) || excused(who)) {
                self.states[at] = State::Healed(self.start.elapsed().saturating_sub(*ended));
            }
        }
        Ok(())
    }

    /// Returns true if learner `name` suffers from its own fault, or still recovers from it.
    fn is_under(&self, name: &str, faults: &[Fault]) -> bool {
        faults.iter().zip(&self.states).any(|(fault, state)| {
            let suffers = matches!(state, State::Under | State::Over(..));
            suffers && fault.kind != Kind::Syncer && format!("island-{}", fault.learner + 1) == name
        })
    }
}

/// Returns the number of merged updates of each learner.
fn merged(rows: &[Value]) -> BTreeMap<String, u64> {
    let row = |row: &Value| Some((row["name"].as_str()?.to_owned(), number(row, "/fates/merged")));
    rows.iter().filter_map(row).collect()
}

/// Returns the merged tokens and the held-out loss of each measurement.
fn losses(series: &Value) -> Vec<(f64, f64)> {
    let point =
        |evaluation: &Value| Some((evaluation["tokensMerged"].as_f64()?, evaluation["loss"].as_f64()?));
    series["evaluations"].as_array().into_iter().flatten().filter_map(point).collect()
}
