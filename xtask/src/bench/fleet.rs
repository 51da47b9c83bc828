//! Fleet benchmark: a run of real processes for comparison with `simulate fleet`. Some learners are near the syncer,
//! others are far away, slow, or behind slow links. One of them is killed each minute.
//!
//! The speed of each learner is measured before the first kill. All other input of `simulate fleet` is the
//! configuration of the run.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::Args;
use super::testbed::{Kind, Slot, TINY, Testbed, learner_name, number, words};

/// Default length of the run in minutes: each learner is killed once.
const MINUTES: u32 = 9;
/// Time between two kills.
const MINUTE: Duration = Duration::from_secs(60);
/// Time from a kill to the restart.
const DEAD: Duration = Duration::from_secs(10);
/// Delay of the speed measurement after all learners take part, so that all have fetched the text. The measurement ends
/// at the first kill.
const CALM: Duration = Duration::from_secs(25);
const TICK: Duration = Duration::from_millis(100);
/// Cores used by all native learners together. Browsers take about half of one more.
const NATIVE_CORES: f64 = 0.8;
/// Length of the training text in bytes.
const CORPUS_BYTES: u32 = 4 << 20;
/// Fraction of the text that is held out for the loss.
const HELD_OUT: f64 = 0.1;
/// Merged tokens per minute of the run, for the learning-rate schedule; about as many as the run merges.
const TOKENS_PER_MINUTE: u64 = 7_000_000;

/// Name, round trip in milliseconds, link rate in megabits a second, and weight of the learner in the processor time of
/// all native learners. `None` in the last field means a browser.
type SiteSpec = (&'static str, u64, Option<f64>, Option<f64>);
const PLACES: [SiteSpec; 8] = [
    ("near", 20, None, Some(1.0)),
    ("near", 20, None, Some(1.0)),
    ("far", 300, None, Some(1.0)),
    ("far", 300, None, Some(1.0)),
    ("thin", 60, Some(2.0), Some(1.0)),
    ("slow", 20, None, Some(0.4)),
    ("browser, near", 20, None, None),
    ("browser, far", 300, None, None),
];

/// Runs all learners. Returns the configuration and the results.
pub fn run(args: &Args) -> Result<Value, String> {
    crate::web::site()?;
    let programs = args.programs()?;
    let minutes = args.minutes.unwrap_or(MINUTES);
    let total_tokens = TOKENS_PER_MINUTE * u64::from(minutes);
    let settings = [
        ("--seed", args.seed().to_string()),
        ("--total-tokens", total_tokens.to_string()),
        ("--corpus-bytes", CORPUS_BYTES.to_string()),
        ("--held-out", HELD_OUT.to_string()),
        ("--eval-every", "5s".to_owned()),
        ("--learners-start", PLACES.len().to_string()),
    ];
    let flags: Vec<&str> = settings.iter().flat_map(|(flag, value)| [*flag, value.as_str()]).collect();
    let mut testbed = Testbed::start(&programs, "fleet", TINY, &words(&flags))?;
    PLACES.iter().try_for_each(|place| testbed.add(slot(place)))?;
    testbed.wait_for_all()?;
    let record = FleetObservations::take(&mut testbed, MINUTE * minutes)?;
    let series = testbed.get("/v1/series")?;
    let machines = (0..).zip(&PLACES).map(|(index, place)| record.machine(index, place));
    let grown = |path: &str| number(&record.last.status, path) - number(&record.first.status, path);
    Ok(json!({
        "preset": TINY,
        "seed": args.seed(),
        "corpus_bytes": CORPUS_BYTES,
        "held_out": HELD_OUT,
        "total_tokens": total_tokens,
        "length_ms": ms(record.length),
        "kills": record.kills,
        "machines": machines.collect::<Vec<_>>(),
        "tokens_trained": grown("/tokensTrained"),
        "tokens_merged": grown("/tokensMerged"),
        "rounds": grown("/rounds"),
        "updates_merged": grown("/fates/merged"),
        "losses": losses(&series, record.first.at_s(), record.length),
    }))
}

fn slot((_, round_trip_ms, mbit_per_s, part): &SiteSpec) -> Slot {
    let parts: f64 = PLACES.iter().filter_map(|(.., part)| *part).sum();
    Slot {
        link: Some((*mbit_per_s, Duration::from_millis(*round_trip_ms))),
        kind: part.map_or(Kind::Browser, |part| Kind::with_duty_cycle(NATIVE_CORES * part / parts)),
    }
}

/// Observations of the run from the time when all learners took part.
struct FleetObservations {
    length: Duration,
    first: Sample,
    last: Sample,
    /// Start and end of the time before the first kill, each with a sample.
    calm: [(Duration, Sample); 2],
    /// For each kill, the machine and the times of its kill and its restart.
    kills: Vec<Value>,
}

impl FleetObservations {
    /// Kills and restarts learners in turn for `length`.
    fn take(testbed: &mut Testbed<'_>, length: Duration) -> Result<Self, String> {
        let (start, first) = (Instant::now(), Sample::take(testbed)?);
        let (mut calm, mut kills) = (Vec::new(), Vec::new());
        let mut dead: Option<(usize, Duration)> = None;
        loop {
            let passed = start.elapsed();
            if passed >= [CALM, MINUTE, Duration::MAX][calm.len()] {
                calm.push((passed, Sample::take(testbed)?));
            }
            if passed >= length {
                break;
            }
            match dead {
                Some((machine, at)) if passed >= at + DEAD => {
                    testbed.start_learner(machine)?;
                    let back_ms = ms(start.elapsed());
                    kills.push(json!({ "machine": machine, "at_ms": ms(at), "back_ms": back_ms }));
                    dead = None;
                }
                // No learner is dead at the end.
                None if passed >= MINUTE * (kills.len() as u32 + 1) && passed + MINUTE / 2 < length => {
                    let machine = kills.len() % PLACES.len();
                    testbed.kill_learner(machine);
                    dead = Some((machine, passed));
                }
                _ => {}
            }
            testbed.check()?;
            thread::sleep(TICK);
        }
        let calm = calm.try_into().map_err(|_| "the run was too short to measure the learners' speed")?;
        Ok(Self { length: start.elapsed(), first, last: Sample::take(testbed)?, calm, kills })
    }

    fn machine(&self, index: usize, (place, round_trip_ms, mbit_per_s, _): &SiteSpec) -> Value {
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

/// Syncer's answers at one time.
struct Sample {
    status: Value,
    rows: Vec<Value>,
}

impl Sample {
    fn take(testbed: &Testbed<'_>) -> Result<Self, String> {
        Ok(Self { status: testbed.status()?, rows: testbed.rows()? })
    }

    /// Returns the number at `path`, such as a token count, for the learner on machine `index`. A restarted browser is
    /// a new learner of the same name, so the numbers of all learners with the name are added.
    fn tokens(&self, index: usize, path: &str) -> f64 {
        let name = learner_name(index);
        let rows = self.rows.iter().filter(|row| row["name"] == name.as_str());
        rows.map(|row| number(row, path) as f64).sum()
    }

    /// Returns the seconds since the start of the syncer.
    fn at_s(&self) -> f64 {
        self.status["uptimeS"].as_f64().unwrap_or(0.0)
    }
}

/// Returns the time and the held-out loss of each measurement. Times are in milliseconds since all learners took part.
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
