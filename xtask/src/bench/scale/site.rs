//! What serves a crowd: one process, or owners and gateways over three servers of NATS and one of S3.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, iter};

use archipelago_crew::{Crew, Start};
use archipelago_demo::{Process, http};
use serde_json::Value;

use super::tap::{Counts, Tap};
use crate::bench::processes::{Programs, number, status, still_runs};
use crate::bench::soak::{Held, held};

/// Owners of a run on several machines.
pub const OWNERS: u32 = 2;
/// Nodes of NATS: each record is on all of them.
const NODES: usize = 3;
/// Bytes of all streams at each of them.
const STORE_BYTES: u64 = 1 << 30;
/// What all names of the cluster begin with.
const PREFIX: &str = "scale";
/// Any free port.
const ANYWHERE: &str = "127.0.0.1:0";
/// The preset.
const PRESET: &str = "tiny";

/// What a process is of a run. The order is that of [`Site::cpu_ms`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// It faces learners, alone or as one of several.
    Gateway,
    Owner,
    Nats,
    Storage,
}

/// All parts, and what they are called in figures.
pub const PARTS: [(Part, &str); 4] =
    [(Part::Gateway, "gateways"), (Part::Owner, "owners"), (Part::Nats, "nats"), (Part::Storage, "storage")];

/// All processes of a run but its learners. They end when it is dropped.
pub struct Site {
    processes: Vec<(Part, Process)>,
    /// Where learners find the gateways, in their order.
    pub doors: Vec<SocketAddr>,
    /// What stands between them, if they are several.
    between: Option<(Crew, Tap)>,
}

impl Site {
    /// One process, started with `flags`.
    ///
    /// # Errors
    /// A sentence: it does not begin.
    pub fn alone(programs: &Programs, folder: &Path, flags: &[OsString]) -> Result<Self, String> {
        let (syncer, address) = programs.serve(PRESET, ANYWHERE, folder, "syncer", flags)?;
        Ok(Self { processes: vec![(Part::Gateway, syncer)], doors: vec![address], between: None })
    }

    /// [`OWNERS`] and so many gateways, each started with `flags`, and the servers, whose programs are in `bin`.
    ///
    /// # Errors
    /// A sentence: one of them does not begin.
    pub fn machines(
        programs: &Programs,
        folder: &Path,
        flags: &[OsString],
        gateways: u32,
        bin: &Path,
    ) -> Result<Self, String> {
        let at = |name: &str| -> Result<PathBuf, String> {
            let folder = folder.join(name);
            fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
            Ok(folder)
        };
        let crew = Crew::lay(bin, &at("servers")?, NODES, STORE_BYTES).map_err(|error| error.to_string())?;
        let mut processes = Vec::new();
        let starts = (0..crew.nodes()).map(|node| (Part::Nats, crew.node(node)));
        for (part, Start { program, args, log }) in starts.chain(iter::once((Part::Storage, crew.s3()))) {
            processes.push((part, Process::spawn(&program, &args, &log)?));
        }
        crew.begin().map_err(|error| error.to_string())?;
        let programs = programs.with_variables(crew.variables());
        let role = |role: &str| -> Vec<OsString> {
            let part = ["--role", role].map(OsString::from);
            flags.iter().cloned().chain(part).chain(place(&crew)).collect()
        };
        for name in (1..=OWNERS).map(|owner| format!("owner-{owner}")) {
            let owner = programs.lead(PRESET, ANYWHERE, &at(&name)?, "said", &role("owner"))?;
            processes.push((Part::Owner, owner));
        }
        let mut doors = Vec::new();
        for name in (1..=gateways).map(|gateway| format!("gateway-{gateway}")) {
            let (gateway, address) =
                programs.serve(PRESET, ANYWHERE, &at(&name)?, "said", &role("gateway"))?;
            processes.push((Part::Gateway, gateway));
            doors.push(address);
        }
        let tap = Tap::open(&crew.nats()[0], PREFIX)?;
        Ok(Self { processes, doors, between: Some((crew, tap)) })
    }

