//! A run of real processes for comparison with the simulator: near, far, thinly linked and slow learners. One of them
//! is killed each minute.
//!
//! The speed of each learner is measured before the first kill. All other input of `simulate fleet` is the
//! configuration of the run.

use std::ffi::OsString;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::processes::{Programs, number};
use super::sea::{Berth, LOOK, Learner, PRESET, Sea};

/// Default length of the run in minutes: each learner is killed once.
const MINUTES: u32 = 9;
/// Time between kills…
const MINUTE: Duration = Duration::from_secs(60);
/// …and time until the restart.
const DEAD: Duration = Duration::from_secs(10);
/// Time after all learners take part at which the speed measurement starts; by then all have fetched the text. It ends
/// at the first kill.
const CALM: Duration = Duration::from_secs(25);
/// Cores used by all native learners together. Browsers take about half of one more.
const NATIVE_COMPUTES: f64 = 0.8;
/// Length of the training text in bytes, and the share held out for the loss.
const CORPUS_BYTES: u32 = 4 << 20;
const HELD_OUT: f64 = 0.1;
/// Merged tokens per minute of the run, for the learning-rate schedule; about as many as the run merges.
const TOKENS_PER_MINUTE: u64 = 7_000_000;

/// Name, round trip in milliseconds, link rate in megabits a second, and relative computing time among native learners.
/// `None` in the last field means a browser.
type Place = (&'static str, u64, Option<f64>, Option<f64>);
const PLACES: [Place; 8] = [
    ("near", 20, None, Some(1.0)),
    ("near", 20, None, Some(1.0)),
    ("far", 300, None, Some(1.0)),
    ("far", 300, None, Some(1.0)),
    ("thin", 60, Some(2.0), Some(1.0)),
    ("slow", 20, None, Some(0.4)),
    ("browser, near", 20, None, None),
    ("browser, far", 300, None, None),
];

/// Runs for `minutes` with this seed. Returns the configuration and the results.
///
/// # Errors
/// A message if a program could not be started, or ended by itself.
pub fn run(minutes: Option<u32>, seed: u64, programs: &Programs) -> Result<Value, String> {
    let minutes = minutes.unwrap_or(MINUTES);
    let total_tokens = TOKENS_PER_MINUTE * u64::from(minutes);
    let settings = [
        ("--seed", seed.to_string()),
        ("--total-tokens", total_tokens.to_string()),
        ("--corpus-bytes", CORPUS_BYTES.to_string()),
        ("--held-out", HELD_OUT.to_string()),
        ("--eval-every", "5s".to_owned()),
        ("--learners-start", PLACES.len().to_string()),
    ];
    let flags = settings.iter().flat_map(|(flag, value)| [OsString::from(flag), value.into()]).collect();
    let berths: Vec<Berth> = PLACES.iter().map(berth).collect();
    let mut sea = Sea::new(programs, "fleet", &berths, flags)?;
    sea.wait_for_all()?;
    let seen = Seen::watch(&mut sea, MINUTE * minutes)?;
    let series = sea.get("/v1/series")?;
    let machines: Vec<Value> = (0..).zip(&PLACES).map(|(index, place)| seen.machine(index, place)).collect();
    let grown = |path: &str| number(&seen.last.status, path) - number(&seen.first.status, path);
    Ok(json!({
        "preset": PRESET,
        "seed": seed,
        "corpus_bytes": CORPUS_BYTES,
        "held_out": HELD_OUT,
        "total_tokens": total_tokens,
        "length_ms": ms(seen.length),
        "kills": seen.kills,
        "machines": machines,
        "tokens_trained": grown("/tokensTrained"),
        "tokens_merged": grown("/tokensMerged"),
        "rounds": grown("/rounds"),
        "updates_merged": grown("/fates/merged"),
        "losses": losses(&series, seen.first.at_s(), seen.length),
    }))
}

fn berth((_, round_trip_ms, mbit_per_s, part): &Place) -> Berth {
    let parts: f64 = PLACES.iter().filter_map(|(.., part)| *part).sum();
    let native = |part: f64| Learner::Native { duty_cycle: NATIVE_COMPUTES * part / parts };
    Berth {
        round_trip: Duration::from_millis(*round_trip_ms),
        mbit_per_s: *mbit_per_s,
        learner: part.map_or(Learner::Browser, native),
    }
}

/// Observations since all learners took part.
struct Seen {
    length: Duration,
    first: Look,
    last: Look,
    /// Start and end of the time before the first kill.
    calm: [(Duration, Look); 2],
    /// Machine and the times of its kill and restart.
    kills: Vec<Value>,
}

impl Seen {
    /// Kills and restarts learners in turn for `length`.
    fn watch(sea: &mut Sea<'_>, length: Duration) -> Result<Self, String> {
        let (start, first) = (Instant::now(), Look::take(sea)?);
        let (mut calm, mut kills) = (Vec::new(), Vec::new());
        let mut dead: Option<(usize, Duration)> = None;
        loop {
            let passed = start.elapsed();
            if passed >= [CALM, MINUTE, Duration::MAX][calm.len()] {
                calm.push((passed, Look::take(sea)?));
            }
            if passed >= length {
                break;
            }
            match dead {
                Some((machine, at)) if passed >= at + DEAD => {
                    sea.start(machine)?;
                    kills
                        .push(json!({ "machine": machine, "at_ms": ms(at), "back_ms": ms(start.elapsed()) }));
                    dead = None;
                }
                // No learner is dead at the end.
                None if passed >= MINUTE * (kills.len() as u32 + 1) && passed + MINUTE / 2 < length => {
                    let machine = kills.len() % PLACES.len();
                    sea.kill(machine);
                    dead = Some((machine, passed));
                }
                _ => {}
            }
            sea.all_run()?;
            thread::sleep(LOOK);
        }
        let calm = calm.try_into().map_err(|_| "the run was too short to measure how fast anybody is")?;
        Ok(Self { length: start.elapsed(), first, last: Look::take(sea)?, calm, kills })
    }

    fn machine(&self, index: usize, (place, round_trip_ms, mbit_per_s, _): &Place) -> Value {
        let [(from, calm), (until, killed)] = &self.calm;
        let trained = killed.tokens(index, "/tokensTrained") - calm.tokens(index, "/tokensTrained");
        let grown = |path: &str| self.last.tokens(index, path) - self.first.tokens(index, path);
        json!({
            "place": place,
            "round_trip_ms": round_trip_ms,
            "mbit_per_s": mbit_per_s,
            "tokens_per_s": trained / (*until - *from).as_secs_f64(),
            "tokens_trained": grown("/tokensTrained"),
            "tokens_merged": grown("/tokensMerged"),
        })
    }
}

/// Syncer's view at one time.
struct Look {
    status: Value,
    rows: Vec<Value>,
}

impl Look {
    fn take(sea: &Sea<'_>) -> Result<Self, String> {
        Ok(Self { status: sea.get("/v1/status")?, rows: sea.learners()? })
    }

    /// Returns a count of the learner on machine `index`. A restarted browser is a new learner of the same name.
    fn tokens(&self, index: usize, path: &str) -> f64 {
        let name = format!("island-{}", index + 1);
        let of_it = self.rows.iter().filter(|row| row["name"] == name.as_str());
        of_it.map(|row| number(row, path) as f64).sum()
    }

    /// Returns the seconds since the start of the syncer.
    fn at_s(&self) -> f64 {
        self.status["uptimeS"].as_f64().unwrap_or(0.0)
    }
}

/// Returns the milliseconds since all learners took part and the held-out loss of each measurement.
fn losses(series: &Value, first_s: f64, length: Duration) -> Vec<(u64, f64)> {
    let point = |evaluation: &Value| {
        let after_s = evaluation["timeS"].as_f64()? - first_s;
        let is_in = (0.0..=length.as_secs_f64()).contains(&after_s);
        is_in.then_some(((after_s * 1e3) as u64, evaluation["loss"].as_f64()?))
    };
    series["evaluations"].as_array().into_iter().flatten().filter_map(point).collect()
}

fn ms(span: Duration) -> u64 {
    span.as_millis() as u64
}
