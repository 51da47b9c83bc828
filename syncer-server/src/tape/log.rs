//! Lines of the run's log, which share the tape's file and its transactions.

use rusqlite::{Connection, Transaction, params};

use crate::status::{LOG_MAX, LogEntry};

/// SQL statement that creates the table of log lines.
pub(super) const TABLE: &str = "CREATE TABLE IF NOT EXISTS log (
     seq INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, data TEXT NOT NULL
 ) STRICT;";

/// Returns the number of the newest line; 0 if the log is empty.
pub(super) fn last(db: &Connection) -> Result<u64, rusqlite::Error> {
    let last: Option<i64> = db.query_row("SELECT max(seq) FROM log", [], |row| row.get(0))?;
    Ok(last.unwrap_or_default() as u64)
}

/// Appends `entries`, and deletes all but the newest [`LOG_MAX`] lines.
pub(super) fn append(change: &Transaction<'_>, entries: &[LogEntry]) -> Result<(), rusqlite::Error> {
    let Some(newest) = entries.last() else { return Ok(()) };
    let mut insert = change.prepare_cached("INSERT OR REPLACE INTO log VALUES (?1, ?2, ?3)")?;
    for entry in entries {
        let data = serde_json::to_string(&entry.what).expect("plain data");
        insert.execute(params![entry.seq as i64, entry.at_ms as i64, data])?;
    }
    let oldest = newest.seq.saturating_sub(LOG_MAX as u64);
    change.execute("DELETE FROM log WHERE seq <= ?1", [oldest as i64])?;
    Ok(())
}

/// Returns all lines, oldest first. Damaged lines, and lines of later versions of this program, are skipped, so that
/// the run can continue.
pub(super) fn read(db: &Connection) -> Result<Vec<LogEntry>, rusqlite::Error> {
    let mut select = db.prepare("SELECT seq, at_ms, data FROM log ORDER BY seq DESC LIMIT ?1")?;
    let rows = select.query_map([LOG_MAX as i64], |row| {
        Ok((row.get::<_, i64>(0)? as u64, row.get::<_, i64>(1)? as u64, row.get::<_, String>(2)?))
    })?;
    let mut entries = Vec::new();
    for row in rows {
        let (seq, at_ms, data) = row?;
        match serde_json::from_str(&data) {
            Ok(what) => entries.push(LogEntry { seq, at_ms, what }),
            Err(error) => tracing::warn!(seq, %error, "a line of the run's log cannot be read"),
        }
    }
    entries.reverse();
    Ok(entries)
}
