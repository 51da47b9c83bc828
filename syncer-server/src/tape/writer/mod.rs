//! The thread that writes rows and bodies to disk.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use archipelago_core::diloco::tape::{Blobs, PendingBodies, Tape, TapeJob};
use archipelago_core::diloco::{Entry, Round, RunId};
use tokio::sync::watch;

use super::bodies::SEGMENT_BYTES;
use super::rows::{BEGINNING, SNAPSHOT};
use super::{Bodies, Place, Row, Rows, RowsError};
use crate::errors::ServerError;
use crate::status::{LOG_MAX, LogEntry, RunStatistics};
use crate::store::{Store, disk};

/// Maximum number of jobs in a batch.
const BATCH_MAX: usize = 4_096;
/// Maximum size of a row on disk, including unused space of its page, in bytes. Only merges of many updates are larger.
const ROW_BYTES: u64 = 1_024;
/// Pause after each commit. Jobs that arrive during the pause share the next commit. Even a small commit takes 0.1 ms
/// of processor time.
const REST: Duration = Duration::from_millis(4);
/// Pause between two attempts to write while the disk fails.
const RETRY: Duration = Duration::from_millis(500);
/// Maximum number of attempts to write the remaining jobs when the program ends.
const LAST_TRIES: u32 = 10;

/// State of the tape on disk.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// Number of the newest row on disk.
    pub safe: u64,
    /// Number of the newest log line on disk.
    pub logged: u64,
    /// Reason why nothing can be written at present, if any.
    pub fault: Option<Arc<str>>,
    /// True once another process has taken over the run. This process must then stop.
    pub is_fenced: bool,
    /// Total size of the bodies on disk, in bytes.
    pub body_bytes: u64,
}

/// A job for the writer's thread.
enum Job {
    /// Write a decision or bodies, or delete old ones.
    Tape(TapeJob),
    /// Write a line of the run's log.
    Log(LogEntry),
    /// Write statistics of the server, as JSON. They replace earlier ones.
    Figures(Arc<str>),
}

/// Handle of the writer's thread. Dropping it waits for the last write.
#[derive(Debug)]
pub struct Writer {
    jobs: Option<Sender<Job>>,
    state: watch::Receiver<State>,
    thread: Option<JoinHandle<()>>,
    /// The run's log at the start, until it is taken.
    log: Vec<LogEntry>,
    /// The server's statistics at the start, until they are taken.
    figures: Option<RunStatistics>,
}

impl Writer {
    /// Opens the tape of `run` in the folder of `store` as `owner`, and starts the thread. `is_new` is true if the run
    /// is created now. Of bodies that recovery does not need, at most `keep_bytes` stay on disk.
    ///
    /// # Errors
    /// - `Disk`: the tape cannot be opened.
    /// - `DirCorrupt`: the tape is damaged, or belongs to another run or another version of this program.
    /// - `System`: the thread cannot be started.
    pub fn start(
        store: &Store,
        run: RunId,
        owner: u64,
        is_new: bool,
        keep_bytes: u64,
    ) -> Result<Self, ServerError> {
        let path = store.tape_path();
        let from = if is_new { BEGINNING } else { SNAPSHOT };
        let broken = |error| super::recover::broken(&path, error);
        if store.has_tape() {
            Rows::verify(&path, run).map_err(broken)?;
        }
        let rows = Rows::open(&path, run, owner, from).map_err(broken)?;
        let dir = store.dir().join(super::recover::BODIES);
        let named = rows.segments().map_err(broken)?;
        let bodies = Bodies::open(&dir, &named).map_err(disk("make", &dir))?;
        let body_bytes = bodies.bytes();
        let (log, figures) = (rows.log().map_err(broken)?, rows.figures().map_err(broken)?);
        let (jobs, queue) = channel();
        let (safe, logged) = (rows.last(), rows.logged());
        let (published, state) = watch::channel(State { safe, logged, body_bytes, ..State::default() });
        let files = Files { rows, bodies, lines: Vec::new(), figures: None };
        let worker = Worker { files, keep_bytes, held: PendingBodies::default(), state: published };
        let thread = std::thread::Builder::new().name("tape".to_owned()).spawn(move || worker.work(&queue));
        let thread =
            thread.map_err(|source| ServerError::System { what: "cannot start a thread".into(), source })?;
        Ok(Self { jobs: Some(jobs), state, thread: Some(thread), log, figures })
    }

