//! Server figures accumulated over all starts, in the tape's file and transactions.

use rusqlite::{Connection, OptionalExtension, Transaction};

use crate::status::Carried;

/// Statement that creates the table if it is missing. The table has one row.
pub(super) const TABLE: &str = "CREATE TABLE IF NOT EXISTS figures (
     one INTEGER PRIMARY KEY CHECK (one = 1), data TEXT NOT NULL
 ) STRICT;";

/// Replaces the figures with `json`.
pub(super) fn write(change: &Transaction<'_>, json: &str) -> Result<(), rusqlite::Error> {
    change.prepare_cached("INSERT OR REPLACE INTO figures VALUES (1, ?1)")?.execute([json])?;
    Ok(())
}

/// Returns the newest figures, if any. Ignores figures that are damaged or that a later version of this program wrote,
/// so that the run can go on.
pub(super) fn read(db: &Connection) -> Result<Option<Carried>, rusqlite::Error> {
    let json: Option<String> = db.query_row("SELECT data FROM figures", [], |row| row.get(0)).optional()?;
    let unread = |error: &serde_json::Error| tracing::warn!(%error, "the run's figures cannot be read");
    Ok(json.and_then(|json| serde_json::from_str(&json).inspect_err(unread).ok()))
}
