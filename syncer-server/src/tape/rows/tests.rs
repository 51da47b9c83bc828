//! Tests of rows: writing, reading, damage, and takeover by another process.

use archipelago_core::diloco::{Entry, LearnerId};
use tempfile::TempDir;

use super::*;
use crate::status::{LOG_MAX, LogEvent};

const RUN: RunId = RunId(7);

fn row(seq: u64) -> Row {
    let (entry, at_ms) = (Entry::Restarted { learner: LearnerId(seq as u32) }, 1_000 + seq);
    Row { seq, at_ms, entry, place: (seq == 2).then_some(Place { segment: 1, offset: 8 }) }
}

fn written(count: u64) -> (TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tape.sqlite");
    let mut rows = Rows::open(&path, RUN, 1, BEGINNING).unwrap();
    rows.append(&(1..=count).map(row).collect::<Vec<_>>(), &[], None).unwrap();
    (dir, path)
}

fn read(path: &Path, seq: u64) -> Result<Vec<Row>, RowsError> {
    let mut found = Vec::new();
    Rows::open_read_only(path, RUN)?.read(seq, |row| {
        found.push(row);
        Ok::<_, RowsError>(())
    })?;
    Ok(found)
}

fn change(path: &Path, sql: &str) {
    Connection::open(path).unwrap().execute_batch(sql).unwrap();
}

#[test]
fn rows_come_back_and_go_on() {
    let (_dir, path) = written(3);
    assert_eq!(read(&path, 0).unwrap(), (1..=3).map(row).collect::<Vec<_>>());
    assert_eq!(read(&path, 2).unwrap(), [row(3)]);
    let mut rows = Rows::open(&path, RUN, 2, SNAPSHOT).unwrap();
    assert_eq!((rows.last(), rows.is_whole().unwrap()), (3, true));
    rows.append(&[row(4)], &[], None).unwrap();
    assert_eq!(read(&path, 3).unwrap(), [row(4)]);
    rows.forget(3).unwrap();
    assert_eq!((read(&path, 3).unwrap(), rows.is_whole().unwrap()), (vec![row(4)], false));
    assert!(matches!(Rows::open(&path, RunId(8), 3, BEGINNING), Err(RowsError::OtherRun(_))));
}

/// Goal: every changed, lost or moved row is found and named.
#[test]
fn damage_is_found_and_named() {
    let damages = [
        ("UPDATE tape SET data = replace(data, '3', '4') WHERE seq = 3", 3),
        ("UPDATE tape SET at_ms = at_ms + 1 WHERE seq = 4", 4),
        ("UPDATE tape SET kind = 'merged' WHERE seq = 2", 2),
        ("UPDATE tape SET segment = 2 WHERE seq = 2", 2),
        ("UPDATE tape SET data = 'x' WHERE seq = 5", 5),
        ("DELETE FROM tape WHERE seq = 3", 4),
        ("DELETE FROM tape WHERE seq = 1", 2),
        ("UPDATE tape SET seq = 9 WHERE seq = 3", 4),
    ];
    for (damage, expected) in damages {
        let (_dir, path) = written(5);
        change(&path, damage);
        match read(&path, 0) {
            Err(RowsError::Damaged(RowDamage { seq, .. })) => assert_eq!(seq, expected, "{damage}"),
            other => panic!("{damage}: {other:?}"),
        }
    }
    let (_dir, path) = written(5);
    assert!(
        matches!(read(&path, 7), Err(RowsError::Damaged(RowDamage { seq: 7, .. }))),
        "a snapshot is ahead of its tape"
    );
}

#[test]
fn a_superseded_writer_is_fenced() {
    let (_dir, path) = written(1);
    let mut first = Rows::open(&path, RUN, 2, BEGINNING).unwrap();
    first.append(&[row(2)], &[], None).unwrap();
    let mut second = Rows::open(&path, RUN, 3, BEGINNING).unwrap();
    assert!(matches!(first.append(&[row(3)], &[], None), Err(RowsError::Fenced)));
    second.append(&[row(3)], &[], None).unwrap();
    assert_eq!(read(&path, 0).unwrap().len(), 3);
}

#[test]
fn another_layout_is_not_touched() {
    for found in [FORMAT - 1, FORMAT + 1] {
        let (_dir, path) = written(1);
        change(&path, &format!("UPDATE meta SET value = '{found}' WHERE key = 'format'"));
        let opened = Rows::open(&path, RUN, 2, BEGINNING).unwrap_err();
        assert!(matches!(opened, RowsError::Format { found: layout } if layout == found), "{opened}");
        let text = opened.to_string();
        assert!(
            text.contains(&format!("layout {found}")) && text.contains(&format!("layout {FORMAT}")),
            "{text}"
        );
        assert!(matches!(read(&path, 0), Err(RowsError::Format { .. })));
        let db = Connection::open(&path).unwrap();
        assert_eq!(meta(&db, "owner").unwrap().as_deref(), Some("1"), "the version that wrote it goes on");
    }
}

#[test]
fn missing_metadata_is_damage() {
    for (key, value) in [("format", ""), ("format", "one"), ("from", "beginnimg")] {
        let (_dir, path) = written(2);
        change(&path, &format!("UPDATE meta SET value = '{value}' WHERE key = '{key}'"));
        assert!(matches!(read(&path, 0), Err(RowsError::Meta(_, found)) if found == value), "{key} {value}");
        let opened = Rows::open(&path, RUN, 2, BEGINNING);
        assert!(matches!(opened, Err(RowsError::Meta(..))), "{key} {value}");
    }
}

/// Goal: the bytes of a row and its checksum never change.
#[test]
fn a_row_keeps_its_bytes() {
    let json = serde_json::to_string(&row(1).entry).unwrap();
    assert_eq!(json, r#"{"kind":"restarted","learner":1}"#);
    let data = br#"{"kind":"restarted","learner":2}"#;
    let chain = link(&Chain::default(), 2, 1_002, data, row(2).place);
    assert_eq!(archipelago_core::bytes::hex(&chain), "2cad7117bb0374bff640527400cae7b8");
}

#[test]
fn the_newest_lines_of_the_log_stay() {
    let (_dir, path) = written(1);
    let line = |seq| LogEntry { seq, at_ms: 7, what: LogEvent::Held { held: true } };
    let mut rows = Rows::open(&path, RUN, 2, BEGINNING).unwrap();
    let many = LOG_MAX as u64 + 5;
    rows.append(&[row(2)], &(1..=many).map(line).collect::<Vec<_>>(), None).unwrap();
    rows.append(&[], &[line(many + 1)], None).unwrap();
    let rows = Rows::open_read_only(&path, RUN).unwrap();
    assert_eq!((rows.last(), rows.logged()), (2, many + 1));
    assert_eq!(rows.log().unwrap(), (7..=many + 1).map(line).collect::<Vec<_>>());
    let count = rows.db.query_row("SELECT count(*) FROM log", [], |row| row.get::<_, i64>(0));
    assert_eq!(count, Ok(LOG_MAX as i64), "older ones are gone");
    // Damaged lines and lines of a later version are skipped.
    change(&path, "UPDATE log SET data = '{\"kind\":\"unheard_of\"}' WHERE seq > 8");
    assert_eq!(rows.log().unwrap(), [line(7), line(8)]);
}
