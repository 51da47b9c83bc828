//! Checks of the services that the processes of a cluster share: one line each, with a remedy.

use archipelago_cli::Bytes;
use archipelago_cluster::{DataOwnership, Findings, Node, ReplicaComparison, ServiceError, Storage, Streams};
use archipelago_core::wire::{FragmentId, RunId};

use super::{Finding, finding};
use crate::cluster_node;
use crate::config::{Place, ServeConfig};
use crate::open_run::blocking;
use crate::prepare::membership;

/// Clock difference in milliseconds above which a finding is reported.
const CLOCK_MS_MAX: u64 = 5_000;
/// Clock difference in milliseconds above which S3 refuses signatures.
const SIGNED_MS_MAX: u64 = 900_000;

/// Checks servers and storage if the process of `config` is part of a cluster.
pub(super) async fn examine(config: &ServeConfig) -> Vec<Finding> {
    let part = match config.server.cluster.part() {
        Ok(None) => return Vec::new(),
        Ok(Some(part)) => part,
        Err(error) => return vec![finding("cluster", Err(error))],
    };
    let Place::There { bus, blobs, prefix } = part.place else { return Vec::new() };
    let replicas = cluster_node::replicas(&bus);
    let asked = config.clone();
    let run = blocking(move || membership(&asked)).await.flatten();
    let fragments = run.as_ref().map_or_else(|_| vec![FragmentId(0)], |(_, fragments)| fragments.clone());
    let number = run.as_ref().ok().map(|(run, _)| *run);
    let described = run.map(|(run, fragments)| format!("number {run}, of {} fragments", fragments.len()));
    let mut lines = vec![finding("run", described)];
    match cluster_node::check_services(bus, blobs, prefix, &fragments).await {
        Ok(found) => lines.extend(words(&found, number, replicas)),
        Err(error) => lines.push(finding("cluster", Err(error))),
    }
    lines
}

/// Describes `found` for a process of `run`, if the run is known. Each record should have `replicas` copies on
/// different servers.
fn words(found: &Findings, run: Option<RunId>, replicas: usize) -> Vec<Finding> {
    let mut lines: Vec<_> = found.nodes.iter().map(|(place, node)| of_node(place, node.as_ref())).collect();
    lines.push(of_spread(found.spread(replicas), replicas));
    lines.extend(found.streams.as_ref().map(|streams| of_streams(streams.as_ref(), replicas)));
    lines.push(of_storage(&found.storage));
    lines.extend(found.kept(run).map(of_kept));
    lines.push(of_clocks(found));
    lines
}

fn works(what: &'static str, found: impl Into<String>) -> Finding {
    Finding { what, works: true, found: found.into() }
}

fn fails(what: &'static str, found: impl ToString) -> Finding {
    // A storage error may span several lines.
    let found = found.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    Finding { what, works: false, found }
}

fn of_node(place: &str, node: Result<&Node, &ServiceError>) -> Finding {
    let node = match node {
        Ok(node) => node,
        Err(error) => return fails("bus", error),
    };
    let (name, version) = (&node.name, &node.version);
    if !node.jetstream {
        return fails(
            "bus",
            format!(
                "{place} accepts this process, but has no JetStream: add `jetstream {{ sync_interval: always }}` to \
                 its settings"
            ),
        );
    }
    let cluster = node.cluster.as_ref().map(|cluster| format!(" of cluster {cluster}")).unwrap_or_default();
    works("bus", format!("{place} accepts this process: {name}{cluster}, NATS {version} with JetStream"))
}

fn of_spread(spread: ReplicaComparison, replicas: usize) -> Finding {
    const SYNC: &str =
        "check in their settings that each has `sync_interval: always`, since this cannot be seen from here";
    match spread {
        ReplicaComparison::Enough(_) if replicas == 1 => works(
            "cluster",
            format!(
                "each record is on a single server; with three in --bus the run survives the loss of one; {SYNC}"
            ),
        ),
        ReplicaComparison::Enough(servers) => works(
            "cluster",
            format!("{servers} servers, enough for {replicas} replicas of each record; {SYNC}"),
        ),
        ReplicaComparison::TooFew(servers) => fails(
            "cluster",
            format!(
                "{servers} different servers with JetStream answer, but each record needs {replicas}: start the \
                 others, or correct --bus"
            ),
        ),
        ReplicaComparison::Apart(servers) => fails(
            "cluster",
            format!(
                "{servers} servers answer, but they are not one cluster: give all of them the same `cluster {{ name \
                 }}`, and routes to each other"
            ),
        ),
    }
}

