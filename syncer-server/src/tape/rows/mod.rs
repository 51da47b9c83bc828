//! Rows of the tape: decisions in an SQLite file.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::Duration;

use archipelago_core::diloco::RunId;
use archipelago_core::diloco::tape::{Chain, Links, RowDamage, link};
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};

use super::{Place, Row, log, wal};
use crate::status::{LogEntry, RunStatistics};

/// Layout of the file that this program reads and writes.
const FORMAT: i64 = 6;

/// Value of `from` in a tape that starts with its run's first decision.
pub const BEGINNING: &str = "beginning";

/// Value of `from` in the tape of a fork, which starts from a snapshot.
pub const SNAPSHOT: &str = "snapshot";

/// SQL statement that creates the table of the server's statistics, which has one row.
const FIGURES_TABLE: &str = "CREATE TABLE IF NOT EXISTS figures (
     one INTEGER PRIMARY KEY CHECK (one = 1), data TEXT NOT NULL
 ) STRICT;";

/// Maximum wait for another connection to the file.
const BUSY_FOR: Duration = Duration::from_secs(5);

/// The rows of one run's tape.
#[derive(Debug)]
pub struct Rows {
    db: Connection,
    /// Identity of the writer. Once another process has opened the file for writing, this one can no longer write.
    owner: u64,
    last: u64,
    chain: Chain,
    /// Number of the newest line of the run's log.
    logged: u64,
}

