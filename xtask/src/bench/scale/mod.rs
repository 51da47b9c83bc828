//! Capacity: the number of light learners that a single process, or a cluster over servers, holds on this machine, and
//! the cost of each learner.
//!
//! The learners are those of the program `islets`: real members, each with a socket, all of a gateway in one process.
//! They wait instead of computing. Each size is a separate run.

mod figures;
mod site;
mod tap;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use archipelago_demo::Process;
use serde_json::{Value, json};

use self::figures::{Ends, Moment, row};
use self::site::Site;
use super::load::probe;
use super::processes::{Programs, empty_folder};
use crate::cargo::{build, program};
use crate::test::servers;

/// Default numbers of learners.
const SIZES: [u32; 4] = [100, 1_000, 5_000, 10_000];
/// Default numbers of gateways; 0 means a single process.
const GATEWAYS: [u32; 3] = [0, 2, 4];
/// Default length of a step, in milliseconds.
const STEP_MS: u32 = 1_000;
/// Request that the actor answers: one line of the log, which is almost free.
const QUESTION: &str = "/v1/log?limit=1";
/// Warm-up after all learners take part.
const WARM: Duration = Duration::from_secs(20);
/// Default length of the measurement in seconds. It covers two turns of all fragments, since rounds of a cluster are
/// not spread evenly over a turn.
const SPAN_S: u32 = 48;
/// Maximum wait until gateways agree after the end of training.
const AGREE_WITHIN: Duration = Duration::from_secs(60);
/// Maximum wait for the learners to take part: a base, and a part for each learner.
const LIVE_WAIT: Duration = Duration::from_secs(60);
const LIVE_WAIT_EACH: Duration = Duration::from_millis(40);
/// Polling interval.
const LOOK: Duration = Duration::from_millis(200);
/// Maximum number of open files of both programs, sockets aside.
const FILES: u64 = 128;
/// Number of sentences in the text. The text is short because each learner holds a shard of it.
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
    /// Scale: learners that are asked in one round of one process [default: the syncer's].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    cohort: Option<u32>,
    /// Scale: gateways of a run on several machines, which has two owners, three servers of NATS and one that speaks
    /// S3; 0 is one process; repeat, or separate by commas [default: 0,2,4].
    #[arg(long, value_name = "COUNT", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(..=64))]
    gateways: Vec<u32>,
    /// Scale: seconds that are counted of each run [default: 48].
    #[arg(long, value_parser = clap::value_parser!(u32).range(5..=3_600))]
    span_s: Option<u32>,
}

impl Args {
    /// Returns true if any of these flags was given.
    pub fn any(&self) -> bool {
        let lists = [&self.crowd, &self.gateways];
        lists.iter().any(|list| !list.is_empty())
            || [self.step_ms, self.cohort, self.span_s].iter().any(Option::is_some)
    }

    fn span(&self) -> Duration {
        Duration::from_secs(self.span_s.unwrap_or(SPAN_S).into())
    }
}

/// Size of a measured run.
#[derive(Clone, Copy)]
struct Size {
    learners: u32,
    /// Number of gateways; 0 means a single process.
    gateways: u32,
}

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.gateways {
            0 => write!(f, "{} learners, one process", self.learners),
            gateways => write!(f, "{} learners, {gateways} gateways", self.learners),
        }
    }
}

/// Programs and settings of all runs.
struct Kit<'a> {
    args: &'a Args,
    programs: &'a Programs,
    islets: PathBuf,
    /// Folder of the servers' programs, if there is a run on several machines.
    bin: Option<PathBuf>,
}

/// Measures the sizes one by one, and prints each result at once.
///
/// # Errors
/// A message if the programs could not be built, or no size could be measured.
pub fn run(args: &Args, prebuilt: Option<&Path>, programs: &Programs) -> Result<Value, String> {
    let islets = islets(prebuilt)?;
    let sizes = if args.crowd.is_empty() { SIZES.to_vec() } else { args.crowd.clone() };
    let gateways = if args.gateways.is_empty() { GATEWAYS.to_vec() } else { args.gateways.clone() };
    let mut alone = Kit { args, programs, islets, bin: None };
    let (mut rows, mut failed) = (Vec::new(), Vec::new());
    // The single process comes first, because the cluster build replaces its programs.
    for learners in sizes.iter().copied().filter(|_| gateways.contains(&0)) {
        alone.add(Size { learners, gateways: 0 }, &mut rows, &mut failed);
    }
    if gateways.iter().any(|count| *count > 0) {
        match of_machines(prebuilt) {
            Ok((built, bin)) => {
                let programs = built.as_ref().unwrap_or(programs);
                alone = Kit { programs, bin: Some(bin), ..alone };
                for gateways in gateways.into_iter().filter(|count| *count > 0) {
                    for learners in sizes.iter().copied() {
                        alone.add(Size { learners, gateways }, &mut rows, &mut failed);
                    }
                }
            }
            Err(reason) => failed.push(format!("several machines: {reason}")),
        }
    }
    match rows.is_empty() {
        false => Ok(json!({
            "step_ms": args.step_ms.unwrap_or(STEP_MS),
            "seconds": args.span().as_secs(),
            "crowds": rows,
            "failed": failed,
        })),
        true => Err(failed.join("; ")),
    }
}

/// Returns the programs for several machines, unless they are in the folder `prebuilt`, and the folder of the servers'
/// programs.
fn of_machines(prebuilt: Option<&Path>) -> Result<(Option<Programs>, PathBuf), String> {
    let bin = servers()?;
    let built = if prebuilt.is_none() { Some(Programs::build_for_machines()?) } else { None };
    Ok((built, bin))
}

