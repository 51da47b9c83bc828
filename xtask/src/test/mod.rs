//! `cargo xtask test`: every check of the repository, in order of cost.

mod api;
mod bare_toolchain;
mod browsers;
mod cluster;
mod commands;
mod deps;
mod docs;
mod documents;
mod golden;
mod limits;
mod long;
mod newcomer;
mod package;
mod python;
mod setup;
mod stages;
mod tidy;

use std::ops::Range;
use std::process::{Command, ExitCode};
use std::str::FromStr;
use std::time::Instant;

use clap::ValueEnum;

pub use cluster::servers;

use self::golden::Golden;
use self::stages::{QUICK, STAGES, Stage, StageCondition, minutes};

/// Flags of `cargo xtask test`.
#[derive(clap::Args, Default)]
pub struct Args {
    /// Runs only these stages; repeat, or separate by commas. `quick` stands for the daily stages.
    #[arg(long, value_name = "STAGE", value_delimiter = ',')]
    only: Vec<String>,
    /// Leaves out the tests that need these; repeat, or separate by commas. Otherwise a missing one is an error.
    #[arg(long, value_enum, value_name = "PART", value_delimiter = ',')]
    without: Vec<MachineFeature>,
    /// Seeds of a long test or of the stage `cluster`: FROM..UNTIL, or N for 0..N.
    #[arg(long, value_name = "SEEDS")]
    seeds: Option<Seeds>,
    /// Size of a long test: crashes, days or joiners; faults of the stage `cluster`.
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Writes golden files instead of running stages: all of them, or only these.
    #[arg(long, value_enum, value_name = "FILES", value_delimiter = ',', num_args = 0.., conflicts_with = "only")]
    bless: Option<Vec<Golden>>,
    /// Lists the stages with their measured minutes on two cores, and ends.
    #[arg(long)]
    list: bool,
    /// Continues after a failed stage.
    #[arg(long)]
    keep_going: bool,
}

/// Part of a machine that tests need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MachineFeature {
    /// A Vulkan adapter; software is enough.
    Gpu,
    /// Node, Chromium and Firefox.
    Browser,
    /// Firefox.
    Firefox,
    /// Python 3.11 or newer, with pip.
    Python,
    /// The right to mount a file system.
    Mounts,
}

/// Seeds of simulations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seeds(Range<u64>);

impl FromStr for Seeds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (from, until) = text.split_once("..").unwrap_or(("0", text));
        match (from.parse(), until.parse()) {
            (Ok(from), Ok(until)) if from < until => Ok(Self(from..until)),
            _ => Err("expected FROM..UNTIL with FROM below UNTIL, or a number above 0".to_owned()),
        }
    }
}

impl Args {
    /// Returns true if tests that need `part` are left out.
    pub fn is_without(&self, part: MachineFeature) -> bool {
        self.without.contains(&part)
    }

    /// Sets the environment variables that give test processes the features to do without, the seeds, and the size.
    pub fn apply<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let switches = [
            (MachineFeature::Gpu, "ARCHIPELAGO_TEST_GPU"),
            (MachineFeature::Firefox, "ARCHIPELAGO_TEST_FIREFOX"),
            (MachineFeature::Mounts, "ARCHIPELAGO_TEST_MOUNTS"),
        ];
        for (_, variable) in switches.iter().filter(|(part, _)| self.is_without(*part)) {
            command.env(variable, "no");
        }
        if let Some(Seeds(Range { start, end })) = &self.seeds {
            command.env("ARCHIPELAGO_TEST_SEEDS", format!("{start}..{end}"));
        }
        if let Some(count) = self.count {
            command.env("ARCHIPELAGO_TEST_COUNT", count.to_string());
        }
        command
    }

    /// Returns an error if a stage is unknown, or if a size is given and no selected test has one.
    fn wrong(&self) -> Option<String> {
        let known = |name: &String| name == QUICK || STAGES.iter().any(|stage| stage.name == name);
        if let Some(unknown) = self.only.iter().find(|name| !known(name)) {
            return Some(format!("unknown stage `{unknown}`; `cargo xtask test --list` lists all stages"));
        }
        let sized = |name: &String| name == cluster::STAGE || long::is_long(name);
        let is_sized = self.seeds.is_some() || self.count.is_some();
        (is_sized && !self.only.iter().any(sized)).then(|| {
            "`--seeds` and `--count` need `--only` with a long test; `cargo xtask test --list` lists them"
                .to_owned()
        })
    }
}

