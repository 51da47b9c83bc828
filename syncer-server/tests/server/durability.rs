//! Tests of stops, damage and restarts, of replays, and of a stored run that is opened, replayed and resumed.
//!
//! `tests/golden/tape` contains the run without its snapshots, which a complete tape does not need, and a description
//! of its result. After a change of the tape's layout, `cargo xtask test --bless tape` writes the folder again.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use archipelago_core::bytes::hex;
use archipelago_core::wire::{Message, RunId, Version, Welcome};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use syncer_server::{
    ForkArgs, Form, Losses, MergedSender, Replay, ReplayArgs, ReplayedMerge, ServeConfig, ServerError, Store,
    export, fork, replayed,
};

use crate::dashboard::Watch;
use crate::support::{Client, PATIENCE, ScriptedLearner, Server, config};

/// Merges an update of each fragment, so that all have left their initial state. The order of fragments depends on
/// response times.
async fn train(server: &Server) -> Welcome {
    let mut learner = ScriptedLearner::join(server, 1).await;
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

    let before = Store::open_read_only(dir.path()).latest(run).unwrap().unwrap();
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
    let after = Store::open_read_only(dir.path()).latest(run).unwrap().unwrap();
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
    let latest = || Store::open_read_only(dir.path()).latest(run);
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

    let check = async |change: fn(&mut ServeConfig), word: &str| {
        let mut other = config(dir.path());
        change(&mut other);
        let error = Server::refused(other).await;
        assert_eq!(error.exit_code(), 12, "{error}");
        assert!(error.to_string().contains(word), "{error}");
    };
    check(|config| config.identity.preset = "small".into(), "model.context is 64 there, 128 here").await;
    check(|config| config.identity.exchange.sync_every = 9, "--sync-every is 1 there, 9 here").await;
    check(|config| config.identity.seed = 9, "--seed is 1 there, 9 here").await;
    check(|config| config.identity.corpus_bytes = "61kB".parse().unwrap(), "another text there").await;

    // Settings that learners need not agree on may change.
    let mut config = config(dir.path());
    config.agreed.outer.outer_lr = 0.3;
    let server = Server::start(config).await;
    server.status().await;
    server.stop().await;
}

#[tokio::test]
async fn a_folder_of_another_run_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    server.status().await;
    server.stop().await;
    assert_eq!(Store::open_read_only(dir.path()).latest(RunId(1)).unwrap_err().exit_code(), 14);
}

/// Waits until the status shows unsaved decisions (`some`), or none.
async fn wait_for_unsaved(server: &Server, some: bool) {
    let seen = async { while (server.status().await["disk"]["unsaved"] != 0) != some {} };
    tokio::time::timeout(PATIENCE, seen).await.unwrap();
}

/// First characters of a raw merge event.
const MERGED: &str = r#"data: {"event":"merged""#;

/// Waits until `watch` has received `count` merge events in total.
async fn wait_for_merge_events(watch: &mut Watch, count: usize) {
    while watch.text.matches(MERGED).count() < count {
        let heard = watch.text.matches("event: run\n").count();
        watch.until("run", heard + 1).await;
    }
}

/// Goal: watchers see no decision that a crash could undo. Another connection locks the tape's database, as if the disk
/// hung.
#[tokio::test]
async fn watchers_see_a_merge_only_after_it_is_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    let mut watch = Watch::open(&server, "/v1/events?raw=1").await;
    watch.until("status", 1).await;
    let mut learner = ScriptedLearner::join(&server, 1).await;
    learner.merge().await;
    wait_for_merge_events(&mut watch, 1).await;
    let asked = learner.collect().await;
    // All decisions so far are on disk, and the round only lacks the learner's update.
    wait_for_unsaved(&server, false).await;
    let rows = rusqlite::Connection::open(dir.path().join("tape.sqlite")).unwrap();
    rows.execute_batch("BEGIN IMMEDIATE").unwrap();
    learner.steps += 1;
    learner.report().await;
    let update = learner.update(asked, 0.01);
    learner.client.send(&Message::Update(update)).await;
    wait_for_unsaved(&server, true).await;
    // The core has merged the update by now, but no watcher may see it.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let seen = watch.text.matches("event: status\n").count();
    watch.until("status", seen + 2).await;
    assert_eq!(watch.text.matches(MERGED).count(), 1, "{}", watch.text);
    rows.execute_batch("ROLLBACK").unwrap();
    wait_for_merge_events(&mut watch, 2).await;
    server.stop().await;
}

