//! The decisions, as rows of an SQLite file.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::Duration;

use archipelago_core::diloco::RunId;
use archipelago_core::diloco::tape::{Chain, Links, RowDamage, link};
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};

use super::{Place, Row, figures, log, wal};
use crate::status::{Carried, LogEntry};

/// The layout that this program writes and reads.
const FORMAT: i64 = 6;

/// Where the tape of a run begins that was begun with one.
pub const BEGINNING: &str = "beginning";

/// Where the tape of a fork begins.
pub const SNAPSHOT: &str = "snapshot";

/// Time that somebody else who reads or writes may take.
const BUSY_FOR: Duration = Duration::from_secs(5);

/// The rows of one run.
#[derive(Debug)]
pub struct Rows {
    db: Connection,
    /// Who writes: another program that opens the file is another one, and then this one may write no more.
    owner: u64,
    last: u64,
    chain: Chain,
    /// The newest line of the run's log.
    logged: u64,
}

/// Why rows cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum RowsError {
    /// SQLite says no.
    #[error("{0}")]
    Sqlite(#[from] rusqlite::Error),
    /// Another program writes here by now.
    #[error("another program has opened this run: two must not lead it")]
    Fenced,
    /// Another version of this program wrote the file.
    #[error("it is of layout {found}, and this program reads layout {FORMAT}: use the version that wrote it")]
    Format {
        /// The layout of the file.
        found: i64,
    },
    /// The file does not say what it is.
    #[error("it is damaged: its {0} is {1:?}")]
    Meta(&'static str, String),
    /// What SQLite wrote last is damaged, and it would leave out what comes after that.
    #[error("its write-ahead log, {0}, is damaged from byte {1} on")]
    Log(String, u64),
    /// That cannot be looked at.
    #[error("cannot read its write-ahead log: {0}")]
    LogUnread(#[source] std::io::Error),
    /// SQLite finds something wrong with how the file is built.
    #[error("it is damaged: {0}")]
    Pages(String),
    /// The file is another run's.
    #[error("it is the tape of run {0}")]
    OtherRun(String),
    /// A row is not what was written.
    #[error(transparent)]
    Damaged(#[from] RowDamage),
}

impl Rows {
    /// Opens the file to write to it as `owner`, and makes it if it is not there. `from` says of a new one where it
    /// begins: [`BEGINNING`], or [`SNAPSHOT`].
    ///
    /// # Errors
    /// [`RowsError`] but `Fenced`.
    pub fn open(path: &Path, run: RunId, owner: u64, from: &str) -> Result<Self, RowsError> {
        let mut db = Connection::open(path)?;
        db.busy_timeout(BUSY_FOR)?;
        db.pragma_update(None, "journal_mode", "WAL")?;
        // A commit is on the disk when it returns.
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
        change.execute_batch(figures::TABLE)?;
        set_if_absent(&change, "format", &FORMAT.to_string())?;
        set_if_absent(&change, "run", &run.to_string())?;
        set_if_absent(&change, "from", from)?;
        // Before anything is changed: it may be another version's, or another run's.
        check(&change, run)?;
        change.execute("INSERT OR REPLACE INTO meta VALUES ('owner', ?1)", [owner.to_string()])?;
        change.commit()?;
        Self::opened(db, run, owner)
    }

    /// Sees to it that the file at `path` is whole, before anything is written over what is not. Only who leads the run
    /// may ask.
    ///
    /// # Errors
    /// [`RowsError`] but `Fenced`.
    pub fn verify(path: &Path, run: RunId) -> Result<(), RowsError> {
        check_log(path, || false)?;
        Self::look(path, run)?.check_pages()
    }

    /// Opens the file to read it.
    ///
    /// # Errors
    /// [`RowsError`] but `Fenced`.
    pub fn look(path: &Path, run: RunId) -> Result<Self, RowsError> {
        // While somebody writes, the end of the log is never still.
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

    /// Has SQLite look at each page of the file and compare its index with the rows: a row that a damaged page hides is
    /// missed by nobody else if it is the last. All of it is read: 1.5 s of processor time for each gigabyte of rows.
    ///
    /// # Errors
    /// `Sqlite`, `Pages`.
    pub fn check_pages(&self) -> Result<(), RowsError> {
        let found: String = self.db.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
        if found == "ok" { Ok(()) } else { Err(RowsError::Pages(found)) }
    }

    /// When the newest merge was decided, in milliseconds since 1970, if one is left.
    ///
    /// # Errors
    /// `Sqlite`.
    pub fn last_merge_ms(&self) -> Result<Option<u64>, RowsError> {
        let query = "SELECT at_ms FROM tape WHERE kind = 'merged' ORDER BY seq DESC LIMIT 1";
        let at_ms: Option<i64> = self.db.query_row(query, [], |row| row.get(0)).optional()?;
        Ok(at_ms.map(|at_ms| at_ms as u64))
    }

    /// Whether the tape holds the whole run, from its first decision on.
    ///
    /// # Errors
    /// `Sqlite`.
    pub fn is_whole(&self) -> Result<bool, RowsError> {
        Ok(self.first()?.is_none_or(|first| first == 1)
            && meta(&self.db, "from")?.as_deref() == Some(BEGINNING))
    }

    /// The number of the newest row, 0 if there is none.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.last
    }

    /// The number of the newest line of the run's log, 0 if there is none.
    #[must_use]
    pub fn logged(&self) -> u64 {
        self.logged
    }

    /// The run's log, oldest line first.
    ///
    /// # Errors
    /// `Sqlite`.
    pub fn log(&self) -> Result<Vec<LogEntry>, RowsError> {
        Ok(log::read(&self.db)?)
    }

    /// Returns the figures that the server wrote last, if any.
    ///
    /// # Errors
    /// `Sqlite`.
    pub fn figures(&self) -> Result<Option<Carried>, RowsError> {
        Ok(figures::read(&self.db)?)
    }

    /// Appends `rows`, and `entries` to the run's log, and replaces the figures by `figures`, if given. All of it is
    /// written or nothing, and it is on the disk when this returns.
    ///
    /// # Errors
    /// `Sqlite`, `Fenced`.
    pub fn append(
        &mut self,
        rows: &[Row],
        entries: &[LogEntry],
        figures: Option<&str>,
    ) -> Result<(), RowsError> {
        // One that begins by reading would not wait for another program that writes.
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
        figures.map_or(Ok(()), |json| figures::write(&change, json))?;
        change.commit()?;
        self.chain = chain;
        self.last = rows.last().map_or(self.last, |row| row.seq);
        self.logged = entries.last().map_or(self.logged, |entry| entry.seq);
        Ok(())
    }

    /// The number of the oldest row, if there is one.
    ///
    /// # Errors
    /// `Sqlite`.
    pub fn first(&self) -> Result<Option<u64>, RowsError> {
        let first: Option<i64> = self.db.query_row("SELECT min(seq) FROM tape", [], |row| row.get(0))?;
        Ok(first.map(|seq| seq as u64))
    }

    /// Hands the rows after `seq` to `take`, in order; each is compared with its checksum.
    ///
    /// # Errors
    /// `Sqlite`, `Damaged`, and those of `take`.
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
                    let why = format!("it is of the kind {}, and called {kind}", row.entry.kind());
                    return Err(RowsError::from(RowDamage { seq: row.seq, why }).into());
                }
                take(row)?;
            }
        }
        Ok(links.end().map_err(RowsError::from)?)
    }

    /// Writes a copy of the file as it is at this moment to `to`, which must not be there, while others write on. It is
    /// not synced.
    ///
    /// # Errors
    /// `Sqlite`, also if `to` is no UTF-8 text.
    pub fn copy_to(&self, to: &Path) -> Result<(), RowsError> {
        let name = to.to_str().ok_or_else(|| rusqlite::Error::InvalidPath(to.to_owned()))?;
        self.db.execute("VACUUM INTO ?1", [name])?;
        Ok(())
    }

    /// Forgets the rows before `seq`.
    ///
    /// # Errors
    /// `Sqlite`.
    pub fn forget(&mut self, seq: u64) -> Result<(), RowsError> {
        self.db.execute("DELETE FROM tape WHERE seq < ?1", [seq as i64])?;
        Ok(())
    }

    /// Merges up to row `until`.
    ///
    /// # Errors
    /// `Sqlite`.
    pub fn merges(&self, until: u64) -> Result<u64, RowsError> {
        let query = "SELECT count(*) FROM tape WHERE seq <= ?1 AND kind = 'merged'";
        let until = i64::try_from(until).unwrap_or(i64::MAX);
        Ok(self.db.query_row(query, [until], |row| row.get::<_, i64>(0))? as u64)
    }

    /// The segment that the first merge from row `seq` on is in.
    ///
    /// # Errors
    /// `Sqlite`.
    pub fn segment_of(&self, seq: u64) -> Result<Option<u32>, RowsError> {
        let query = "SELECT segment FROM tape WHERE seq >= ?1 AND segment IS NOT NULL ORDER BY seq LIMIT 1";
        Ok(self.db.query_row(query, [seq as i64], |row| row.get(0)).optional()?)
    }

    /// Returns the segments that rows name, oldest first.
    ///
    /// # Errors
    /// `Sqlite`.
    pub fn segments(&self) -> Result<Vec<u32>, RowsError> {
        let query = "SELECT DISTINCT segment FROM tape WHERE segment IS NOT NULL ORDER BY segment";
        Ok(self.db.prepare(query)?.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?)
    }

    /// The number of the last merge whose bodies are in a segment before `segment`.
    ///
    /// # Errors
    /// `Sqlite`.
    pub fn last_before(&self, segment: u32) -> Result<Option<u64>, RowsError> {
        let query = "SELECT max(seq) FROM tape WHERE segment < ?1";
        let seq: Option<i64> = self.db.query_row(query, [segment], |row| row.get(0))?;
        Ok(seq.map(|seq| seq as u64))
    }
}

/// Looks at what SQLite wrote last to the file at `path`, before it does itself.
fn check_log(path: &Path, is_written: impl Fn() -> bool) -> Result<(), RowsError> {
    match wal::damage(path).map_err(RowsError::LogUnread)?.filter(|_| !is_written()) {
        Some(at) => Err(RowsError::Log(wal::path(path).display().to_string(), at)),
        None => Ok(()),
    }
}

/// Checks that the file is of the layout that this program reads, and of this run.
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

#[cfg(test)]
mod tests;