    /// What the gateways say of the run, in their order.
    ///
    /// # Errors
    /// A sentence: one does not answer.
    pub fn statuses(&self) -> Result<Vec<Value>, String> {
        self.doors.iter().map(|door| status(*door)).collect()
    }

    /// Learners that take part, by what each gateway says of its own.
    ///
    /// # Errors
    /// A sentence: one does not answer.
    pub fn live(&self) -> Result<u64, String> {
        Ok(self.statuses()?.iter().map(|status| number(status, "/live")).sum())
    }

    /// What processors spent so far, in milliseconds, by [`PARTS`].
    pub fn cpu_ms(&self) -> [u64; PARTS.len()] {
        PARTS.map(|(part, _)| self.of(part).map(Process::cpu_ms).sum())
    }

    /// What those hold that face learners, all together.
    pub fn held(&self) -> Held {
        self.of(Part::Gateway).map(held).fold(Held::default(), |sum, it| Held {
            rss_bytes: sum.rss_bytes + it.rss_bytes,
            files: sum.files + it.files,
            threads: sum.threads + it.threads,
        })
    }

    /// What went over the bus so far; nothing where there is none.
    pub fn said(&self) -> Counts {
        self.between.as_ref().map(|(_, tap)| tap.counts()).unwrap_or_default()
    }

    /// # Errors
    /// A sentence: a process has ended.
    pub fn still_runs(&mut self) -> Result<(), String> {
        self.processes
            .iter_mut()
            .try_for_each(|(part, process)| still_runs(process).map_err(|why| format!("{part:?}: {why}")))
    }

    /// Whether all gateways give the same parameters, to the bit.
    ///
    /// # Errors
    /// A sentence: one does not give them.
    pub fn is_same_everywhere(&self) -> Result<bool, String> {
        let statuses = self.statuses()?;
        let first = statuses.first().ok_or("there is no gateway")?;
        let run = first["run"].as_str().ok_or("the run has no number")?;
        let fragments = first["fragments"].as_array().map_or(0, Vec::len);
        for fragment in 0..fragments {
            let path = format!("/v1/runs/{run}/fragments/{fragment}/0");
            let mut bodies = Vec::new();
            for door in &self.doors {
                let answer = http::fetch(*door, &path)?;
                if answer.code != 200 || answer.body.is_empty() {
                    return Err(format!("{path} of {door}: {}", answer.code));
                }
                bodies.push(answer.body);
            }
            if bodies.windows(2).any(|pair| pair[0] != pair[1]) {
                return Ok(false);
            }
        }
        Ok(fragments > 0)
    }

    /// What came of making all merges again in one place, by the program `islets`; `None` where one process made them.
    ///
    /// # Errors
    /// A sentence, inside: it could not be done.
    pub fn again(&self, islets: &Path, folder: &Path) -> Option<Result<Value, String>> {
        let (crew, _) = self.between.as_ref()?;
        let failed = |why: String| format!("the merges could not be made again: {why}");
        let done = || {
            let mut command = Command::new(islets);
            command.arg("again").arg("--manifest").arg(manifest(&folder.join("gateway-1"))?);
            command.args(place(crew)).envs(crew.variables());
            let output = command.output().map_err(|error| error.to_string())?;
            if !output.status.success() {
                return Err(String::from_utf8_lossy(&output.stderr).into_owned());
            }
            serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
        };
        Some(done().map_err(failed))
    }

    fn of(&self, part: Part) -> impl Iterator<Item = &Process> {
        self.processes.iter().filter(move |(is, _)| *is == part).map(|(_, process)| process)
    }
}

/// How the servers are found.
fn place(crew: &Crew) -> [OsString; 6] {
    let (bus, blobs) = (crew.nats().join(","), crew.place(PREFIX));
    ["--bus", &bus, "--blobs", &blobs, "--cluster", PREFIX].map(OsString::from)
}

/// What a gateway keeps of the run, in the folder that it works in.
fn manifest(gateway: &Path) -> Result<PathBuf, String> {
    let folder = gateway.join("store/processes");
    let entries = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let found = entries.flatten().map(|entry| entry.path().join("run.json")).find(|file| file.is_file());
    found.ok_or_else(|| format!("{} has no run", folder.display()))
}
