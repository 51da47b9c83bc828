//! Servers of a measured run: a single process, or a cluster of owners and gateways with three NATS servers and one S3
//! server, whose bus traffic is counted by a passive listener.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::{fs, iter, thread};

use archipelago_test_servers::{ClusterServers, Start};
use serde_json::{Value, json};

use crate::bench::testbed::{ANY_PORT, Process, Programs, TINY, Usage, check_runs, http, number, words};

/// Number of owners of a cluster.
pub const OWNERS: u32 = 2;
/// Number of NATS nodes; each record is on all of them.
const NODES: usize = 3;
/// Maximum bytes of all streams on each node.
const STORE_BYTES: u64 = 1 << 30;
/// Prefix of all names of the cluster.
const PREFIX: &str = "scale";

/// Length of the header of each piece of a split message, in bytes.
const PIECE_HEAD_BYTES: usize = 24;
/// Offset of the piece's four-byte index in this header.
const PIECE_NUMBER_AT: usize = 12;
/// Length of a message's header, before its value: see `sdk/core/src/cluster/bytes.rs`.
const MESSAGE_HEAD_BYTES: usize = 6;
/// Maximum length of a received message in bytes; the servers reject larger ones.
const MESSAGE_BYTES_MAX: usize = 8 << 20;
/// Kind of message to which all later pieces of a split message are attributed; only sums are that long.
const LONG: &str = "Sum";
/// Kinds of messages that owners send to gateways.
const NOTICES: [&str; 3] = ["Collect", "Weigh", "Ended"];

/// Role of a process in the run. [`Site::cpu_ms`] uses this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProcessRole {
    /// Gateway or single process that serves learners.
    Gateway,
    Owner,
    Nats,
    Storage,
}

/// All roles and their names in the figures.
pub const PARTS: [(ProcessRole, &str); 4] = [
    (ProcessRole::Gateway, "gateways"),
    (ProcessRole::Owner, "owners"),
    (ProcessRole::Nats, "nats"),
    (ProcessRole::Storage, "storage"),
];

/// All processes of a run except the learners. Dropping it ends them.
pub struct Site {
    processes: Vec<(ProcessRole, Process)>,
    /// Addresses of the gateways for learners, in order.
    pub gateways: Vec<SocketAddr>,
    /// Servers of the cluster, and the counts of its bus.
    cluster: Option<(ClusterServers, Arc<Mutex<BusBytes>>)>,
}

impl Site {
    /// Starts a single process with `flags`.
    pub fn single(programs: &Programs, folder: &Path, flags: &[OsString]) -> Result<Self, String> {
        let (syncer, address) = programs.serve(TINY, ANY_PORT, folder, "syncer", flags)?;
        Ok(Self { processes: vec![(ProcessRole::Gateway, syncer)], gateways: vec![address], cluster: None })
    }

    /// Starts the NATS and S3 servers from the programs in `bin`, then [`OWNERS`] owners and the gateways. Owners and
    /// gateways get `flags`.
    pub fn cluster(
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
        let servers = ClusterServers::lay(bin, &at("servers")?, NODES, STORE_BYTES)
            .map_err(|error| error.to_string())?;
        let mut processes = Vec::new();
        let starts = (0..servers.nodes()).map(|node| (ProcessRole::Nats, servers.node(node)));
        for (part, Start { program, args, log }) in
            starts.chain(iter::once((ProcessRole::Storage, servers.s3())))
        {
            processes.push((part, Process::spawn(&program, &args, &log)?));
        }
        servers.begin().map_err(|error| error.to_string())?;
        let programs = programs.with_variables(servers.variables());
        let role = |role: &str| -> Vec<OsString> {
            let part = ["--role", role].map(OsString::from);
            flags.iter().cloned().chain(part).chain(address_flags(&servers)).collect()
        };
        for name in (1..=OWNERS).map(|owner| format!("owner-{owner}")) {
            let owner = programs.start_syncer(TINY, ANY_PORT, &at(&name)?, "log", &role("owner"))?;
            processes.push((ProcessRole::Owner, owner));
        }
        let mut addresses = Vec::new();
        for name in (1..=gateways).map(|gateway| format!("gateway-{gateway}")) {
            let (gateway, address) = programs.serve(TINY, ANY_PORT, &at(&name)?, "log", &role("gateway"))?;
            processes.push((ProcessRole::Gateway, gateway));
            addresses.push(address);
        }
        let bytes = count_bus(&servers.nats()[0])?;
        Ok(Self { processes, gateways: addresses, cluster: Some((servers, bytes)) })
    }

    /// Returns the status of the run from each gateway, in order.
    pub fn statuses(&self) -> Result<Vec<Value>, String> {
        self.gateways.iter().map(|gateway| http::get(*gateway, "/v1/status")).collect()
    }

    /// Returns the number of learners in rounds, summed over the gateways.
    pub fn live(&self) -> Result<u64, String> {
        Ok(self.statuses()?.iter().map(|status| number(status, "/live")).sum())
    }

