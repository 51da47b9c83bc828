//! Program that runs behind a guard.

use std::{
    env,
    ffi::OsString,
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Interval of the checks for a program's end.
const POLL: Duration = Duration::from_millis(20);

/// Running program; dropping it kills it. A binary that uses this must run [`super::guard::run`] if the first word of
/// its command line is `guard`.
pub struct Process {
    guard: Child,
    /// Pipe that stays open while the program may run.
    leash: Option<ChildStdin>,
    pid: u32,
    rss_bytes_max: u64,
    stdout: PathBuf,
    stderr: PathBuf,
}

impl Process {
    /// Starts `program`, with its output appended to the files `log`.jsonl and `log`.log.
    ///
    /// # Errors
    /// A sentence: it could not be started.
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

    /// Starts a program that starts others, which end with it.
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
        let leash = guard.stdin.take();
        let mut line = String::new();
        let pipe = guard.stdout.take().expect("standard output is piped");
        BufReader::new(pipe).read_line(&mut line).map_err(failed)?;
        let pid = line.trim().parse().map_err(|_| format!("cannot start {}", program.display()))?;
        Ok(Self { guard, leash, pid, rss_bytes_max: 0, stdout, stderr })
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the complete lines of standard output so far.
    pub fn stdout(&self) -> Vec<String> {
        let text = fs::read_to_string(&self.stdout).unwrap_or_default();
        text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')).map(str::to_owned).collect()
    }

    /// Returns the last line of standard error.
    pub fn last_words(&self) -> String {
        let text = fs::read_to_string(&self.stderr).unwrap_or_default();
        text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default().to_owned()
    }

    /// Waits at most `wait` for the end of the program. Returns its exit code.
    pub fn wait(&mut self, wait: Duration) -> Option<i32> {
        let end = Instant::now() + wait;
        while self.exit_code().is_none() && Instant::now() < end {
            thread::sleep(POLL);
        }
        self.exit_code()
    }

    /// Returns the exit code once the program has ended.
    pub fn exit_code(&mut self) -> Option<i32> {
        self.guard.try_wait().ok().flatten().map(|status| status.code().unwrap_or(1))
    }

    /// Asks the program to end with SIGTERM. Kills it on systems without signals.
    pub fn ask_to_end(&mut self) {
        if !self.signal("TERM") {
            self.kill();
        }
    }

    /// Stops the program, as a closed lid does. Returns false on systems without that signal.
    pub fn freeze(&self) -> bool {
        self.signal("STOP")
    }

    /// Lets a stopped program continue.
    pub fn thaw(&self) -> bool {
        self.signal("CONT")
    }

    fn signal(&self, name: &str) -> bool {
        let (name, pid) = (format!("-{name}"), self.pid.to_string());
        Command::new("kill").args([&name, &pid]).status().is_ok_and(|status| status.success())
    }

    /// Kills the program at once, as `kill -9` does, and waits for its end.
    pub fn kill(&mut self) {
        self.leash = None;
        let _ = self.guard.wait();
    }

    /// Returns the processor time so far in milliseconds, in steps of ten; 0 if the system does not report it.
    pub fn cpu_ms(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        // The name in brackets may contain any characters; user and system time are the 12th and 13th field after it.
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
        fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).map(|ticks| 10 * ticks).sum()
    }

    /// Returns the largest resident memory so far in bytes; 0 if the system does not report it.
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

/// Shields the program from the terminal's Ctrl+C, because its parent decides how it ends.
#[cfg(unix)]
fn detach(command: &mut Command) {
    std::os::unix::process::CommandExt::process_group(command, 0);
}

#[cfg(not(unix))]
fn detach(_command: &mut Command) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_where_the_system_tells() {
        let Ok(status) = fs::read_to_string("/proc/self/status") else { return };
        assert!(status.contains("VmHWM:"), "{status}");
    }
}
