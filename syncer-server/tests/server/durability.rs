//! Tests of stops, damage and restarts.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use archipelago_core::wire::{Message, RunId, Version, Welcome};
use syncer_server::Store;

use crate::dashboard::Watch;
use crate::support::{Client, Learner, PATIENCE, Server, config};

/// Merges an update of each fragment, so that all have left their initial state. The order of fragments depends on
/// response times.
async fn train(server: &Server) -> Welcome {
    let mut learner = Learner::join(server, 1).await;
    let is_at_start = async || {
        let status = server.status().await;
        status["fragments"].as_array().unwrap().iter().any(|fragment| fragment[1] == "0")
    };
    for _ in 0..8 * learner.fragments.count() {
        if !is_at_start().await {
            return learner.welcome;
        }
        learner.merge().await;
    }
    panic!("a fragment had no turn");
}

fn snapshots(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir.join("snapshots")).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

#[tokio::test]
async fn a_restart_keeps_momentum_versions_and_ledger() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    let run = train(&server).await.run;
    let last = server.stop().await;
    assert!(last.core.tokens_merged > 0);

    let before = Store::look(dir.path()).latest(run).unwrap().unwrap();
    assert!(before.states.iter().all(|state| state.momentum.iter().any(|value| *value != 0.0)));
    assert!(before.states.iter().all(|state| state.version > Version(0)));

    let server = Server::start(config(dir.path())).await;
    let (_client, welcome) = Client::greet(&server, 1).await;
    let status = server.status().await;
    assert_eq!(welcome.run, run);
    assert_eq!(status["tokensMerged"], last.core.tokens_merged);
    assert_eq!(status["rounds"], last.core.rounds);
    assert_eq!(status["fates"]["merged"], last.core.fates.merged);
    assert_eq!(status["learners"][0]["name"], "learner 1");
    assert_eq!(status["bytesUp"], last.traffic.bytes_up);
    let versions: Vec<Version> = before.states.iter().map(|state| state.version).collect();
    assert_eq!(welcome.versions, versions);
    server.stop().await;
    let after = Store::look(dir.path()).latest(run).unwrap().unwrap();
    assert!(after.states == before.states);
    assert!(after.record.next_round >> 32 > before.record.next_round >> 32, "rounds never name two things");
}

#[tokio::test]
async fn a_damaged_snapshot_is_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    let run = train(&server).await.run;
    server.stop().await;
    let paths = snapshots(dir.path());
    let [old, new] = &paths[..] else { panic!("two are kept: {paths:?}") };
    let (old_bytes, new_bytes) = (fs::read(old).unwrap(), fs::read(new).unwrap());
    let latest = || Store::look(dir.path()).latest(run);
    fs::remove_file(new).unwrap();
    let older = latest().unwrap().unwrap();

    // With the newest snapshot truncated at any length, or changed in any tensor, the one before is used.
    for cut in [0, 7, 100, new_bytes.len() / 2, new_bytes.len() - 1] {
        fs::write(new, &new_bytes[..cut]).unwrap();
        assert!(latest().unwrap().unwrap() == older, "cut to {cut} bytes");
    }
    for at in [9, new_bytes.len() / 2, new_bytes.len() - 1] {
        let mut changed = new_bytes.clone();
        changed[at] ^= 0x10;
        fs::write(new, changed).unwrap();
        assert!(latest().unwrap().unwrap() == older, "byte {at} changed");
    }
    let server = Server::start(config(dir.path())).await;
    assert_eq!(server.status().await["run"], run.to_string());
    server.stop().await;

    for path in snapshots(dir.path()) {
        fs::write(path, &old_bytes[..50]).unwrap();
    }
    assert_eq!(Server::refused(config(dir.path())).await.exit_code(), 14);
    fs::write(dir.path().join("run.json"), "{").unwrap();
    assert_eq!(Server::refused(config(dir.path())).await.exit_code(), 14);
}

