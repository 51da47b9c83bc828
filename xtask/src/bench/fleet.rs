//! A run of real processes to be set beside the simulator's word on it: learners near, far, behind thin links and slow,
//! of which one is killed each minute.
//!
//! How fast each one trains is measured over the time before the first is killed. All else that `simulate fleet` is told is how
//! the run was made.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::processes::{Programs, number};
use super::sea::{Berth, COMPUTES, LOOK, PRESET, Sea};

/// Minutes of the run, unless it is said how many.
const MINUTES: u32 = 5;
/// Each minute one is killed…
const MINUTE: Duration = Duration::from_secs(60);
/// …and started again after so long.
const DEAD: Duration = Duration::from_secs(10);
/// Speed is measured from so long after all take part until the first is killed.
const CALM: Duration = Duration::from_secs(10);
/// Text that is trained on, in bytes, and the share of it that the loss is measured by.
const CORPUS_BYTES: u32 = 4 << 20;
const HELD_OUT: f64 = 0.1;
/// Merged tokens at which the learning rate has come down, for each minute: about as many as are merged.
const TOKENS_PER_MINUTE: u64 = 7_000_000;

/// Where learners are: milliseconds there and back, megabits a second, and parts of the time that all compute.
const PLACES: [(&str, u64, Option<f64>, f64); 8] = [
    ("near", 20, None, 1.0),
    ("near", 20, None, 1.0),
    ("near", 20, None, 1.0),
    ("far", 300, None, 1.0),
    ("far", 300, None, 1.0),
    ("thin", 60, Some(2.0), 1.0),
    ("thin", 60, Some(2.0), 1.0),
    ("slow", 20, None, 0.4),
];

/// The run of `minutes` with this seed: how it was made, and what became of it.
///
/// # Errors
/// A sentence: a program could not be started, or one ended by itself.
pub fn run(minutes: Option<u32>, seed: u64, programs: &Programs) -> Result<Value, String> {
    let minutes = minutes.unwrap_or(MINUTES);
    let length = MINUTE * minutes;
    let parts: f64 = PLACES.iter().map(|(.., part)| part).sum();
    let berth = |(_, ms, mbit_per_s, part): &(&str, u64, Option<f64>, f64)| Berth {
        round_trip: Duration::from_millis(*ms),
        mbit_per_s: *mbit_per_s,
        duty_cycle: COMPUTES * part / parts,
    };
    let total_tokens = TOKENS_PER_MINUTE * u64::from(minutes);
    let (seed_, total) = (seed.to_string(), total_tokens.to_string());
    let (bytes, held_out) = (CORPUS_BYTES.to_string(), HELD_OUT.to_string());
    let flags: [&str; 12] = [
        "--seed",
        &seed_,
        "--total-tokens",
        &total,
        "--corpus-bytes",
        &bytes,
        "--held-out",
        &held_out,
        "--eval-every",
        "5s",
        "--learners-start",
        "8",
    ];
    let berths: Vec<Berth> = PLACES.iter().map(berth).collect();
    let mut sea = Sea::new(programs, "fleet", &berths, flags.map(OsString::from).into())?;
    sea.wait_for_all()?;
    let start = Instant::now();
    let first = Look::take(&sea)?;
    let (mut calm, mut before_kill, mut kills) = (None, None, Vec::new());
    let mut dead: Option<(usize, Instant)> = None;
    while start.elapsed() < length {
        let passed = start.elapsed();
        if calm.is_none() && passed >= CALM {
            calm = Some((passed, Look::take(&sea)?));
        }
        // Nobody is dead at the end.
        let due = MINUTE * (kills.len() as u32 + 1);
        if dead.is_none() && passed >= due && due < length {
            before_kill.get_or_insert((passed, Look::take(&sea)?));
            let machine = kills.len() % PLACES.len();
            sea.kill(machine);
            kills.push(json!({ "machine": machine, "at_ms": ms(passed), "back_ms": Value::Null }));
            dead = Some((machine, Instant::now()));
        }
        if let Some((machine, since)) = dead
            && since.elapsed() >= DEAD
        {
            sea.start(machine)?;
            if let Some(kill) = kills.last_mut() {
                kill["back_ms"] = json!(ms(start.elapsed()));
            }
            dead = None;
        }
        sea.all_run()?;
        thread::sleep(LOOK);
    }
    let (last, ended) = (Look::take(&sea)?, start.elapsed());
    let series = sea.get("/v1/series")?;
    let steps = calm.zip(before_kill).ok_or("the run was too short for anybody to be killed")?;
    let machine = |(index, (place, round_trip_ms, mbit_per_s, _)): (
        usize,
        &(&str, u64, Option<f64>, f64),
    )| {
        let ((from, calm), (until, before_kill)) = &steps;
        let tokens = before_kill.tokens(index, "/tokensTrained") - calm.tokens(index, "/tokensTrained");
        json!({
            "place": place,
            "round_trip_ms": round_trip_ms,
            "mbit_per_s": mbit_per_s,
            "tokens_per_s": tokens / (*until - *from).as_secs_f64(),
            "tokens_trained": last.tokens(index, "/tokensTrained") - first.tokens(index, "/tokensTrained"),
            "tokens_merged": last.tokens(index, "/tokensMerged") - first.tokens(index, "/tokensMerged"),
        })
    };
    let machines: Vec<Value> = PLACES.iter().enumerate().map(machine).collect();
    let grown = |path: &str| number(&last.status, path) - number(&first.status, path);
    let late: u64 = last.late().saturating_sub(first.late());
    Ok(json!({
        "preset": PRESET,
        "seed": seed,
        "corpus_bytes": CORPUS_BYTES,
        "held_out": HELD_OUT,
        "total_tokens": total_tokens,
        "learners_start": PLACES.len(),
        "length_ms": ms(ended),
        "kills": kills,
        "machines": machines,
        "tokens_trained": grown("/tokensTrained"),
        "tokens_merged": grown("/tokensMerged"),
        "rounds": grown("/rounds"),
        "updates_merged": grown("/fates/merged"),
        "updates_late": late,
        "losses": losses(&series, first.at_s(), ended),
    }))
}

