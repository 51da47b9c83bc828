//! The actor's side of the tape: decisions to write, and messages that wait until those are on disk.

use std::collections::VecDeque;
use std::sync::Arc;

use archipelago_core::diloco::syncer::Event;
use archipelago_core::diloco::tape::Gate;
use archipelago_core::diloco::{ConnId, Entry, MergeJob, Millis, Round};
use archipelago_core::wire::Bye;
use tokio::sync::watch;

use crate::clock::unix_ms;
use crate::outbox::Outgoing;
use crate::status::{LogEvent, RunStatistics, StatusTracker, Taped};
use crate::tape::{State, Writer};

/// A message or event that leaves once the decisions before it are on disk.
#[derive(Debug)]
pub(super) enum DeferredOutput {
    /// A message to these connections.
    Send(Vec<ConnId>, Outgoing),
    /// A goodbye, which closes this connection.
    Close(ConnId, Bye),
    /// An event at this time, for watchers.
    Event(Millis, Box<Event>),
}

/// The actor's side of the tape.
#[derive(Debug)]
pub(super) struct Record {
    writer: Writer,
    /// Progress and faults of the tape.
    pub(super) state: watch::Receiver<State>,
    pub(super) gate: Gate<DeferredOutput>,
    /// Numbers and times of decisions that are not on disk yet. One entry stands for all decisions within
    /// [`MOMENT_MS`].
    waiting: VecDeque<(u64, Millis)>,
    /// Number of a row. A rollback needs the rows after it.
    needed: Option<u64>,
}

/// Time span of the decisions that share one entry of [`Record::waiting`], in milliseconds.
const MOMENT_MS: u64 = 100;

impl Record {
    /// Creates the record of a run with this many fragments; `writer` has written nothing yet.
    pub(super) fn new(writer: Writer, fragments: u16) -> Self {
        let state = writer.state();
        let safe = state.borrow().safe;
        let mut gate = Gate::new(safe, fragments);
        if !writer.keeps() {
            gate.reach(u64::MAX);
        }
        Self { writer, state, gate, waiting: VecDeque::new(), needed: None }
    }

    /// Writes a decision that was made at `now`.
    pub(super) fn keep(&mut self, now: Millis, entry: Entry) {
        let seq = self.gate.decide(&entry);
        if self.waiting.back().is_none_or(|(_, at)| now.since(*at) >= MOMENT_MS) && self.writer.keeps() {
            self.waiting.push_back((seq, now));
        }
        self.writer.row(seq, unix_ms(), entry);
    }

    /// Writes the updates that are about to be merged. If no row refers to them, they are not needed.
    pub(super) fn keep_bodies(&self, job: &MergeJob) {
        let bodies: Vec<Arc<Vec<u8>>> = job.updates.iter().map(|update| update.body.shared()).collect();
        self.writer.bodies(job.round, bodies);
    }

    /// Writes the rolled-back state of a fragment. The row that refers to it follows later.
    pub(super) fn keep_rolled_back(&self, round: Round, kept: Vec<u8>) {
        self.writer.bodies(round, vec![Arc::new(kept)]);
    }

    /// Marks the rows after `seq` as needed for a rollback.
    pub(super) fn need(&mut self, seq: u64) {
        self.needed = Some(seq);
    }

    /// Adds a line to the run's log on `board`, and writes it.
    pub(super) fn log(&self, board: &mut StatusTracker, now: Millis, what: LogEvent) {
        if let Some(entry) = board.log().add(now, unix_ms(), what) {
            self.writer.log(entry);
        }
    }

    /// Writes the server's figures.
    pub(super) fn keep_figures(&self, figures: &RunStatistics) {
        self.writer.figures(figures);
    }

    /// Returns the number of the newest log line on disk.
    pub(super) fn logged(&self) -> u64 {
        self.state.borrow().logged
    }

    /// Reads the current state of the tape, and marks decisions that are on disk.
    pub(super) fn refresh(&mut self) -> State {
        let state = self.state.borrow_and_update().clone();
        self.gate.reach(state.safe);
        // The first decision of an entry may be on disk while a later one is not.
        while self.waiting.get(1).is_some_and(|(seq, _)| self.gate.is_safe(*seq)) {
            self.waiting.pop_front();
        }
        if self.gate.is_all_safe() {
            self.waiting.clear();
        }
        state
    }

    /// Returns the state of the tape for the status; `None` if another program now leads the run.
    pub(super) fn taped(&mut self, now: Millis) -> Option<Taped> {
        let State { is_fenced, safe, body_bytes, fault, .. } = self.refresh();
        let taped = Taped { decisions: safe, update_bytes: body_bytes, fault, waits_ms: self.waits_ms(now) };
        (!is_fenced).then_some(taped)
    }

    /// Returns the number of decisions that are not on disk yet, and the wait of the oldest one in seconds.
    pub(super) fn unsaved(&self, now: Millis) -> (u64, Option<f64>) {
        let waits_ms = self.waits_ms(now).filter(|_| !self.gate.is_all_safe());
        (self.gate.unsaved(), waits_ms.map(|ms| ms as f64 / 1e3))
    }

    /// Returns the wait of the oldest decision that is not on disk yet, in milliseconds. If an older decision shares
    /// its entry in `waiting`, the result is the wait of that one.
    fn waits_ms(&self, now: Millis) -> Option<u64> {
        self.waiting.front().map(|(_, at)| now.since(*at))
    }

    /// Releases the rows before `seq`, except those that a rollback needs.
    pub(super) fn forget(&self, seq: u64) {
        self.writer.forget(self.needed.map_or(seq, |needed| seq.min(needed)));
    }
}
