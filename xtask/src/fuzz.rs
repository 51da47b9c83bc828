//! `cargo xtask fuzz`: searches for failing inputs, and keeps inputs that reach new code.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode};
use std::time::Duration;
use std::{fs, thread};

use crate::cargo::{build, build_with, command_line, program, root, target_folder};

/// Platform of libFuzzer. An explicit target keeps the flags away from build scripts.
const SYSTEM: &str = "x86_64-unknown-linux-gnu";

/// Compiler flags for coverage counters.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
     -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing";

/// Fuzz targets, as in `tests/fuzz`.
const TARGETS: [&str; 10] =
    ["wire", "codec", "shard", "settings", "model", "import", "tape", "learner", "peer", "world"];

/// File with the processor time spent on each target so far: a name, a tab and a number of seconds on each line.
const SEARCHED: &str = "tests/fuzz/searched.tsv";
/// Ticks per second in which Linux reports processor time to programs, the same on every machine.
const TICKS: f64 = 100.0;
const POLL: Duration = Duration::from_millis(500);

/// Flags of `cargo xtask fuzz`.
#[derive(clap::Args)]
pub struct Args {
    /// Fuzz target; without a name, all targets one after the other.
    #[arg(value_parser = TARGETS)]
    target: Option<String>,
    /// Seconds of processor time for each target, added up in `tests/fuzz/searched.tsv`.
    #[arg(long, default_value_t = 60)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
}

/// Runs the search. The exit code is 1 if it found something, or if this machine cannot search.
pub fn run(args: &Args) -> ExitCode {
    match search(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("error: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn search(args: &Args) -> Result<(), String> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Err("fuzzing needs Linux on x86-64".into());
    }
    let folder = target_folder()?.join("fuzz");
    let fuzz = with_flags(&folder)?;
    // Without the flags, because this program does not link libFuzzer's counters.
    let corpus = ["--locked", "-p", "archipelago-fuzz", "--features", "corpus", "--bin", "corpus"];
    let corpus = program(&build(&corpus)?, "corpus")?;
    let names: Vec<&str> = args.target.as_deref().map_or_else(|| TARGETS.to_vec(), |name| vec![name]);
    for name in names {
        println!("── {name}, {} s", args.seconds);
        let [known, small] = ["known", "small"].map(|part| folder.join(part).join(name));
        fs::create_dir_all(&known).map_err(|error| format!("{}: {error}", known.display()))?;
        succeed(Command::new(&corpus).args(["unpack", name]).arg(&known))?;
        let mut command = Command::new(&fuzz);
        command.env("FUZZ_TARGET", name).current_dir(&folder).arg(&known);
        command.args(["-max_len=600", "-timeout=30", "-rss_limit_mb=4096", "-print_final_stats=1"]);
        let searched_s = search_for(&mut command, f64::from(args.seconds))?;
        keep(&fuzz, &corpus, name, &known, &small)?;
        add_up(name, searched_s)?;
    }
    Ok(())
}

/// Runs `command` for `seconds` of processor time, then asks it to end. Returns its processor time in seconds. The
/// search runs at low priority, so elapsed time would be no measure.
fn search_for(command: &mut Command, seconds: f64) -> Result<f64, String> {
    let mut child = command.spawn().map_err(|error| format!("`{}`: {error}", command_line(command)))?;
    let (mut had_s, mut is_asked) = (0.0, false);
    loop {
        let ended = child.try_wait().map_err(|error| error.to_string())?;
        if let Some(status) = ended {
            let failed = || format!("`{}` ended with {status}; see its output above", command_line(command));
            return if status.success() { Ok(had_s) } else { Err(failed()) };
        }
        had_s = processor_s(&child).unwrap_or(had_s);
        if had_s >= seconds && !is_asked {
            is_asked = true;
            // Signal that makes libFuzzer end after the current input.
            succeed(Command::new("kill").args(["-USR1", &child.id().to_string()]))?;
        }
        thread::sleep(POLL);
    }
}

/// Returns the processor time of `child` in seconds, or `None` once it has ended.
fn processor_s(child: &Child) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).ok()?;
    // The second field is a name with any characters; the third field follows the last bracket.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some((ticks(11)? + ticks(12)?) as f64 / TICKS)
}

/// Adds whole seconds to the total of `name`.
fn add_up(name: &str, seconds: f64) -> Result<(), String> {
    let path = root().join(SEARCHED);
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let before = fs::read_to_string(&path).map_err(failed)?;
    fs::write(&path, added(&before, name, seconds as u64)).map_err(failed)
}

/// Returns `list`, with a line for each of [`TARGETS`] in order, after `seconds` were added to the line of `name`.
fn added(list: &str, name: &str, seconds: u64) -> String {
    let had = |target: &str| {
        let line = list.lines().find_map(|line| line.strip_prefix(target)?.strip_prefix('\t')?.parse().ok());
        line.unwrap_or(0_u64)
    };
    let line =
        |target: &&str| format!("{target}\t{}\n", had(target) + if *target == name { seconds } else { 0 });
    TARGETS.iter().map(line).collect()
}

/// Keeps the smallest set of inputs with the same coverage as those in `known`.
fn keep(fuzz: &Path, corpus: &Path, name: &str, known: &Path, small: &Path) -> Result<(), String> {
    if small.exists() {
        fs::remove_dir_all(small).map_err(|error| format!("{}: {error}", small.display()))?;
    }
    fs::create_dir_all(small).map_err(|error| format!("{}: {error}", small.display()))?;
    let mut merge = Command::new(fuzz);
    merge.env("FUZZ_TARGET", name).args(["-merge=1", "-max_len=400"]).args([small, known]);
    succeed(&mut merge)?;
    succeed(Command::new(corpus).args(["pack", name]).arg(small))
}

fn with_flags(folder: &Path) -> Result<PathBuf, String> {
    let folder = folder.to_string_lossy();
    let line = ["--locked", "--profile", "fuzz", "--target", SYSTEM, "--target-dir", &folder];
    let what = ["-p", "archipelago-fuzz", "--features", "libfuzzer", "--bin", "fuzz"];
    program(&build_with(&[&line[..], &what].concat(), &[("RUSTFLAGS", FLAGS)])?, "fuzz")
}

/// Runs `command`.
///
/// # Errors
/// A message if `command` did not start, or failed.
fn succeed(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{}` ended with {status}; see its output above", command_line(command))),
        Err(error) => Err(format!("`{}`: {error}", command_line(command))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn search_time_is_added_to_the_total() {
        let first = added("", "tape", 7);
        assert!(first.contains("tape\t7\n") && first.contains("wire\t0\n"), "{first}");
        let second = added(&first, "tape", 5);
        assert!(second.contains("tape\t12\n"), "{second}");
        assert_eq!(second.lines().count(), TARGETS.len());
    }
}
