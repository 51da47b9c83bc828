//! Target for a run's folder that is damaged, or forged with valid checksums.

use std::fs;
use std::path::{Path, PathBuf};

use archipelago_core::diloco::tape::{Chain, Place, link};
use rusqlite::{Connection, params};
use syncer_server::{PlaceArgs, ReplayArgs, ServerError, TableArgs, inspect, replayed};

use crate::script::Script;

/// Files of a run in which any byte may change.
const FILES: [&str; 5] =
    ["run.json", "held-out.json", "tokenizer.json", "tape.sqlite", "bodies/00000001.bodies"];

/// Changes a file of a stored run, or a decision on its tape together with all later checksums, and replays the run.
/// The result is a run, or a refusal in a sentence.
pub fn run(data: &[u8]) {
    let mut script = Script(data);
    let place = tempfile::tempdir().unwrap();
    let dir = place.path();
    copy(&golden(), dir);
    if script.byte().is_multiple_of(3) {
        let file = dir.join(FILES[script.below(FILES.len())]);
        let bytes = script.edited(&fs::read(&file).unwrap());
        fs::write(&file, bytes).unwrap();
    } else {
        rewrite(&mut script, &dir.join("tape.sqlite"));
    }
    let args = ReplayArgs {
        folder: dir.to_owned().into(),
        until: u64::MAX,
        merges: true,
        losses: false,
        points: 1,
        plot: None,
        out: None,
        overwrite: false,
        json: false,
    };
    refused(replayed(&args, |_| {}).err());
    let place = PlaceArgs { url: String::new(), ca: None, dir: Some(dir.to_owned()) };
    refused(inspect::status(&TableArgs { place, json: true, csv: false }).err());
}

/// Checks that a refusal has a text and is not an internal error.
fn refused(error: Option<ServerError>) {
    if let Some(error) = error {
        assert!(!matches!(error, ServerError::Internal { .. }), "{error}");
        assert!(!error.to_string().trim().is_empty());
    }
}

/// Changes one decision, and recomputes the checksums of its row and of all later ones.
fn rewrite(script: &mut Script<'_>, file: &Path) {
    let db = Connection::open(file).unwrap();
    let mut rows = db.prepare("SELECT seq, at_ms, data, segment, offset FROM tape ORDER BY seq").unwrap();
    let rows = rows.query_map([], |row| {
        let place: (Option<u32>, Option<u64>) =
            (row.get(3)?, row.get::<_, Option<i64>>(4)?.map(|at| at as u64));
        Ok((row.get::<_, i64>(0)? as u64, row.get::<_, i64>(1)? as u64, row.get::<_, String>(2)?, place))
    });
    let rows: Vec<_> = rows.unwrap().collect::<Result<_, _>>().unwrap();
    let which = script.below(rows.len().clamp(1, 256));
    let mut chain = Chain::default();
    for (number, (seq, at_ms, data, (segment, offset))) in rows.into_iter().enumerate() {
        let data = match number == which {
            true => String::from_utf8_lossy(&script.edited(data.as_bytes())).into_owned(),
            false => data,
        };
        let place = segment.zip(offset).map(|(segment, offset)| Place { segment, offset });
        chain = link(&chain, seq, at_ms, data.as_bytes(), place);
        let change = "UPDATE tape SET data = ?1, chain = ?2 WHERE seq = ?3";
        db.execute(change, params![data, chain, seq as i64]).unwrap();
    }
}

/// Returns the path of the stored run.
fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden/tape/6")
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to.join("bodies")).unwrap();
    for name in FILES {
        fs::copy(from.join(name), to.join(name)).unwrap();
    }
}