fn of_streams(streams: Result<&Streams, &ServiceError>, replicas: usize) -> Finding {
    let streams = match streams {
        Ok(streams) => streams,
        Err(error) => return fails("streams", error),
    };
    let limit = streams.bytes_max.map(|most| format!(" of {}", Bytes(most))).unwrap_or_default();
    let room = format!("{}{limit} are used", Bytes(streams.bytes));
    match streams.mark {
        Some(_) if streams.replicas < replicas => works(
            "streams",
            format!(
                "they have {} replicas, but --bus has servers for {replicas}: raise the number with `nats stream edit \
                 --replicas {replicas}`; {room}",
                streams.replicas
            ),
        ),
        Some(_) => works("streams", format!("they exist; {room}")),
        None => works("streams", format!("this process may create them; {room}")),
    }
}

fn of_storage(storage: &Storage) -> Finding {
    let place = &storage.place;
    match &storage.found {
        Ok(stored) => {
            let left = stored.left.as_ref().map(|left| format!("; {left} could not be removed: remove it"));
            let left = left.unwrap_or_default();
            works(
                "storage",
                format!("{place}: can be written and read, and existing objects are not overwritten{left}"),
            )
        }
        Err(error) => fails("storage", error),
    }
}

fn of_kept(kept: Result<DataOwnership, ServiceError>) -> Finding {
    match kept {
        Ok(DataOwnership::Nothing) => {
            works("prefix", "the prefix is empty: the first process begins the run")
        }
        Ok(DataOwnership::Ours(records)) => {
            works("prefix", format!("this run exists, with {records} records"))
        }
        Ok(DataOwnership::Somebodys(mark)) => works(
            "prefix",
            format!("run {mark} exists; the check above says why it cannot be compared with this one"),
        ),
        Err(error) => fails("prefix", error),
    }
}

fn of_clocks(found: &Findings) -> Finding {
    let far = |(place, ahead_ms): (&str, i64)| {
        let (ms, side) = (ahead_ms.unsigned_abs(), if ahead_ms > 0 { "ahead of" } else { "behind" });
        (ms > CLOCK_MS_MAX).then(|| format!("{place} is {} s {side} this machine", ms / 1_000))
    };
    let far: Vec<_> = found.clocks().filter_map(far).collect();
    if far.is_empty() {
        let said = match found.clocks().count() {
            0 => "no service reports the time".to_owned(),
            clocks => {
                format!(
                    "the {clocks} clocks that could be read are within {} s of this one",
                    CLOCK_MS_MAX / 1_000
                )
            }
        };
        return works("clocks", said);
    }
    let refused = found.storage.ahead_ms.is_some_and(|ahead_ms| ahead_ms.unsigned_abs() > SIGNED_MS_MAX);
    let said = format!(
        "{}: set the clocks of all machines by NTP; S3 refuses requests that are off by {} minutes",
        far.join(", "),
        SIGNED_MS_MAX / 60_000
    );
    Finding { what: "clocks", works: !refused, found: said }
}

#[cfg(test)]
mod tests {
    use archipelago_cluster::{ClusterId, StorageFindings};

    use super::*;

    fn sound() -> Findings {
        let node = |name: &str| {
            let node = Node {
                name: name.to_owned(),
                version: "2.15.1".to_owned(),
                cluster: Some("c".to_owned()),
                known: 3,
                jetstream: true,
                ahead_ms: Some(20),
            };
            (format!("{name}:4222"), Ok(node))
        };
        Findings {
            nodes: ["a", "b", "d"].map(node).into(),
            streams: Some(Ok(Streams { mark: None, records: 0, replicas: 0, bytes: 0, bytes_max: None })),
            storage: Storage {
                place: "s3://runs".to_owned(),
                found: Ok(StorageFindings { mark: None, left: None }),
                ahead_ms: Some(-300),
            },
        }
    }

