//! Real processes: a syncer and learners, observed through `/v1/status` and killed when dropped.

use std::ffi::OsStr;
use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use archipelago_core::wire::http::{RUNS, STATUS};
use serde_json::Value;
use tempfile::TempDir;

use crate::small_disk::{FaultyDisk, SmallDisk};
use crate::socket::get;

/// Flags of a small run that takes longer than any test.
pub const SMALL_RUN: [&str; 10] = [
    "--preset",
    "tiny",
    "--corpus-bytes",
    "512KiB",
    "--total-tokens",
    "4000000",
    "--sync-every",
    "4",
    "--fragments",
    "4",
];

/// Locks the machine's cores for one test at a time.
///
/// # Panics
/// Never. A panic in an earlier test is ignored.
pub fn whole_machine() -> MutexGuard<'static, ()> {
    static MACHINE: Mutex<()> = Mutex::new(());
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Running syncer with its own folder.
pub struct SyncerProcess {
    child: Child,
    dir: TempDir,
    /// Address that it listens on.
    pub address: SocketAddr,
    flags: Vec<String>,
    serves: SyncerEnvironment,
}

impl SyncerProcess {
    /// Starts a syncer with `flags` on a free port and waits until it answers.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn start(flags: &[&str]) -> Self {
        Self::start_with(flags, |_| SyncerEnvironment::One)
    }

    /// Starts a syncer as [`Self::start`] does, with a run in each folder below [`Self::folder`]. The status is that of
    /// `/v1/runs`.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn start_several(flags: &[&str]) -> Self {
        Self::start_with(flags, |_| SyncerEnvironment::Several)
    }

    /// Starts a syncer as [`Self::start`] does, with a maximum file size, as if the disk were full beyond it.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn start_with_files_up_to(file_bytes_max: u64, flags: &[&str]) -> Self {
        Self::start_with(flags, |_| SyncerEnvironment::Limited(file_bytes_max))
    }

    /// Starts a syncer as [`Self::start`] does, with a maximum number of open files and sockets.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn start_with_descriptors(descriptors_max: u32, flags: &[&str]) -> Self {
        Self::start_with(flags, |_| SyncerEnvironment::Crowded(descriptors_max))
    }

    /// Starts a syncer as [`Self::start`] does, with its folder on a separate file system of `bytes` bytes.
    ///
    /// # Panics
    /// If it does not come up, or mounting is not permitted.
    #[must_use]
    pub fn start_on_small_disk(bytes: u64, flags: &[&str]) -> Self {
        Self::start_with(flags, |folder| SyncerEnvironment::OnSmallDisk(SmallDisk::mount(folder, bytes)))
    }

    /// Starts a syncer as [`Self::start`] does, with its folder on a disk with injected faults.
    ///
    /// # Panics
    /// If it does not come up, or there is no C compiler.
    #[must_use]
    pub fn start_on_faulty_disk(flags: &[&str]) -> Self {
        Self::start_with(flags, |folder| SyncerEnvironment::OnFaultyDisk(FaultyDisk::new(folder)))
    }

    /// Returns the separate file system of the syncer's folder.
    ///
    /// # Panics
    /// If the folder is on a common disk.
    #[must_use]
    pub fn small_disk(&self) -> &SmallDisk {
        if let SyncerEnvironment::OnSmallDisk(disk) = &self.serves {
            disk
        } else {
            panic!("it is on a common disk")
        }
    }

    /// Returns the disk with injected faults that holds the syncer's folder.
    ///
    /// # Panics
    /// If the folder is on a common disk.
    #[must_use]
    pub fn faulty_disk(&self) -> &FaultyDisk {
        if let SyncerEnvironment::OnFaultyDisk(disk) = &self.serves {
            disk
        } else {
            panic!("it is on a common disk")
        }
    }

    fn start_with(flags: &[&str], serves: impl FnOnce(&Path) -> SyncerEnvironment) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let serves = serves(&dir.path().join("run"));
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let address = free.expect("a free port");
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let child = serve(&dir, address, &flags, &serves);
        let mut syncer = Self { child, dir, address, flags, serves };
        syncer.await_answer();
        syncer
    }

    /// Removes the limit on file sizes.
    ///
    /// # Panics
    /// If the system refuses.
    pub fn lift_file_limit(&self) {
        let pid = self.child.id().to_string();
        let lifted = Command::new("prlimit").args(["--pid", &pid, "--fsize=unlimited:unlimited"]).status();
        assert!(lifted.is_ok_and(|status| status.success()), "the limit cannot be lifted");
    }

    /// Returns the body of the response to `GET path`, which must have status 200.
    ///
    /// # Errors
    /// Those of [`get`].
    pub fn get(&self, path: &str) -> std::io::Result<String> {
        get(self.address, path)
    }

    /// Kills the process without warning.
    pub fn kill(&mut self) {
        kill(&mut self.child);
    }

    /// Restarts the syncer on the same folder and port, after [`Self::kill`].
    ///
    /// # Panics
    /// If it does not come up.
    pub fn restart(&mut self) {
        self.child = serve(&self.dir, self.address, &self.flags, self.serves.lasting());
        self.await_answer();
    }

    /// Restarts the syncer as [`Self::restart`] does, with other settings.
    pub fn restart_with(&mut self, flags: &[&str]) {
        self.starts_with(flags);
        self.restart();
    }

    /// Sets the flags of later starts.
    pub fn starts_with(&mut self, flags: &[&str]) {
        self.flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
    }

    /// Interrupts the syncer and waits. Returns the last line of its output.
    ///
    /// # Panics
    /// If it does not end in time, or not with code 0.
    pub fn interrupt(&mut self) -> Value {
        interrupt(&self.child);
        let log = self.log();
        let status = ended(&mut self.child, "syncer", &log);
        assert!(status.success(), "syncer ended with {status}\n{}", self.log());
        let out = std::fs::read_to_string(self.dir.path().join("out")).expect("its output");
        out.lines().last().and_then(|line| serde_json::from_str(line).ok()).expect("a last line of JSON")
    }

    /// Replays the tape of a stopped syncer. Returns the result.
    ///
    /// # Panics
    /// If the replay finds a difference.
    #[must_use]
    pub fn replay(&self) -> Value {
        replay_by(self.serves.lasting().command(program("syncer-server")), &self.folder())
    }

    /// Interrupts the syncer and waits. Returns its exit code and its last line on standard error.
    ///
    /// # Panics
    /// If it does not end in time.
    pub fn stop(&mut self) -> (Option<i32>, String) {
        interrupt(&self.child);
        let status = self.wait();
        (status.code(), self.last_words())
    }

    /// Starts the syncer on the same folder, and expects a refusal with this code. Returns its last line on standard
    /// error.
    ///
    /// # Panics
    /// If it does not refuse.
    #[must_use]
    pub fn refused(&self, code: i32) -> String {
        let mut child = serve(&self.dir, self.address, &self.flags, self.serves.lasting());
        let status = ended(&mut child, "syncer", "");
        assert_eq!(status.code(), Some(code), "{}", self.log());
        self.last_words()
    }

    fn last_words(&self) -> String {
        self.log().lines().last().unwrap_or_default().to_owned()
    }

    /// Returns the folder of the syncer's run or runs. Learners store downloads next to it, in `cache`.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    /// Returns the syncer's `/v1/status`, if it answers.
    #[must_use]
    pub fn try_status(&self) -> Option<Value> {
        let path = if matches!(self.serves, SyncerEnvironment::Several) { RUNS } else { STATUS };
        let body = get(self.address, path).ok()?;
        serde_json::from_str(&body).ok()
    }

    /// Polls the status until `done` returns true for it. Returns that status.
    ///
    /// # Panics
    /// With the last status and log, if that does not happen in time.
    pub fn wait_until(&mut self, what: &str, mut done: impl FnMut(&Value) -> bool) -> Value {
        let start = clock();
        let mut last = None;
        while start.elapsed() < WAIT {
            if let Ok(Some(status)) = self.child.try_wait() {
                panic!("waiting until {what}: the syncer ended with {status}\n{}", self.log());
            }
            if let Some(status) = self.try_status() {
                if done(&status) {
                    return status;
                }
                last = Some(status);
            }
            sleep(POLL);
        }
        panic!("not in {WAIT:?}: {what}; the last status is {last:#?}\n{}", self.log());
    }

    /// Waits until a new snapshot exists.
    ///
    /// # Panics
    /// As [`Self::wait_until`] does.
    pub fn wait_for_snapshot(&mut self) {
        let folder = self.seen("snapshots");
        let before = newest_snapshot(&folder);
        self.wait_until("a snapshot is written", |_| newest_snapshot(&folder) > before);
    }

    /// Returns the address for learners.
    #[must_use]
    pub fn url(&self) -> String {
        format!("ws://{}", self.address)
    }

    /// Starts a learner called `name`. Its identity is stored with the syncer's files, so that it stays the same over
    /// restarts.
    ///
    /// # Panics
    /// If the program cannot be started.
    #[must_use]
    pub fn learner(&self, name: &str) -> LearnerProcess {
        self.learner_on("cpu", name)
    }

    /// Starts a learner as [`Self::learner`] does, at `path` below the syncer's address.
    ///
    /// # Panics
    /// If the program cannot be started.
    #[must_use]
    pub fn learner_at(&self, path: &str, name: &str) -> LearnerProcess {
        self.join(&format!("{}{path}", self.url()), "cpu", name)
    }

    /// Starts a learner as [`Self::learner`] does, with `engine`: `cpu` or `gpu`.
    ///
    /// # Panics
    /// If the program cannot be started.
    #[must_use]
    pub fn learner_on(&self, engine: &str, name: &str) -> LearnerProcess {
        self.join(&self.url(), engine, name)
    }

    fn join(&self, url: &str, engine: &str, name: &str) -> LearnerProcess {
        let log = self.dir.path().join(format!("{name}.log"));
        let out = File::options().append(true).create(true).open(&log).expect("a log");
        let child = Command::new(program("native-learner"))
            .args(["join", url, "--engine", engine, "--threads", "1", "--json"])
            .args(["--name", name, "--identity"])
            .arg(self.dir.path().join(format!("{name}.identity")))
            .args(["--cache-dir".as_ref(), self.dir.path().join("cache").as_os_str()])
            .stdin(Stdio::null())
            .stdout(out.try_clone().expect("the log, twice"))
            .stderr(out)
            .spawn()
            .expect("native-learner can be started");
        LearnerProcess { child, log }
    }

    /// Waits for the end of the process.
    ///
    /// # Panics
    /// If it does not end in time.
    pub fn wait(&mut self) -> ExitStatus {
        let log = self.log();
        ended(&mut self.child, "syncer", &log)
    }

    /// Returns the path of `name` in the run's folder, as seen from this process.
    fn seen(&self, name: &str) -> PathBuf {
        match &self.serves {
            SyncerEnvironment::OnSmallDisk(disk) => disk.path(name),
            _ => self.folder().join(name),
        }
    }

    fn await_answer(&mut self) {
        self.wait_until("the syncer answers", |_| true);
    }

    fn log(&self) -> String {
        tail(&self.dir.path().join("log"))
    }
}