/// Returns the program of the learners: the one in the folder `prebuilt`, if it exists there, or a new build.
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

impl Kit<'_> {
    /// Measures a run of this size and prints the result.
    fn add(&self, size: Size, rows: &mut Vec<Value>, failed: &mut Vec<String>) {
        match self.measure(size) {
            Ok(row) => {
                println!("   {row}");
                rows.push(row);
            }
            Err(reason) => {
                println!("   {size}: {reason}");
                failed.push(format!("{size}: {reason}"));
            }
        }
    }

    fn measure(&self, size: Size) -> Result<Value, String> {
        let each = size.learners.div_ceil(size.gateways.max(1));
        let open_max = open_files_max();
        if u64::from(each) + FILES > open_max {
            return Err(format!(
                "the system lets a process open {open_max} files and sockets, which is too few"
            ));
        }
        let folder = empty_folder("scale")?;
        let flags = self.flags(size, &folder)?;
        let mut site = match &self.bin {
            None => Site::alone(self.programs, &folder, &flags)?,
            Some(bin) => Site::machines(self.programs, &folder, &flags, size.gateways, bin)?,
        };
        let before = Moment::of(&site, &[])?;
        let joined = Instant::now();
        let mut crowd = self.crowd(size, &site, &folder)?;
        let held = gather(size.learners, &mut site, &mut crowd)?;
        let join_s = joined.elapsed().as_secs_f64();
        thread::sleep(WARM);
        let from = Moment::of(&site, &crowd)?;
        let answers = probe(site.doors[0], QUESTION, self.args.span());
        let to = Moment::of(&site, &crowd)?;
        site.still_runs()?;
        crowd.iter_mut().for_each(Process::kill);
        let same = if size.gateways > 0 { Some(agrees(&mut site)?) } else { None };
        let again = site.again(&self.islets, &folder).transpose()?;
        let ends = Ends { learners: size.learners, gateways: size.gateways, held, join_s, same, again };
        Ok(row(&[before, from, to], &answers, &ends))
    }

    /// Returns the flags of a syncer for a run of this size. Loss measurements and loss checks are off, because they
    /// add noise.
    fn flags(&self, size: Size, folder: &Path) -> Result<Vec<OsString>, String> {
        let text = text(folder)?;
        // Half of the seats are for learners with merged updates, and new learners have no merged updates.
        let seats = 2 * size.learners;
        let (learners, connections) = ((seats + 64).to_string(), seats.max(1_024).to_string());
        let mut flags: Vec<OsString> =
            ["--no-eval", "--no-undo", "--checks", "0", "--total-tokens", "400000000000", "--quiet"]
                .map(OsString::from)
                .to_vec();
        flags.extend(
            ["--learners-max", &learners, "--connections-max", &connections, "--data"].map(OsString::from),
        );
        flags.push(text.into());
        if let Some(cohort) = self.args.cohort {
            flags.extend(["--cohort-max", &cohort.to_string()].map(OsString::from));
        }
        Ok(flags)
    }

    /// Starts the learners, spread evenly over the gateways.
    fn crowd(&self, size: Size, site: &Site, folder: &Path) -> Result<Vec<Process>, String> {
        let (count, mut first) = (site.doors.len() as u32, 0);
        let mut crowd = Vec::new();
        for (door, at) in site.doors.iter().zip(0..) {
            let learners = size.learners / count + u32::from(at < size.learners % count);
            let step_ms = self.args.step_ms.unwrap_or(STEP_MS);
            let words = [
                ("--address", door.to_string()),
                ("--learners", learners.to_string()),
                ("--first", first.to_string()),
                ("--step-ms", step_ms.to_string()),
            ];
            let words = words.into_iter().flat_map(|(flag, value)| [flag.into(), value.into()]);
            let words: Vec<OsString> = [OsString::from("crowd")].into_iter().chain(words).collect();
            crowd.push(Process::spawn(&self.islets, &words, &folder.join(format!("islets-{at}")))?);
            first += learners;
        }
        Ok(crowd)
    }
}

/// Waits until all learners take part, or their number no longer grows. Returns the number.
fn gather(size: u32, site: &mut Site, crowd: &mut [Process]) -> Result<u64, String> {
    let (start, wait) = (Instant::now(), LIVE_WAIT + LIVE_WAIT_EACH * size);
    let mut live = 0;
    while start.elapsed() < wait {
        // A busy gateway may answer late.
        live = site.live().unwrap_or(live);
        if live >= u64::from(size) {
            return Ok(live);
        }
        site.still_runs()?;
        for process in &mut *crowd {
            if let Some(code) = process.exit_code() {
                return Err(format!("the learners ended with {code}: {}", process.last_words()));
            }
        }
        thread::sleep(LOOK);
    }
    let said: Vec<String> = crowd.iter().filter_map(|process| process.stdout().last().cloned()).collect();
    if live == 0 {
        Err(format!("nobody takes part after {} s: {}", wait.as_secs(), said.join(" ")))
    } else {
        Ok(live)
    }
}

/// Returns true if all gateways reach the same parameters after the end of training.
fn agrees(site: &mut Site) -> Result<bool, String> {
    let start = Instant::now();
    let mut same = false;
    while !same && start.elapsed() < AGREE_WITHIN {
        thread::sleep(LOOK);
        site.still_runs()?;
        same = site.live()? == 0 && site.is_same_everywhere()?;
    }
    Ok(same)
}

/// Writes a short text to a file.
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

/// Returns the limit of open files and sockets of a process here; the maximum where the system does not report one.
fn open_files_max() -> u64 {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    // The soft limit comes first. The syncer raises its own limit, and the user of the benchmark that of the shell.
    let soft = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    soft.unwrap_or(u64::MAX)
}