    /// Returns the processor time so far in milliseconds, by [`PARTS`].
    pub fn cpu_ms(&self) -> [u64; PARTS.len()] {
        PARTS.map(|(part, _)| self.of(part).map(Process::cpu_ms).sum())
    }

    /// Returns the resident memory of all gateways together.
    pub fn rss_bytes(&self) -> u64 {
        self.of(ProcessRole::Gateway).map(|gateway| Usage::of(gateway).rss_bytes).sum()
    }

    /// Returns the bus traffic so far; empty without a bus.
    pub fn bus_bytes(&self) -> BusBytes {
        let bytes = self
            .cluster
            .as_ref()
            .map(|(_, bytes)| bytes.lock().unwrap_or_else(PoisonError::into_inner).clone());
        bytes.unwrap_or_default()
    }

    /// Returns an error if a process has ended.
    pub fn check(&mut self) -> Result<(), String> {
        self.processes.iter_mut().try_for_each(|(part, process)| check_runs(process, &format!("{part:?}")))
    }

    /// Returns true if all gateways serve the same parameters, bit for bit.
    pub fn is_same_everywhere(&self) -> Result<bool, String> {
        let statuses = self.statuses()?;
        let first = statuses.first().ok_or("there is no gateway")?;
        let run = first["run"].as_str().ok_or("the status has no run id")?;
        let fragments = first["fragments"].as_array().map_or(0, Vec::len);
        for fragment in 0..fragments {
            let path = format!("/v1/runs/{run}/fragments/{fragment}/0");
            let mut bodies = Vec::new();
            for gateway in &self.gateways {
                let answer = http::fetch(*gateway, &path)?;
                if answer.code != 200 || answer.body.is_empty() {
                    return Err(format!("{path} of {gateway}: {}", answer.code));
                }
                bodies.push(answer.body);
            }
            if bodies.windows(2).any(|pair| pair[0] != pair[1]) {
                return Ok(false);
            }
        }
        Ok(fragments > 0)
    }

    /// Recomputes all merges of a cluster with the program of the synthetic learners. Returns its output; `None` for a
    /// single process.
    pub fn replay(&self, learners: &Path, folder: &Path) -> Result<Option<Value>, String> {
        let Some((servers, _)) = &self.cluster else { return Ok(None) };
        let failed = |reason: String| format!("the merges could not be recomputed: {reason}");
        let mut command = Command::new(learners);
        command.arg("replay").arg("--manifest").arg(manifest(&folder.join("gateway-1"))?);
        command.args(address_flags(servers)).envs(servers.variables());
        let output = command.output().map_err(|error| failed(error.to_string()))?;
        if !output.status.success() {
            return Err(failed(String::from_utf8_lossy(&output.stderr).into_owned()));
        }
        serde_json::from_slice(&output.stdout).map(Some).map_err(|error| failed(error.to_string()))
    }

    fn of(&self, part: ProcessRole) -> impl Iterator<Item = &Process> {
        self.processes.iter().filter(move |(is, _)| *is == part).map(|(_, process)| process)
    }
}

/// Returns the flags with the addresses of the NATS and S3 servers.
fn address_flags(servers: &ClusterServers) -> Vec<OsString> {
    let (bus, blobs) = (servers.nats().join(","), servers.place(PREFIX));
    words(&["--bus", &bus, "--blobs", &blobs, "--cluster", PREFIX])
}

/// Returns the path of the manifest that a gateway keeps in its folder.
fn manifest(gateway: &Path) -> Result<PathBuf, String> {
    let folder = gateway.join("store/processes");
    let entries = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let found = entries.flatten().map(|entry| entry.path().join("run.json")).find(|file| file.is_file());
    found.ok_or_else(|| format!("{} contains no run", folder.display()))
}

/// Bytes on the bus so far, by kind of message.
pub type BusBytes = BTreeMap<String, u64>;

/// Starts to count the bytes of all later messages between owners and gateways, at the NATS server
/// `nats://USER:PASSWORD@HOST:PORT`.
fn count_bus(url: &str) -> Result<Arc<Mutex<BusBytes>>, String> {
    let failed = |error: std::io::Error| format!("cannot listen to the bus: {error}");
    let (user, password, address) = parts(url).ok_or_else(|| format!("{url} is not the address of a bus"))?;
    let mut stream = TcpStream::connect(address).map_err(failed)?;
    let reader = BufReader::new(stream.try_clone().map_err(failed)?);
    let connect = format!("CONNECT {{\"verbose\":false,\"user\":\"{user}\",\"pass\":\"{password}\"}}\r\n");
    let subscribe = format!("SUB {PREFIX}.reply.* 1\r\nSUB {PREFIX}.notice.* 2\r\n");
    stream.write_all((connect + &subscribe).as_bytes()).map_err(failed)?;
    let bytes = Arc::new(Mutex::new(BusBytes::new()));
    let counted = Arc::clone(&bytes);
    // The thread ends with the server, whose process ends with this one.
    thread::spawn(move || count(reader, stream, &counted));
    Ok(bytes)
}

