//! Processes of a measured run: one syncer, and learners that may have a link of their own.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

pub use archipelago_cli::process::Process;

pub(crate) use crate::http;
use archipelago_link_emulator::{EmulatedLink, LinkBytes, LinkConditions, LinkProfile};
use serde_json::Value;

use super::receipts::{Receipt, ReceiptComparison, prove, receipts};
use super::stats::quantile;
use crate::cargo::{RELEASE_PROGRAMS, build, program, root, target_folder};

/// Preset of most runs.
pub const TINY: &str = "tiny";
/// Any free port.
pub const ANY_PORT: &str = "127.0.0.1:0";
/// Maximum wait for the syncer's first answer.
const START_WAIT: Duration = Duration::from_secs(120);
/// Maximum wait for learners to take part.
const LIVE_WAIT: Duration = Duration::from_secs(180);
/// Polling interval.
pub const POLL: Duration = Duration::from_millis(20);
/// Interval between two requests of [`probe`].
const PROBE_EVERY: Duration = Duration::from_millis(25);

/// Programs to measure.
pub struct Programs {
    syncer: PathBuf,
    learner: PathBuf,
    /// Additional environment variables of syncers.
    variables: Vec<(String, String)>,
}

impl Programs {
    /// Builds the programs for delivery.
    pub fn build() -> Result<Self, String> {
        Self::find(&build(RELEASE_PROGRAMS)?)
    }

    /// Builds the programs with support for clusters.
    pub fn build_for_clusters() -> Result<Self, String> {
        Self::find(&build(&[RELEASE_PROGRAMS, &["--features", "syncer-server/cluster"]].concat())?)
    }

    fn find(files: &[PathBuf]) -> Result<Self, String> {
        let (syncer, learner) = (program(files, "syncer-server")?, program(files, "native-learner")?);
        Ok(Self { syncer, learner, variables: Vec::new() })
    }

    /// Finds the programs in `folder`.
    pub fn in_folder(folder: &Path) -> Result<Self, String> {
        let find = |name: &str| {
            let file = folder.join(format!("{name}{}", env::consts::EXE_SUFFIX));
            if file.is_file() { Ok(file) } else { Err(format!("{} does not exist", file.display())) }
        };
        let (syncer, learner) = (find("syncer-server")?, find("native-learner")?);
        Ok(Self { syncer, learner, variables: Vec::new() })
    }

    /// Returns the programs with these environment variables for syncers.
    #[must_use]
    pub fn with_variables(&self, variables: Vec<(String, String)>) -> Self {
        Self { syncer: self.syncer.clone(), learner: self.learner.clone(), variables }
    }

    /// Starts a syncer of `preset` that listens on `listen`. Returns it with its address. Its files are in `folder`,
    /// and the names of its logs begin with `log`.
    pub fn serve(
        &self,
        preset: &str,
        listen: &str,
        folder: &Path,
        log: &str,
        flags: &[OsString],
    ) -> Result<(Process, SocketAddr), String> {
        let mut syncer = self.start_syncer(preset, listen, folder, log, flags)?;
        let start = Instant::now();
        while start.elapsed() < START_WAIT {
            let first = syncer.stdout().first().and_then(|line| serde_json::from_str::<Value>(line).ok());
            if let Some(address) = first.and_then(|line| line["address"].as_str()?.parse().ok())
                && http::get(address, "/v1/status").is_ok()
            {
                return Ok((syncer, address));
            }
            check_runs(&mut syncer, "the syncer")?;
            thread::sleep(POLL);
        }
        Err(format!("the syncer does not answer after {} s", START_WAIT.as_secs()))
    }

    /// Starts a syncer without waiting for an answer. An owner of a cluster serves no learners, and never answers.
    pub fn start_syncer(
        &self,
        preset: &str,
        listen: &str,
        folder: &Path,
        log: &str,
        flags: &[OsString],
    ) -> Result<Process, String> {
        let mut line = words(&["serve", "--json", "--preset", preset, "--listen", listen, "--dir"]);
        line.push(folder.join("store").into());
        line.extend_from_slice(flags);
        Process::spawn_with(&self.syncer, &line, &folder.join(log), &self.variables)
    }

