//! What the actor keeps on the tape, and what waits until it is there.

use std::sync::Arc;

use archipelago::diloco::syncer::Event;
use archipelago::diloco::tape::Gate;
use archipelago::diloco::{ConnId, Entry, MergeJob, Millis};
use archipelago::wire::Bye;
use tokio::sync::watch;

use crate::clock::unix_ms;
use crate::outbox::Outgoing;
use crate::status::{Board, Happening};
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
}

impl Record {
    /// For a run of so many fragments, on a tape to which nobody writes yet.
    pub(super) fn new(writer: Writer, fragments: u16) -> Self {
        let state = writer.state();
        let safe = state.borrow().safe;
        let mut gate = Gate::new(safe, fragments);
        if !writer.keeps() {
            gate.reach(u64::MAX);
        }
        Self { writer, state, gate }
    }

    /// Keeps a decision.
    pub(super) fn keep(&mut self, entry: Entry) {
        let seq = self.gate.decide(&entry);
        self.writer.row(seq, unix_ms(), entry);
    }

    /// Keeps what is about to be merged. Whatever comes of it, it is not needed if no row speaks of it.
    pub(super) fn keep_bodies(&self, job: &MergeJob) {
        let bodies: Vec<Arc<Vec<u8>>> = job.updates.iter().map(|update| update.body.shared()).collect();
        self.writer.bodies(job.round, bodies);
    }

    /// Adds a line to the run's log on `board`, and keeps it.
    pub(super) fn log(&self, board: &mut Board, now: Millis, what: Happening) {
        if let Some(entry) = board.log().add(now, unix_ms(), what) {
            self.writer.log(entry);
        }
    }

    /// The newest line of the run's log that is on the disk.
    pub(super) fn logged(&self) -> u64 {
        self.state.borrow().logged
    }

    /// Takes in how the tape stands.
    pub(super) fn look(&mut self) -> State {
        let state = self.state.borrow_and_update().clone();
        self.gate.reach(state.safe);
        state
    }

    /// Nothing before row `seq` is needed to go on.
    pub(super) fn forget(&self, seq: u64) {
        self.writer.forget(seq);
    }
}
