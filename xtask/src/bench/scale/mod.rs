//! A crowd: as many light learners as one process of a syncer holds on this machine, and what each of them costs it.
//!
//! The learners are those of the program `islets`: real members on sockets of their own, all in one process, which wait
//! in place of computing. Each size is a run of its own.

mod figures;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use archipelago_demo::Process;
use serde_json::{Value, json};

use self::figures::{Moment, row};
use super::load::probe;
use super::processes::{Programs, empty_folder, number, status, still_runs};
use crate::cargo::{build, program};

/// Learners of each run, unless it is said how many.
const SIZES: [u32; 4] = [100, 1_000, 5_000, 10_000];
/// Milliseconds of a step, unless it is said how many.
const STEP_MS: u32 = 1_000;
/// What the actor is asked: one line of the log, which costs it next to nothing.
const QUESTION: &str = "/v1/log?limit=1";
/// How long all have taken part before anything is counted, and how long is counted then.
const WARM: Duration = Duration::from_secs(20);
const SPAN: Duration = Duration::from_secs(40);
/// Longest wait for a crowd to take part: so much, and so much more for each of it.
const LIVE_WAIT: Duration = Duration::from_secs(60);
const LIVE_WAIT_EACH: Duration = Duration::from_millis(40);
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(200);
/// Files that both programs have open beside sockets, at most.
const FILES: u64 = 128;
/// Sentences of the text, which is short: each learner holds a shard of it.
const SENTENCES: u32 = 1_500;

/// What crowds.
#[derive(clap::Args)]
#[group(skip)]
pub struct Args {
    /// Scale: learners of a run; repeat, or separate by commas [default: 100,1000,5000,10000].
    #[arg(long, value_name = "COUNT", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=60_000))]
    crowd: Vec<u32>,
    /// Scale: milliseconds that a step of a learner takes [default: 1000].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    step_ms: Option<u32>,
    /// Scale: learners that are asked in one round [default: the syncer's].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    cohort: Option<u32>,
}

impl Args {
    /// Whether any of these was given.
    pub fn any(&self) -> bool {
        !self.crowd.is_empty() || self.step_ms.is_some() || self.cohort.is_some()
    }
}

/// Measures one crowd after the other, and says each as soon as it is known.
///
/// # Errors
/// A sentence: the programs could not be built, or no crowd could be measured.
pub fn run(args: &Args, prebuilt: Option<&Path>, programs: &Programs) -> Result<Value, String> {
    let islets = islets(prebuilt)?;
    let sizes = if args.crowd.is_empty() { SIZES.to_vec() } else { args.crowd.clone() };
    let (mut rows, mut failed) = (Vec::new(), Vec::new());
    for size in sizes {
        match measure(size, args, programs, &islets) {
            Ok(row) => {
                println!("   {row}");
                rows.push(row);
            }
            Err(reason) => {
                println!("   {size} learners: {reason}");
                failed.push(format!("{size} learners: {reason}"));
            }
        }
    }
    match rows.is_empty() {
        false => Ok(json!({
            "step_ms": args.step_ms.unwrap_or(STEP_MS),
            "seconds": SPAN.as_secs(),
            "crowds": rows,
            "failed": failed,
        })),
        true => Err(failed.join("; ")),
    }
}

/// The program that crowds: the one in the folder `prebuilt`, if it is there.
fn islets(prebuilt: Option<&Path>) -> Result<PathBuf, String> {
    let name = format!("islets{}", env::consts::EXE_SUFFIX);
    if let Some(given) = prebuilt.map(|folder| folder.join(name)).filter(|file| file.is_file()) {
        return Ok(given);
    }
    program(
        &build(&["--locked", "--release", "-p", "xtask", "--features", "islets", "--bin", "islets"])?,
        "islets",
    )
}

