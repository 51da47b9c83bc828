//! `cargo xtask bench`: measurements on this machine, in one table of scenarios. They are never tests, since shared
//! machines are noisy.

mod crash;
mod fleet;
mod links;
mod load;
mod overhead;
mod receipts;
mod scale;
mod short;
mod soak;
mod stats;
mod storm;
mod testbed;

pub use stats::render;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::{PossibleValue, PossibleValuesParser};
use serde_json::{Map, Value, json};

use self::testbed::Programs;

/// Flags of `cargo xtask bench`.
#[derive(clap::Args, Default)]
pub struct Args {
    /// Scenario; without a name, `learner`, `merge`, `codec`, `wire`, `memory` and `browser`.
    #[arg(value_parser = names())]
    name: Option<String>,
    /// links: only these cells, as PRESET, PRESET,MBIT/S or PRESET,MBIT/S,ROUND-TRIP-MS; the rate may be `unlimited`;
    /// may be repeated.
    #[arg(long, value_name = "CELL")]
    only: Vec<links::CellSelection>,
    /// links: seconds of training for each cell [default: 45].
    #[arg(long)]
    seconds: Option<u32>,
    /// links: training text, a file or a folder [default: the built-in grammar].
    #[arg(long, value_name = "PATH")]
    data: Option<PathBuf>,
    /// crash: number of kills of the syncer [default: 20].
    #[arg(long)]
    points: Option<u32>,
    /// storm: number of learners, 2 to 256 [default: 32].
    #[arg(long, value_parser = clap::value_parser!(u16).range(2..=256))]
    islands: Option<u16>,
    /// load: number of learners that train [default: 64].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=256))]
    trained: Option<u32>,
    /// load: only the flood of abandoned requests and slow readers.
    #[arg(long)]
    flood: bool,
    /// scale: numbers of learners; repeat, or separate by commas [default: 100,1000,5000,10000].
    #[arg(long, value_name = "COUNT", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=60_000))]
    crowd: Vec<u32>,
    /// scale: milliseconds of a learner's step [default: 1000].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    step_ms: Option<u32>,
    /// scale: learners that one process asks in one round [default: the syncer's].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    cohort: Option<u32>,
    /// scale: numbers of gateways of a cluster with two owners, three NATS servers and one S3 server; 0 is a single
    /// process; repeat, or separate by commas [default: 0,2,4].
    #[arg(long, value_name = "COUNT", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(..=64))]
    gateways: Vec<u32>,
    /// scale: seconds of each measurement [default: 48].
    #[arg(long, value_parser = clap::value_parser!(u32).range(5..=3_600))]
    span_s: Option<u32>,
    /// crash, storm and poison: seed of all random choices; fleet: seed of the run [default: 1].
    #[arg(long)]
    seed: Option<u64>,
    /// storm, soak and fleet: minutes of each run, at least 2 [default: 8, 60 and 9].
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..))]
    minutes: Option<u32>,
    /// Takes syncer-server and native-learner, and for scale synthetic-learners if it exists, from this folder instead
    /// of building them; for all scenarios that start them.
    #[arg(long, value_name = "DIR")]
    prebuilt: Option<PathBuf>,
    /// Prints one JSON object as the last line.
    #[arg(long)]
    json: bool,
}

/// Measurement that `cargo xtask bench NAME` runs.
struct Scenario {
    name: &'static str,
    /// Description for users.
    about: &'static str,
    /// Flags that apply to it, besides `--json`.
    flags: &'static [&'static str],
    /// Returns the figures. Their field `within`, if there is one, is true if all limits were met.
    run: fn(&Args) -> Result<Value, String>,
}

