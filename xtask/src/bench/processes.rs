//! The real programs that `links` and `crashes` start, and how they are started.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use archipelago_demo::{Process, http};
use serde_json::Value;

use crate::cargo::{RELEASE_PROGRAMS, build, program, target_folder};

/// Longest wait until the syncer answers.
const START_WAIT: Duration = Duration::from_secs(120);
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// The programs that are measured.
pub struct Programs {
    syncer: PathBuf,
    learner: PathBuf,
}

impl Programs {
    /// Builds them as they are delivered.
    ///
    /// # Errors
    /// A sentence: the build failed.
    pub fn build() -> Result<Self, String> {
        let files = build(RELEASE_PROGRAMS)?;
        Ok(Self { syncer: program(&files, "syncer-server")?, learner: program(&files, "native-learner")? })
    }

    /// Those in `folder`.
    ///
    /// # Errors
    /// A sentence: one is not there.
    pub fn in_folder(folder: &Path) -> Result<Self, String> {
        let find = |name: &str| {
            let file = folder.join(format!("{name}{}", env::consts::EXE_SUFFIX));
            if file.is_file() { Ok(file) } else { Err(format!("there is no {}", file.display())) }
        };
        Ok(Self { syncer: find("syncer-server")?, learner: find("native-learner")? })
    }

    /// A syncer of `preset` that answers at `listen`, and where that is. Its files are in `folder`, the names of its
    /// logs begin with `log`.
    ///
    /// # Errors
    /// A sentence: it could not be started, ended, or does not answer.
    pub fn serve(
        &self,
        preset: &str,
        listen: &str,
        folder: &Path,
        log: &str,
        more: &[OsString],
    ) -> Result<(Process, SocketAddr), String> {
        let mut line = words(&["serve", "--json", "--preset", preset, "--listen", listen, "--dir"]);
        line.push(folder.join("store").into());
        line.extend_from_slice(more);
        let mut syncer = Process::spawn(&self.syncer, &line, &folder.join(log))?;
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

    /// A learner on one thread, so that several leave each other a core. Its files in `folder` are called `name`.
    ///
    /// # Errors
    /// A sentence: it could not be started.
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
/// A sentence: it has ended.
pub fn still_runs(syncer: &mut Process) -> Result<(), String> {
    match syncer.exit_code() {
        Some(code) => Err(format!("the syncer ended with {code}: {}", syncer.last_words())),
        None => Ok(()),
    }
}

/// An empty folder `name` for the files of a run; those of the last stay until the next, to be looked into.
///
/// # Errors
/// A sentence: it cannot be emptied or made.
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