/// Reason why rows cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RowsError {
    /// SQLite reported an error.
    #[error("{0}")]
    Sqlite(#[from] rusqlite::Error),
    /// Another process has opened the file for writing.
    #[error("another program has opened this run: only one may lead it")]
    Fenced,
    /// Another version of this program wrote the file.
    #[error("it is of layout {found}, but this program reads layout {FORMAT}: use the version that wrote it")]
    Format {
        /// Layout of the file.
        found: i64,
    },
    /// A value in the table of metadata is missing or invalid.
    #[error("it is damaged: its {0} is {1:?}")]
    Meta(&'static str, String),
    /// The write-ahead log is damaged. SQLite would silently drop everything after the damage.
    #[error("its write-ahead log, {0}, is damaged from byte {1} on")]
    Log(String, u64),
    /// The write-ahead log cannot be read.
    #[error("cannot read its write-ahead log: {0}")]
    LogUnread(#[source] std::io::Error),
    /// SQLite's integrity check failed.
    #[error("it is damaged: {0}")]
    Pages(String),
    /// The file belongs to another run.
    #[error("it is the tape of run {0}")]
    OtherRun(String),
    /// A row does not match its checksum.
    #[error(transparent)]
    Damaged(#[from] RowDamage),
}

impl Rows {
    /// Opens the file for writing as `owner`, and creates it if it is missing. `from` states where a new tape starts:
    /// [`BEGINNING`] or [`SNAPSHOT`].
    ///
    /// # Errors
    /// All of [`RowsError`] except `Fenced`.
    pub fn open(path: &Path, run: RunId, owner: u64, from: &str) -> Result<Self, RowsError> {
        let mut db = Connection::open(path)?;
        db.busy_timeout(BUSY_FOR)?;
        db.pragma_update(None, "journal_mode", "WAL")?;
        // A commit returns only when it is on disk.
        db.pragma_update(None, "synchronous", "FULL")?;
        let change = db.transaction()?;
        change.execute_batch(
            "CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
             CREATE TABLE IF NOT EXISTS tape (
                 seq INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, kind TEXT NOT NULL, data TEXT NOT NULL,
                 segment INTEGER, offset INTEGER, chain BLOB NOT NULL
             ) STRICT;
             CREATE INDEX IF NOT EXISTS tape_segment ON tape (segment) WHERE segment IS NOT NULL;",
        )?;
        change.execute_batch(log::TABLE)?;
        change.execute_batch(FIGURES_TABLE)?;
        set_if_absent(&change, "format", &FORMAT.to_string())?;
        set_if_absent(&change, "run", &run.to_string())?;
        set_if_absent(&change, "from", from)?;
        // The file may belong to another version or another run, so this is checked before any change is committed.
        check(&change, run)?;
        change.execute("INSERT OR REPLACE INTO meta VALUES ('owner', ?1)", [owner.to_string()])?;
        change.commit()?;
        Self::opened(db, run, owner)
    }

    /// Checks that the file at `path` is intact, before anything is written to it. Only the process that holds the
    /// run's lock may call this.
    ///
    /// # Errors
    /// All of [`RowsError`] except `Fenced`.
    pub fn verify(path: &Path, run: RunId) -> Result<(), RowsError> {
        check_log(path, || false)?;
        Self::open_read_only(path, run)?.check_pages()
    }

    /// Opens the file for reading only.
    ///
    /// # Errors
    /// All of [`RowsError`] except `Fenced`.
    pub fn open_read_only(path: &Path, run: RunId) -> Result<Self, RowsError> {
        // While a writer is active, the end of its log changes and may appear damaged.
        let is_written = || {
            let lock = File::open(path.with_file_name("lock"));
            lock.is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)))
        };
        check_log(path, is_written)?;
        let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_WRITE | rusqlite::OpenFlags::SQLITE_OPEN_NO_MUTEX;
        Self::opened(Connection::open_with_flags(path, flags)?, run, 0)
    }

    fn opened(db: Connection, run: RunId, owner: u64) -> Result<Self, RowsError> {
        db.busy_timeout(BUSY_FOR)?;
        check(&db, run)?;
        let newest = "SELECT seq, chain FROM tape ORDER BY seq DESC LIMIT 1";
        let newest =
            db.query_row(newest, [], |row| Ok((row.get::<_, i64>(0)? as u64, row.get(1)?))).optional()?;
        let (last, chain) = newest.unwrap_or_default();
        let logged = log::last(&db)?;
        Ok(Self { db, owner, last, chain, logged })
    }

    /// Checks all pages and the index with SQLite's integrity check. Only this check detects a damaged page that hides
    /// the last row. It reads the whole file, which takes 1.5 s of processor time per gigabyte.
    ///
    /// # Errors
    /// `Sqlite`: the file cannot be read. `Pages`: the check failed.
    pub fn check_pages(&self) -> Result<(), RowsError> {
        let found: String = self.db.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
        if found == "ok" { Ok(()) } else { Err(RowsError::Pages(found)) }
    }

    /// Returns the time of the newest merge on the tape, in milliseconds since 1970.
    ///
    /// # Errors
    /// `Sqlite`: the file cannot be read.
    pub fn last_merge_ms(&self) -> Result<Option<u64>, RowsError> {
        let query = "SELECT at_ms FROM tape WHERE kind = 'merged' ORDER BY seq DESC LIMIT 1";
        let at_ms: Option<i64> = self.db.query_row(query, [], |row| row.get(0)).optional()?;
        Ok(at_ms.map(|at_ms| at_ms as u64))
    }

    /// Returns true if the tape holds the whole run, from its first decision.
    ///
    /// # Errors
    /// `Sqlite`: the file cannot be read.
    pub fn is_whole(&self) -> Result<bool, RowsError> {
        Ok(self.first()?.is_none_or(|first| first == 1)
            && meta(&self.db, "from")?.as_deref() == Some(BEGINNING))
    }

    /// Returns the number of the newest row; 0 if there are no rows.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Returns the number of the newest line of the run's log; 0 if the log is empty.
    #[must_use]
    pub fn logged(&self) -> u64 {
        self.logged
    }

    /// Returns the run's log, oldest line first.
    ///
    /// # Errors
    /// `Sqlite`: the file cannot be read.
    pub fn log(&self) -> Result<Vec<LogEntry>, RowsError> {
        Ok(log::read(&self.db)?)
    }

    /// Returns the newest statistics of the server, if any.
    ///
    /// # Errors
    /// `Sqlite`: the file cannot be read.
    pub fn figures(&self) -> Result<Option<RunStatistics>, RowsError> {
        Ok(read_figures(&self.db)?)
    }

    /// Appends `rows`, appends `entries` to the run's log, and replaces the statistics with `figures`, if given. The
    /// write is atomic, and on disk when this function returns.
    ///
    /// # Errors
    /// `Sqlite`: the file cannot be written. `Fenced`: another process has opened it for writing.
    pub fn append(
        &mut self,
        rows: &[Row],
        entries: &[LogEntry],
        figures: Option<&str>,
    ) -> Result<(), RowsError> {
        // A transaction that starts with a read would fail instead of waiting for another writer.
        let change = self.db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        if meta(&change, "owner")? != Some(self.owner.to_string()) {
            return Err(RowsError::Fenced);
        }
        let mut chain = self.chain;
        {
            let mut insert = change.prepare_cached("INSERT INTO tape VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)")?;
            for row in rows {
                let data = serde_json::to_string(&row.entry).expect("plain data");
                chain = link(&chain, row.seq, row.at_ms, data.as_bytes(), row.place);
                let place = row.place.map(|place| (place.segment, place.offset as i64));
                let (segment, offset) = place.unzip();
                let (seq, at_ms) = (row.seq as i64, row.at_ms as i64);
                insert.execute(params![seq, at_ms, row.entry.kind(), data, segment, offset, chain])?;
            }
        }
        log::append(&change, entries)?;
        figures.map_or(Ok(()), |json| write_figures(&change, json))?;
        change.commit()?;
        self.chain = chain;
        self.last = rows.last().map_or(self.last, |row| row.seq);
        self.logged = entries.last().map_or(self.logged, |entry| entry.seq);
        Ok(())
    }

    /// Returns the number of the oldest row, if any.
    ///
    /// # Errors
    /// `Sqlite`: the file cannot be read.
    pub fn first(&self) -> Result<Option<u64>, RowsError> {
        let first: Option<i64> = self.db.query_row("SELECT min(seq) FROM tape", [], |row| row.get(0))?;
        Ok(first.map(|seq| seq as u64))
    }

    /// Passes each row after row `seq` to `take`, in order. The checksum of each row is checked first.
    ///
    /// # Errors
    /// - `Sqlite`: the file cannot be read.
    /// - `Damaged`: a row does not match its checksum, or is missing.
    /// - Those of `take`.
    pub fn read<E: From<RowsError>>(
        &self,
        seq: u64,
        mut take: impl FnMut(Row) -> Result<(), E>,
    ) -> Result<(), E> {
        let columns =
            "SELECT seq, at_ms, data, segment, offset, chain, kind FROM tape WHERE seq >= ?1 ORDER BY seq";
        let mut select = self.db.prepare(columns).map_err(RowsError::from)?;
        let mut found = select.query([seq as i64]).map_err(RowsError::from)?;
        let mut links = Links::after(seq);
        while let Some(raw) = found.next().map_err(RowsError::from)? {
            let (row, kind, chain) = parse(raw, seq)?;
            let data = serde_json::to_string(&row.entry).expect("plain data");
            let is_wanted = links.next(row.seq, row.at_ms, data.as_bytes(), row.place, &chain);
            if is_wanted.map_err(RowsError::from)? {
                if kind != row.entry.kind() {
                    let why = format!("it is of the kind {}, but is recorded as {kind}", row.entry.kind());
                    return Err(RowsError::from(RowDamage { seq: row.seq, why }).into());
                }
                take(row)?;
            }
        }
        Ok(links.end().map_err(RowsError::from)?)
    }

    /// Copies the file as of this moment to `to`, which must not exist. Other processes may keep writing. The copy is
    /// not synced.
    ///
    /// # Errors
    /// `Sqlite`: the copy cannot be written, or `to` is not valid UTF-8.
    pub fn copy_to(&self, to: &Path) -> Result<(), RowsError> {
        let name = to.to_str().ok_or_else(|| rusqlite::Error::InvalidPath(to.to_owned()))?;
        self.db.execute("VACUUM INTO ?1", [name])?;
        Ok(())
    }

    /// Deletes the rows before `seq`.
    ///
    /// # Errors
    /// `Sqlite`: the file cannot be written.
    pub fn forget(&mut self, seq: u64) -> Result<(), RowsError> {
        self.db.execute("DELETE FROM tape WHERE seq < ?1", [seq as i64])?;
        Ok(())
    }

    /// Returns the number of merges up to row `until`.
    ///
    /// # Errors
    /// `Sqlite`: the file cannot be read.
    pub fn merges(&self, until: u64) -> Result<u64, RowsError> {
        let query = "SELECT count(*) FROM tape WHERE seq <= ?1 AND kind = 'merged'";
        let until = i64::try_from(until).unwrap_or(i64::MAX);
        Ok(self.db.query_row(query, [until], |row| row.get::<_, i64>(0))? as u64)
    }

    /// Returns the segment with the bodies of the first row at or after row `seq` that has bodies.
    ///
    /// # Errors
    /// `Sqlite`: the file cannot be read.
    pub fn segment_of(&self, seq: u64) -> Result<Option<u32>, RowsError> {
        let query = "SELECT segment FROM tape WHERE seq >= ?1 AND segment IS NOT NULL ORDER BY seq LIMIT 1";
        Ok(self.db.query_row(query, [seq as i64], |row| row.get(0)).optional()?)
    }

    /// Returns the numbers of the segments to which rows refer, in ascending order.
    ///
    /// # Errors
    /// `Sqlite`: the file cannot be read.
    pub fn segments(&self) -> Result<Vec<u32>, RowsError> {
        let query = "SELECT DISTINCT segment FROM tape WHERE segment IS NOT NULL ORDER BY segment";
        Ok(self.db.prepare(query)?.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?)
    }

    /// Returns the number of the last row whose bodies are in a segment before `segment`.
    ///
    /// # Errors
    /// `Sqlite`: the file cannot be read.
    pub fn last_before(&self, segment: u32) -> Result<Option<u64>, RowsError> {
        let query = "SELECT max(seq) FROM tape WHERE segment < ?1";
        let seq: Option<i64> = self.db.query_row(query, [segment], |row| row.get(0))?;
        Ok(seq.map(|seq| seq as u64))
    }
}

