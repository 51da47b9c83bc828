//! `cargo xtask bench`: the figures of this machine. Never a test: shared machines are noisy.

mod chance;
mod cost;
mod crash;
mod fleet;
mod links;
mod load;
mod poison;
mod processes;
mod proof;
mod runs;
mod scale;
mod sea;
mod soak;
mod storm;
mod table;

pub use table::render;

use std::process::{ExitCode, Stdio};

use clap::ValueEnum;
use serde_json::{Map, Value};

use crate::cargo::{RELEASE_PROGRAMS, build, cargo, program};

/// What to measure.
#[derive(clap::Args)]
pub struct Args {
    /// One of them; without a name, all but `links`, which takes more than half an hour, `crash`,
    /// `storm`, `fleet`, `soak`, `load`, `scale`, `tape`, `trust` and `poison`.
    #[arg(value_enum)]
    name: Option<Name>,
    #[command(flatten)]
    links: links::Args,
    #[command(flatten)]
    crash: crash::Args,
    #[command(flatten)]
    storm: storm::Args,
    #[command(flatten)]
    load: load::Args,
    #[command(flatten)]
    scale: scale::Args,
    /// Crash, storm and poison: what decides what is done, to whom and when; fleet: the seed of the run [default: 1].
    #[arg(long)]
    seed: Option<u64>,
    /// Storm, soak and fleet: minutes of each run, at least 2 [default: 8, 60 and 9].
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..))]
    minutes: Option<u32>,
    /// Prints one JSON object as the last line.
    #[arg(long)]
    json: bool,
}

/// What there is to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Name {
    /// Tokens a second of one learner, by preset and threads.
    Learner,
    /// Merging updates, in GB/s, beside a copy of memory.
    Merge,
    /// Coding and decoding fragments, in GB/s, beside a copy of memory.
    Codec,
    /// Bits per parameter and round each way, counted at the sockets of a short run.
    Wire,
    /// Largest resident memory of syncer and learner, against the bars.
    Memory,
    /// The browser's learner: sizes, time to the first step, tokens a second on WebGPU and WebAssembly.
    Browser,
    /// A learner over far and thin links, beside a near one.
    Links,
    /// What is lost, and how learners fare, when their syncer is killed again and again: twenty times in about two
    /// minutes, unless `--points` says how often.
    Crash,
    /// What many faults of every kind cost a run of 32 learners: twice eight minutes, unless `--minutes` says else.
    Storm,
    /// Eight learners far and near, of which one is killed each minute, to be set beside what `simulate fleet` says of
    /// the same run: nine minutes, unless `--minutes` says else.
    Fleet,
    /// Memory, files and disk over an hour, unless `--minutes` says else, with a syncer that is killed now and then.
    Soak,
    /// What learners that train feel of thousands of silent sockets, slow peers, watchers and downloads, and what these
    /// take of memory; takes about three minutes.
    Load,
    /// How many light learners one syncer holds, and owners and gateways over servers, and what each of them costs;
    /// takes about half an hour.
    Scale,
    /// What the tape costs a run, in time and merges; takes about eleven minutes.
    Tape,
    /// The same of looking for harm and for free riders, and of undoing.
    Trust,
    /// What hostile learners of every kind do to the loss, in virtual time; takes about twenty minutes of one core.
    Poison,
}

/// Benchmarks that run only by name because they take long.
const LONG: [Name; 9] = [
    Name::Links,
    Name::Crash,
    Name::Storm,
    Name::Fleet,
    Name::Soak,
    Name::Load,
    Name::Scale,
    Name::Tape,
    Name::Trust,
];

impl Args {
    /// Returns an error for a flag that does not belong to the selected benchmark.
    fn misplaced(&self) -> Option<&'static str> {
        use Name::{Crash, Fleet, Links, Load, Poison, Scale, Soak, Storm};
        let rules: [(bool, &[Name], &str); 8] = [
            (self.links.any(), &[Links], "what was given is for `cargo xtask bench links` alone"),
            (self.crash.any(), &[Crash], "`--points` is for `cargo xtask bench crash` alone"),
            (self.storm.any(), &[Storm], "`--islands` is for `cargo xtask bench storm` alone"),
            (self.load.any(), &[Load], "`--trained` and `--flood` are for `cargo xtask bench load` alone"),
            (
                self.scale.any(),
                &[Scale],
                "`--crowd`, `--gateways`, `--step-ms`, `--cohort` and `--span-s` are for `cargo xtask bench scale` \
                 alone",
            ),
            (
                self.minutes.is_some(),
                &[Storm, Soak, Fleet],
                "`--minutes` is for `cargo xtask bench storm`, `soak` and `fleet` alone",
            ),
            (
                self.seed.is_some(),
                &[Crash, Storm, Fleet, Poison],
                "`--seed` is for `cargo xtask bench crash`, `storm`, `fleet` and `poison` alone",
            ),
            (
                self.links.is_prebuilt(),
                &LONG,
                "`--prebuilt` is for `cargo xtask bench links`, `crash`, `storm`, `fleet`, `soak`, `load`, `scale`, \
                 `tape` and `trust` alone",
            ),
        ];
        let is_wrong = |names: &[Name]| self.name.is_none_or(|name| !names.contains(&name));
        rules.iter().find(|(is_given, names, _)| *is_given && is_wrong(names)).map(|(.., why)| *why)
    }
}