#[tokio::test]
async fn only_the_same_run_goes_on_in_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    server.status().await;
    assert_eq!(Server::refused(config(dir.path())).await.exit_code(), 13);
    server.stop().await;

    let check = async |change: fn(&mut syncer_server::ServeConfig), word: &str| {
        let mut other = config(dir.path());
        change(&mut other);
        let error = Server::refused(other).await;
        assert_eq!(error.exit_code(), 12, "{error}");
        assert!(error.to_string().contains(word), "{error}");
    };
    check(|config| config.preset = "small".into(), "model.context is 64 there, 128 here").await;
    check(|config| config.method.sync_every = 9, "--sync-every is 1 there, 9 here").await;
    check(|config| config.seed = 9, "--seed is 1 there, 9 here").await;
    check(|config| config.corpus_bytes = "61kB".parse().unwrap(), "another text there").await;

    // Settings that learners need not agree on may change.
    let mut config = config(dir.path());
    config.method.outer_lr = 0.3;
    let server = Server::start(config).await;
    server.status().await;
    server.stop().await;
}

#[tokio::test]
async fn a_folder_of_another_run_is_no_snapshot_of_this() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    server.status().await;
    server.stop().await;
    assert_eq!(Store::look(dir.path()).latest(RunId(1)).unwrap_err().exit_code(), 14);
}

/// Waits until the status shows unsaved decisions, or none.
async fn unsaved(server: &Server, some: bool) {
    let seen = async { while (server.status().await["disk"]["unsaved"] != 0) != some {} };
    tokio::time::timeout(PATIENCE, seen).await.unwrap();
}

/// First characters of a raw merge event.
const MERGED: &str = r#"data: {"event":"merged""#;

/// Waits until `watch` has received `count` merge events in total.
async fn hears_of_merges(watch: &mut Watch, count: usize) {
    while watch.text.matches(MERGED).count() < count {
        let heard = watch.text.matches("event: run\n").count();
        watch.until("run", heard + 1).await;
    }
}

/// Goal: watchers see no decision that a crash could undo. Another program locks the rows, as a hanging disk
/// would.
#[tokio::test]
async fn whoever_watches_hears_of_a_merge_when_it_is_on_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    let mut watch = Watch::open(&server, "/v1/events?raw=1").await;
    watch.until("status", 1).await;
    let mut learner = Learner::join(&server, 1).await;
    learner.merge().await;
    hears_of_merges(&mut watch, 1).await;
    let asked = learner.collect().await;
    // All decisions so far are on disk, and the round has what it needs.
    unsaved(&server, false).await;
    let rows = rusqlite::Connection::open(dir.path().join("tape.sqlite")).unwrap();
    rows.execute_batch("BEGIN IMMEDIATE").unwrap();
    learner.steps += 1;
    learner.report().await;
    let update = learner.update(asked, 0.01);
    learner.client.send(&Message::Update(update)).await;
    unsaved(&server, true).await;
    // The core has merged the update by now, but has told no watcher.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let seen = watch.text.matches("event: status\n").count();
    watch.until("status", seen + 2).await;
    assert_eq!(watch.text.matches(MERGED).count(), 1, "{}", watch.text);
    rows.execute_batch("ROLLBACK").unwrap();
    hears_of_merges(&mut watch, 2).await;
    server.stop().await;
}

