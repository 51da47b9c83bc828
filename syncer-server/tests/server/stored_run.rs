//! Tests of a stored run: opened, replayed and resumed.
//!
//! `tests/golden/tape` contains the run without its snapshots, which a complete tape does not need, and a description
//! of its result. `cargo xtask test --bless tape` writes it again, which a new layout of the tape requires.

use std::fs;
use std::path::{Path, PathBuf};

use archipelago_core::bytes::hex;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use syncer_server::{ReplayArgs, ServeConfig, replayed};

use crate::replay::args;
use crate::support::{Learner, Server, config};

/// Layout of the stored tape.
const LAYOUT: &str = "6";

/// Merges until each fragment is merged with bounds.
const MERGES: usize = 12;

/// Settings of the stored runs.
fn settings(dir: &Path) -> ServeConfig {
    let config = config(dir);
    ServeConfig { method: archipelago_cli::MethodArgs { fragments: 2, ..config.method }, ..config }
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

/// Returns the result of the tape in `dir` after decision `until`.
fn leads_to(dir: &Path, until: u64) -> Value {
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

/// Returns the number of merges with bounds on the tape.
fn bounded(dir: &Path) -> usize {
    let count = "SELECT count(*) FROM tape WHERE kind = 'merged' AND data LIKE '%\"radii\"%'";
    tape(dir).query_row(count, [], |row| row.get::<_, i64>(0)).unwrap() as usize
}

/// Appends a row, in the form that `TAPE.md` specifies, that marks a learner as suspected. Loss checks would need three
/// learners for that.
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
    let mut learner = Learner::join(&server, 1).await;
    for _ in 0..MERGES {
        learner.merge().await;
    }
    server.stop().await;
    suspect(dir.path());
    let (folder, expected) = stored();
    drop(fs::remove_dir_all(&folder));
    copy(dir.path(), &folder);
    let text = serde_json::to_string_pretty(&leads_to(&folder, u64::MAX)).unwrap();
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
    assert_eq!(leads_to(dir.path(), u64::MAX), expected);

    let server = Server::start(settings(dir.path())).await;
    let mut learner = Learner::join(&server, 2).await;
    learner.merge().await;
    let first = &server.status().await["learners"][0];
    assert_eq!(first["trust"], "suspect", "{first}");
    let merges = server.stop().await.core.fates.merged;
    assert!(merges > expected["merges"].as_u64().unwrap(), "{merges}");
    let last = expected["last"].as_u64().unwrap();
    assert_eq!(leads_to(dir.path(), last), expected, "gone on with");
    assert_eq!(leads_to(dir.path(), u64::MAX)["merges"], merges);
}