/// What the syncer says at one moment.
struct Look {
    status: Value,
    /// Of each learner, by name.
    rows: BTreeMap<String, Value>,
}

impl Look {
    fn take(sea: &Sea<'_>) -> Result<Self, String> {
        let named = |row: Value| Some((row["name"].as_str()?.to_owned(), row));
        let rows = sea.learners()?.into_iter().filter_map(named).collect();
        Ok(Self { status: sea.get("/v1/status")?, rows })
    }

    fn tokens(&self, index: usize, path: &str) -> f64 {
        self.rows.get(&name(index)).map_or(0.0, |row| number(row, path) as f64)
    }

    fn late(&self) -> u64 {
        let late = self.status["fates"]["late"].as_object();
        late.into_iter().flatten().filter_map(|(_, count)| count.as_u64()).sum()
    }

    /// Seconds since the syncer began.
    fn at_s(&self) -> f64 {
        self.status["uptimeS"].as_f64().unwrap_or(0.0)
    }
}

/// Milliseconds since all took part, and held-out loss, of each measurement of that time.
fn losses(series: &Value, first_s: f64, length: Duration) -> Vec<(u64, f64)> {
    let point = |evaluation: &Value| {
        let after_s = evaluation["timeS"].as_f64()? - first_s;
        let is_in = (0.0..=length.as_secs_f64()).contains(&after_s);
        is_in.then_some(((after_s * 1e3) as u64, evaluation["loss"].as_f64()?))
    };
    series["evaluations"].as_array().into_iter().flatten().filter_map(point).collect()
}

fn name(index: usize) -> String {
    format!("island-{}", index + 1)
}

fn ms(span: Duration) -> u64 {
    span.as_millis() as u64
}
