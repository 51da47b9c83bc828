//! A syncer, and learners that each have a link of their own to it, as processes.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use archipelago_demo::{Process, http};
use archipelago_shaper::{Link, Shape, Weather};
use serde_json::Value;

use super::processes::{Programs, empty_folder, number};

/// Longest wait for all learners to take part.
const LIVE_WAIT: Duration = Duration::from_secs(180);
/// Time between two looks.
pub const LOOK: Duration = Duration::from_millis(100);

/// The model that is trained.
pub const PRESET: &str = "tiny";
/// Cores that all learners together compute with: so little that they leave two cores some time, or a learner that is
/// gone would make the others faster, and would be missed by nobody.
pub const COMPUTES: f64 = 1.2;

/// Where a learner is, and how much of its time it computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Berth {
    /// Time to the syncer and back.
    pub round_trip: Duration,
    /// Megabits a second each way; `None` for no limit.
    pub mbit_per_s: Option<f64>,
    /// What it is.
    pub learner: Learner,
}

/// A learner by what it runs in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Learner {
    /// The native program, on one thread…
    Native {
        /// …for this share of the time, above 0 and at most 1.
        duty_cycle: f64,
    },
    /// A page in Chromium, on the processor for a quarter of the time.
    Browser,
}

/// What takes part in a run.
pub struct Sea<'a> {
    programs: &'a Programs,
    folder: PathBuf,
    /// What syncers are told beside the model.
    flags: Vec<OsString>,
    syncer: Process,
    address: SocketAddr,
    lives: u32,
    islands: Vec<Island>,
}

struct Island {
    name: String,
    link: Link,
    learner: Learner,
    /// `None` while it is dead.
    process: Option<Process>,
}

impl<'a> Sea<'a> {
    /// Starts a syncer with `flags` and a learner at each of `berths`, with their files in the folder `name`.
    ///
    /// # Errors
    /// A sentence: a program could not be started, or the system has no port for a link.
    pub fn new(
        programs: &'a Programs,
        name: &str,
        berths: &[Berth],
        flags: Vec<OsString>,
    ) -> Result<Self, String> {
        let folder = empty_folder(name)?;
        let (syncer, address) = programs.serve(PRESET, "127.0.0.1:0", &folder, "syncer-1", &flags)?;
        let mut sea = Self { programs, folder, flags, syncer, address, lives: 1, islands: Vec::new() };
        for (berth, index) in berths.iter().zip(0..) {
            let failed = |error| format!("no link to {address}: {error}");
            let link = Link::open(address, Shape::new(berth.mbit_per_s, berth.round_trip)).map_err(failed)?;
            let name = format!("island-{}", index + 1);
            sea.islands.push(Island { name, link, learner: berth.learner, process: None });
            sea.start(index)?;
        }
        Ok(sea)
    }

    /// Starts learner `index`, anew or for the first time.
    ///
    /// # Errors
    /// A sentence: it could not be started.
    pub fn start(&mut self, index: usize) -> Result<(), String> {
        let Island { name, link, learner, process } = &mut self.islands[index];
        *process = Some(match learner {
            Learner::Native { duty_cycle } => {
                let duty_cycle = format!("{duty_cycle:.3}");
                self.programs.join(link.address(), &self.folder, name, &["--duty-cycle", &duty_cycle])?
            }
            Learner::Browser => lend(link.address(), &self.folder, name)?,
        });
        Ok(())
    }

    /// Kills learner `index`.
    pub fn kill(&mut self, index: usize) {
        self.islands[index].process = None;
    }

    /// Holds learner `index` still, or lets it go on.
    ///
    /// # Errors
    /// A sentence: the system knows no such thing.
    pub fn freeze(&self, index: usize, is_frozen: bool) -> Result<(), String> {
        let Some(process) = &self.islands[index].process else { return Ok(()) };
        let is_done = if is_frozen { process.freeze() } else { process.thaw() };
        if is_done { Ok(()) } else { Err("this system cannot hold a program still".to_owned()) }
    }