impl Drop for SyncerProcess {
    fn drop(&mut self) {
        kill(&mut self.child);
    }
}

/// Returns a number in a status, or 0 if it is missing.
#[must_use]
pub fn number(status: &Value, key: &str) -> f64 {
    status[key].as_f64().unwrap_or(0.0)
}

/// Returns a number of the learner called `name`, or 0 if it is missing.
#[must_use]
pub fn of_learner(status: &Value, name: &str, key: &str) -> f64 {
    let learners = status["learners"].as_array().into_iter().flatten();
    let found = learners.into_iter().find(|learner| learner["name"] == name);
    found.and_then(|learner| learner[key].as_f64()).unwrap_or(0.0)
}

fn serve(dir: &TempDir, address: SocketAddr, flags: &[String], serves: &SyncerEnvironment) -> Child {
    let file = |name: &str| {
        File::options().append(true).create(true).open(dir.path().join(name)).expect("a file for its output")
    };
    let mut command = serves.command(program("syncer-server"));
    command
        .args(["serve", "--json", "--listen", &address.to_string()])
        .arg(if matches!(serves, SyncerEnvironment::Several) { "--runs" } else { "--dir" })
        .arg(dir.path().join("run"))
        .args(flags)
        .stdin(Stdio::null())
        .stdout(file("out"))
        .stderr(file("log"))
        .spawn()
        .expect("syncer-server can be started")
}