/// All scenarios. Those without flags are short, and run if no name is given.
const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "learner",
        about: "Tokens a second of one learner, by preset and threads",
        flags: &[],
        run: |_| short::program("learner"),
    },
    Scenario {
        name: "merge",
        about: "Merging of updates, in GB/s, compared with a copy of memory",
        flags: &[],
        run: |_| short::program("merge"),
    },
    Scenario {
        name: "codec",
        about: "Coding and decoding of fragments, in GB/s, compared with a copy of memory",
        flags: &[],
        run: |_| short::program("codec"),
    },
    Scenario {
        name: "wire",
        about: "Bits per parameter and round each way, counted at the sockets of a short run",
        flags: &[],
        run: |_| short::wire(),
    },
    Scenario {
        name: "memory",
        about: "Peak resident memory of syncer and learner, compared with the limits",
        flags: &[],
        run: |_| short::memory(),
    },
    Scenario {
        name: "browser",
        about: "The learner in Chromium: sizes, time to the first step, tokens a second on WebGPU and WebAssembly",
        flags: &[],
        run: |_| short::browser(),
    },
    Scenario {
        name: "links",
        about: "A learner over slow or distant links, compared with a near one; more than half an hour",
        flags: &["--only", "--seconds", "--data", "--prebuilt"],
        run: links::run,
    },
    Scenario {
        name: "crash",
        about: "Repeated kills of the syncer: lost receipts, recovery times, waits of learners; a few minutes",
        flags: &["--points", "--seed", "--prebuilt"],
        run: crash::run,
    },
    Scenario {
        name: "storm",
        about: "A run of 32 learners under faults of all kinds, compared with the same run without; 20 minutes",
        flags: &["--islands", "--minutes", "--seed", "--prebuilt"],
        run: storm::run,
    },
    Scenario {
        name: "fleet",
        about: "Eight learners with different links, one killed each minute, for `simulate fleet`; 10 minutes",
        flags: &["--minutes", "--seed", "--prebuilt"],
        run: fleet::run,
    },
    Scenario {
        name: "soak",
        about: "Growth of memory, files and disk over an hour with kills of the syncer",
        flags: &["--minutes", "--prebuilt"],
        run: soak::run,
    },
    Scenario {
        name: "load",
        about: "Thousands of silent sockets, slow peers, watchers and downloads: latency and memory; 3 minutes",
        flags: &["--trained", "--flood", "--prebuilt"],
        run: load::run,
    },
    Scenario {
        name: "scale",
        about: "Capacity and cost of one syncer, and of a cluster, with synthetic learners; half an hour",
        flags: &["--crowd", "--step-ms", "--cohort", "--gateways", "--span-s", "--prebuilt"],
        run: scale::run,
    },
    Scenario {
        name: "tape",
        about: "Cost of the tape, in merges and tokens a second; 11 minutes",
        flags: &["--prebuilt"],
        run: |args| overhead::run(args, &overhead::TAPE),
    },
    Scenario {
        name: "trust",
        about: "Cost of loss checks, free-rider detection and rollback; 11 minutes",
        flags: &["--prebuilt"],
        run: |args| overhead::run(args, &overhead::TRUST),
    },
    Scenario {
        name: "poison",
        about: "Effect of hostile learners of each kind on the loss, in virtual time; 20 minutes of one core",
        flags: &["--seed"],
        run: |args| short::poison(args.seed()),
    },
];

/// Returns the parser of scenario names, which `--help` lists with their descriptions.
fn names() -> PossibleValuesParser {
    PossibleValuesParser::new(SCENARIOS.iter().map(|one| PossibleValue::new(one.name).help(one.about)))
}

impl Args {
    /// Returns the programs to measure: those of `--prebuilt`, or new builds.
    fn programs(&self) -> Result<Programs, String> {
        self.prebuilt.as_deref().map_or_else(Programs::build, Programs::in_folder)
    }

    fn seed(&self) -> u64 {
        self.seed.unwrap_or(1)
    }

