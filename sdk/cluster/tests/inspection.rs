//! Tests of the inspection of a cluster's servers: what it finds, and that it changes nothing.
#![cfg(feature = "nats-s3")]
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use archipelago_cluster::{
    DataOwnership, Findings, ReplicaComparison, Servers, ServiceError, StoreSettings, inspect, open,
};
use archipelago_core::wire::{FragmentId, RunId};
use support::servers::{self, ClusterServers};

const FRAGMENTS: [FragmentId; 2] = [FragmentId(0), FragmentId(1)];
const RUN: RunId = RunId(1);

fn at(crew: &ClusterServers, prefix: &str, replicas: usize, blobs: &str) -> Servers {
    Servers { nats: crew.nats(), replicas, blobs: crew.blobs(blobs), prefix: prefix.to_owned() }
}

/// Returns settings in which only the storage is accessible.
fn storage(blobs: StoreSettings) -> Servers {
    Servers { nats: vec!["nats://127.0.0.1:1".to_owned()], replicas: 1, blobs, prefix: "p".to_owned() }
}

fn folder(place: &Path) -> StoreSettings {
    StoreSettings { place: format!("file://{}", place.display()), variables: Vec::new() }
}

/// Returns all keys in the storage.
fn keys(crew: &ClusterServers) -> Vec<String> {
    let key = "AWS4-HMAC-SHA256 Credential=key/x/eu-north-1/s3/x";
    let list = ureq::get(format!("{}/states?list-type=2", crew.s3())).header("Authorization", key).call();
    let list = list.unwrap().body_mut().read_to_string().unwrap();
    list.split("<Key>").skip(1).map(|rest| rest.split('<').next().unwrap().to_owned()).collect()
}

fn is_near(findings: &Findings) {
    let far: Vec<_> = findings.clocks().filter(|(_, ahead_ms)| ahead_ms.abs() > 60_000).collect();
    assert!(far.is_empty(), "{far:?}");
}

/// Goal: an inspection finds three NATS servers and S3, before and after the start of a run, and leaves nothing
/// behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inspection_finds_servers_and_changes_nothing() {
    let Some(bin) = servers::wanted() else { return };
    let crew = ClusterServers::start(&bin, 3);
    let ours = at(&crew, "p", 3, "s3://states/folder");
    // Servers that have just started must elect a leader first.
    open(at(&crew, "other", 3, "s3://states"), RUN, FRAGMENTS.to_vec()).await.unwrap();
    let before = keys(&crew);
    for _ in 0..2 {
        let findings = inspect(&ours, &FRAGMENTS).await;
        assert_eq!(findings.spread(3), ReplicaComparison::Enough(3), "{findings:#?}");
        assert_eq!(findings.kept(Some(RUN)), Some(Ok(DataOwnership::Nothing)), "{findings:#?}");
        assert_eq!(findings.clocks().count(), 4, "{findings:#?}");
        is_near(&findings);
        assert_eq!(findings.storage.found.unwrap().left, None);
    }
    assert_eq!(keys(&crew), before);

    open(ours.clone(), RUN, FRAGMENTS.to_vec()).await.unwrap();
    let findings = inspect(&ours, &FRAGMENTS).await;
    assert_eq!(findings.kept(Some(RUN)), Some(Ok(DataOwnership::Ours(0))), "{findings:#?}");
    assert!(matches!(findings.kept(None), Some(Ok(DataOwnership::Somebodys(_)))), "{findings:#?}");
    assert_eq!(findings.streams.as_ref().unwrap().as_ref().unwrap().replicas, 3);
    let other = findings.kept(Some(RunId(2))).unwrap().unwrap_err();
    assert!(matches!(other, ServiceError::Foreign { .. }), "{other}");
    // These are the streams of the cluster, with another storage.
    let elsewhere = Servers { blobs: folder(&crew.folder().join("new")), ..ours.clone() };
    let mixed = inspect(&elsewhere, &FRAGMENTS).await;
    assert_eq!(
        mixed.kept(Some(RUN)),
        Some(Ok(DataOwnership::Ours(0))),
        "nothing was recorded yet: {mixed:#?}"
    );
    assert!(!crew.folder().join("new").exists(), "what the look made is gone");
}

