//! Scale benchmark: the number of synthetic learners that a single process, or a cluster, holds on this machine, and
//! the cost of each learner.
//!
//! The program `synthetic-learners` provides the learners: real members of the run, each with a socket, that wait
//! instead of computing. One process has all learners of a gateway. Each size is a separate run.

mod cluster;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{env, fmt, fs, thread};

use serde_json::{Value, json};

use self::cluster::{BusBytes, OWNERS, PARTS, Site, per_round};
use super::Args;
use super::stats::quantile;
use super::testbed::{Latency, Process, Programs, check_runs, empty_folder, number, probe, words};
use crate::cargo::{build, program};
use crate::test::servers;

/// Name of the program of the learners.
const LEARNERS: &str = "synthetic-learners";
/// Default numbers of learners.
const SIZES: [u32; 4] = [100, 1_000, 5_000, 10_000];
/// Default numbers of gateways; 0 means a single process.
const GATEWAYS: [u32; 3] = [0, 2, 4];
/// Default length of a step, in milliseconds.
const STEP_MS: u32 = 1_000;
/// Request that the actor answers: one line of the log, which costs almost nothing.
const REQUEST: &str = "/v1/log?limit=1";
/// Warm-up after all learners take part.
const WARM: Duration = Duration::from_secs(20);
/// Default length of the measurement in seconds. It covers two rounds of every fragment, since a cluster does not
/// spread the rounds evenly over time.
const SPAN_S: u32 = 48;
/// Maximum wait until gateways agree after the end of training.
const AGREE_WITHIN: Duration = Duration::from_secs(60);
/// Fixed part of the maximum wait for the learners to take part.
const LIVE_WAIT: Duration = Duration::from_secs(60);
/// Addition to this wait for each learner.
const LIVE_WAIT_EACH: Duration = Duration::from_millis(40);
/// Polling interval.
const POLL: Duration = Duration::from_millis(200);
/// Maximum number of files that both programs open, without sockets.
const FILES: u64 = 128;
/// Number of sentences in the text. The text is short because each learner holds a shard of it.
const SENTENCES: u32 = 1_500;

/// Size of a measured run.
#[derive(Clone, Copy)]
struct Size {
    learners: u32,
    /// Number of gateways; 0 means a single process.
    gateways: u32,
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.gateways {
            0 => write!(f, "{} learners, one process", self.learners),
            gateways => write!(f, "{} learners, {gateways} gateways", self.learners),
        }
    }
}

/// Programs and settings of all runs.
struct Bench<'a> {
    args: &'a Args,
    programs: &'a Programs,
    learners: PathBuf,
    /// Folder of the servers' programs, for a cluster.
    servers: Option<PathBuf>,
}

/// Measures the sizes one by one, and prints each result at once.
pub fn run(args: &Args) -> Result<Value, String> {
    let programs = args.programs()?;
    let sizes = if args.crowd.is_empty() { SIZES.to_vec() } else { args.crowd.clone() };
    let gateways = if args.gateways.is_empty() { GATEWAYS.to_vec() } else { args.gateways.clone() };
    let mut bench = Bench { args, programs: &programs, learners: learners(args)?, servers: None };
    let (mut rows, mut failed) = (Vec::new(), Vec::new());
    // The single process comes first, because the cluster build replaces its programs.
    for learners in sizes.iter().copied().filter(|_| gateways.contains(&0)) {
        bench.add(Size { learners, gateways: 0 }, &mut rows, &mut failed);
    }
    let gateways: Vec<u32> = gateways.into_iter().filter(|count| *count > 0).collect();
    let built;
    if !gateways.is_empty() {
        match cluster_programs(args) {
            Ok((cluster_programs, servers)) => {
                built = cluster_programs;
                bench.programs = built.as_ref().unwrap_or(&programs);
                bench.servers = Some(servers);
                for gateways in gateways {
                    sizes
                        .iter()
                        .for_each(|&learners| bench.add(Size { learners, gateways }, &mut rows, &mut failed));
                }
            }
            Err(reason) => failed.push(format!("cluster: {reason}")),
        }
    }
    match rows.is_empty() {
        false => Ok(json!({
            "step_ms": args.step_ms.unwrap_or(STEP_MS),
            "seconds": bench.span().as_secs(),
            "crowds": rows,
            "failed": failed,
        })),
        true => Err(failed.join("; ")),
    }
}

/// Returns the programs for a cluster, unless `--prebuilt` provides them, and the folder of the NATS and S3 programs.
fn cluster_programs(args: &Args) -> Result<(Option<Programs>, PathBuf), String> {
    let servers = servers()?;
    let built = if args.prebuilt.is_none() { Some(Programs::build_for_clusters()?) } else { None };
    Ok((built, servers))
}