/// Runs the benchmarks. The exit code is 1 if one of them failed.
pub fn run(args: &Args) -> ExitCode {
    if let Some(why) = args.misplaced() {
        eprintln!("error: {why}");
        return ExitCode::FAILURE;
    }
    let is_short = |name: &Name| !LONG.contains(name) && *name != Name::Poison;
    let all = || Name::value_variants().iter().copied().filter(is_short).collect();
    let names = args.name.map_or_else(all, |name| vec![name]);
    let mut figures = Map::new();
    for name in names {
        println!("── {name:?}");
        match measure(name, args) {
            Ok(value) => {
                print!("{}", render(&value));
                figures.insert(format!("{name:?}").to_lowercase(), value);
            }
            Err(reason) => {
                eprintln!("error: {name:?}: {reason}");
                return ExitCode::FAILURE;
            }
        }
    }
    if args.json {
        let alone = args.name.and_then(|_| figures.values().next().cloned());
        println!("{}", alone.unwrap_or(Value::Object(figures)));
    }
    ExitCode::SUCCESS
}

fn measure(name: Name, args: &Args) -> Result<Value, String> {
    let seed = args.seed.unwrap_or(1);
    match name {
        Name::Learner => bench("learner"),
        Name::Merge => bench("merge"),
        Name::Codec => bench("codec"),
        Name::Wire => runs::wire(),
        Name::Memory => runs::memory(),
        Name::Browser => browser(),
        Name::Links => links::run(&args.links),
        Name::Crash => args.links.programs().and_then(|programs| crash::run(&args.crash, seed, &programs)),
        Name::Storm => {
            args.links.programs().and_then(|programs| storm::run(&args.storm, args.minutes, seed, &programs))
        }
        Name::Fleet => {
            crate::web::site()?;
            args.links.programs().and_then(|programs| fleet::run(args.minutes, seed, &programs))
        }
        Name::Soak => args.links.programs().and_then(|programs| soak::run(args.minutes, &programs)),
        Name::Load => args.links.programs().and_then(|programs| load::run(&args.load, &programs)),
        Name::Scale => {
            let prebuilt = args.links.prebuilt();
            args.links.programs().and_then(|programs| scale::run(&args.scale, prebuilt, &programs))
        }
        Name::Tape => args.links.programs().and_then(|programs| cost::run(&programs, &cost::TAPE)),
        Name::Trust => args.links.programs().and_then(|programs| cost::run(&programs, &cost::TRUST)),
        Name::Poison => poison::run(seed),
    }
}

/// Runs the program `bench` for `name`. It is a separate program so that `cargo xtask` builds quickly.
fn bench(name: &str) -> Result<Value, String> {
    let mut command =
        cargo(&["run", "--release", "--quiet", "-p", "xtask", "--features", "bench", "--bin", "bench"]);
    command.args(["--", name]).stderr(Stdio::inherit());
    last_line(command)
}

/// Builds pages and programs for delivery, and drives Chromium.
fn browser() -> Result<Value, String> {
    crate::web::site()?;
    let syncer = program(&build(RELEASE_PROGRAMS)?, "syncer-server")?;
    let folder = syncer.parent().ok_or("the build left no folder of programs")?;
    let mut command = crate::tools::program("node");
    command.arg(crate::cargo::root().join("web-demo/tests/bench.mjs")).env("ARCHIPELAGO_BIN", folder);
    command.stderr(Stdio::inherit());
    last_line(command)
}

/// Parses the JSON in the last line that `command` prints.
fn last_line(mut command: std::process::Command) -> Result<Value, String> {
    let output = command.output().map_err(|error| error.to_string())?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    let last = stdout.lines().last().unwrap_or_default();
    serde_json::from_str(last)
        .map_err(|_| format!("{} printed no figures ({})", crate::cargo::shown(&command), output.status))
}
