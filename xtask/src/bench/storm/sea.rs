//! A syncer, and learners that each have a link of their own to it, as processes.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use archipelago_demo::{Process, http};
use archipelago_shaper::{Link, Shape, Weather};
use serde_json::Value;

use crate::bench::processes::{Programs, empty_folder};

/// Cores that all learners together compute with: so little that they leave two cores some time, or a learner that is
/// gone would make the others faster, and would be missed by nobody.
const COMPUTES: f64 = 1.2;
/// Merged tokens at which the learning rate has come down: more than any of these runs merges.
const TOTAL_TOKENS: &str = "400000000";
/// Time to the syncer and back for everybody: two places of one country.
const ROUND_TRIP: Duration = Duration::from_millis(20);

/// What takes part in a run.
pub struct Sea<'a> {
    programs: &'a Programs,
    folder: PathBuf,
    syncer: Process,
    address: SocketAddr,
    lives: u32,
    islands: Vec<Island>,
    duty_cycle: String,
}

struct Island {
    name: String,
    link: Link,
    /// `None` while it is dead.
    process: Option<Process>,
}

impl<'a> Sea<'a> {
    /// Starts a syncer and so many learners.
    ///
    /// # Errors
    /// A sentence: a program could not be started, or the system has no port for a link.
    pub fn new(programs: &'a Programs, learners: usize) -> Result<Self, String> {
        let folder = empty_folder("storm")?;
        let (syncer, address) = programs.serve("tiny", "127.0.0.1:0", &folder, "syncer-1", &flags())?;
        let duty_cycle = format!("{:.3}", (COMPUTES / learners as f64).min(1.0));
        let mut sea = Self { programs, folder, syncer, address, lives: 1, islands: Vec::new(), duty_cycle };
        for number in 1..=learners {
            let failed = |error| format!("no link to {address}: {error}");
            let link = Link::open(address, Shape::new(None, ROUND_TRIP)).map_err(failed)?;
            sea.islands.push(Island { name: format!("island-{number}"), link, process: None });
            sea.start(number - 1)?;
        }
        Ok(sea)
    }

    /// Starts learner `index`, anew or for the first time.
    ///
    /// # Errors
    /// A sentence: it could not be started.
    pub fn start(&mut self, index: usize) -> Result<(), String> {
        let Island { name, link, process } = &mut self.islands[index];
        let flags = ["--duty-cycle", self.duty_cycle.as_str()];
        *process = Some(self.programs.join(link.address(), &self.folder, name, &flags)?);
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

    /// # Errors
    /// A sentence: a learner or the syncer has ended by itself.
    pub fn all_run(&mut self) -> Result<(), String> {
        crate::bench::processes::still_runs(&mut self.syncer)?;
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
        (self.syncer, self.address) = self.programs.serve("tiny", listen, &self.folder, &log, &flags())?;
        Ok(())
    }
}

fn flags() -> Vec<OsString> {
    ["--total-tokens", TOTAL_TOKENS, "--eval-every", "10s", "--keep", "4GiB"].map(OsString::from).into()
}
