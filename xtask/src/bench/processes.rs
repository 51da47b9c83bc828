//! Programs that `links`, `crash`, `storm`, `soak`, `load` and `tape` measure, and functions to start them.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use archipelago_demo::{Process, http};
use serde_json::Value;

use crate::cargo::{RELEASE_PROGRAMS, build, program, target_folder};

/// Maximum wait for the syncer's first answer.
const START_WAIT: Duration = Duration::from_secs(120);
/// Maximum wait for learners to take part.
const LIVE_WAIT: Duration = Duration::from_secs(120);
/// Polling interval.
const LOOK: Duration = Duration::from_millis(20);

/// Programs to measure.
pub struct Programs {
    syncer: PathBuf,
    learner: PathBuf,
    /// Additional environment variables of syncers.
    variables: Vec<(String, String)>,
}

impl Programs {
    /// Builds the programs for delivery.
    ///
    /// # Errors
    /// A message if the build failed.
    pub fn build() -> Result<Self, String> {
        Self::of(&build(RELEASE_PROGRAMS)?)
    }

    /// Builds the programs with support for several machines.
    ///
    /// # Errors
    /// A message if the build failed.
    pub fn build_for_machines() -> Result<Self, String> {
        Self::of(&build(&[RELEASE_PROGRAMS, &["--features", "syncer-server/cluster"]].concat())?)
    }

    fn of(files: &[PathBuf]) -> Result<Self, String> {
        let (syncer, learner) = (program(files, "syncer-server")?, program(files, "native-learner")?);
        Ok(Self { syncer, learner, variables: Vec::new() })
    }

    /// Finds the programs in `folder`.
    ///
    /// # Errors
    /// A message if one is missing.
    pub fn in_folder(folder: &Path) -> Result<Self, String> {
        let find = |name: &str| {
            let file = folder.join(format!("{name}{}", env::consts::EXE_SUFFIX));
            if file.is_file() { Ok(file) } else { Err(format!("there is no {}", file.display())) }
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
    ///
    /// # Errors
    /// A message if it could not be started, ended, or does not answer.
    pub fn serve(
        &self,
        preset: &str,
        listen: &str,
        folder: &Path,
        log: &str,
        more: &[OsString],
    ) -> Result<(Process, SocketAddr), String> {
        let mut syncer = self.lead(preset, listen, folder, log, more)?;
        let start = Instant::now();
        while start.elapsed() < START_WAIT {
            let first = syncer.stdout().first().and_then(|line| serde_json::from_str::<Value>(line).ok());
            if let Some(address) = first.and_then(|line| line["address"].as_str()?.parse().ok())
                && http::get(address, "/v1/status").is_ok()
            {
                return Ok((syncer, address));
            }
            still_runs(&mut syncer)?;
            thread::sleep(LOOK);
        }
        Err(format!("the syncer does not answer after {} s", START_WAIT.as_secs()))
    }

    /// Starts a syncer without waiting for an answer: a process that leads rounds and serves no learners gives none.
    ///
    /// # Errors
    /// A message if it could not be started.
    pub fn lead(
        &self,
        preset: &str,
        listen: &str,
        folder: &Path,
        log: &str,
        more: &[OsString],
    ) -> Result<Process, String> {
        let mut line = words(&["serve", "--json", "--preset", preset, "--listen", listen, "--dir"]);
        line.push(folder.join("store").into());
        line.extend_from_slice(more);
        Process::spawn_with(&self.syncer, &line, &folder.join(log), &self.variables)
    }

    /// Returns the JSON lines of `syncer-server replay` for the run in `folder`: one for each merge, and the summary
    /// last.
    ///
    /// # Errors
    /// A message if the tape is damaged or the replay differs.
    pub fn replay(&self, folder: &Path) -> Result<Vec<Value>, String> {
        let mut command = Command::new(&self.syncer);
        command.args(["replay", "--merges", "--json", "--dir"]).arg(folder.join("store"));
        let output = command.output().map_err(|error| error.to_string())?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr);
            return Err(format!("the tape cannot be followed ({}): {why}", output.status));
        }
        let lines = String::from_utf8_lossy(&output.stdout);
        lines
            .lines()
            .map(|line| serde_json::from_str(line).map_err(|error| format!("{error}: {line}")))
            .collect()
    }

    /// Starts a learner with one thread, so that learners can share a core. Its files in `folder` are named `name`.
    ///
    /// # Errors
    /// A message if it could not be started.
    pub fn join(
        &self,
        address: SocketAddr,
        folder: &Path,
        name: &str,
        more: &[&str],
    ) -> Result<Process, String> {
        let mut line = words(&["join", &format!("ws://{address}"), "--json", "--name", name]);
        line.extend(words(&["--engine", "cpu", "--threads", "1", "--identity"]));
        line.push(folder.join(name).with_extension("identity").into());
        line.extend(words(more));
        Process::spawn(&self.learner, &line, &folder.join(name))
    }
}

/// # Errors
/// A message if the syncer has ended.
pub fn still_runs(syncer: &mut Process) -> Result<(), String> {
    match syncer.exit_code() {
        Some(code) => Err(format!("the syncer ended with {code}: {}", syncer.last_words())),
        None => Ok(()),
    }
}

/// Waits until `learners` learners take part in rounds.
///
/// # Errors
/// A message if they do not, or the syncer has ended.
pub fn all_live(address: SocketAddr, syncer: &mut Process, learners: usize) -> Result<(), String> {
    let start = Instant::now();
    while start.elapsed() < LIVE_WAIT {
        if number(&status(address)?, "/live") == learners as u64 {
            return Ok(());
        }
        still_runs(syncer)?;
        thread::sleep(LOOK);
    }
    Err(format!("not all learners are live after {} s", LIVE_WAIT.as_secs()))
}

/// Returns the status of the run.
///
/// # Errors
/// A message if the syncer does not answer.
pub fn status(address: SocketAddr) -> Result<Value, String> {
    http::get(address, "/v1/status")
}

/// Returns a whole number in the status; 0 if it is missing.
pub fn number(status: &Value, path: &str) -> u64 {
    status.pointer(path).and_then(Value::as_u64).unwrap_or(0)
}

/// Returns an empty folder `name` for the files of a run. The files stay until the next run, for inspection.
///
/// # Errors
/// A message if it cannot be emptied or created.
pub fn empty_folder(name: &str) -> Result<PathBuf, String> {
    let folder = target_folder()?.join(name);
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(failed)?;
    }
    fs::create_dir_all(&folder).map_err(failed)?;
    Ok(folder)
}

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}