    /// Creates a writer that stores nothing, for benchmarks and for processes of a cluster; see [`Self::keeps`]. All
    /// log lines count as stored.
    #[must_use]
    pub fn none() -> Self {
        let state = State { logged: u64::MAX, ..State::default() };
        Self { jobs: None, state: watch::channel(state).1, thread: None, log: Vec::new(), figures: None }
    }

    /// Returns true if decisions are stored. If not, no message has to wait for the disk.
    #[must_use]
    pub fn keeps(&self) -> bool {
        self.jobs.is_some()
    }

    /// Writes the bodies of the updates merged in `round`, in order of learners.
    pub fn bodies(&self, round: Round, bodies: Vec<Arc<Vec<u8>>>) {
        self.send(Job::Tape(TapeJob::Bodies(round, bodies)));
    }

    /// Writes a decision.
    pub fn row(&self, seq: u64, at_ms: u64, entry: Entry) {
        self.send(Job::Tape(TapeJob::Row(Row { seq, at_ms, entry, place: None })));
    }

    /// Writes a line of the run's log.
    pub fn log(&self, entry: LogEntry) {
        self.send(Job::Log(entry));
    }

    /// Replaces the stored statistics of the server.
    pub fn figures(&self, figures: &RunStatistics) {
        if self.keeps() {
            self.send(Job::Figures(serde_json::to_string(figures).expect("plain data").into()));
        }
    }

    /// Takes the statistics that were stored at the start. Later calls return `None`.
    pub fn take_figures(&mut self) -> Option<RunStatistics> {
        self.figures.take()
    }

    /// Takes the run's log that was stored at the start, oldest line first. Later calls return an empty list.
    pub fn take_log(&mut self) -> Vec<LogEntry> {
        std::mem::take(&mut self.log)
    }

    /// Permits the deletion of the rows before row `seq`, which recovery no longer needs.
    pub fn forget(&self, seq: u64) {
        self.send(Job::Tape(TapeJob::Forget(seq)));
    }

    /// Returns a receiver of the tape's current state.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<State> {
        self.state.clone()
    }

    fn send(&self, job: Job) {
        // The thread ends before its queue does only if another process took over the run. The state then shows this.
        if let Some(jobs) = &self.jobs {
            let _ = jobs.send(job);
        }
    }
}

impl Drop for Writer {
    /// Waits until all jobs are written, or until the last attempts have failed.
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // The thread has logged the fault.
            let _ = thread.join();
        }
    }
}

struct Worker {
    files: Files,
    keep_bytes: u64,
    held: PendingBodies,
    state: watch::Sender<State>,
}

/// Files of the tape.
struct Files {
    rows: Rows,
    bodies: Bodies,
    /// Log lines that are written with the next rows.
    lines: Vec<LogEntry>,
    /// Statistics that are written with the next rows.
    figures: Option<Arc<str>>,
}

impl Tape for Files {
    type Error = Fault;

    fn last(&self) -> u64 {
        self.rows.last()
    }

    fn append_rows(&mut self, rows: &[Row]) -> Result<(), Fault> {
        self.rows.append(rows, &self.lines, self.figures.as_deref())?;
        self.lines.clear();
        self.figures = None;
        Ok(())
    }
}

impl Blobs for Files {
    type Error = Fault;

    fn append_bodies(&mut self, bodies: &[Arc<Vec<u8>>]) -> Result<Place, Fault> {
        Ok(self.bodies.append(bodies)?)
    }

    fn sync_bodies(&mut self) -> Result<(), Fault> {
        let synced = self.bodies.sync();
        if synced.is_err() {
            self.bodies.abandon();
        }
        Ok(synced?)
    }
}

