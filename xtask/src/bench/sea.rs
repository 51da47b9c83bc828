//! A syncer and learners with a link each, as processes.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use archipelago_demo::{Process, http};
use archipelago_shaper::{Link, Shape, Weather};
use serde_json::Value;

use super::processes::{Programs, empty_folder, number};

/// Maximum wait for all learners to take part.
const LIVE_WAIT: Duration = Duration::from_secs(180);
/// Polling interval.
pub const LOOK: Duration = Duration::from_millis(100);

/// Preset of the trained model.
pub const PRESET: &str = "tiny";
/// Cores used by all learners together. On two cores this leaves some time free. Otherwise the other learners would
/// speed up after a loss, which would then not show.
pub const COMPUTES: f64 = 1.2;

/// Link and computing time of a learner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Berth {
    /// Round-trip time to the syncer.
    pub round_trip: Duration,
    /// Megabits a second each way; `None` means no limit.
    pub mbit_per_s: Option<f64>,
    /// Kind of learner.
    pub learner: Learner,
}

/// Kind of learner, by its platform.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Learner {
    /// The native program with one thread…
    Native {
        /// …and this duty cycle, above 0 and at most 1.
        duty_cycle: f64,
    },
    /// A page in Chromium, which uses the processor for a quarter of the time.
    Browser,
}

/// Processes of a run.
pub struct Sea<'a> {
    programs: &'a Programs,
    folder: PathBuf,
    /// Additional flags of the syncers.
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
    /// `None` while the learner is dead.
    process: Option<Process>,
}

impl<'a> Sea<'a> {
    /// Starts a syncer with `flags` and a learner at each of `berths`, with their files in the folder `name`.
    ///
    /// # Errors
    /// A message if a program could not be started, or the system has no port for a link.
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

    /// Starts or restarts learner `index`.
    ///
    /// # Errors
    /// A message if it could not be started.
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

    /// Stops or continues learner `index`.
    ///
    /// # Errors
    /// A message if the system does not support it.
    pub fn freeze(&self, index: usize, is_frozen: bool) -> Result<(), String> {
        let Some(process) = &self.islands[index].process else { return Ok(()) };
        let is_done = if is_frozen { process.freeze() } else { process.thaw() };
        if is_done { Ok(()) } else { Err("this system cannot hold a program still".to_owned()) }
    }

    /// Sets the link conditions of learner `index`.
    pub fn weather(&self, index: usize, weather: Weather) {
        self.islands[index].link.set(weather);
    }

    /// Kills the syncer and restarts it at the same address.
    ///
    /// # Errors
    /// A message if it does not come back.
    pub fn restart_syncer(&mut self) -> Result<(), String> {
        self.syncer.kill();
        self.begin_syncer(&self.address.to_string())
    }

    /// Kills all processes and starts only a syncer, for its ledger. Returns the output of the learners.
    ///
    /// # Errors
    /// A message if the syncer does not come back.
    pub fn end(&mut self) -> Result<Vec<Vec<String>>, String> {
        self.syncer.kill();
        let file = |island: &Island| self.folder.join(&island.name).with_extension("jsonl");
        let files: Vec<_> = self.islands.iter().map(file).collect();
        self.islands.clear();
        let read = |file: &PathBuf| std::fs::read_to_string(file).map_err(|error| error.to_string());
        let texts: Vec<String> = files.iter().map(read).collect::<Result<_, _>>()?;
        Ok(texts.iter().map(|text| text.lines().map(str::to_owned).collect()).collect())
    }

    /// Returns the replay output of the run, and the status and the learners of a syncer that continues the run.
    ///
    /// # Errors
    /// A message if the tape cannot be replayed, or the syncer does not come back.
    pub fn books(&mut self) -> Result<(Vec<Value>, Value, Vec<Value>), String> {
        let replay = self.programs.replay(&self.folder)?;
        self.begin_syncer("127.0.0.1:0")?;
        Ok((replay, self.get("/v1/status")?, self.learners()?))
    }

    /// Returns the rows of all learners.
    ///
    /// # Errors
    /// A message if the syncer does not answer.
    pub fn learners(&self) -> Result<Vec<Value>, String> {
        let all = self.get("/v1/learners?limit=256")?;
        Ok(all["learners"].as_array().cloned().unwrap_or_default())
    }

    /// Returns the syncer's answer to `path`.
    ///
    /// # Errors
    /// A message if it does not answer.
    pub fn get(&self, path: &str) -> Result<Value, String> {
        http::get(self.address, path)
    }

    /// Waits until all learners take part.
    ///
    /// # Errors
    /// A message if they do not, or a learner or the syncer has ended by itself.
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
    /// A message if a learner or the syncer has ended by itself.
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

/// Starts a page in Chromium that takes part.
fn lend(address: SocketAddr, folder: &Path, name: &str) -> Result<Process, String> {
    let script = crate::cargo::root().join("web-demo/tests/lend.mjs");
    let mut line = vec![script.into_os_string()];
    line.extend([&format!("http://{address}/"), name, "cpu", "gentle", "killed"].map(OsString::from));
    Process::spawn_with_children(Path::new("node"), &line, &folder.join(name))
}