/// Checks the write-ahead log of the file at `path`, before SQLite opens it. Damage is ignored if the file
/// `is_written`.
fn check_log(path: &Path, is_written: impl Fn() -> bool) -> Result<(), RowsError> {
    match wal::damage(path).map_err(RowsError::LogUnread)?.filter(|_| !is_written()) {
        Some(at) => Err(RowsError::Log(wal::path(path).display().to_string(), at)),
        None => Ok(()),
    }
}

/// Checks that the file has the supported layout and belongs to `run`.
fn check(db: &Connection, run: RunId) -> Result<(), RowsError> {
    let text = meta(db, "format")?.unwrap_or_default();
    match text.parse() {
        Ok(FORMAT) => {}
        Ok(found) => return Err(RowsError::Format { found }),
        Err(_) => return Err(RowsError::Meta("layout", text)),
    }
    let from = meta(db, "from")?.unwrap_or_default();
    if ![BEGINNING, SNAPSHOT].contains(&&*from) {
        return Err(RowsError::Meta("beginning", from));
    }
    let theirs = meta(db, "run")?.unwrap_or_default();
    if theirs != run.to_string() {
        return Err(RowsError::OtherRun(theirs));
    }
    Ok(())
}

fn parse(raw: &rusqlite::Row<'_>, after: u64) -> Result<(Row, String, Chain), RowsError> {
    let seq = raw.get::<_, i64>(0).map_err(|error| RowDamage { seq: after, why: error.to_string() })?;
    let seq = seq as u64;
    let damaged = |why: String| RowDamage { seq, why };
    let wrong = |error: rusqlite::Error| damaged(error.to_string());
    let data: String = raw.get(2).map_err(wrong)?;
    let entry = serde_json::from_str(&data).map_err(|error| damaged(error.to_string()))?;
    let (segment, offset): (Option<u32>, Option<i64>) =
        (raw.get(3).map_err(wrong)?, raw.get(4).map_err(wrong)?);
    let place = segment.zip(offset).map(|(segment, offset)| Place { segment, offset: offset as u64 });
    let at_ms = raw.get::<_, i64>(1).map_err(wrong)? as u64;
    Ok((Row { seq, at_ms, entry, place }, raw.get(6).map_err(wrong)?, raw.get(5).map_err(wrong)?))
}

