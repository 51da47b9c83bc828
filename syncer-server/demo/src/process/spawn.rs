//! A program behind its guard.

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

/// How often a program's end is looked for.
const POLL: Duration = Duration::from_millis(20);

/// A running program; dropping it kills it. Who uses this must answer to `guard` as the first word of its command
/// line, with [`super::guard::run`].
pub struct Process {
    guard: Child,
    /// Open for as long as the program may run.
    leash: Option<ChildStdin>,
    pid: u32,
    rss_bytes_max: u64,
    stdout: PathBuf,
    stderr: PathBuf,
}

impl Process {
    /// Starts `program` with its output added to the files `log`.jsonl and `log`.log.
    ///
    /// # Errors
    /// A sentence: it could not be started.
    pub fn spawn(program: &Path, args: &[OsString], log: &Path) -> Result<Self, String> {
        Self::start(program, args, log, &[], false)
    }

    /// The same with these variables of the environment beside those that there are.
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

    /// The same for a program that starts others, which end with it.
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
        // The guard hands on what it has.
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

    /// Its number in the system.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// What it has written to standard output, in whole lines.
    pub fn stdout(&self) -> Vec<String> {
        let text = fs::read_to_string(&self.stdout).unwrap_or_default();
        text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')).map(str::to_owned).collect()
    }

    /// The last line it wrote to standard error.
    pub fn last_words(&self) -> String {
        let text = fs::read_to_string(&self.stderr).unwrap_or_default();
        text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default().to_owned()
    }

    /// Waits at most `wait` for its end; its exit code.
    pub fn wait(&mut self, wait: Duration) -> Option<i32> {
        let end = Instant::now() + wait;
        while self.exit_code().is_none() && Instant::now() < end {
            thread::sleep(POLL);
        }
        self.exit_code()
    }

    /// Its exit code, once it has ended.
    pub fn exit_code(&mut self) -> Option<i32> {
        self.guard.try_wait().ok().flatten().map(|status| status.code().unwrap_or(1))
    }

    /// Asks it to end, as a system that shuts down does; where systems know no such thing, it is killed.
    pub fn ask_to_end(&mut self) {
        if !self.signal("TERM") {
            self.kill();
        }
    }

    /// Holds it still, as a lid that is closed does; whether the system knows such a thing.
    pub fn freeze(&self) -> bool {
        self.signal("STOP")
    }

    /// Lets it go on.
    pub fn thaw(&self) -> bool {
        self.signal("CONT")
    }

    fn signal(&self, name: &str) -> bool {
        let (name, pid) = (format!("-{name}"), self.pid.to_string());
        Command::new("kill").args([&name, &pid]).status().is_ok_and(|status| status.success())
    }

    /// Kills it at once, as `kill -9` does, and waits until it is gone.
    pub fn kill(&mut self) {
        self.leash = None;
        let _ = self.guard.wait();
    }

    /// Time that processors spent on it so far, in milliseconds, by tens; 0 where the system does not tell.
    pub fn cpu_ms(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        // The name in brackets may hold anything; user and system time are the 12th and 13th field after it.
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
        fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).map(|ticks| 10 * ticks).sum()
    }

    /// Its largest resident memory so far, in bytes; 0 where the system does not tell.
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

/// Keeps the terminal's Ctrl+C from the program: who started it decides how it ends.
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
