//! Findings of an inspection of a cluster's servers, and their meaning for a run.

use std::collections::BTreeSet;

use archipelago_core::wire::RunId;

use crate::ids::ClusterId;
use crate::service::ServiceError;

/// Findings about the servers of a cluster and its storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Findings {
    /// Each given NATS server as `host:port`, in the given order.
    pub nodes: Vec<(String, Result<Node, ServiceError>)>,
    /// The run's streams, read from the first accessible server; `None` if no server is accessible.
    pub streams: Option<Result<Streams, ServiceError>>,
    /// Findings on the storage for fragment states.
    pub storage: Storage,
}

/// Properties of an accessible NATS server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Name of the server, unique in its cluster.
    pub name: String,
    /// Version of the server.
    pub version: String,
    /// Configured cluster name, if any.
    pub cluster: Option<String>,
    /// Number of cluster addresses that the server announces, including its own; 0 if it announces none.
    pub known: usize,
    /// True if JetStream is enabled.
    pub jetstream: bool,
    /// Offset of the server's clock from ours in milliseconds, positive if ahead; `None` if unknown.
    pub ahead_ms: Option<i64>,
}

/// Properties of a run's streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Streams {
    /// Identifier of their cluster; `None` if there are no streams under the prefix.
    pub mark: Option<ClusterId>,
    /// Number of records in all streams.
    pub records: u64,
    /// Smallest number of servers that hold the records of a stream; 0 if there are no streams.
    pub replicas: usize,
    /// Size in bytes of all streams that these credentials can access.
    pub bytes: u64,
    /// Limit of this size, if there is one.
    pub bytes_max: Option<u64>,
}

/// Findings on the storage for fragment states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Storage {
    /// Location of the storage, as shown to people.
    pub place: String,
    /// Result of writing, reading and removing an object.
    pub found: Result<StorageFindings, ServiceError>,
    /// Offset of the storage's clock from ours in milliseconds, positive if ahead; `None` if unknown.
    pub ahead_ms: Option<i64>,
}

/// Properties of usable storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageFindings {
    /// Identifier of the cluster that the states belong to; `None` if there are no states under the prefix.
    pub mark: Option<ClusterId>,
    /// Key of the test object, if it could not be removed.
    pub left: Option<String>,
}

/// Comparison of the number of answering servers with the number of required replicas. Each variant holds the number of
/// different servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaComparison {
    /// There are enough servers.
    Enough(usize),
    /// There are fewer servers than replicas.
    TooFew(usize),
    /// The servers are not configured as one cluster, or do not reach each other.
    Apart(usize),
}

/// Which run or cluster the data under the prefix belong to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataOwnership {
    /// There are no data yet. The first process creates them.
    Nothing,
    /// The data belong to this run. The value is the number of records.
    Ours(u64),
    /// The data belong to this cluster. The caller named no run to compare it with.
    Somebodys(ClusterId),
}

impl Findings {
    /// Compares the servers that answer with the required number of replicas.
    #[must_use]
    pub fn spread(&self, replicas: usize) -> ReplicaComparison {
        let nodes = || self.nodes.iter().filter_map(|(_, node)| node.as_ref().ok()).filter(|it| it.jetstream);
        let servers = nodes().map(|node| &node.name).collect::<BTreeSet<_>>().len();
        let clusters = nodes().map(|node| &node.cluster).collect::<BTreeSet<_>>();
        let is_one = clusters.len() == 1 && clusters.iter().all(|cluster| cluster.is_some());
        let is_alone = nodes().any(|node| (1..replicas).contains(&node.known));
        match servers {
            _ if replicas > 1 && servers > 1 && !is_one => ReplicaComparison::Apart(servers),
            _ if servers < replicas => ReplicaComparison::TooFew(servers),
            _ if replicas > 1 && is_alone => ReplicaComparison::Apart(servers),
            _ => ReplicaComparison::Enough(servers),
        }
    }

    /// Determines which run the data under the prefix belong to. `run` is the run of this process, if known. Returns
    /// `None` if the streams or the storage could not be inspected.
    ///
    /// # Errors
    /// - [`ServiceError::Foreign`]: the data belong to another run, or streams and states belong to different
    ///   clusters.
    /// - [`ServiceError::Damaged`]: records exist without their states, or states without their streams.
    #[must_use]
    pub fn kept(&self, run: Option<RunId>) -> Option<Result<DataOwnership, ServiceError>> {
        let streams = self.streams.as_ref()?.as_ref().ok()?;
        let stored = self.storage.found.as_ref().ok()?;
        let place = self.storage.place.clone();
        let marks = [("the streams of this prefix", &streams.mark), (&*place, &stored.mark)];
        for (place, mark) in marks {
            if let (Some(mark), Some(run)) = (mark, run)
                && mark.run != run
            {
                let detail = format!("of run {mark}, but this is run {:016x}", run.0);
                return Some(Err(ServiceError::Foreign { place: place.to_owned(), detail }));
            }
        }
        Some(match (&streams.mark, &stored.mark) {
            (None, None) => Ok(DataOwnership::Nothing),
            (Some(ours), Some(mark)) if ours != mark => {
                Err(ServiceError::Foreign { place, detail: mark.mismatch_with(ours) })
            }
            (None, Some(mark)) => {
                let detail = format!("states of run {mark}, whose streams are missing");
                Err(ServiceError::Damaged { place, detail })
            }
            (Some(mark), None) if streams.records > 0 => {
                let detail = format!("records of run {mark}, whose states are missing");
                Err(ServiceError::Damaged { place: "the streams of this prefix".to_owned(), detail })
            }
            (Some(mark), _) if run.is_none() => Ok(DataOwnership::Somebodys(mark.clone())),
            (Some(_), _) => Ok(DataOwnership::Ours(streams.records)),
        })
    }