/// Reason why a batch could not be written.
#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error("cannot write the tape's rows: {0}")]
    Rows(#[from] RowsError),
    #[error("cannot write the tape's bodies: {0}")]
    Bodies(#[from] io::Error),
}

impl Worker {
    fn work(mut self, queue: &Receiver<Job>) {
        let mut batch = Vec::new();
        let mut tries_left = LAST_TRIES;
        loop {
            let is_faulty = self.state.borrow().fault.is_some();
            match queue.recv_timeout(if is_faulty { RETRY } else { Duration::MAX }) {
                Ok(job) => batch.push(job),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) if batch.is_empty() || tries_left == 0 => return,
                Err(RecvTimeoutError::Disconnected) => {
                    tries_left -= 1;
                    std::thread::sleep(if is_faulty { RETRY } else { Duration::ZERO });
                }
            }
            batch.extend(queue.try_iter().take(BATCH_MAX));
            match self.write(&batch) {
                Ok(()) => {
                    batch.clear();
                    std::thread::sleep(REST);
                }
                Err(fault) => {
                    let is_fenced = matches!(fault, Fault::Rows(RowsError::Fenced));
                    let text: Arc<str> = fault.to_string().into();
                    let is_news = self.state.send_if_modified(|state| {
                        let is_news = state.fault.as_ref() != Some(&text);
                        (state.fault, state.is_fenced) = (Some(text), is_fenced);
                        is_news
                    });
                    if is_news {
                        tracing::error!(%fault, "the tape cannot be written: the run stands still until it can");
                    }
                    if is_fenced {
                        return;
                    }
                    forget_oldest_lines(&mut batch);
                    forget_old_figures(&mut batch);
                }
            }
        }
    }

    /// Writes a batch to disk. After an error, the same batch can be written again.
    fn write(&mut self, batch: &[Job]) -> Result<(), Fault> {
        let of_tape = |job: &Job| if let Job::Tape(job) = job { Some(job.clone()) } else { None };
        let of_log = |job: &Job| if let Job::Log(entry) = job { Some(entry.clone()) } else { None };
        let of_figures = |job: &Job| if let Job::Figures(json) = job { Some(Arc::clone(json)) } else { None };
        let jobs: Vec<TapeJob> = batch.iter().filter_map(of_tape).collect();
        let logged = self.files.rows.logged();
        self.files.lines = batch.iter().filter_map(of_log).filter(|entry| entry.seq > logged).collect();
        self.files.figures = batch.iter().filter_map(of_figures).next_back();
        self.held.write(&jobs, &mut self.files)?;
        // If there were no rows to write, lines and statistics are still left.
        if !self.files.lines.is_empty() || self.files.figures.is_some() {
            self.files.append_rows(&[])?;
        }
        let forget = jobs
            .iter()
            .filter_map(|job| if let TapeJob::Forget(seq) = job { Some(*seq) } else { None })
            .max();
        if let Some(seq) = forget {
            self.forget(seq)?;
        }
        let Files { rows, bodies, .. } = &self.files;
        let (safe, logged, body_bytes) = (rows.last(), rows.logged(), bodies.bytes());
        let is_mended = self.state.borrow().fault.is_some();
        self.state.send_replace(State { safe, logged, fault: None, is_fenced: false, body_bytes });
        if is_mended {
            tracing::info!("the tape can be written again");
        }
        Ok(())
    }

    /// Deletes bodies that exceed their limit and that recovery from row `seq` does not need. Then deletes rows that
    /// are useless without them.
    fn forget(&mut self, seq: u64) -> Result<(), Fault> {
        let Files { rows, bodies, .. } = &mut self.files;
        let needed = rows.segment_of(seq)?.unwrap_or(u32::MAX);
        let oldest = bodies.forget(needed, self.keep_bytes)?;
        // As long as all updates are stored, the run can be replayed from its first decision.
        let gone = rows.last_before(oldest)?;
        let until = first_kept(seq, gone, rows.last(), self.keep_bytes);
        if rows.first()?.is_some_and(|first| first < until) {
            rows.forget(until)?;
        }
        Ok(())
    }
}

/// Returns the number of the first row to keep. Recovery needs the rows from `needed` on. The updates of merges up to
/// row `gone` are deleted, so those rows are useless. If few merges happen, reports and leases still add rows: rows
/// beyond `keep_bytes`, or beyond the size of a segment if that is larger, are surplus. `last` is the newest row.
fn first_kept(needed: u64, gone: Option<u64>, last: u64, keep_bytes: u64) -> u64 {
    let lost = gone.map_or(0, |gone| gone + 1);
    let surplus = (last + 1).saturating_sub(keep_bytes.max(SEGMENT_BYTES) / ROW_BYTES);
    needed.min(lost.max(surplus))
}

/// Drops the oldest log lines from `batch` while the disk fails, because only [`LOG_MAX`] lines are kept anyway.
fn forget_oldest_lines(batch: &mut Vec<Job>) {
    let lines = batch.iter().filter(|job| matches!(job, Job::Log(_))).count();
    let mut surplus = lines.saturating_sub(LOG_MAX);
    batch.retain(|job| {
        let is_surplus = surplus > 0 && matches!(job, Job::Log(_));
        surplus -= usize::from(is_surplus);
        !is_surplus
    });
}

/// Removes all statistics from `batch` except the newest.
fn forget_old_figures(batch: &mut Vec<Job>) {
    let newest = batch.iter().rposition(|job| matches!(job, Job::Figures(_)));
    let mut at = 0..;
    batch.retain(|job| at.next() == newest || !matches!(job, Job::Figures(_)));
}

#[cfg(test)]
mod tests;