/// Returns the newest snapshot in a folder of snapshots.
#[must_use]
pub fn newest_snapshot(folder: &Path) -> Option<PathBuf> {
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let paths = names.map(|entry| entry.path());
    paths.filter(|path| path.extension().is_some_and(|ending| ending == "safetensors")).max()
}

/// Longest wait for anything that must come; shared machines can be slow.
pub const WAIT: Duration = Duration::from_secs(180);
/// Interval between two checks.
pub(crate) const POLL: Duration = Duration::from_millis(50);

pub(crate) fn kill(child: &mut Child) {
    // Fails only if the process has already ended, which is fine.
    let _ = child.kill();
    let _ = child.wait();
}

pub(crate) fn interrupt(child: &Child) {
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(sent.is_ok_and(|status| status.success()), "SIGINT cannot be sent");
}

pub(crate) fn ended(child: &mut Child, who: &str, log: &str) -> ExitStatus {
    let start = clock();
    while start.elapsed() < WAIT {
        if let Some(status) = child.try_wait().expect("a child of ours") {
            return status;
        }
        sleep(POLL);
    }
    panic!("the {who} does not end in {WAIT:?}\n{log}");
}

pub(crate) fn tail(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

#[expect(clippy::disallowed_methods, reason = "processes run by the real clock")]
pub(crate) fn clock() -> Instant {
    Instant::now()
}

/// Environment of a syncer, and the number of its runs.
pub(crate) enum SyncerEnvironment {
    /// One run.
    One,
    /// One run, with a largest file size in bytes.
    Limited(u64),
    /// One run, with a largest number of open files and sockets.
    Crowded(u32),
    /// A run in each of its folders.
    Several,
    /// One run, in a file system of its own.
    OnSmallDisk(SmallDisk),
    /// One run, on a disk with injected faults.
    OnFaultyDisk(FaultyDisk),
}

impl SyncerEnvironment {
    /// Returns the environment of later starts; limits apply only to the first one.
    pub(crate) fn lasting(&self) -> &Self {
        if matches!(self, Self::Limited(_) | Self::Crowded(_)) { &Self::One } else { self }
    }

    /// Returns the command that runs `program` in this environment.
    pub(crate) fn command(&self, program: PathBuf) -> Command {
        match self {
            Self::One | Self::Several => Command::new(program),
            // The shell counts in blocks of 512 bytes. With the signal ignored, a write beyond the limit is an error.
            Self::Limited(bytes) => under(&format!("trap '' XFSZ; ulimit -S -f {}", bytes / 512), program),
            Self::Crowded(descriptors) => under(&format!("ulimit -n {descriptors}"), program),
            Self::OnSmallDisk(disk) => disk.inside(program),
            Self::OnFaultyDisk(disk) => disk.under(program),
        }
    }
}

/// Returns the command that runs `program` in a shell that has set `limits`.
fn under(limits: &str, program: PathBuf) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{limits}; exec \"$0\" \"$@\"")]).arg(program);
    shell
}