    /// Returns the JSON lines of `syncer-server replay` for the run in `folder`: one for each merge, and the summary
    /// last.
    fn replay(&self, folder: &Path) -> Result<Vec<Value>, String> {
        let mut command = Command::new(&self.syncer);
        command.args(["replay", "--merges", "--json", "--dir"]).arg(folder.join("store"));
        let output = command.output().map_err(|error| error.to_string())?;
        if !output.status.success() {
            let reason = String::from_utf8_lossy(&output.stderr);
            return Err(format!("the tape cannot be replayed ({}): {reason}", output.status));
        }
        let lines = String::from_utf8_lossy(&output.stdout);
        lines
            .lines()
            .map(|line| serde_json::from_str(line).map_err(|error| format!("{error}: {line}")))
            .collect()
    }

    /// Starts a learner with one thread, so that learners can share a core. Its files in `folder` are named `name`.
    fn join(
        &self,
        address: SocketAddr,
        folder: &Path,
        name: &str,
        flags: &[String],
    ) -> Result<Process, String> {
        let mut line = words(&["join", &format!("ws://{address}"), "--json", "--name", name]);
        line.extend(words(&["--engine", "cpu", "--threads", "1", "--identity"]));
        line.push(folder.join(name).with_extension("identity").into());
        line.extend(flags.iter().map(OsString::from));
        Process::spawn(&self.learner, &line, &folder.join(name))
    }
}

/// Converts arguments of a program.
pub fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

/// Returns an error if `process`, which is called `name`, has ended.
pub fn check_runs(process: &mut Process, name: &str) -> Result<(), String> {
    match process.exit_code() {
        Some(code) => Err(format!("{name} ended with {code}: {}", process.last_words())),
        None => Ok(()),
    }
}

/// Configuration of a learner.
#[derive(Clone, Debug, Default)]
pub struct Slot {
    /// Rate in megabits a second each way (`None` means no limit) and round-trip time of its link; `None` means no
    /// link.
    pub link: Option<(Option<f64>, Duration)>,
    pub kind: Kind,
}

/// Kind of learner, by its platform.
#[derive(Clone, Debug)]
pub enum Kind {
    /// The native program with one thread and these flags.
    Native(Vec<String>),
    /// A page in Chromium, which uses the processor for a quarter of the time.
    Browser,
}

impl Default for Kind {
    fn default() -> Self {
        Self::Native(Vec::new())
    }
}

impl Kind {
    /// Returns a native learner with this duty cycle, at most 1.
    pub fn with_duty_cycle(share: f64) -> Self {
        Self::Native(vec!["--duty-cycle".to_owned(), format!("{:.4}", share.min(1.0))])
    }
}

/// Learner in a slot.
struct TestbedLearner {
    name: String,
    slot: Slot,
    link: Option<EmulatedLink>,
    /// `None` while it is dead.
    process: Option<Process>,
}

/// Processes of a run. Dropping it ends them. The files stay until the next run, for inspection.
pub struct Testbed<'a> {
    programs: &'a Programs,
    pub folder: PathBuf,
    preset: String,
    /// Additional flags of the syncers.
    flags: Vec<OsString>,
    pub syncer: Process,
    pub address: SocketAddr,
    /// Number of syncers started so far.
    pub lives: u32,
    learners: Vec<TestbedLearner>,
}

impl<'a> Testbed<'a> {
    /// Starts a syncer of `preset` with `flags` in the empty folder `name`.
    pub fn start(
        programs: &'a Programs,
        name: &str,
        preset: &str,
        flags: &[OsString],
    ) -> Result<Self, String> {
        let folder = empty_folder(name)?;
        let (syncer, address) = programs.serve(preset, ANY_PORT, &folder, "syncer-1", flags)?;
        let (preset, flags) = (preset.to_owned(), flags.to_vec());
        Ok(Self { programs, folder, preset, flags, syncer, address, lives: 1, learners: Vec::new() })
    }

    /// Adds a learner, and starts it.
    pub fn add(&mut self, slot: Slot) -> Result<(), String> {
        let open = |(rate, round_trip)| EmulatedLink::open(self.address, LinkProfile::new(rate, round_trip));
        let link = slot.link.map(open).transpose();
        let link = link.map_err(|error| format!("cannot open a link to {}: {error}", self.address))?;
        let name = learner_name(self.learners.len());
        self.learners.push(TestbedLearner { name, slot, link, process: None });
        self.start_learner(self.learners.len() - 1)
    }

