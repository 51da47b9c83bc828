//! Child processes that never outlive their parent.
//!
//! A child runs below a *guard*: a process of the parent's own program, started with the verb `guard`. The guard
//! reads from a pipe to the parent, and kills the child when the pipe closes. The pipe closes whenever the parent
//! ends, even by `kill -9`.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{self, Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::mpsc::{self, TryRecvError};
use std::time::{Duration, Instant};
use std::{env, thread};

use crate::{fail, write};

/// Interval between checks whether a program has ended.
const POLL: Duration = Duration::from_millis(20);

/// Exit code of a guard whose program was killed by a signal: 128 + SIGKILL, as in shells.
const KILLED: u8 = 137;

/// Running program; dropping the value kills it. A binary that uses this type must call [`guard`] if the first word
/// of its command line is `guard`.
pub struct Process {
    guard: Child,
    /// Pipe to the guard. Closing it kills the program.
    guard_pipe: Option<ChildStdin>,
    pid: u32,
    rss_bytes_max: u64,
    stdout: PathBuf,
    stderr: PathBuf,
}

impl Process {
    /// Starts `program`. Its standard output is appended to `log`.jsonl, its standard error to `log`.log.
    ///
    /// # Errors
    /// A sentence: the program could not be started.
    pub fn spawn(program: &Path, args: &[OsString], log: &Path) -> Result<Self, String> {
        Self::start(program, args, log, &[], false)
    }

    /// Starts `program` with additional environment variables.
    ///
    /// # Errors
    /// Those of [`Self::spawn`].
    pub fn spawn_with(
        program: &Path,
        args: &[OsString],
        log: &Path,
        variables: &[(String, String)],
    ) -> Result<Self, String> {
        Self::start(program, args, log, variables, false)
    }

    /// Starts a program that starts further programs. When it is killed, they are killed too.
    ///
    /// # Errors
    /// Those of [`Self::spawn`].
    pub fn spawn_with_children(program: &Path, args: &[OsString], log: &Path) -> Result<Self, String> {
        Self::start(program, args, log, &[], true)
    }

    fn start(
        program: &Path,
        args: &[OsString],
        log: &Path,
        variables: &[(String, String)],
        children: bool,
    ) -> Result<Self, String> {
        let failed = |error| format!("cannot start {}: {error}", program.display());
        let mut command = Command::new(env::current_exe().map_err(failed)?);
        let (stdout, stderr) = (log.with_extension("jsonl"), log.with_extension("log"));
        command.arg("guard").arg("--stdout").arg(&stdout).arg("--stderr").arg(&stderr);
        command.args(children.then_some("--children")).arg("--").arg(program).args(args);
        // The guard passes its environment on.
        command.envs(variables.iter().cloned()).stdin(Stdio::piped()).stdout(Stdio::piped());
        detach(&mut command);
        let mut guard = command.spawn().map_err(failed)?;
        let guard_pipe = guard.stdin.take();
        let mut line = String::new();
        let pipe = guard.stdout.take().expect("standard output is piped");
        BufReader::new(pipe).read_line(&mut line).map_err(failed)?;
        let pid = line.trim().parse().map_err(|_| format!("cannot start {}", program.display()))?;
        Ok(Self { guard, guard_pipe, pid, rss_bytes_max: 0, stdout, stderr })
    }

    /// Returns the process id of the program.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the complete lines of standard output so far.
    #[must_use]
    pub fn stdout(&self) -> Vec<String> {
        let text = fs::read_to_string(&self.stdout).unwrap_or_default();
        text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')).map(str::to_owned).collect()
    }

    /// Returns the last line of standard error.
    #[must_use]
    pub fn last_words(&self) -> String {
        last_line(&fs::read_to_string(&self.stderr).unwrap_or_default())
    }

    /// Waits at most `wait` for the end of the program. Returns its exit code if it has ended.
    pub fn wait(&mut self, wait: Duration) -> Option<i32> {
        #[expect(clippy::disallowed_methods, reason = "a process ends by the real clock")]
        let now = Instant::now;
        let end = now() + wait;
        while self.exit_code().is_none() && now() < end {
            thread::sleep(POLL);
        }
        self.exit_code()
    }

    /// Returns the exit code once the program has ended.
    pub fn exit_code(&mut self) -> Option<i32> {
        self.guard.try_wait().ok().flatten().map(|status| status.code().unwrap_or(1))
    }

