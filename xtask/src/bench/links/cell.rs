//! One cell: a syncer and two learners as processes, one of them behind a link.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use archipelago_demo::{Process, http};
use archipelago_shaper::{Link, Shape};
use serde_json::Value;

use super::figures::{Said, row};
use super::grid::Cell;
use crate::cargo::{RELEASE_PROGRAMS, build, program, target_folder};

/// Longest wait until the syncer answers.
const START_WAIT: Duration = Duration::from_secs(120);
/// Longest wait for a learner to end after its time.
const END_WAIT: Duration = Duration::from_secs(60);
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(50);
/// Where the system says how many programs want to compute.
const LOAD: &str = "/proc/loadavg";

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

    /// The syncer.
    pub fn syncer(&self) -> &Path {
        &self.syncer
    }

    /// The learner.
    pub fn learner(&self) -> &Path {
        &self.learner
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
}

/// Has both learners live for `seconds`; the row of the table.
///
/// # Errors
/// A sentence: a program could not be started, the syncer ended, or the near learner never trained.
pub fn measure(cell: &Cell, seconds: u32, data: Option<&Path>, programs: &Programs) -> Result<Value, String> {
    let folder = empty_folder()?;
    let (mut syncer, address) = start_syncer(cell, data, programs, &folder)?;
    let failed = |error| format!("no link to {address}: {error}");
    let link = Link::open(address, Shape::new(cell.mbit_per_s, cell.round_trip)).map_err(failed)?;
    let learner = |name: &str, address: SocketAddr| {
        let mut line = words(&["join", &format!("ws://{address}"), "--json", "--name", name]);
        // One thread each, so that the two learners leave each other a core.
        line.extend(words(&["--engine", "cpu", "--threads", "1", "--for", &format!("{seconds}s")]));
        line.extend(["--identity".into(), folder.join(name).with_extension("identity").into()]);
        Process::spawn(&programs.learner, &line, &folder.join(name))
    };
    let (mut near, mut far) = (learner("near", address)?, learner("far", link.address())?);
    for process in [&mut near, &mut far] {
        // Whoever has not ended by then is judged by the last that it said.
        process.wait(Duration::from_secs(seconds.into()) + END_WAIT);
    }
    if let Some(code) = syncer.exit_code() {
        return Err(format!("the syncer ended with {code}: {}", syncer.last_words()));
    }
    let said = [&near, &far].map(|process| Said::read(&process.stdout()));
    let [near_said, far_said] = &said;
    if !near_said.has_trained() {
        return Err(format!("the near learner never trained: {}", near.last_words()));
    }
    Ok(row(cell, far_said, near_said, link.carried(), load()))
}

/// A folder for the files of one cell; those of the last cell stay until then, to be looked into.
fn empty_folder() -> Result<PathBuf, String> {
    let folder = target_folder()?.join("links");
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(failed)?;
    }
    fs::create_dir_all(&folder).map_err(failed)?;
    Ok(folder)
}

/// A syncer that answers, and where.
fn start_syncer(
    cell: &Cell,
    data: Option<&Path>,
    programs: &Programs,
    folder: &Path,
) -> Result<(Process, SocketAddr), String> {
    let mut line = words(&["serve", "--json", "--listen", "127.0.0.1:0", "--preset", &cell.preset, "--dir"]);
    line.push(folder.join("store").into());
    line.extend(data.into_iter().flat_map(|data| ["--data".into(), data.into()]));
    let mut syncer = Process::spawn(&programs.syncer, &line, &folder.join("syncer"))?;
    let start = Instant::now();
    while start.elapsed() < START_WAIT {
        let first = syncer.stdout().first().and_then(|line| serde_json::from_str::<Value>(line).ok());
        if let Some(address) = first.and_then(|line| line["address"].as_str()?.parse().ok())
            && http::get(address, "/v1/status").is_ok()
        {
            return Ok((syncer, address));
        }
        if let Some(code) = syncer.exit_code() {
            return Err(format!("the syncer ended with {code}: {}", syncer.last_words()));
        }
        thread::sleep(LOOK);
    }
    Err(format!("the syncer does not answer after {} s", START_WAIT.as_secs()))
}

/// How many programs wanted to compute, on average over the last minute; the learners and the syncer are among them.
fn load() -> Option<f64> {
    fs::read_to_string(LOAD).ok()?.split(' ').next()?.parse().ok()
}

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}