/// Returns the program of the learners: the one in the folder of `--prebuilt`, if it exists there, or a new build.
fn learners(args: &Args) -> Result<PathBuf, String> {
    let file = format!("{LEARNERS}{}", env::consts::EXE_SUFFIX);
    if let Some(given) = args.prebuilt.as_ref().map(|folder| folder.join(file)).filter(|file| file.is_file())
    {
        return Ok(given);
    }
    let files = build(&["--locked", "--release", "-p", "xtask", "--features", LEARNERS, "--bin", LEARNERS])?;
    program(&files, LEARNERS)
}

impl Bench<'_> {
    fn span(&self) -> Duration {
        Duration::from_secs(self.args.span_s.unwrap_or(SPAN_S).into())
    }

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
                "a process may open only {open_max} files and sockets; raise the limit with ulimit -n"
            ));
        }
        let folder = empty_folder("scale")?;
        let flags = self.flags(size, &folder)?;
        let mut site = match &self.servers {
            None => Site::single(self.programs, &folder, &flags)?,
            Some(bin) => Site::cluster(self.programs, &folder, &flags, size.gateways, bin)?,
        };
        let before = Sample::take(&site, &[])?;
        let joined = Instant::now();
        let mut learners = self.start_learners(size, &site, &folder)?;
        let live = gather(size.learners, &mut site, &mut learners)?;
        let join_s = joined.elapsed().as_secs_f64();
        thread::sleep(WARM);
        let from = Sample::take(&site, &learners)?;
        let latency = probe(site.gateways[0], REQUEST, self.span());
        let to = Sample::take(&site, &learners)?;
        site.check()?;
        learners.iter_mut().for_each(Process::kill);
        let mut row = row(size, live, join_s, &latency, &[before, from, to]);
        if size.gateways > 0 {
            row["same_parameters"] = agrees(&mut site)?.into();
            row["made_again"] = json!(site.replay(&self.learners, &folder)?);
        }
        Ok(row)
    }

    /// Returns the flags of a syncer for a run of this size. Loss measurements and loss checks are off, because they
    /// add noise.
    fn flags(&self, size: Size, folder: &Path) -> Result<Vec<OsString>, String> {
        // Half of the seats are for learners with merged updates, and new learners have no merged updates.
        let seats = 2 * size.learners;
        let (learners, connections) = ((seats + 64).to_string(), seats.max(1_024).to_string());
        let mut flags =
            words(&["--no-eval", "--no-undo", "--checks", "0", "--total-tokens", "400000000000", "--quiet"]);
        flags.extend(words(&["--learners-max", &learners, "--connections-max", &connections, "--data"]));
        flags.push(text(folder)?.into());
        if let Some(cohort) = self.args.cohort {
            flags.extend(words(&["--cohort-max", &cohort.to_string()]));
        }
        Ok(flags)
    }

    /// Starts the learners, spread evenly over the gateways.
    fn start_learners(&self, size: Size, site: &Site, folder: &Path) -> Result<Vec<Process>, String> {
        let (count, mut first, mut processes) = (site.gateways.len() as u32, 0, Vec::new());
        for (address, at) in site.gateways.iter().zip(0..) {
            let learners = size.learners / count + u32::from(at < size.learners % count);
            let step_ms = self.args.step_ms.unwrap_or(STEP_MS);
            let line =
                format!("run --address {address} --learners {learners} --first {first} --step-ms {step_ms}");
            let line = words(&line.split(' ').collect::<Vec<_>>());
            processes.push(Process::spawn(&self.learners, &line, &folder.join(format!("learners-{at}")))?);
            first += learners;
        }
        Ok(processes)
    }
}

/// Waits until all learners take part, or their number no longer grows. Returns the number.
fn gather(size: u32, site: &mut Site, learners: &mut [Process]) -> Result<u64, String> {
    let (start, wait) = (Instant::now(), LIVE_WAIT + LIVE_WAIT_EACH * size);
    let mut live = 0;
    while start.elapsed() < wait {
        // A busy gateway may answer late.
        live = site.live().unwrap_or(live);
        if live >= u64::from(size) {
            return Ok(live);
        }
        site.check()?;
        learners.iter_mut().try_for_each(|process| check_runs(process, LEARNERS))?;
        thread::sleep(POLL);
    }
    let last: Vec<String> = learners.iter().filter_map(|process| process.stdout().last().cloned()).collect();
    match live {
        0 => Err(format!("no learner takes part after {} s: {}", wait.as_secs(), last.join(" "))),
        live => Ok(live),
    }
}