    /// Starts or restarts learner `index`.
    pub fn start_learner(&mut self, index: usize) -> Result<(), String> {
        let TestbedLearner { name, slot, link, .. } = &self.learners[index];
        let address = link.as_ref().map_or(self.address, EmulatedLink::address);
        self.learners[index].process = Some(self.start_at(address, name, &slot.kind)?);
        Ok(())
    }

    fn start_at(&self, address: SocketAddr, name: &str, kind: &Kind) -> Result<Process, String> {
        match kind {
            Kind::Native(flags) => self.programs.join(address, &self.folder, name, flags),
            Kind::Browser => open_browser(address, &self.folder, name),
        }
    }

    /// Starts a learner without a link and without a slot.
    pub fn start_extra_learner(&self, name: &str, kind: &Kind) -> Result<Process, String> {
        self.start_at(self.address, name, kind)
    }

    /// Kills learner `index`.
    pub fn kill_learner(&mut self, index: usize) {
        self.learners[index].process = None;
    }

    /// Returns the process of learner `index`, unless it is dead.
    pub fn learner(&mut self, index: usize) -> Option<&mut Process> {
        self.learners[index].process.as_mut()
    }

    /// Stops or continues learner `index`.
    pub fn freeze(&self, index: usize, is_frozen: bool) -> Result<(), String> {
        let Some(process) = &self.learners[index].process else { return Ok(()) };
        let is_done = if is_frozen { process.freeze() } else { process.thaw() };
        if is_done { Ok(()) } else { Err("this system cannot stop and continue processes".to_owned()) }
    }

    /// Sets the link conditions of learner `index`, if it has a link.
    pub fn set_link(&self, index: usize, conditions: LinkConditions) {
        if let Some(link) = &self.learners[index].link {
            link.set(conditions);
        }
    }

    /// Returns the traffic on the link of learner `index`.
    pub fn carried(&self, index: usize) -> LinkBytes {
        self.learners[index].link.as_ref().map(EmulatedLink::carried).unwrap_or_default()
    }

    /// Kills the syncer and restarts it at the same address. Returns the time from its end to the first answer.
    pub fn restart_syncer(&mut self) -> Result<Duration, String> {
        self.syncer.kill();
        let ended = Instant::now();
        self.serve_again(&self.address.to_string())?;
        Ok(ended.elapsed())
    }

    fn serve_again(&mut self, listen: &str) -> Result<(), String> {
        self.lives += 1;
        let log = format!("syncer-{}", self.lives);
        (self.syncer, self.address) =
            self.programs.serve(&self.preset, listen, &self.folder, &log, &self.flags)?;
        Ok(())
    }

    /// Waits until all learners take part in rounds.
    pub fn wait_for_all(&mut self) -> Result<(), String> {
        let start = Instant::now();
        while start.elapsed() < LIVE_WAIT {
            if number(&self.status()?, "/live") == self.learners.len() as u64 {
                return Ok(());
            }
            self.check()?;
            thread::sleep(POLL);
        }
        Err(format!("not all learners take part after {} s", LIVE_WAIT.as_secs()))
    }

    /// Returns an error if a learner or the syncer has ended by itself.
    pub fn check(&mut self) -> Result<(), String> {
        check_runs(&mut self.syncer, "the syncer")?;
        self.learners.iter_mut().try_for_each(|learner| match &mut learner.process {
            Some(process) => check_runs(process, &learner.name),
            None => Ok(()),
        })
    }

    /// Returns the syncer's answer to `path`.
    pub fn get(&self, path: &str) -> Result<Value, String> {
        http::get(self.address, path)
    }

    /// Returns the status of the run.
    pub fn status(&self) -> Result<Value, String> {
        self.get("/v1/status")
    }

    /// Returns the syncer's rows of all learners.
    pub fn rows(&self) -> Result<Vec<Value>, String> {
        let all = self.get("/v1/learners?limit=256")?;
        Ok(all["learners"].as_array().cloned().unwrap_or_default())
    }

    /// Returns the events that each learner has printed so far.
    pub fn events(&self) -> Vec<Vec<Value>> {
        let events = |text: String| text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        self.outputs().map(events).collect()
    }

    /// Returns the output of each learner over all of its processes.
    fn outputs(&self) -> impl Iterator<Item = String> {
        let files = self.learners.iter().map(|one| self.folder.join(&one.name).with_extension("jsonl"));
        files.map(|file| fs::read_to_string(file).unwrap_or_default())
    }

