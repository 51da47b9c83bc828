//! Tests of many simultaneous downloads of parameters, and of interrupted transfers.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use archipelago_cli::MethodArgs;
use archipelago_core::diloco::{FragmentId, Version, halves};
use futures::future::join_all;
use syncer_server::ServeConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{Client, Learner, Server, config, header};

/// Number of simultaneous joiners, unless `cargo xtask test --only joiners --count N` gives another one. Each takes two
/// file handles of this process, and some systems grant only 1,024.
const JOINERS: usize = 400;
/// Largest growth of this process during the downloads, in bytes. A copy for each joiner would take seven times that.
const GROWTH_MAX: u64 = 96 << 20;

/// Returns settings with all parameters in one fragment: 1.7 MB for each download.
fn whole(dir: &std::path::Path) -> ServeConfig {
    let config = config(dir);
    ServeConfig { preset: "small".into(), method: MethodArgs { fragments: 1, ..config.method }, ..config }
}

/// Returns the resident memory of this process in bytes.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

/// Fetches `path`, with retries as the server requests. Returns the sum and the number of the body's bytes, and the
/// number of rejections.
async fn fetch(server: &Server, path: &str) -> (u64, u64, u32) {
    let mut sent_away = 0;
    loop {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let (mut head, mut chunk) = (Vec::new(), [0; 4_096]);
        let at = loop {
            let count = stream.read(&mut chunk).await.unwrap();
            head.extend_from_slice(&chunk[..count]);
            if let Some(at) = head.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                break at + 4;
            }
            assert!(count > 0, "the answer ends in its head");
        };
        let sum = |bytes: &[u8]| bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>();
        let (mut total, mut len) = (sum(&head[at..]), (head.len() - at) as u64);
        let text = String::from_utf8(head[..at].to_vec()).unwrap().to_lowercase();
        if text.starts_with("http/1.1 503") {
            assert_eq!(header(&text, "retry-after"), "2");
            sent_away += 1;
            tokio::time::sleep(Duration::from_millis(200)).await;
            continue;
        }
        assert!(text.starts_with("http/1.1 200"), "{text}");
        loop {
            match stream.read(&mut chunk).await.unwrap() {
                0 => return (total, len, sent_away),
                count => {
                    total += sum(&chunk[..count]);
                    len += count as u64;
                }
            }
        }
    }
}

/// Runs in a separate process, so that no other test affects memory and file handles.
#[test]
fn a_crowd_shares_one_copy() {
    let mut test = Command::new(std::env::current_exe().unwrap());
    test.args(["crowd::a_crowd_shares_one_copy_here", "--exact", "--ignored", "--nocapture"]);
    let output = test.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[ignore = "the test before this one starts it in a process of its own"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_shares_one_copy_here() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(whole(dir.path())).await;
    let (_client, welcome) = Client::greet(&server, 1).await;
    let path = format!("/v1/runs/{}/fragments/0/0", welcome.run);
    let first = fetch(&server, &path).await;
    let params = archipelago_core::diloco::Layout::of(&welcome.spec.model).unwrap().len();
    assert_eq!(first.1, (halves::BYTES * params) as u64);

    let before = resident();
    let done = Arc::new(AtomicBool::new(false));
    let watched = tokio::spawn({
        let done = Arc::clone(&done);
        async move {
            let mut peak = resident();
            while !done.load(Ordering::Relaxed) {
                peak = peak.max(resident());
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            peak
        }
    });
    let joiners = std::env::var("ARCHIPELAGO_TEST_COUNT").map_or(JOINERS, |count| count.parse().unwrap());
    let answers = join_all((0..joiners).map(|_| fetch(&server, &path))).await;
    done.store(true, Ordering::Relaxed);
    assert!(answers.iter().all(|answer| (answer.0, answer.1) == (first.0, first.1)), "all get all of it");
    // Skip the comparison if the system does not report memory.
    if let (Some(before), Some(peak)) = (before, watched.await.unwrap()) {
        let growth = peak.saturating_sub(before);
        assert!(growth < GROWTH_MAX, "{growth} bytes more for {joiners} times {}", first.1);
        eprintln!("{growth} bytes more for {joiners} times {}", first.1);
    }
    server.stop().await;
}

#[tokio::test]
async fn a_transfer_that_broke_off_is_resumed_after_merges() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path());
    let config = ServeConfig { method: MethodArgs { fragments: 1, ..config.method }, ..config };
    let server = Server::start(config).await;
    let mut learner = Learner::join(&server, 1).await;
    let run = learner.welcome.run;
    let fetched = |version: String, range: &str| {
        let request = format!("GET /v1/runs/{run}/fragments/0/{version}{range}");
        let server = &server;
        async move { server.http(&request).await }
    };
    learner.merge().await;
    let (_, head, old) = fetched("0".into(), "").await;
    let version = header(&head, "x-archipelago-version").to_owned();
    let tag =
        archipelago_core::wire::http::fragment_tag(run, FragmentId(0), Version(version.parse().unwrap()));
    learner.merge().await;
    learner.merge().await;

    let rest = format!("\nRange: bytes=1000-\nIf-Range: {tag}");
    let (code, head, part) = fetched(version.clone(), &rest).await;
    assert_eq!((code, &*part), (206, &old[1_000..]), "of the version that was begun");
    assert_eq!(header(&head, "x-archipelago-version"), version);
    let (code, head, new) = fetched(version.clone(), "").await;
    assert_eq!((code, new.len()), (200, old.len()));
    assert!(new != old && header(&head, "x-archipelago-version") != version, "who begins gets the newest");
    // A range of a version that was never served gives the current one.
    let (code, head, whole) = fetched("0".into(), "\nRange: bytes=1000-").await;
    assert_eq!((code, whole.len(), header(&head, "cache-control")), (200, old.len(), "no-store"));
    server.stop().await;
}