/// Goal: a hanging disk is reported everywhere within 5 s, although no write has failed, and the report ends as soon as
/// the disk answers. Another program locks the rows.
#[tokio::test]
async fn a_disk_that_hangs_is_told_of() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    let mut learner = Learner::join(&server, 1).await;
    learner.merge().await;
    unsaved(&server, false).await;
    assert_eq!(server.status().await["disk"]["unsavedAgeS"], serde_json::Value::Null);
    assert_eq!(server.http("GET /readyz").await.0, 200);
    let rows = rusqlite::Connection::open(dir.path().join("tape.sqlite")).unwrap();
    rows.execute_batch("BEGIN IMMEDIATE").unwrap();
    let (_newcomer, held) = (Client::connect(&server).await, tokio::time::Instant::now());
    learner.steps += 1;
    learner.report().await;
    unsaved(&server, true).await;
    let told = async {
        loop {
            let status = server.status().await;
            if !status["disk"]["tapeFault"].is_null() {
                return status;
            }
        }
    };
    let status = tokio::time::timeout(PATIENCE, told).await.unwrap();
    // SQLite itself reports after 5 s that the rows are locked.
    let why = status["disk"]["tapeFault"].as_str().unwrap();
    assert!(why.contains("not answered for more than 3 s"), "{why} after {:?}", held.elapsed());
    assert!(status["disk"]["unsavedAgeS"].as_f64() > Some(3.0), "{status:#}");
    let (code, _, body) = server.http("GET /readyz").await;
    assert_eq!(code, 503, "{}", String::from_utf8_lossy(&body));
    let seen = async {
        loop {
            let status = server.status().await;
            if status["alerts"][0]["kind"] == "diskFault" {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, seen).await.unwrap();
    let metrics = String::from_utf8(server.http("GET /metrics").await.2).unwrap();
    assert!(metrics.contains("archipelago_tape_fault 1"), "{metrics}");
    assert!(metrics.contains("archipelago_tape_unsaved_timestamp_seconds "), "{metrics}");
    let log = String::from_utf8(server.http("GET /v1/log").await.2).unwrap();
    assert!(log.contains("not answered"), "{log}");

    rows.execute_batch("ROLLBACK").unwrap();
    let mended = async { while !server.status().await["disk"]["tapeFault"].is_null() {} };
    tokio::time::timeout(PATIENCE, mended).await.unwrap();
    assert_eq!(server.http("GET /readyz").await.0, 200);
    learner.merge().await;
    server.stop().await;
}

/// Goal: a snapshot is complete for the largest number of identities in a run, with the longest possible names.
#[tokio::test]
async fn a_full_ledger_is_saved_and_read() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    let run = train(&server).await.run;
    server.stop().await;
    let store = Store::look(dir.path());
    let mut snapshot = store.latest(run).unwrap().unwrap();
    let mut ledger = serde_json::to_value(&snapshot.record.ledger).unwrap();
    let accounts = ledger["accounts"].as_object_mut().unwrap();
    let mut one = accounts["1"].clone();
    (one["name"], one["device"]) = ("\u{1}".repeat(64).into(), "\u{1}".repeat(64).into());
    let most = archipelago_core::diloco::syncer::SyncerConfig::default().identities_max;
    for id in 2..=most {
        one["identity"] = serde_json::to_value(u128::from(id).to_be_bytes()).unwrap();
        accounts.insert(id.to_string(), one.clone());
    }
    snapshot.record.ledger = serde_json::from_value(ledger).unwrap();
    let path = store.save(&snapshot).unwrap();
    assert!(fs::metadata(path).unwrap().len() > 100_000_000, "more than a header holds");
    assert_eq!(store.latest(run).unwrap().unwrap().record.ledger.len(), most as usize);
}

/// Goal: writing a snapshot never removes an intact one in favour of a damaged one.
#[tokio::test]
async fn a_damaged_snapshot_costs_no_whole_one() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    let run = train(&server).await.run;
    server.stop().await;
    let damaged = snapshots(dir.path()).pop().unwrap();
    let mut bytes = fs::read(&damaged).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    fs::write(damaged, bytes).unwrap();
    let store = Store::look(dir.path());
    let good = store.latest(run).unwrap().unwrap();
    fs::remove_file(store.save(&good).unwrap()).unwrap();
    assert_eq!(store.latest(run).unwrap(), Some(good));
    assert_eq!(snapshots(dir.path()).len(), 1, "and the damaged one is gone");
}

/// Goal: a start that is stopped before the run is open ends at once, and leaves no part of a run.
#[tokio::test]
async fn a_start_that_is_stopped_leaves_no_run() {
    let dir = tempfile::tempdir().unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let ended = syncer_server::serve(listener, config(dir.path()), std::future::ready(())).await;
    assert!(matches!(ended, Err(syncer_server::ServerError::Cancelled)), "{ended:?}");
    assert!(!dir.path().join("run.json").exists() && !dir.path().join("tape.sqlite").exists());
    // The next start creates the run.
    Server::start(config(dir.path())).await.stop().await;
    assert!(dir.path().join("run.json").exists());
}
