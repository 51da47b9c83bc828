//! Invites, the keys that they admitted, and bans, in an SQLite file in the run's folder.
//!
//! The file is separate from the tape, because it is about keys and not about the run. Other programs write to it while
//! a server runs, and the owner may give away a copy of the run without it. Only hashes of invites are stored.

mod invite;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use archipelago_core::wire::Fingerprint;
use rusqlite::{Connection, OptionalExtension, params};

use crate::errors::ServerError;
use crate::store::{at_fault, disk, is_of_the_disk, is_there};

#[cfg_attr(not(test), allow(unused_imports, reason = "named by the types of pages"))]
pub use invite::MadeInvite;
pub use invite::{InviteFault, InviteTerms, InviteView};

/// Name of the file in the run's folder.
pub const FILE: &str = "guests.sqlite";

/// File format that this program writes, and the newest format that it reads.
const FORMAT: i64 = 1;

/// Maximum wait for another program that is writing to the file.
const BUSY_FOR: Duration = Duration::from_secs(5);

/// Maximum length of the note on an invite or a ban, in bytes.
pub const NOTE_BYTES_MAX: usize = 200;

/// The invites and bans of one run.
#[derive(Debug)]
pub struct InviteStore {
    path: PathBuf,
    db: Mutex<Connection>,
}

/// A banned key.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct BanView {
    /// The key's fingerprint, as 32 hex digits.
    pub fingerprint: String,
    /// The owner's note.
    pub note: String,
    /// Time of the ban, in milliseconds since 1970.
    #[cfg_attr(test, ts(type = "number"))]
    pub at_ms: u64,
}

impl InviteStore {
    /// Opens the invites and bans of the run in `dir`; creates the file if it is missing.
    ///
    /// # Errors
    /// - `Disk`: the file cannot be read or written.
    /// - `DirCorrupt`: the file is damaged, or of a later version of this program.
    pub fn open(dir: &Path) -> Result<Self, ServerError> {
        let path = dir.join(FILE);
        let db = Connection::open(&path).map_err(|error| broken(&path, error))?;
        let invite_store = Self { path, db: Mutex::new(db) };
        invite_store.prepare()?;
        Ok(invite_store)
    }

    /// Writes a consistent copy of the invites and bans of the run in `dir` to the folder `to`, if the run has any. The
    /// copy is on disk when this function returns.
    ///
    /// # Errors
    /// - `Disk`: a file cannot be read or written, or `to` is not UTF-8 text.
    /// - `DirCorrupt`: the file is damaged.
    pub fn copy(dir: &Path, to: &Path) -> Result<(), ServerError> {
        let (path, copy) = (dir.join(FILE), to.join(FILE));
        if !is_there(&path)? {
            return Ok(());
        }
        let wrong = |error| broken(&path, error);
        let db = Connection::open(&path).map_err(wrong)?;
        db.busy_timeout(BUSY_FOR).map_err(wrong)?;
        let name = copy.to_str().ok_or_else(|| wrong(rusqlite::Error::InvalidPath(copy.clone())))?;
        let copied = db.execute("VACUUM INTO ?1", [name]);
        copied.map_err(|error| broken(at_fault(&error, &path, &copy), error))?;
        let file = File::options().write(true).open(&copy).map_err(disk("sync", &copy))?;
        file.sync_all().map_err(disk("sync", &copy))
    }

