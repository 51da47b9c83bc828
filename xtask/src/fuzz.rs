//! `cargo xtask fuzz`: searches for input that makes a program do what it must not, and keeps what taught it something.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::cargo::{build, build_with, program, shown, target_folder};

/// The system that libFuzzer is built for here; a target that is named keeps build scripts as they are.
const SYSTEM: &str = "x86_64-unknown-linux-gnu";

/// What has the compiler count which code each input reaches.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
     -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing";

/// The targets, as `tests/fuzz` names them.
const TARGETS: [&str; 10] =
    ["wire", "codec", "shard", "settings", "model", "import", "tape", "learner", "peer", "world"];

/// What to search, and how long.
#[derive(clap::Args)]
pub struct Args {
    /// One of them; without a name, all of them one after the other.
    #[arg(value_parser = TARGETS)]
    target: Option<String>,
    /// Seconds for each.
    #[arg(long, default_value_t = 60)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
}

/// Searches; exit code 1 if something was found, or if this machine cannot search.
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
        return Err("the fuzzer is set up for Linux on x86-64 only".into());
    }
    let folder = target_folder()?.join("fuzz");
    let fuzz = with_flags(&folder)?;
    // Without the flags: libFuzzer is not there to count.
    let kept = ["--locked", "-p", "archipelago-fuzz", "--features", "kept", "--bin", "kept"];
    let kept = program(&build(&kept)?, "kept")?;
    let names: Vec<&str> = args.target.as_deref().map_or_else(|| TARGETS.to_vec(), |name| vec![name]);
    for name in names {
        println!("── {name}, {} s", args.seconds);
        let [known, small] = ["known", "small"].map(|part| folder.join(part).join(name));
        fs::create_dir_all(&known).map_err(|error| format!("{}: {error}", known.display()))?;
        succeed(Command::new(&kept).args(["unpack", name]).arg(&known))?;
        let mut command = Command::new(&fuzz);
        command.env("FUZZ_TARGET", name).current_dir(&folder).arg(&known);
        command.args(["-max_len=600", "-timeout=30", "-rss_limit_mb=4096", "-print_final_stats=1"]);
        succeed(command.arg(format!("-max_total_time={}", args.seconds)))?;
        keep(&fuzz, &kept, name, &known, &small)?;
    }
    Ok(())
}

/// Keeps the fewest inputs that reach all that is reached by those in `known`.
fn keep(fuzz: &Path, kept: &Path, name: &str, known: &Path, small: &Path) -> Result<(), String> {
    if small.exists() {
        fs::remove_dir_all(small).map_err(|error| format!("{}: {error}", small.display()))?;
    }
    fs::create_dir_all(small).map_err(|error| format!("{}: {error}", small.display()))?;
    let mut merge = Command::new(fuzz);
    merge.env("FUZZ_TARGET", name).args(["-merge=1", "-max_len=400"]).args([small, known]);
    succeed(&mut merge)?;
    succeed(Command::new(kept).args(["pack", name]).arg(small))
}

fn with_flags(folder: &Path) -> Result<PathBuf, String> {
    let folder = folder.to_string_lossy();
    let line = ["--locked", "--profile", "fuzz", "--target", SYSTEM, "--target-dir", &folder];
    let what = ["-p", "archipelago-fuzz", "--features", "libfuzzer", "--bin", "fuzz"];
    program(&build_with(&[&line[..], &what].concat(), &[("RUSTFLAGS", FLAGS)])?, "fuzz")
}

/// # Errors
/// A sentence: `command` did not start, or said that something is wrong.
fn succeed(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{}` ended with {status}; what it found stands above", shown(command))),
        Err(error) => Err(format!("`{}`: {error}", shown(command))),
    }
}