    /// Returns the flags that were given, except `--json`.
    fn given(&self) -> impl Iterator<Item = &'static str> {
        let given = [
            ("--only", !self.only.is_empty()),
            ("--seconds", self.seconds.is_some()),
            ("--data", self.data.is_some()),
            ("--points", self.points.is_some()),
            ("--islands", self.islands.is_some()),
            ("--trained", self.trained.is_some()),
            ("--flood", self.flood),
            ("--crowd", !self.crowd.is_empty()),
            ("--step-ms", self.step_ms.is_some()),
            ("--cohort", self.cohort.is_some()),
            ("--gateways", !self.gateways.is_empty()),
            ("--span-s", self.span_s.is_some()),
            ("--seed", self.seed.is_some()),
            ("--minutes", self.minutes.is_some()),
            ("--prebuilt", self.prebuilt.is_some()),
        ];
        given.into_iter().filter(|(_, is_given)| *is_given).map(|(flag, _)| flag)
    }

    /// Returns the selected scenarios, or an error about a flag that does not apply to all of them.
    fn scenarios(&self) -> Result<Vec<&'static Scenario>, String> {
        let is_chosen = |one: &&Scenario| match &self.name {
            Some(name) => one.name == name,
            None => one.flags.is_empty(),
        };
        let chosen: Vec<_> = SCENARIOS.iter().filter(is_chosen).collect();
        let applies = |flag: &str| chosen.iter().all(|one| one.flags.contains(&flag));
        match self.given().find(|flag| !applies(flag)) {
            None => Ok(chosen),
            Some(flag) => {
                let takers = SCENARIOS.iter().filter(|one| one.flags.contains(&flag)).map(|one| one.name);
                let takers = takers.collect::<Vec<_>>().join(", ");
                Err(format!("`{flag}` does not apply here; it applies to `cargo xtask bench` {takers}"))
            }
        }
    }
}

/// Runs the selected scenarios and prints their figures. The exit code is 1 if one of them failed.
pub fn run(args: &Args) -> ExitCode {
    match figures(args) {
        Ok(mut figures) => {
            if args.json {
                let alone = args.name.as_ref().and_then(|name| figures.remove(name));
                println!("{}", alone.unwrap_or(Value::Object(figures)));
            }
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("error: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the figures of each selected scenario, by name.
fn figures(args: &Args) -> Result<Map<String, Value>, String> {
    let mut figures = Map::new();
    for scenario in args.scenarios()? {
        println!("── {}: {}", scenario.name, scenario.about);
        let value = (scenario.run)(args).map_err(|reason| format!("{}: {reason}", scenario.name))?;
        print!("{}", render(&value));
        figures.insert(scenario.name.to_owned(), value);
    }
    Ok(figures)
}

/// Adds to `figures` the field `within`, true if all `limits` are met, and `missed`, the names of the limits that are
/// not.
fn judge(mut figures: Value, limits: &[(&str, bool)]) -> Value {
    let missed: Vec<&str> = limits.iter().filter(|(_, is_met)| !is_met).map(|(name, _)| *name).collect();
    figures["within"] = missed.is_empty().into();
    if !missed.is_empty() {
        figures["missed"] = json!(missed);
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(name: Option<&str>) -> Args {
        Args { name: name.map(str::to_owned), ..Args::default() }
    }

    fn selected(args: &Args) -> Vec<&'static str> {
        args.scenarios().unwrap().iter().map(|one| one.name).collect()
    }

    #[test]
    fn short_scenarios_run_without_a_name() {
        assert_eq!(selected(&args(None)), ["learner", "merge", "codec", "wire", "memory", "browser"]);
        assert_eq!(selected(&args(Some("storm"))), ["storm"]);
    }

    #[test]
    fn flags_belong_to_scenarios() {
        assert_eq!(selected(&Args { seed: Some(2), ..args(Some("crash")) }), ["crash"]);
        let error = Args { points: Some(2), ..args(Some("storm")) }.scenarios().err().unwrap();
        assert!(error.contains("`--points`") && error.ends_with(" crash"), "{error}");
        assert!(Args { seed: Some(2), ..args(None) }.scenarios().is_err());
    }

    #[test]
    fn missed_limits_are_named() {
        assert_eq!(judge(json!({}), &[("a", true)]), json!({ "within": true }));
        assert_eq!(
            judge(json!({}), &[("a", true), ("b", false)]),
            json!({ "within": false, "missed": ["b"] })
        );
    }
}
