//! Folders of runs that former versions of the program wrote: opened, followed again, and gone on with.
//!
//! `tests/golden/tape` has one for each layout of the tape: as it was left, without its snapshots, which do not matter
//! to a tape that is whole, and what it leads to beside it. `RENEW_TAPE=1 cargo test -p syncer-server --test server
//! stored_runs` writes that of the newest layout anew, which is needed once a layout is added; the others stay as they
//! are.

use std::fs;
use std::path::{Path, PathBuf};

use archipelago_core::bytes::hex;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use syncer_server::{ReplayArgs, ServeConfig, replayed};

use crate::replay::args;
use crate::support::{Learner, Server, config};

/// The layouts there have been. On the first one no merge was bounded, before the third none was undone, and before the
/// fourth nobody was suspected. Before the fifth additions of a merge were rounded.
const LAYOUTS: [u32; 5] = [1, 2, 3, 4, 5];

/// Merges until each fragment is merged with bounds.
const MERGES: usize = 12;

/// Settings of the stored runs.
fn settings(dir: &Path) -> ServeConfig {
    let config = config(dir);
    ServeConfig { method: archipelago_cli::MethodArgs { fragments: 2, ..config.method }, ..config }
}

/// Where the run of a layout is stored, and what it leads to.
fn stored(layout: u32) -> (PathBuf, PathBuf) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/tape");
    (folder.join(layout.to_string()), folder.join(format!("{layout}.json")))
}

/// A copy of the stored run of a layout.
fn copy_of(layout: u32) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    copy(&stored(layout).0, dir.path());
    dir
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

/// What the tape in `dir` leads to after decision `until`.
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

/// Merges with bounds on the tape.
fn bounded(dir: &Path) -> usize {
    let count = "SELECT count(*) FROM tape WHERE kind = 'merged' AND data LIKE '%\"radii\"%'";
    tape(dir).query_row(count, [], |row| row.get::<_, i64>(0)).unwrap() as usize
}

/// Merges on the tape that were added up without rounding.
fn exact(dir: &Path) -> usize {
    let count = "SELECT count(*) FROM tape WHERE kind = 'merged' AND data LIKE '%\"summing\":\"exact\"%'";
    tape(dir).query_row(count, [], |row| row.get::<_, i64>(0)).unwrap() as usize
}

/// Writes down that the learner of a run is suspected, as looks at its updates would have it, for which there have to
/// be three: a row as `TAPE.md` describes it.
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

async fn renew(layout: u32) {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(settings(dir.path())).await;
    let mut learner = Learner::join(&server, 1).await;
    for _ in 0..MERGES {
        learner.merge().await;
    }
    server.stop().await;
    suspect(dir.path());
    let (folder, expected) = stored(layout);
    drop(fs::remove_dir_all(&folder));
    copy(dir.path(), &folder);
    let text = serde_json::to_string_pretty(&leads_to(&folder, u64::MAX)).unwrap();
    fs::write(expected, text + "\n").unwrap();
}

/// Goal: a run of each layout there ever was is followed to the same bits, goes on, and is of the newest layout then.
#[tokio::test]
async fn stored_runs_of_every_layout_go_on() {
    let newest = LAYOUTS[LAYOUTS.len() - 1];
    if std::env::var_os("RENEW_TAPE").is_some() {
        renew(newest).await;
    }
    for layout in LAYOUTS {
        let dir = copy_of(layout);
        let expected: Value = serde_json::from_slice(&fs::read(stored(layout).1).unwrap()).unwrap();
        assert_eq!(layout_of(dir.path()), layout.to_string());
        assert_eq!(bounded(dir.path()) > 0, layout > 1, "layout {layout}");
        assert_eq!(exact(dir.path()) > 0, layout > 4, "layout {layout}");
        assert_eq!(leads_to(dir.path(), u64::MAX), expected, "layout {layout}");
        assert_eq!(layout_of(dir.path()), layout.to_string(), "who only looks changes nothing");

        let server = Server::start(settings(dir.path())).await;
        let mut learner = Learner::join(&server, 2).await;
        learner.merge().await;
        let first = &server.status().await["learners"][0];
        assert_eq!(first["trust"] == "suspect", layout > 3, "layout {layout}: {first}");
        let merges = server.stop().await.core.fates.merged;
        assert!(merges > expected["merges"].as_u64().unwrap(), "layout {layout}: {merges}");
        assert_eq!(layout_of(dir.path()), newest.to_string());
        let last = expected["last"].as_u64().unwrap();
        assert_eq!(leads_to(dir.path(), last), expected, "layout {layout}, gone on with");
        assert_eq!(leads_to(dir.path(), u64::MAX)["merges"], merges, "layout {layout}");
    }
}