/// A run with a crowd of `size`.
fn measure(size: u32, args: &Args, programs: &Programs, islets: &Path) -> Result<Value, String> {
    let open_max = open_files_max();
    if u64::from(size) + FILES > open_max {
        return Err(format!("the system lets a process open {open_max} files and sockets, which is too few"));
    }
    let folder = empty_folder("scale")?;
    let (mut syncer, address) = serve(size, args, programs, &folder)?;
    let before = Moment::of(address, &syncer, None)?;
    let mut words =
        ["--address", &address.to_string(), "--learners", &size.to_string()].map(OsString::from).to_vec();
    words.extend(["--step-ms", &args.step_ms.unwrap_or(STEP_MS).to_string()].map(OsString::from));
    let mut crowd = Process::spawn(islets, &words, &folder.join("islets"))?;
    let joined = Instant::now();
    let held = gather(size, address, &mut syncer, &mut crowd)?;
    let join_s = joined.elapsed().as_secs_f64();
    thread::sleep(WARM);
    let from = Moment::of(address, &syncer, Some(&crowd))?;
    let answers = probe(address, QUESTION, SPAN);
    let to = Moment::of(address, &syncer, Some(&crowd))?;
    still_runs(&mut syncer)?;
    crowd.kill();
    syncer.kill();
    Ok(row(&[before, from, to], &answers, (size, held), join_s))
}

/// A syncer of the preset `tiny` that has room for so many, and neither measures the loss nor tries updates: they are
/// noise.
fn serve(
    size: u32,
    args: &Args,
    programs: &Programs,
    folder: &Path,
) -> Result<(Process, SocketAddr), String> {
    let text = text(folder)?;
    // Half of the seats are for those of whom something was merged: of a crowd that begins, nothing was.
    let (learners, connections) = ((2 * size + 64).to_string(), (2 * size).max(1_024).to_string());
    let mut flags: Vec<OsString> =
        ["--no-eval", "--no-undo", "--checks", "0", "--total-tokens", "400000000000", "--quiet"]
            .map(OsString::from)
            .to_vec();
    flags.extend(
        ["--learners-max", &learners, "--connections-max", &connections, "--data"].map(OsString::from),
    );
    flags.push(text.into());
    if let Some(cohort) = args.cohort {
        flags.extend(["--cohort-max", &cohort.to_string()].map(OsString::from));
    }
    programs.serve("tiny", "127.0.0.1:0", folder, "syncer", &flags)
}

/// Waits until all take part, or no more do; how many.
fn gather(size: u32, address: SocketAddr, syncer: &mut Process, crowd: &mut Process) -> Result<u64, String> {
    let (start, wait) = (Instant::now(), LIVE_WAIT + LIVE_WAIT_EACH * size);
    let mut live = 0;
    while start.elapsed() < wait {
        // One that has much to do may answer late.
        live = status(address).map_or(live, |status| number(&status, "/live"));
        if live >= u64::from(size) {
            return Ok(live);
        }
        still_runs(syncer)?;
        if let Some(code) = crowd.exit_code() {
            return Err(format!("the learners ended with {code}: {}", crowd.last_words()));
        }
        thread::sleep(LOOK);
    }
    let said = crowd.stdout().last().cloned().unwrap_or_default();
    if live == 0 { Err(format!("nobody takes part after {} s: {said}", wait.as_secs())) } else { Ok(live) }
}

/// A text that is short, in a file.
fn text(folder: &Path) -> Result<PathBuf, String> {
    let words = ["an island", "the sea", "one learner", "a lamp", "the harbour", "some rain", "a letter"];
    let verbs = ["sees", "keeps", "loses", "finds", "carries", "waits for"];
    let pick =
        |from: &[&'static str], by: u32| from[(by.wrapping_mul(2_654_435_761) >> 8) as usize % from.len()];
    let sentence = |i: u32| {
        format!("{} {} {}.\n", pick(&words, 3 * i), pick(&verbs, 3 * i + 1), pick(&words, 3 * i + 2))
    };
    let path = folder.join("text.txt");
    fs::write(&path, (0..SENTENCES).map(sentence).collect::<String>())
        .map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}

/// Files and sockets that a process may have open here; many where the system does not tell.
fn open_files_max() -> u64 {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    // Soft, then hard: the syncer raises its own, and who starts a bench its shell's.
    let soft = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    soft.unwrap_or(u64::MAX)
}