/// Goal: an inspection finds the cause of each kind of failure.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inspection_finds_each_kind_of_failure() {
    let Some(bin) = servers::wanted() else { return };
    let mut crew = ClusterServers::start(&bin, 3);
    let sound = at(&crew, "p", 3, "s3://states");
    open(at(&crew, "other", 3, "s3://states"), RUN, FRAGMENTS.to_vec()).await.unwrap();

    let guess = crew.nats().iter().map(|at| at.replace("owner:secret", "owner:guess")).collect();
    let findings = inspect(&Servers { nats: guess, ..sound.clone() }, &FRAGMENTS).await;
    let is_denied = |(_, node): &(_, Result<_, _>)| matches!(node, Err(ServiceError::Denied { .. }));
    assert!(findings.nodes.iter().all(is_denied) && findings.streams.is_none(), "{findings:#?}");

    let readers = crew.nats().iter().map(|at| at.replace("owner:secret", "reader:secret")).collect();
    let findings = inspect(&Servers { nats: readers, ..sound.clone() }, &FRAGMENTS).await;
    assert!(findings.nodes.iter().all(|(_, node)| node.is_ok()), "{findings:#?}");
    assert!(matches!(findings.streams, Some(Err(ServiceError::Denied { .. }))), "{findings:#?}");

    let none = Servers { blobs: crew.blobs("s3://gone"), ..sound.clone() };
    let findings = inspect(&none, &FRAGMENTS).await;
    assert!(matches!(findings.storage.found, Err(ServiceError::Missing { .. })), "{findings:#?}");

    let odd = Servers { prefix: "../up".to_owned(), ..sound.clone() };
    let findings = inspect(&odd, &FRAGMENTS).await;
    assert!(matches!(findings.storage.found, Err(ServiceError::Setting { .. })), "{findings:#?}");
    assert!(matches!(findings.streams, Some(Err(ServiceError::Setting { .. }))), "{findings:#?}");

    crew.kill(2);
    let findings = inspect(&sound, &FRAGMENTS).await;
    assert_eq!(findings.spread(3), ReplicaComparison::TooFew(2), "{findings:#?}");
    assert!(matches!(findings.nodes[2].1, Err(ServiceError::Silent { .. })), "{findings:#?}");
    assert_eq!(
        findings.kept(Some(RUN)),
        Some(Ok(DataOwnership::Nothing)),
        "two of three go on: {findings:#?}"
    );
}

/// Goal: a server whose address is given three times is counted once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_server_is_counted_once() {
    let Some(bin) = servers::wanted() else { return };
    let crew = ClusterServers::start(&bin, 1);
    let thrice = vec![crew.nats()[0].clone(); 3];
    let findings = inspect(&Servers { nats: thrice, ..at(&crew, "p", 3, "s3://states") }, &FRAGMENTS).await;
    assert_eq!(findings.spread(3), ReplicaComparison::TooFew(1), "{findings:#?}");
    assert_eq!(findings.spread(1), ReplicaComparison::Enough(1));
    assert_eq!(findings.kept(None), Some(Ok(DataOwnership::Nothing)), "{findings:#?}");
}