/// Result of one stage.
struct StageResult {
    stage: &'static Stage,
    seconds: f64,
    /// Remark or error message.
    outcome: Result<String, String>,
}

/// Runs the stages. The exit code is 0 only if all of them passed, and 2 for an unknown stage.
pub fn run(args: &Args) -> ExitCode {
    if args.list {
        print!("{}", list());
        return ExitCode::SUCCESS;
    }
    if let Some(wrong) = args.wrong() {
        eprintln!("error: {wrong}");
        return ExitCode::from(2);
    }
    if let Some(files) = &args.bless {
        return match golden::bless(files) {
            Ok(()) => ExitCode::SUCCESS,
            Err(reason) => {
                eprintln!("error: {reason}");
                ExitCode::FAILURE
            }
        };
    }
    let mut ran = Vec::new();
    for stage in STAGES.iter().filter(|stage| stage.is_in(&args.only)) {
        println!("── {}: {}", stage.name, stage.what);
        let start = Instant::now();
        let outcome = (stage.run)(args);
        ran.push(StageResult { stage, seconds: start.elapsed().as_secs_f64(), outcome });
        if ran.last().is_some_and(|ran| ran.outcome.is_err()) && !args.keep_going {
            break;
        }
    }
    report(&ran)
}

/// Returns a line for each stage: name, group, minutes and description.
fn list() -> String {
    let mut text = format!("{:<12} {:<6} {:>7}  what it does\n", "stage", "group", "minutes");
    for stage in STAGES {
        let group = match stage.when {
            StageCondition::Both | StageCondition::Quick => QUICK,
            StageCondition::Asked => "named",
            StageCondition::All => "",
        };
        let minutes = minutes(stage.name).map(|minutes| format!("{minutes:.1}")).unwrap_or_default();
        text += &format!("{:<12} {group:<6} {minutes:>7}  {}\n", stage.name, stage.what);
    }
    text + "\nWithout --only, all stages run except those of the group `named` and `units`.\n"
}

/// Prints the final table.
fn report(ran: &[StageResult]) -> ExitCode {
    println!("\n{:<12} {:>8}  result", "stage", "seconds");
    for StageResult { stage, seconds, outcome } in ran {
        let result = match outcome {
            Ok(remark) if remark.is_empty() => "ok".to_owned(),
            Ok(remark) => format!("ok ({remark})"),
            Err(_) => "FAILED".to_owned(),
        };
        println!("{:<12} {seconds:>8.1}  {result}", stage.name);
    }
    println!("{:<12} {:>8.1}", "total", ran.iter().map(|ran| ran.seconds).sum::<f64>());
    let mut code = ExitCode::SUCCESS;
    for StageResult { stage, outcome, .. } in ran {
        if let Err(reason) = outcome {
            eprintln!(
                "\nerror: {}: {reason}\nrerun it with: cargo xtask test --only {}",
                stage.name, stage.name
            );
            code = ExitCode::FAILURE;
        }
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(only: &str, seeds: Option<&str>) -> Args {
        let seeds = seeds.map(|seeds| seeds.parse().unwrap());
        Args { only: vec![only.to_owned()], seeds, ..Args::default() }
    }

    #[test]
    fn seeds_are_a_range_or_a_number() {
        assert_eq!("3..5".parse(), Ok(Seeds(3..5)));
        assert_eq!("20".parse(), Ok(Seeds(0..20)));
        assert!(["", "5..3", "0", "a..b"].iter().all(|text| text.parse::<Seeds>().is_err()));
    }

    #[test]
    fn sizes_need_a_test_that_has_one() {
        assert_eq!(args("swarm", Some("9")).wrong(), None);
        assert_eq!(args("cluster", Some("1..2")).wrong(), None);
        assert!(args("tidy", Some("9")).wrong().unwrap().contains("--seeds"));
        assert!(args("tidyy", None).wrong().unwrap().contains("tidyy"));
    }

    #[test]
    fn test_processes_learn_what_is_left_out() {
        let args = Args {
            without: vec![MachineFeature::Gpu, MachineFeature::Python],
            ..args("swarm", Some("2..4"))
        };
        let mut command = Command::new("x");
        let set: Vec<_> =
            args.apply(&mut command).get_envs().map(|(name, value)| (name.to_owned(), value)).collect();
        let expected = [("ARCHIPELAGO_TEST_GPU", "no"), ("ARCHIPELAGO_TEST_SEEDS", "2..4")];
        assert!(
            set.iter()
                .map(|(name, value)| (name.to_str().unwrap(), value.unwrap().to_str().unwrap()))
                .eq(expected)
        );
    }
}