/// Goal: every interface reports a hanging disk within 5 s, although no write has failed, and the report ends as soon
/// as the disk answers. Another connection locks the tape's database.
#[tokio::test]
async fn a_hanging_disk_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    let mut learner = ScriptedLearner::join(&server, 1).await;
    learner.merge().await;
    wait_for_unsaved(&server, false).await;
    assert_eq!(server.status().await["disk"]["unsavedAgeS"], Value::Null);
    assert_eq!(server.http("GET /readyz").await.0, 200);
    let rows = rusqlite::Connection::open(dir.path().join("tape.sqlite")).unwrap();
    rows.execute_batch("BEGIN IMMEDIATE").unwrap();
    let (_newcomer, held) = (Client::connect(&server).await, tokio::time::Instant::now());
    learner.steps += 1;
    learner.report().await;
    wait_for_unsaved(&server, true).await;
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

/// Goal: a snapshot holds the whole ledger of a run with the maximum number of identities, all with names of maximum
/// length.
#[tokio::test]
async fn a_full_ledger_is_saved_and_read() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    let run = train(&server).await.run;
    server.stop().await;
    let store = Store::open_read_only(dir.path());
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
    let store = Store::open_read_only(dir.path());
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
    assert!(matches!(ended, Err(ServerError::Cancelled)), "{ended:?}");
    assert!(!dir.path().join("run.json").exists() && !dir.path().join("tape.sqlite").exists());
    // The next start creates the run.
    Server::start(config(dir.path())).await.stop().await;
    assert!(dir.path().join("run.json").exists());
}

/// Layout number of the stored tape.
const LAYOUT: &str = "6";

/// Number of merges of the stored run. By then each fragment has a merge with norm bounds.
const MERGES: usize = 12;

/// Returns the settings of the stored run.
fn settings(dir: &Path) -> ServeConfig {
    config(dir).with(|it| it.identity.exchange.fragments = 2)
}

/// Returns the paths of the stored run and of the description of its result.
fn stored() -> (PathBuf, PathBuf) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/tape");
    (folder.join(LAYOUT), folder.join(format!("{LAYOUT}.json")))
}

fn copy(from: &Path, to: &Path) {
    for sub in ["", "bodies"] {
        fs::create_dir_all(to.join(sub)).unwrap();
        for entry in fs::read_dir(from.join(sub)).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() && !path.ends_with("lock") && !path.ends_with("guests.sqlite") {
                fs::copy(&path, to.join(sub).join(path.file_name().unwrap())).unwrap();
            }
        }
    }
}

/// Replays the tape in `dir` up to decision `until`, and returns a description of the result.
fn replay_result(dir: &Path, until: u64) -> Value {
    let out = tempfile::tempdir().unwrap();
    let to = out.path().join("model");
    let found = replayed(&ReplayArgs { until, out: Some(to.clone()), ..args(dir, None) }, |_| {}).unwrap();
    let model = fs::read(to.join("model.safetensors")).unwrap();
    json!({
        "last": found.last,
        "merges": found.merges,
        "tokensMerged": found.tokens_merged,
        "model": hex(&Sha256::digest(model)),
    })
}

fn tape(dir: &Path) -> rusqlite::Connection {
    rusqlite::Connection::open(dir.join("tape.sqlite")).unwrap()
}

fn layout_of(dir: &Path) -> String {
    tape(dir).query_row("SELECT value FROM meta WHERE key = 'format'", [], |row| row.get(0)).unwrap()
}

/// Returns the number of merges on the tape that have norm bounds (`radii`).
fn bounded(dir: &Path) -> usize {
    let count = "SELECT count(*) FROM tape WHERE kind = 'merged' AND data LIKE '%\"radii\"%'";
    tape(dir).query_row(count, [], |row| row.get::<_, i64>(0)).unwrap() as usize
}