fn meta(db: &Connection, key: &str) -> Result<Option<String>, RowsError> {
    let mut select = db.prepare_cached("SELECT value FROM meta WHERE key = ?1")?;
    Ok(select.query_row([key], |row| row.get(0)).optional()?)
}

fn set_if_absent(change: &Transaction<'_>, key: &str, value: &str) -> Result<(), RowsError> {
    change.execute("INSERT OR IGNORE INTO meta VALUES (?1, ?2)", [key, value])?;
    Ok(())
}

/// Replaces the statistics with `json`.
fn write_figures(change: &Transaction<'_>, json: &str) -> Result<(), rusqlite::Error> {
    change.prepare_cached("INSERT OR REPLACE INTO figures VALUES (1, ?1)")?.execute([json])?;
    Ok(())
}

/// Returns the newest statistics, if any. Damaged ones, and those of a later version of this program, are ignored, so
/// that the run can continue.
fn read_figures(db: &Connection) -> Result<Option<RunStatistics>, rusqlite::Error> {
    let json: Option<String> = db.query_row("SELECT data FROM figures", [], |row| row.get(0)).optional()?;
    let unread = |error: &serde_json::Error| tracing::warn!(%error, "the run's figures cannot be read");
    Ok(json.and_then(|json| serde_json::from_str(&json).inspect_err(unread).ok()))
}

#[cfg(test)]
mod tests;