    /// Returns each known clock offset from ours in milliseconds, positive if ahead: first those of the servers, then
    /// that of the storage.
    pub fn clocks(&self) -> impl Iterator<Item = (&str, i64)> {
        let nodes =
            self.nodes.iter().filter_map(|(place, node)| Some((&**place, node.as_ref().ok()?.ahead_ms?)));
        nodes.chain(self.storage.ahead_ms.map(|ahead_ms| (&*self.storage.place, ahead_ms)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, cluster: Option<&str>, known: usize) -> (String, Result<Node, ServiceError>) {
        let cluster = cluster.map(str::to_owned);
        let node = Node {
            name: name.to_owned(),
            version: "2.15.1".to_owned(),
            cluster,
            known,
            jetstream: true,
            ahead_ms: Some(3),
        };
        (format!("{name}:4222"), Ok(node))
    }

    fn silent(place: &str) -> ServiceError {
        ServiceError::Silent { place: place.to_owned(), detail: "refused".to_owned() }
    }

    fn found(tape: Option<(ClusterId, u64)>, states: Option<ClusterId>) -> Findings {
        let (mark, records) = tape.map_or((None, 0), |(mark, records)| (Some(mark), records));
        Findings {
            nodes: vec![node("a", Some("c"), 3), node("b", Some("c"), 3), node("d", Some("c"), 3)],
            streams: Some(Ok(Streams { mark, records, replicas: 3, bytes: 0, bytes_max: None })),
            storage: Storage {
                place: "s3://runs".to_owned(),
                found: Ok(StorageFindings { mark: states, left: None }),
                ahead_ms: Some(-7),
            },
        }
    }

    #[test]
    fn servers_are_counted_once_and_as_one_cluster() {
        let check = |nodes: &[(&str, Option<&str>, usize)], replicas, expected| {
            let mut findings = found(None, None);
            findings.nodes =
                nodes.iter().map(|(name, cluster, known)| node(name, *cluster, *known)).collect();
            findings.nodes.push(("gone:4222".to_owned(), Err(silent("gone"))));
            assert_eq!(findings.spread(replicas), expected, "{nodes:?}");
        };
        let c = Some("c");
        check(&[("a", None, 0)], 1, ReplicaComparison::Enough(1));
        check(&[], 1, ReplicaComparison::TooFew(0));
        check(&[("a", c, 3), ("b", c, 3), ("d", c, 3)], 3, ReplicaComparison::Enough(3));
        check(&[("a", c, 0), ("b", c, 0), ("d", c, 0)], 3, ReplicaComparison::Enough(3));
        check(&[("a", c, 3), ("b", c, 3)], 3, ReplicaComparison::TooFew(2));
        check(&[("a", c, 3), ("a", c, 3), ("a", c, 3)], 3, ReplicaComparison::TooFew(1));
        check(&[("a", None, 0), ("b", None, 0), ("d", None, 0)], 3, ReplicaComparison::Apart(3));
        check(&[("a", c, 3), ("b", c, 3), ("d", Some("e"), 3)], 3, ReplicaComparison::Apart(3));
        check(&[("a", c, 2), ("b", c, 2), ("d", c, 1)], 3, ReplicaComparison::Apart(3));
        let mut off = found(None, None);
        off.nodes[0].1.as_mut().unwrap().jetstream = false;
        assert_eq!(off.spread(3), ReplicaComparison::TooFew(2), "one without JetStream holds no records");
    }

    #[test]
    fn ownership_of_existing_data_is_checked() {
        let (ours, other) = (ClusterId { run: RunId(1), nonce: 5 }, ClusterId { run: RunId(1), nonce: 6 });
        let foreign = ClusterId { run: RunId(2), nonce: 5 };
        let tape = |mark: &ClusterId, records| Some((mark.clone(), records));
        let kept = |tape, states: Option<&ClusterId>, run: Option<u64>| {
            found(tape, states.cloned()).kept(run.map(RunId)).unwrap()
        };
        assert_eq!(kept(None, None, Some(1)), Ok(DataOwnership::Nothing));
        assert_eq!(kept(tape(&ours, 9), Some(&ours), Some(1)), Ok(DataOwnership::Ours(9)));
        assert_eq!(
            kept(tape(&ours, 0), None, Some(1)),
            Ok(DataOwnership::Ours(0)),
            "its first process is making it"
        );
        assert_eq!(kept(tape(&ours, 9), Some(&ours), None), Ok(DataOwnership::Somebodys(ours.clone())));
        for (tape, states) in [
            (tape(&foreign, 9), Some(&foreign)),
            (tape(&foreign, 9), None),
            (None, Some(&foreign)),
            (tape(&ours, 9), Some(&other)),
        ] {
            let error = kept(tape.clone(), states, Some(1)).unwrap_err();
            assert!(matches!(error, ServiceError::Foreign { .. }), "{tape:?} {states:?}: {error}");
        }
        for (tape, states) in [(tape(&ours, 9), None), (None, Some(&ours))] {
            let error = kept(tape.clone(), states, Some(1)).unwrap_err();
            assert!(matches!(error, ServiceError::Damaged { .. }), "{tape:?} {states:?}: {error}");
        }
        let mut silent_storage = found(None, None);
        silent_storage.storage.found = Err(silent("s3://runs"));
        assert_eq!(silent_storage.kept(None), None);
    }

    #[test]
    fn all_known_clocks_are_returned() {
        let mut findings = found(None, None);
        findings.nodes[1].1.as_mut().unwrap().ahead_ms = None;
        findings.nodes[2].1 = Err(silent("d"));
        assert_eq!(findings.clocks().collect::<Vec<_>>(), [("a:4222", 3), ("s3://runs", -7)]);
    }
}