/// Returns true if all gateways reach the same parameters after the end of training.
fn agrees(site: &mut Site) -> Result<bool, String> {
    let start = Instant::now();
    let mut same = false;
    while !same && start.elapsed() < AGREE_WITHIN {
        thread::sleep(POLL);
        site.check()?;
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

/// Sample of a run at one time.
struct Sample {
    at: Instant,
    /// Status of each gateway, in order.
    statuses: Vec<Value>,
    rss_bytes: u64,
    /// Processor time by [`PARTS`].
    cpu_ms: [u64; PARTS.len()],
    learners_cpu_ms: u64,
    /// Reports of each learner process so far, one a second.
    reports: Vec<Vec<Value>>,
    bus: BusBytes,
}

impl Sample {
    fn take(site: &Site, learners: &[Process]) -> Result<Self, String> {
        let reports = |process: &Process| {
            process.stdout().iter().filter_map(|line| serde_json::from_str(line).ok()).collect()
        };
        Ok(Self {
            at: Instant::now(),
            statuses: site.statuses()?,
            rss_bytes: site.rss_bytes(),
            cpu_ms: site.cpu_ms(),
            learners_cpu_ms: learners.iter().map(Process::cpu_ms).sum(),
            reports: learners.iter().map(reports).collect(),
            bus: site.bus_bytes(),
        })
    }

    /// Returns the sum of a learner counter over all learner processes so far.
    fn of_learners(&self, name: &str) -> u64 {
        let last = self.reports.iter().filter_map(|reports| reports.last());
        last.map(|report| number(report, &format!("/{name}"))).sum()
    }

    /// Returns the sum of a counter over all gateways.
    fn of_all(&self, path: &str) -> u64 {
        self.statuses.iter().map(|status| number(status, path)).sum()
    }

    /// Returns a value of the whole run, which every gateway knows.
    fn of_one(&self, path: &str) -> u64 {
        self.statuses.first().map_or(0, |status| number(status, path))
    }

    /// Returns the times `name` from the reports of all learners that are newer than those of `from`.
    fn times(&self, name: &str, from: Option<&Self>) -> Vec<f64> {
        let known = |at: usize| from.and_then(|from| from.reports.get(at)).map_or(0, Vec::len);
        let reports =
            self.reports.iter().enumerate().flat_map(|(at, reports)| reports.iter().skip(known(at)));
        reports.filter_map(|report| report[name].as_array()).flatten().filter_map(Value::as_f64).collect()
    }
}

/// Returns the figures between the samples `from` and `to`; `before` was taken before the learners joined.
fn row(size: Size, live: u64, join_s: f64, latency: &Latency, [before, from, to]: &[Sample; 3]) -> Value {
    let span_s = (to.at - from.at).as_secs_f64();
    let all = |path: &str| to.of_all(path).saturating_sub(from.of_all(path)) as f64;
    let one = |path: &str| to.of_one(path).saturating_sub(from.of_one(path)) as f64;
    let counted = |name: &str| to.of_learners(name).saturating_sub(from.of_learners(name)) as f64;
    let updates = one("/fates/merged").max(1.0);
    let spent = |at: usize| to.cpu_ms[at].saturating_sub(from.cpu_ms[at]) as f64;
    let cpu_ms: f64 = (0..PARTS.len()).map(spent).sum();
    let (arrived, welcomed) = (to.times("arrived_ms", Some(from)), to.times("welcomed_ms", None));
    let held = live.min(to.of_all("/live"));
    let learners = held.max(1) as f64;
    let mut row = json!({
        "learners": size.learners,
        "gateways": size.gateways,
        "held": held,
        "join_s": join_s,
        "welcome_ms_p50": quantile(&welcomed, 0.5),
        "welcome_ms_p99": quantile(&welcomed, 0.99),
        "steps_per_s": counted("steps") / span_s,
        "rounds_per_s": one("/rounds") / span_s,
        "updates_merged_per_s": updates / span_s,
        "changes_per_s": counted("changes") / span_s,
        "fetched_whole": counted("loads"),
        "control_ms_p50": latency.p50_ms,
        "control_ms_p99": latency.p99_ms,
        "unanswered": latency.failed,
        "arrived_ms_p50": quantile(&arrived, 0.5),
        "arrived_ms_p99": quantile(&arrived, 0.99),
        "up_bytes_per_update": all("/bytesUp") / updates,
        "down_bytes_per_update": all("/bytesDown") / updates,
        "up_bytes_per_learner_s": all("/bytesUp") / span_s / learners,
        "down_bytes_per_learner_s": all("/bytesDown") / span_s / learners,
        "down_mb_per_s": all("/bytesDown") / span_s / 1e6,
        "syncer_cores": cpu_ms / 1e3 / span_s,
        "cpu_ms_per_update": cpu_ms / updates,
        "cpu_us_per_learner_s": 1e3 * cpu_ms / span_s / learners,
        "crowd_cores": to.learners_cpu_ms.saturating_sub(from.learners_cpu_ms) as f64 / 1e3 / span_s,
        "rss_kib_per_learner": to.rss_bytes.saturating_sub(before.rss_bytes) as f64 / 1_024.0 / learners,
        "participation": to.statuses.first().map(|status| &status["participation"]),
        "sent": counted("updates"),
        "late": counted("late"),
        "troubles": to.of_learners("troubles"),
    });
    if size.gateways > 0 {
        let parts = (0..).zip(PARTS).map(|(at, (_, name))| (name, json!(spent(at) / 1e3 / span_s)));
        row["cores"] = parts.collect();
        row["bus_bytes_per_round"] = per_round(&from.bus, &to.bus, one("/rounds"));
        row["owners"] = OWNERS.into();
    }
    row
}