    /// Returns the resources of the syncer, and the maximum of each resource over all learners.
    pub fn usage(&self) -> (Usage, Usage) {
        let learners = self.learners.iter().filter_map(|learner| learner.process.as_ref()).map(Usage::of);
        (Usage::of(&self.syncer), learners.fold(Usage::default(), Usage::max))
    }

    /// Kills all processes. Returns the receipts of all learners, and the replay of the tape.
    pub fn end(&mut self) -> Result<(Vec<Receipt>, Vec<Value>), String> {
        // The syncer ends under load. Afterwards no process changes the files.
        self.syncer.kill();
        self.learners.iter_mut().for_each(|learner| learner.process = None);
        let receipts = self.outputs().flat_map(|text| receipts(text.lines())).collect();
        Ok((receipts, self.programs.replay(&self.folder)?))
    }

    /// Ends the run, and compares receipts, tape, and the ledger of a restarted syncer.
    pub fn prove(mut self) -> Result<ReceiptComparison, String> {
        let (receipts, replay) = self.end()?;
        self.serve_again(ANY_PORT)?;
        Ok(prove(&receipts, &replay, &self.status()?, &self.rows()?))
    }
}

/// Returns the name of learner `index`.
pub fn learner_name(index: usize) -> String {
    format!("learner-{}", index + 1)
}

/// Starts a page in Chromium that takes part.
fn open_browser(address: SocketAddr, folder: &Path, name: &str) -> Result<Process, String> {
    let script = root().join("web-demo/tests/lend.mjs");
    let mut line = vec![script.into_os_string()];
    line.extend(words(&[&format!("http://{address}/"), name, "cpu", "gentle", "killed"]));
    Process::spawn_with_children(Path::new("node"), &line, &folder.join(name))
}

/// Returns a whole number in a JSON object; 0 if it is missing.
pub fn number(object: &Value, path: &str) -> u64 {
    object.pointer(path).and_then(Value::as_u64).unwrap_or(0)
}

/// Creates an empty folder `name` in cargo's target folder.
pub fn empty_folder(name: &str) -> Result<PathBuf, String> {
    let folder = target_folder()?.join(name);
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(failed)?;
    }
    fs::create_dir_all(&folder).map_err(failed)?;
    Ok(folder)
}

/// Resources of one process; 0 where the system does not report them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Resident memory, in bytes.
    pub rss_bytes: u64,
    /// Open files and sockets.
    pub files: u64,
    pub threads: u64,
}

impl Usage {
    /// Returns the resources of `process`.
    pub fn of(process: &Process) -> Self {
        let folder = Path::new("/proc").join(process.pid().to_string());
        let status = fs::read_to_string(folder.join("status")).unwrap_or_default();
        let files = fs::read_dir(folder.join("fd")).map_or(0, |files| files.count() as u64);
        Self { rss_bytes: 1_024 * field(&status, "VmRSS:"), files, threads: field(&status, "Threads:") }
    }

    /// Returns the maximum of each resource.
    pub fn max(self, other: Self) -> Self {
        Self {
            rss_bytes: self.rss_bytes.max(other.rss_bytes),
            files: self.files.max(other.files),
            threads: self.threads.max(other.threads),
        }
    }
}

fn field(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Latency of a series of requests, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Latency {
    pub p50_ms: f64,
    pub p99_ms: f64,
    /// Number of requests without an answer.
    pub failed: usize,
}

/// Requests `path` repeatedly for `time`. Without any answer, the latency is infinite.
pub fn probe(address: SocketAddr, path: &str, time: Duration) -> Latency {
    let (start, mut latencies_ms, mut failed) = (Instant::now(), Vec::new(), 0);
    while start.elapsed() < time {
        let asked = Instant::now();
        match http::get(address, path) {
            Ok(_) => latencies_ms.push(asked.elapsed().as_secs_f64() * 1e3),
            Err(_) => failed += 1,
        }
        thread::sleep(PROBE_EVERY.saturating_sub(asked.elapsed()));
    }
    let [p50_ms, p99_ms] = [0.5, 0.99].map(|share| quantile(&latencies_ms, share).unwrap_or(f64::INFINITY));
    Latency { p50_ms, p99_ms, failed }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_name() {
        let status = "Name:\tx\nVmRSS:\t   5120 kB\nThreads:\t7\n";
        assert_eq!(["VmRSS:", "Threads:", "Other:"].map(|name| field(status, name)), [5_120, 7, 0]);
    }
}