/// Goal: the inspection of a folder creates missing folders and removes them again.
#[tokio::test]
async fn inspected_folder_is_left_unchanged() {
    let place = tempfile::tempdir().unwrap();
    let deep = place.path().join("a/b");
    for _ in 0..2 {
        let findings = inspect(&storage(folder(&deep)), &FRAGMENTS).await;
        let found = findings.storage.found.clone().unwrap();
        assert_eq!((found.mark, found.left), (None, None));
        is_near(&findings);
        assert_eq!(findings.clocks().count(), 1, "{findings:#?}");
        assert!(matches!(findings.nodes[0].1, Err(ServiceError::Silent { .. })), "{findings:#?}");
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    }
    fs::create_dir_all(deep.join("p")).unwrap();
    fs::write(deep.join("p/cluster"), "0000000000000001-0000000000000007").unwrap();
    let findings = inspect(&storage(folder(&deep)), &FRAGMENTS).await;
    assert_eq!(findings.storage.found.unwrap().mark.unwrap().run, RUN);
    assert_eq!(fs::read_dir(deep.join("p")).unwrap().count(), 1);
    fs::write(deep.join("p/cluster"), "somebody's notes").unwrap();
    let findings = inspect(&storage(folder(&deep)), &FRAGMENTS).await;
    assert!(matches!(findings.storage.found, Err(ServiceError::Foreign { .. })));
    assert_eq!(fs::read_dir(deep.join("p")).unwrap().count(), 1, "and the probe is gone even so");
    fs::write(place.path().join("file"), "").unwrap();
    for odd in ["file", "file/below"] {
        let findings = inspect(&storage(folder(&place.path().join(odd))), &FRAGMENTS).await;
        assert!(matches!(findings.storage.found, Err(ServiceError::Setting { .. })), "{findings:#?}");
    }
}

/// Reads a request to its end, because closing the connection earlier could discard the answer.
fn read_request(stream: &TcpStream) {
    let mut lines = BufReader::new(stream);
    let (mut line, mut body) = (String::new(), 0);
    while lines.read_line(&mut line).unwrap_or(0) > 2 {
        let length =
            line.to_ascii_lowercase().strip_prefix("content-length:").map(|it| it.trim().parse().unwrap());
        body = length.unwrap_or(body);
        line.clear();
    }
    let _ = lines.read_exact(&mut vec![0; body]);
}

/// Starts a server that answers `requests` requests with this status, date and body, and returns settings for it.
fn answer(status: &'static str, date: &'static str, body: &'static str, requests: usize) -> StoreSettings {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().take(requests) {
            let mut stream = stream.unwrap();
            read_request(&stream);
            let head = format!(
                "HTTP/1.1 {status}\r\nDate: {date}\r\nConnection: close\r\nContent-Length: {}",
                body.len()
            );
            let _ = write!(stream, "{head}\r\n\r\n{body}");
        }
    });
    let variables = [
        ("AWS_ENDPOINT_URL", &*format!("http://{at}")),
        ("AWS_REGION", "eu-north-1"),
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()));
    StoreSettings { place: "s3://states".to_owned(), variables: variables.to_vec() }
}

/// Goal: a store that refuses a signature because of a wrong clock still reports its time.
#[tokio::test]
async fn store_that_refuses_access_still_reports_its_time() {
    let blobs = answer("403 Forbidden", "Sun, 06 Nov 1994 08:49:37 GMT", "", 8);
    let findings = inspect(&storage(blobs), &FRAGMENTS).await;
    assert!(matches!(findings.storage.found, Err(ServiceError::Denied { .. })), "{findings:#?}");
    let ahead_ms = findings.storage.ahead_ms.unwrap();
    assert!(ahead_ms < -365 * 86_400_000, "{ahead_ms}");
}

/// Goal: an inspection detects a store that overwrites objects, before a run uses it.
#[tokio::test]
async fn overwriting_store_is_refused() {
    // The first object stays, but the second write returns no error.
    let status = "200 OK\r\nETag: \"x\"\r\nLast-Modified: Sun, 06 Nov 1994 08:49:37 GMT";
    let blobs = answer(status, "", "first", 8);
    let findings = inspect(&storage(blobs), &FRAGMENTS).await;
    let error = findings.storage.found.unwrap_err();
    assert!(
        matches!(error, ServiceError::Setting { .. }) && error.to_string().contains("If-None-Match"),
        "{error}"
    );
}