    fn silent(place: &str) -> ServiceError {
        ServiceError::Silent { place: place.to_owned(), detail: "refused".to_owned() }
    }

    /// Checks that after `change` a line of the check `what` has the result `works` and contains `part`, and that all
    /// other checks succeed.
    fn check(change: impl FnOnce(&mut Findings), what: &str, works: bool, part: &str) {
        let mut found = sound();
        change(&mut found);
        let lines = words(&found, Some(RunId(1)), 3);
        let about: Vec<_> = lines.iter().filter(|line| line.what == what).collect();
        let is_it = |line: &&Finding| line.works == works && line.found.contains(part);
        assert!(about.iter().any(is_it), "{what}, {part}: {about:#?}");
        assert!(lines.iter().all(|line| line.what == what || line.works), "{what}, {part}: {lines:#?}");
    }

    #[test]
    fn each_fault_is_a_line_with_a_remedy() {
        let mark = |run| ClusterId { run: RunId(run), nonce: 7 };
        let streams = |found: &mut Findings, mark: ClusterId, replicas| {
            let there =
                Streams { mark: Some(mark), records: 9, replicas, bytes: 5, bytes_max: Some(1 << 30) };
            found.streams = Some(Ok(there));
        };
        let denied = || ServiceError::Denied { place: "there".to_owned(), detail: "no".to_owned() };
        check(|_| {}, "bus", true, "a:4222 accepts this process: a of cluster c, NATS 2.15.1");
        check(|_| {}, "cluster", true, "3 servers, enough for 3 replicas");
        check(|_| {}, "cluster", true, "sync_interval: always");
        check(|_| {}, "streams", true, "this process may create them");
        check(|_| {}, "storage", true, "s3://runs: can be written and read");
        check(|_| {}, "prefix", true, "the prefix is empty");
        check(|_| {}, "clocks", true, "the 4 clocks that could be read");
        check(|found| found.nodes.clear(), "cluster", false, "start the others");
        check(|found| found.streams = Some(Err(denied())), "streams", false, "credentials");
        check(|found| found.storage.found = Err(silent("s3")), "storage", false, "does not answer");
        let wordy = |found: &mut Findings| found.storage.found = Err(silent("s3\n\n  <Error>"));
        check(wordy, "storage", false, "s3 <Error> does not answer");
        check(|found| found.storage.ahead_ms = Some(-3_600_000), "clocks", false, "3600 s behind");
        check(|found| found.storage.ahead_ms = Some(6_000), "clocks", true, "s3://runs is 6 s ahead of");
        let left = |found: &mut Findings| {
            found.storage.found = Ok(StorageFindings { mark: None, left: Some("x/y".to_owned()) })
        };
        check(left, "storage", true, "x/y could not be removed");
        let both = |run, replicas| {
            move |found: &mut Findings| {
                streams(found, mark(run), replicas);
                found.storage.found = Ok(StorageFindings { mark: Some(mark(run)), left: None });
            }
        };
        check(both(1, 3), "prefix", true, "this run exists, with 9 records");
        check(both(1, 1), "streams", true, "nats stream edit");
        check(both(2, 3), "prefix", false, "belongs to another cluster");
        check(|found| streams(found, mark(1), 3), "prefix", false, "whose states are missing");
    }

    #[test]
    fn unusable_server_fails_its_own_check_and_the_spread() {
        let mut found = sound();
        found.nodes[0].1 = Err(silent("a:4222"));
        found.nodes[1].1.as_mut().unwrap().jetstream = false;
        let lines = words(&found, None, 3);
        let failed: Vec<_> = lines.iter().filter(|line| !line.works).map(|line| line.what).collect();
        assert_eq!(failed, ["bus", "bus", "cluster"], "{lines:#?}");
        assert!(lines[1].found.contains("add `jetstream"), "{lines:#?}");
        let alone = words(&found, None, 1);
        assert!(alone.iter().any(|line| line.what == "cluster" && line.works), "{alone:#?}");
    }
}