    /// The weather of learner `index` from now on.
    pub fn weather(&self, index: usize, weather: Weather) {
        self.islands[index].link.set(weather);
    }

    /// Kills the syncer and starts it again at the same place.
    ///
    /// # Errors
    /// A sentence: it does not come back.
    pub fn restart_syncer(&mut self) -> Result<(), String> {
        self.syncer.kill();
        self.begin_syncer(&self.address.to_string())
    }

    /// Kills everything, and starts a syncer alone to be asked for its books; the lines that the learners printed.
    ///
    /// # Errors
    /// A sentence: the syncer does not come back.
    pub fn end(&mut self) -> Result<Vec<Vec<String>>, String> {
        self.syncer.kill();
        let file = |island: &Island| self.folder.join(&island.name).with_extension("jsonl");
        let files: Vec<_> = self.islands.iter().map(file).collect();
        self.islands.clear();
        let read = |file: &PathBuf| std::fs::read_to_string(file).map_err(|error| error.to_string());
        let texts: Vec<String> = files.iter().map(read).collect::<Result<_, _>>()?;
        Ok(texts.iter().map(|text| text.lines().map(str::to_owned).collect()).collect())
    }

    /// What replay prints of the run, and then status and learners of a syncer that went on from it.
    ///
    /// # Errors
    /// A sentence: the tape cannot be followed, or the syncer does not come back.
    pub fn books(&mut self) -> Result<(Vec<Value>, Value, Vec<Value>), String> {
        let replay = self.programs.replay(&self.folder)?;
        self.begin_syncer("127.0.0.1:0")?;
        Ok((replay, self.get("/v1/status")?, self.learners()?))
    }

    /// The rows of all learners.
    ///
    /// # Errors
    /// A sentence: the syncer does not answer.
    pub fn learners(&self) -> Result<Vec<Value>, String> {
        let all = self.get("/v1/learners?limit=256")?;
        Ok(all["learners"].as_array().cloned().unwrap_or_default())
    }

    /// What the syncer answers to `path`.
    ///
    /// # Errors
    /// A sentence: it does not.
    pub fn get(&self, path: &str) -> Result<Value, String> {
        http::get(self.address, path)
    }

    /// Waits until all learners take part.
    ///
    /// # Errors
    /// A sentence: they do not, or one of them or the syncer has ended by itself.
    pub fn wait_for_all(&mut self) -> Result<(), String> {
        let start = Instant::now();
        while start.elapsed() < LIVE_WAIT {
            if number(&self.get("/v1/status")?, "/live") == self.islands.len() as u64 {
                return Ok(());
            }
            self.all_run()?;
            thread::sleep(LOOK);
        }
        Err(format!("not all learners are live after {} s", LIVE_WAIT.as_secs()))
    }

    /// # Errors
    /// A sentence: a learner or the syncer has ended by itself.
    pub fn all_run(&mut self) -> Result<(), String> {
        super::processes::still_runs(&mut self.syncer)?;
        for island in &mut self.islands {
            let Some(process) = &mut island.process else { continue };
            if let Some(code) = process.exit_code() {
                return Err(format!("{} ended with {code}: {}", island.name, process.last_words()));
            }
        }
        Ok(())
    }

    fn begin_syncer(&mut self, listen: &str) -> Result<(), String> {
        self.lives += 1;
        let log = format!("syncer-{}", self.lives);
        (self.syncer, self.address) = self.programs.serve(PRESET, listen, &self.folder, &log, &self.flags)?;
        Ok(())
    }
}

/// A page in Chromium that takes part.
fn lend(address: SocketAddr, folder: &Path, name: &str) -> Result<Process, String> {
    let script = crate::cargo::root().join("web-demo/tests/lend.mjs");
    let mut line = vec![script.into_os_string()];
    line.extend([&format!("http://{address}/"), name, "cpu", "gentle", "killed"].map(OsString::from));
    Process::spawn_with_children(Path::new("node"), &line, &folder.join(name))
}