/// Appends a row to the tape that marks learner 1 as suspected, in the form that `TAPE.md` specifies. Real loss checks
/// would need three learners.
fn suspect(dir: &Path) {
    let newest = "SELECT seq, at_ms, chain FROM tape ORDER BY seq DESC LIMIT 1";
    let newest = tape(dir).query_row(newest, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
    let (seq, at_ms, chain): (i64, i64, Vec<u8>) = newest.unwrap();
    let (seq, data) = (seq + 1, r#"{"kind":"doubted","learner":1,"doubt":{"looks":24}}"#);
    let parts = [&chain[..], &seq.to_le_bytes(), &at_ms.to_le_bytes(), data.as_bytes()];
    let chain = Sha256::digest(parts.concat())[..16].to_vec();
    let row = "INSERT INTO tape (seq, at_ms, kind, data, chain) VALUES (?1, ?2, 'doubted', ?3, ?4)";
    tape(dir).execute(row, (seq, at_ms, data, chain)).unwrap();
}

async fn renew() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(settings(dir.path())).await;
    let mut learner = ScriptedLearner::join(&server, 1).await;
    for _ in 0..MERGES {
        learner.merge().await;
    }
    server.stop().await;
    suspect(dir.path());
    let (folder, expected) = stored();
    drop(fs::remove_dir_all(&folder));
    copy(dir.path(), &folder);
    let text = serde_json::to_string_pretty(&replay_result(&folder, u64::MAX)).unwrap();
    fs::write(expected, text + "\n").unwrap();
}

/// Goal: the stored run is replayed to the same bits, and can be resumed.
#[tokio::test]
async fn the_stored_run_goes_on() {
    if std::env::var_os("ARCHIPELAGO_TEST_BLESS").is_some() {
        renew().await;
    }
    let (folder, description) = stored();
    let dir = tempfile::tempdir().unwrap();
    copy(&folder, dir.path());
    let expected: Value = serde_json::from_slice(&fs::read(description).unwrap()).unwrap();
    assert_eq!(layout_of(dir.path()), LAYOUT);
    assert!(bounded(dir.path()) > 0);
    assert_eq!(replay_result(dir.path(), u64::MAX), expected);

    let server = Server::start(settings(dir.path())).await;
    let mut learner = ScriptedLearner::join(&server, 2).await;
    learner.merge().await;
    let first = &server.status().await["learners"][0];
    assert_eq!(first["trust"], "suspect", "{first}");
    let merges = server.stop().await.core.fates.merged;
    assert!(merges > expected["merges"].as_u64().unwrap(), "{merges}");
    let last = expected["last"].as_u64().unwrap();
    assert_eq!(replay_result(dir.path(), last), expected, "gone on with");
    assert_eq!(replay_result(dir.path(), u64::MAX)["merges"], merges);
}

const MERGES_MIN: u64 = 12;

/// Trains a run until at least [`MERGES_MIN`] updates are merged. Every fifth update is a large one. Returns the number
/// of merged updates. An update that arrives while an earlier one waits replaces it, so not every update is merged.
async fn trained(dir: &Path) -> u64 {
    let server = Server::start(config(dir)).await;
    let mut learner = ScriptedLearner::join(&server, 1).await;
    for update in 1..=4 * MERGES_MIN {
        let invitation = learner.collect().await;
        learner.steps += 1;
        learner.report().await;
        let update = learner.update(invitation, if update % 5 == 0 { 0.01 } else { 0.004 });
        learner.client.send(&Message::Update(update)).await;
        if server.status().await["fates"]["merged"].as_u64() >= Some(MERGES_MIN) {
            break;
        }
    }
    let merges = server.stop().await.core.fates.merged;
    assert!(merges >= MERGES_MIN, "only {merges}");
    merges
}

/// Returns the arguments of a replay of the whole tape in `dir`. With `points`, it measures the loss about `points`
/// times.
pub fn args(dir: &Path, points: Option<u32>) -> ReplayArgs {
    let (losses, points) = (points.is_some(), points.unwrap_or(1));
    ReplayArgs {
        folder: dir.to_owned().into(),
        until: u64::MAX,
        merges: true,
        losses,
        points,
        plot: None,
        out: None,
        overwrite: false,
        json: false,
    }
}

fn replay(args: &ReplayArgs) -> (Replay, Vec<ReplayedMerge>) {
    let mut merges = Vec::new();
    let replay = replayed(args, |merge| merges.push(merge.clone())).unwrap();
    (replay, merges)
}

#[tokio::test]
async fn names_the_merge_that_raised_the_loss() {
    let dir = tempfile::tempdir().unwrap();
    let made = trained(dir.path()).await;

    let (plain, merges) = replay(&args(dir.path(), None));
    assert_eq!((plain.merges, merges.len() as u64), (made, made));
    assert!(plain.losses.is_none() && merges.iter().all(|merge| merge.loss.is_none()));

    // Every merge is measured.
    let (all, merges) = replay(&args(dir.path(), Some(1_000)));
    let Losses { first, least, last, every, rise } = all.losses.unwrap();
    let losses: Vec<f32> = merges.iter().map(|merge| merge.loss.unwrap()).collect();
    assert_eq!((every, last), (1, losses[losses.len() - 1]));
    assert_eq!(least, losses.iter().copied().fold(first, f32::min));
    let before = |place: usize| if place == 0 { first } else { losses[place - 1] };
    let rises = |place: usize| losses[place] - before(place);
    let steepest = (0..losses.len()).max_by(|a, b| rises(*a).total_cmp(&rises(*b))).unwrap();
    let rise = rise.expect("the large update did harm");
    assert_eq!(
        (rise.seq, rise.before, rise.after),
        (merges[steepest].seq, before(steepest), losses[steepest])
    );
    let MergedSender { name, tokens, share, .. } = &rise.members[0];
    assert_eq!((&**name, *tokens > 0, *share, rise.members.len()), ("learner 1", true, 1.0, 1));

    // Coarse measurements, then finer ones. A rise is missed if the loss falls overall between the measurements around
    // it.
    let mut times_found = 0;
    for points in [1, 3, 6, 8] {
        let (few, _) = replay(&args(dir.path(), Some(points)));
        let found = few.losses.unwrap();
        assert_eq!((found.first, found.last, found.every), (first, last, made.div_ceil(u64::from(points))));
        let Some(found) = found.rise else { continue };
        times_found += 1;
        let place = merges.iter().position(|merge| merge.seq == found.seq).unwrap();
        assert_eq!((found.before, found.after), (before(place), losses[place]), "{points} points");
    }
    assert!(times_found > 0, "{losses:?}");
}

#[tokio::test]
async fn draws_what_each_merge_did() {
    let dir = tempfile::tempdir().unwrap();
    trained(dir.path()).await;
    let plot = dir.path().join("merges.html");
    replay(&ReplayArgs { plot: Some(plot.clone()), ..args(dir.path(), None) });
    let page = |path| fs::read_to_string(path).unwrap();
    assert_eq!(page(&plot).matches("<svg").count(), 2, "learners and norms");
    let (found, _) = replay(&ReplayArgs { plot: Some(plot.clone()), ..args(dir.path(), Some(100)) });
    let page = page(&plot);
    assert_eq!(page.matches("<svg").count(), 3, "and the loss");
    let rise = found.losses.unwrap().rise.unwrap();
    assert!(page.contains(&format!("decision {}", rise.seq)) && page.contains("learner 1"), "{page}");
}

#[tokio::test]
async fn the_beginning_is_kept_while_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let made = trained(dir.path()).await;
    let often = ServeConfig { snapshot_every: "100ms".parse().unwrap(), ..config(dir.path()) };
    let server = Server::start(often).await;
    // Wait until both kept snapshots are newer than the beginning of the run.
    let kept = || fs::read_dir(dir.path().join("snapshots")).unwrap().map(|entry| entry.unwrap().file_name());
    let until = tokio::time::Instant::now() + PATIENCE;
    while kept().any(|name| *name.to_string_lossy() < *"00000004") {
        assert!(tokio::time::Instant::now() < until, "{:?}", kept().collect::<Vec<_>>());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    server.stop().await;
    let (found, _) = replay(&args(dir.path(), None));
    assert_eq!((found.first, found.merges), (1, made));
}

#[tokio::test]
async fn gives_the_model_of_any_moment() {
    let (dir, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    trained(dir.path()).await;
    let model = |name: &str| fs::read(out.path().join(name).join("model.safetensors")).unwrap();
    let at = |until: u64, name: &str| ReplayArgs {
        until,
        out: Some(out.path().join(name)),
        ..args(dir.path(), None)
    };
    let (_, merges) = replay(&args(dir.path(), None));
    export(dir.path(), &out.path().join("now"), Form::default(), false).unwrap();
    let last = replay(&at(u64::MAX, "last")).0;
    assert_eq!(last.exported.unwrap().tokens_merged, last.tokens_merged);
    assert!(model("last") == model("now"), "the tape leads to the newest snapshot");
    let middle = replay(&at(merges[5].seq, "middle")).0;
    assert_eq!((middle.merges, middle.last), (6, merges[5].seq));
    assert!(model("middle") != model("now"));
}

#[tokio::test]
async fn a_fork_begins_where_the_run_was() {
    let (dir, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    trained(dir.path()).await;
    let (_, merges) = replay(&args(dir.path(), None));
    let forked_at =
        |at: u64, to: PathBuf| fork(&ForkArgs { folder: dir.path().to_owned().into(), at, to, json: false });
    let tape = fs::read(dir.path().join("tape.sqlite")).unwrap();

    let to = place.path().join("fork");
    let forked = forked_at(merges[5].seq, to.clone()).unwrap();
    assert_eq!((forked.at, forked.tokens_merged), (merges[5].seq, merges[5].clock_tokens));
    assert!(matches!(forked_at(merges[5].seq, to.clone()), Err(ServerError::DirTaken { .. })));
    let beyond = forked_at(u64::from(u32::MAX), place.path().join("beyond"));
    assert!(
        matches!(&beyond, Err(ServerError::Config { why }) if why.contains("decisions up to")),
        "{beyond:?}"
    );
    assert!(!place.path().join("beyond").exists());

    let was = Store::open_read_only(dir.path()).manifest().unwrap().unwrap().run;
    assert_eq!(forked.of, RunId::to_string(&was));
    let server = Server::start(config(&to)).await;
    let status = server.status().await;
    assert_eq!(status["run"], *forked.run);
    assert_ne!(status["run"], *forked.of);
    assert_eq!(status["tokensMerged"], forked.tokens_merged);
    let mut learner = ScriptedLearner::join(&server, 1).await;
    learner.merge().await;
    server.stop().await;
    // The fork continues from the same parameters, and has its own tape.
    let (own, _) = replay(&args(&to, None));
    assert_eq!(own.merges, 1);
    assert!(fs::read(dir.path().join("tape.sqlite")).unwrap() == tape, "the run itself is as it was");

    // A fork that fails halfway leaves nothing behind, and neither does one whose program was killed.
    let count = || fs::read_dir(place.path()).unwrap().count();
    let before = count();
    let last = place.path().join("last");
    let held_out = dir.path().join("held-out.json");
    let whole = fs::read(&held_out).unwrap();
    fs::write(&held_out, "damaged").unwrap();
    assert!(forked_at(merges[5].seq, last.clone()).is_err());
    assert_eq!(count(), before, "half a fork is left");
    fs::write(&held_out, whole).unwrap();
    forked_at(merges[5].seq, last).unwrap();

    // The run continues without its bodies. New bodies do not reuse the numbers of missing ones.
    fs::remove_dir_all(dir.path().join("bodies")).unwrap();
    let server = Server::start(config(dir.path())).await;
    ScriptedLearner::join(&server, 1).await.merge().await;
    server.stop().await;
    assert!(!dir.path().join("bodies/00000001.bodies").exists());
    assert!(dir.path().join("bodies/00000002.bodies").exists());
}
