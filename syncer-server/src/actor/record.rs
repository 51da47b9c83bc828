//! What the actor keeps on the tape, and what waits until it is there.

use std::collections::VecDeque;
use std::sync::Arc;

use archipelago_core::diloco::syncer::Event;
use archipelago_core::diloco::tape::Gate;
use archipelago_core::diloco::{ConnId, Entry, MergeJob, Millis, Round};
use archipelago_core::wire::Bye;
use tokio::sync::watch;

use crate::clock::unix_ms;
use crate::outbox::Outgoing;
use crate::status::{Board, Carried, Happening, Taped};
use crate::tape::{State, Writer};

/// Something to be told once what was decided before it is safe.
#[derive(Debug)]
pub(super) enum Said {
    /// A message.
    Send(Vec<ConnId>, Outgoing),
    /// A goodbye.
    Close(ConnId, Bye),
    /// What happened then, to whoever watches.
    Event(Millis, Box<Event>),
}

/// The actor's side of the tape.
#[derive(Debug)]
pub(super) struct Record {
    writer: Writer,
    /// How the tape stands.
    pub(super) state: watch::Receiver<State>,
    pub(super) gate: Gate<Said>,
    /// When the decisions were made that are not on the disk yet: of each moment the first one.
    waiting: VecDeque<(u64, Millis)>,
    /// The rows after this one are needed to undo what did harm.
    needed: Option<u64>,
}

/// Decisions that lie closer together than this count as made at one moment, in milliseconds.
const MOMENT_MS: u64 = 100;

impl Record {
    /// For a run of so many fragments, on a tape to which nobody writes yet.
    pub(super) fn new(writer: Writer, fragments: u16) -> Self {
        let state = writer.state();
        let safe = state.borrow().safe;
        let mut gate = Gate::new(safe, fragments);
        if !writer.keeps() {
            gate.reach(u64::MAX);
        }
        Self { writer, state, gate, waiting: VecDeque::new(), needed: None }
    }

    /// Keeps a decision, made at `now`.
    pub(super) fn keep(&mut self, now: Millis, entry: Entry) {
        let seq = self.gate.decide(&entry);
        if self.waiting.back().is_none_or(|(_, at)| now.since(*at) >= MOMENT_MS) && self.writer.keeps() {
            self.waiting.push_back((seq, now));
        }
        self.writer.row(seq, unix_ms(), entry);
    }

    /// Keeps what is about to be merged. Whatever comes of it, it is not needed if no row speaks of it.
    pub(super) fn keep_bodies(&self, job: &MergeJob) {
        let bodies: Vec<Arc<Vec<u8>>> = job.updates.iter().map(|update| update.body.shared()).collect();
        self.writer.bodies(job.round, bodies);
    }

    /// Keeps what a fragment was undone to, before the row that says so.
    pub(super) fn keep_remade(&self, round: Round, kept: Vec<u8>) {
        self.writer.bodies(round, vec![Arc::new(kept)]);
    }

    /// From now on the rows after `seq` are needed to undo what did harm.
    pub(super) fn need(&mut self, seq: u64) {
        self.needed = Some(seq);
    }

    /// Adds a line to the run's log on `board`, and keeps it.
    pub(super) fn log(&self, board: &mut Board, now: Millis, what: Happening) {
        if let Some(entry) = board.log().add(now, unix_ms(), what) {
            self.writer.log(entry);
        }
    }

    /// Keeps the server's figures.
    pub(super) fn keep_figures(&self, figures: &Carried) {
        self.writer.figures(figures);
    }

    /// The newest line of the run's log that is on the disk.
    pub(super) fn logged(&self) -> u64 {
        self.state.borrow().logged
    }

    /// Takes in how the tape stands.
    pub(super) fn look(&mut self) -> State {
        let state = self.state.borrow_and_update().clone();
        self.gate.reach(state.safe);
        // The first of a moment may be on the disk, and the last of it not.
        while self.waiting.get(1).is_some_and(|(seq, _)| self.gate.is_safe(*seq)) {
            self.waiting.pop_front();
        }
        if self.gate.is_all_safe() {
            self.waiting.clear();
        }
        state
    }

    /// How the tape stands, for the status; `None` if another program leads the run by now.
    pub(super) fn taped(&mut self, now: Millis) -> Option<Taped> {
        let State { is_fenced, safe, body_bytes, fault, .. } = self.look();
        let taped = Taped { decisions: safe, update_bytes: body_bytes, fault, waits_ms: self.waits_ms(now) };
        (!is_fenced).then_some(taped)
    }

    /// How many decisions are not on the disk yet, and for how many seconds the oldest of them has waited.
    pub(super) fn unsaved(&self, now: Millis) -> (u64, Option<f64>) {
        let waits_ms = self.waits_ms(now).filter(|_| !self.gate.is_all_safe());
        (self.gate.unsaved(), waits_ms.map(|ms| ms as f64 / 1e3))
    }

    /// How long the oldest decision has waited for the disk that is not there yet, in milliseconds; that of a decision
    /// of the same moment, where this one is newer than that.
    fn waits_ms(&self, now: Millis) -> Option<u64> {
        self.waiting.front().map(|(_, at)| now.since(*at))
    }

    /// Nothing before row `seq` is needed to go on.
    pub(super) fn forget(&self, seq: u64) {
        self.writer.forget(self.needed.map_or(seq, |needed| seq.min(needed)));
    }
}