    /// Asks the program to end, with SIGTERM. On systems without signals it is killed.
    pub fn ask_to_end(&mut self) {
        if !self.signal("TERM") {
            self.kill();
        }
    }

    /// Sends SIGINT, as Ctrl+C does. On systems without signals the program is killed.
    pub fn interrupt(&mut self) {
        if !self.signal("INT") {
            self.kill();
        }
    }

    /// Suspends the program with SIGSTOP. Returns false on systems without signals.
    pub fn freeze(&self) -> bool {
        self.signal("STOP")
    }

    /// Continues a suspended program. Returns false on systems without signals.
    pub fn thaw(&self) -> bool {
        self.signal("CONT")
    }

    fn signal(&self, name: &str) -> bool {
        let (name, pid) = (format!("-{name}"), self.pid.to_string());
        Command::new("kill").args([&name, &pid]).status().is_ok_and(|status| status.success())
    }

    /// Kills the program at once, as `kill -9` does, and waits for its end.
    pub fn kill(&mut self) {
        self.guard_pipe = None;
        let _ = self.guard.wait();
    }

    /// Returns the processor time of the program so far in milliseconds, in steps of 10; 0 if the system does not
    /// report it.
    #[must_use]
    pub fn cpu_ms(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        // The name in parentheses may contain any characters. User and system time are the 12th and 13th field after
        // it.
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
        fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).map(|ticks| 10 * ticks).sum()
    }

    /// Returns the largest resident memory of the program so far in bytes; 0 if the system does not report it.
    pub fn rss_bytes_max(&mut self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let kibibytes = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
        self.rss_bytes_max = self.rss_bytes_max.max(kibibytes.unwrap_or(0) * 1024);
        self.rss_bytes_max
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns the last line of `text` that is not blank.
#[must_use]
pub fn last_line(text: &str) -> String {
    text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default().to_owned()
}

/// Detaches the guard from the terminal's Ctrl+C, because the parent decides when the program ends.
#[cfg(unix)]
fn detach(command: &mut Command) {
    std::os::unix::process::CommandExt::process_group(command, 0);
}

#[cfg(not(unix))]
fn detach(_command: &mut Command) {}

/// Settings of the verb `guard`.
#[derive(clap::Args, Debug)]
pub struct GuardArgs {
    /// File that the program's standard output is appended to
    #[arg(long, required = true)]
    stdout: PathBuf,
    /// File that its standard error is appended to
    #[arg(long, required = true)]
    stderr: PathBuf,
    /// Also kill the programs that the program has started, on systems with process groups
    #[arg(long)]
    children: bool,
    /// The program and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Runs a program, prints its process id, and waits for its end. Kills the program when standard input closes.
#[must_use]
pub fn guard(args: &GuardArgs) -> ExitCode {
    match start(args).and_then(|child| watch(child, args.children)) {
        Ok(code) => ExitCode::from(code),
        Err(error) => fail(&format_args!("{}: {error}", args.command[0].to_string_lossy()), 1),
    }
}

fn start(args: &GuardArgs) -> io::Result<Child> {
    let open = |path| File::options().append(true).create(true).open(path);
    let child = Command::new(&args.command[0])
        .args(&args.command[1..])
        .stdin(Stdio::null())
        .stdout(open(&args.stdout)?)
        .stderr(open(&args.stderr)?)
        .spawn()?;
    write(format_args!("{}\n", child.id()))?;
    Ok(child)
}

fn watch(mut child: Child, children: bool) -> io::Result<u8> {
    let (alive, parent) = mpsc::channel::<()>();
    thread::spawn(move || {
        let _alive = alive;
        // The parent never writes, so the read returns when the pipe closes.
        let _ = io::stdin().read(&mut [0]);
    });
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.code().map_or(KILLED, |code| u8::try_from(code).unwrap_or(1)));
        }
        if parent.try_recv() == Err(TryRecvError::Disconnected) {
            if children {
                kill_group();
            }
            child.kill()?;
        }
        thread::sleep(POLL);
    }
}

/// Kills the process group that this process leads, including this process. It has no effect on systems without
/// process groups.
fn kill_group() {
    let group = format!("-{}", process::id());
    // Without the program `kill`, only the guarded program is killed.
    let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
}