/// Returns the path of a program, which lies next to this test. Builds it if it is missing.
///
/// # Panics
/// If it cannot be built.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let folder = BUILT.get_or_init(|| {
        let test = std::env::current_exe().expect("this test has a path");
        let folder = test.ancestors().nth(2).expect("target/PROFILE/deps/test").to_owned();
        let exe = |name: &str| folder.join(format!("{name}{}", std::env::consts::EXE_SUFFIX));
        if !["syncer-server", "native-learner"].iter().all(|name| exe(name).exists()) {
            let mut cargo = cargo();
            cargo.args(["build", "--quiet", "--bins", "-p", "syncer-server", "-p", "native-learner"]);
            if folder.ends_with("release") {
                cargo.arg("--release");
            }
            let built = cargo.status().expect("cargo can be started");
            assert!(built.success(), "the programs cannot be built");
        }
        folder
    });
    folder.join(format!("{name}{}", std::env::consts::EXE_SUFFIX))
}

/// Returns `cargo` in this folder, without the variables that describe the test. Build scripts that read those would
/// run again, and all their dependents would be rebuilt, now and by the next call of cargo.
#[must_use]
pub fn cargo() -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    for (name, _) in std::env::vars_os() {
        if ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|own| name.to_string_lossy().starts_with(own)) {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// Replays the tape in `dir`. Returns the result.
///
/// # Panics
/// If the replay finds a difference.
#[must_use]
pub fn replay(dir: &Path) -> Value {
    replay_by(Command::new(program("syncer-server")), dir)
}

/// Replays the tape as [`replay`] does, with the given command.
pub(crate) fn replay_by(mut syncer: Command, dir: &Path) -> Value {
    let syncer = syncer.args(["replay", "--json", "--dir"]).arg(dir);
    json_output(&syncer.output().expect("syncer-server can be started"))
}

/// Copies the run in `dir` to `to`. Returns the program's output.
///
/// # Panics
/// If it cannot be copied.
#[must_use]
pub fn backup(dir: &Path, to: &Path) -> Value {
    json_output(&run(&["backup".as_ref(), "--json".as_ref(), "--dir".as_ref(), dir.as_ref(), to.as_ref()]))
}

/// Exports the model of the run in `dir` to `out`, with the additional flags `more`.
///
/// # Panics
/// If it cannot be exported.
pub fn export(dir: &Path, out: &Path, more: &[&str]) {
    let mut arguments: Vec<&OsStr> = vec!["export".as_ref(), "--dir".as_ref(), dir.as_ref()];
    arguments.extend(["--out".as_ref(), out.as_os_str()]);
    arguments.extend(more.iter().map(OsStr::new));
    let output = run(&arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Runs the syncer's program with these arguments to its end.
///
/// # Panics
/// If it cannot be started.
#[must_use]
pub fn run(arguments: &[&OsStr]) -> Output {
    Command::new(program("syncer-server")).args(arguments).output().expect("syncer-server can be started")
}

fn json_output(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("a line of JSON")
}

/// Running learner.
pub struct LearnerProcess {
    pub(crate) child: Child,
    pub(crate) log: PathBuf,
}

impl LearnerProcess {
    /// Kills the process without warning.
    pub fn kill(&mut self) {
        kill(&mut self.child);
    }

    /// Interrupts the learner, as Ctrl+C does, and waits. Returns its exit status and the duration.
    ///
    /// # Panics
    /// If it does not end in time.
    pub fn interrupt(&mut self) -> (ExitStatus, Duration) {
        let start = clock();
        interrupt(&self.child);
        let status = self.wait();
        (status, start.elapsed())
    }

    /// Waits for the end of the process.
    ///
    /// # Panics
    /// If it does not end in time.
    pub fn wait(&mut self) -> ExitStatus {
        let log = tail(&self.log);
        ended(&mut self.child, "learner", &log)
    }

    /// Returns true if the process is running.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for LearnerProcess {
    fn drop(&mut self) {
        kill(&mut self.child);
    }
}