    fn prepare(&self) -> Result<(), ServerError> {
        let db = self.lock();
        let wrong = |error| broken(&self.path, error);
        db.busy_timeout(BUSY_FOR).map_err(wrong)?;
        db.pragma_update(None, "journal_mode", "WAL").map_err(wrong)?;
        // A commit is on disk when it returns, so an admission survives a crash.
        db.pragma_update(None, "synchronous", "FULL").map_err(wrong)?;
        // SQLite compares each key and invite in the table with its index.
        let found: String = db.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0)).map_err(wrong)?;
        if found != "ok" {
            return Err(ServerError::DirCorrupt { path: self.path.clone(), why: damaged(&found) });
        }
        let format: i64 = db.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(wrong)?;
        if format > FORMAT {
            let why =
                format!("it is of layout {format}, but this program reads layout {FORMAT}: use a newer one");
            return Err(ServerError::DirCorrupt { path: self.path.clone(), why });
        }
        db.execute_batch(
            "BEGIN IMMEDIATE;
             CREATE TABLE IF NOT EXISTS invites (
                 id TEXT PRIMARY KEY, hash BLOB NOT NULL UNIQUE, note TEXT NOT NULL, uses INTEGER NOT NULL,
                 made_ms INTEGER NOT NULL, expires_ms INTEGER, revoked_ms INTEGER
             ) STRICT;
             CREATE TABLE IF NOT EXISTS guests (
                 fingerprint BLOB PRIMARY KEY, invite TEXT NOT NULL, at_ms INTEGER NOT NULL
             ) STRICT;
             CREATE INDEX IF NOT EXISTS guests_invite ON guests (invite, at_ms);
             CREATE TABLE IF NOT EXISTS bans (
                 fingerprint BLOB PRIMARY KEY, note TEXT NOT NULL, at_ms INTEGER NOT NULL
             ) STRICT;
             PRAGMA user_version = 1;
             COMMIT;",
        )
        .map_err(wrong)
    }

    /// Bans a key. Returns true if it was not banned before.
    ///
    /// # Errors
    /// `Disk`, `DirCorrupt`: the file cannot be changed. `Config`: the note is too long.
    pub fn ban(&self, fingerprint: Fingerprint, note: &str, now_ms: u64) -> Result<bool, ServerError> {
        check_note(note)?;
        let insert = "INSERT OR IGNORE INTO bans VALUES (?1, ?2, ?3)";
        let done = self.lock().execute(insert, params![fingerprint.0, note, now_ms as i64]);
        Ok(done.map_err(|error| broken(&self.path, error))? > 0)
    }

    /// Lifts a ban. Returns true if there was one.
    ///
    /// # Errors
    /// `Disk`, `DirCorrupt`: the file cannot be changed.
    pub fn lift(&self, fingerprint: Fingerprint) -> Result<bool, ServerError> {
        let done = self.lock().execute("DELETE FROM bans WHERE fingerprint = ?1", [fingerprint.0]);
        Ok(done.map_err(|error| broken(&self.path, error))? > 0)
    }

    /// Returns true if the key is banned.
    ///
    /// # Errors
    /// `Disk`, `DirCorrupt`: the file cannot be read.
    pub fn is_banned(&self, fingerprint: Fingerprint) -> Result<bool, ServerError> {
        let query = "SELECT 1 FROM bans WHERE fingerprint = ?1";
        let found = self.lock().query_row(query, [fingerprint.0], |_| Ok(())).optional();
        Ok(found.map_err(|error| broken(&self.path, error))?.is_some())
    }

    /// Returns all bans, newest first.
    ///
    /// # Errors
    /// `Disk`, `DirCorrupt`: the file cannot be read.
    pub fn bans(&self) -> Result<Vec<BanView>, ServerError> {
        let read = |row: &rusqlite::Row<'_>| {
            let at_ms = row.get::<_, i64>(2)? as u64;
            Ok(BanView { fingerprint: Fingerprint(row.get(0)?).to_string(), note: row.get(1)?, at_ms })
        };
        self.list("SELECT fingerprint, note, at_ms FROM bans ORDER BY at_ms DESC, fingerprint", read)
    }

    /// Returns all banned keys, each with the time of its ban in milliseconds since 1970.
    ///
    /// # Errors
    /// `Disk`, `DirCorrupt`: the file cannot be read.
    pub fn banned(&self) -> Result<BTreeMap<Fingerprint, u64>, ServerError> {
        let read = |row: &rusqlite::Row<'_>| Ok((Fingerprint(row.get(0)?), row.get::<_, i64>(1)? as u64));
        Ok(self.list("SELECT fingerprint, at_ms FROM bans", read)?.into_iter().collect())
    }

    fn list<T>(
        &self,
        query: &str,
        read: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, ServerError> {
        let db = self.lock();
        let rows = db.prepare(query).and_then(|mut query| query.query_map([], read)?.collect());
        rows.map_err(|error| broken(&self.path, error))
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        // A panic within a transaction rolls it back, so a poisoned lock is still valid.
        self.db.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks the length of a note.
///
/// # Errors
/// `Config`: the note is too long.
pub fn check_note(note: &str) -> Result<(), ServerError> {
    match note.len() <= NOTE_BYTES_MAX {
        true => Ok(()),
        false => {
            let why = format!(
                "a note has at most {NOTE_BYTES_MAX} bytes, but this one has {}: shorten it",
                note.len()
            );
            Err(ServerError::Config { why })
        }
    }
}

fn damaged(why: &impl std::fmt::Display) -> String {
    format!(
        "it is damaged: {why}; restore it from a copy, or remove it, which forgets all bans and admissions"
    )
}

fn broken(path: &Path, error: rusqlite::Error) -> ServerError {
    if !is_of_the_disk(&error) {
        return ServerError::DirCorrupt { path: path.to_owned(), why: damaged(&error) };
    }
    ServerError::Disk { what: "read or write", path: path.to_owned(), source: std::io::Error::other(error) }
}

#[cfg(test)]
mod tests;
