//! Servers of a measured run: a single process, or owners and gateways with three NATS servers and one S3 server.

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

/// Number of owners of a run on several machines.
pub const OWNERS: u32 = 2;
/// Number of NATS nodes; each record is on all of them.
const NODES: usize = 3;
/// Maximum bytes of all streams on each node.
const STORE_BYTES: u64 = 1 << 30;
/// Prefix of all names of the cluster.
const PREFIX: &str = "scale";
/// Any free port.
const ANYWHERE: &str = "127.0.0.1:0";
/// Preset of the model.
const PRESET: &str = "tiny";

/// Role of a process in the run. [`Site::cpu_ms`] uses this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Gateway or single process that serves learners.
    Gateway,
    Owner,
    Nats,
    Storage,
}

/// All roles and their names in the figures.
pub const PARTS: [(Part, &str); 4] =
    [(Part::Gateway, "gateways"), (Part::Owner, "owners"), (Part::Nats, "nats"), (Part::Storage, "storage")];

/// All processes of a run except the learners. They end when this is dropped.
pub struct Site {
    processes: Vec<(Part, Process)>,
    /// Addresses of the gateways for learners, in order.
    pub doors: Vec<SocketAddr>,
    /// Servers of the cluster, if there are several processes.
    between: Option<(Crew, Tap)>,
}

impl Site {
    /// Starts a single process with `flags`.
    ///
    /// # Errors
    /// A message if it does not start.
    pub fn alone(programs: &Programs, folder: &Path, flags: &[OsString]) -> Result<Self, String> {
        let (syncer, address) = programs.serve(PRESET, ANYWHERE, folder, "syncer", flags)?;
        Ok(Self { processes: vec![(Part::Gateway, syncer)], doors: vec![address], between: None })
    }

    /// Starts [`OWNERS`] owners and the gateways, each with `flags`, and the servers, whose programs are in `bin`.
    ///
    /// # Errors
    /// A message if one of them does not start.
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

    /// Returns the status of the run from each gateway, in order.
    ///
    /// # Errors
    /// A message if one does not answer.
    pub fn statuses(&self) -> Result<Vec<Value>, String> {
        self.doors.iter().map(|door| status(*door)).collect()
    }

    /// Returns the number of learners in rounds, summed over the gateways.
    ///
    /// # Errors
    /// A message if one does not answer.
    pub fn live(&self) -> Result<u64, String> {
        Ok(self.statuses()?.iter().map(|status| number(status, "/live")).sum())
    }

    /// Returns the processor time so far in milliseconds, by [`PARTS`].
    pub fn cpu_ms(&self) -> [u64; PARTS.len()] {
        PARTS.map(|(part, _)| self.of(part).map(Process::cpu_ms).sum())
    }

    /// Returns the memory, files and threads of all gateways together.
    pub fn held(&self) -> Held {
        self.of(Part::Gateway).map(held).fold(Held::default(), |sum, it| Held {
            rss_bytes: sum.rss_bytes + it.rss_bytes,
            files: sum.files + it.files,
            threads: sum.threads + it.threads,
        })
    }

    /// Returns the bus traffic so far; empty without a bus.
    pub fn said(&self) -> Counts {
        self.between.as_ref().map(|(_, tap)| tap.counts()).unwrap_or_default()
    }

    /// # Errors
    /// A message if a process has ended.
    pub fn still_runs(&mut self) -> Result<(), String> {
        self.processes
            .iter_mut()
            .try_for_each(|(part, process)| still_runs(process).map_err(|why| format!("{part:?}: {why}")))
    }

    /// Returns true if all gateways serve the same parameters, bit for bit.
    ///
    /// # Errors
    /// A message if one does not serve them.
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

    /// Recomputes all merges in a single process with the program `islets`; `None` if a single process made them.
    ///
    /// # Errors
    /// The inner error is a message if the program failed.
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

/// Returns the flags for the addresses of the servers.
fn place(crew: &Crew) -> [OsString; 6] {
    let (bus, blobs) = (crew.nats().join(","), crew.place(PREFIX));
    ["--bus", &bus, "--blobs", &blobs, "--cluster", PREFIX].map(OsString::from)
}

/// Returns the path of the manifest that a gateway keeps in its folder.
fn manifest(gateway: &Path) -> Result<PathBuf, String> {
    let folder = gateway.join("store/processes");
    let entries = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let found = entries.flatten().map(|entry| entry.path().join("run.json")).find(|file| file.is_file());
    found.ok_or_else(|| format!("{} has no run", folder.display()))
}