/// Splits the address of a NATS server into user, password and address.
fn parts(url: &str) -> Option<(&str, &str, SocketAddr)> {
    let (who, address) = url.strip_prefix("nats://")?.split_once('@')?;
    let (user, password) = who.split_once(':')?;
    Some((user, password, address.parse().ok()?))
}

/// Adds the bytes of each message to `bytes`, and answers the server's pings.
fn count(mut reader: impl BufRead, mut answers: impl Write, bytes: &Mutex<BusBytes>) -> Option<()> {
    let mut line = String::new();
    loop {
        line.clear();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if line.starts_with("PING") {
            answers.write_all(b"PONG\r\n").ok()?;
        }
        let Some(rest) = line.strip_prefix("MSG ") else { continue };
        let len: usize = rest.split_whitespace().last()?.parse().ok()?;
        if len > MESSAGE_BYTES_MAX {
            return None;
        }
        let mut message = vec![0; len + 2];
        reader.read_exact(&mut message).ok()?;
        let mut bytes = bytes.lock().unwrap_or_else(PoisonError::into_inner);
        *bytes.entry(kind(&message[..len]).to_owned()).or_default() += len as u64;
    }
}

/// Returns the kind of a message: the name before its value.
fn kind(message: &[u8]) -> &str {
    let number = message.get(PIECE_NUMBER_AT..PIECE_NUMBER_AT + 4);
    if number.is_some_and(|number| number != [0; 4]) {
        return LONG;
    }
    let value = message.get(PIECE_HEAD_BYTES + MESSAGE_HEAD_BYTES..).unwrap_or_default();
    // A map with one key, a short string whose length is in the lower five bits.
    let name = match value {
        [0x81, short, rest @ ..] if short & 0xe0 == 0xa0 => rest.get(..usize::from(short & 0x1f)),
        _ => None,
    };
    name.and_then(|name| std::str::from_utf8(name).ok()).unwrap_or("other")
}

/// Returns the bus traffic per round in bytes, by kind of message, and the part that owners received from gateways.
pub fn per_round(from: &BusBytes, to: &BusBytes, rounds: f64) -> Value {
    let since = |(kind, bytes): (&String, &u64)| {
        let before = from.get(kind).copied().unwrap_or(0);
        (kind.clone(), (bytes - before) as f64 / rounds.max(1.0))
    };
    let kinds: BTreeMap<String, f64> = to.iter().map(since).collect();
    let to_owners =
        kinds.iter().filter(|(kind, _)| !NOTICES.contains(&kind.as_str())).map(|(_, bytes)| bytes);
    let to_owner: f64 = to_owners.sum();
    let mut value = json!(kinds);
    value["to_owner"] = to_owner.into();
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(number: u8, name: &str) -> Vec<u8> {
        let mut message = vec![0; PIECE_HEAD_BYTES + MESSAGE_HEAD_BYTES];
        message[PIECE_NUMBER_AT] = number;
        message.extend([0x81, 0xa0 | name.len() as u8]);
        message.extend(name.bytes());
        message
    }

    #[test]
    fn messages_are_counted_by_kind() {
        let mut text = b"INFO {}\r\nPING\r\n".to_vec();
        let sent = [message(0, "Offer"), message(0, "Offer"), message(3, "x"), vec![7; 5]];
        for message in &sent {
            text.extend(format!("MSG p.reply.0 1 {}\r\n", message.len()).bytes());
            text.extend(message);
            text.extend(b"\r\n");
        }
        let (bytes, mut answers) = (Mutex::default(), Vec::new());
        count(&text[..], &mut answers, &bytes);
        let bytes: BusBytes = bytes.into_inner().unwrap();
        let len = |message: &Vec<u8>| message.len() as u64;
        assert_eq!((bytes["Offer"], bytes[LONG], bytes["other"]), (2 * len(&sent[0]), len(&sent[2]), 5));
        assert_eq!(answers, b"PONG\r\n");
    }

    #[test]
    fn bytes_to_owners_are_added_up() {
        let bytes = |offer, sum, weigh| {
            let kinds = [("Offer", offer), ("Sum", sum), ("Weigh", weigh)];
            kinds.map(|(kind, bytes)| (kind.to_owned(), bytes)).into_iter().collect::<BusBytes>()
        };
        let expected = json!({ "Offer": 10.0, "Sum": 50.0, "Weigh": 2.0, "to_owner": 60.0 });
        assert_eq!(per_round(&bytes(10, 0, 5), &bytes(30, 100, 9), 2.0), expected);
    }

    #[test]
    fn an_address_has_a_user() {
        let (user, password, address) = parts("nats://owner:secret@127.0.0.1:9").unwrap();
        assert_eq!((user, password, address.port()), ("owner", "secret", 9));
        assert!(parts("nats://127.0.0.1:9").is_none());
    }
}
