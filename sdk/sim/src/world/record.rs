//! The syncer's side of its tape: writes in progress, and messages that wait for them.

use std::sync::Arc;

use super::World;
use super::attempt::Failed;
use super::happening::Happening;
use archipelago_core::diloco::syncer::{Input, RemakeJob};
use archipelago_core::diloco::tape::{Gate, Held, Row, Taking, TapeJob};
use archipelago_core::diloco::{Entry, MergeJob, MergeOutcome, kept};
use archipelago_core::wire::{Bye, ConnId, Message};

/// Time between two attempts while the disk fails, in milliseconds, as in the server.
const RETRY_MS: u64 = 500;
/// Chance that a write takes only some of the queued jobs: the server's writer takes the jobs that it finds.
const SPLIT_SHARE: f64 = 0.25;

/// An effect that waits until the decisions before it are on the disk.
#[derive(Debug)]
pub(super) enum Said {
    Send(Vec<ConnId>, Message),
    Close(ConnId, Bye),
}

/// State of the tape in a syncer process.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) gate: Gate<Said>,
    pub(super) taking: Option<Taking>,
    /// Whether a snapshot is being written.
    pub(super) saving: bool,
    /// Fragments to roll back whose newest version is not on the disk yet.
    pub(super) remakes: Vec<RemakeJob>,
    jobs: Vec<TapeJob>,
    held: Held,
    /// Whether rows are being written.
    writing: bool,
    /// Whether the last write failed.
    failing: bool,
    /// Whether the core knows of the failure.
    stalled: bool,
}

impl Record {
    /// Creates the state for a run of `fragments` fragments, on a tape that ends with row `seq`.
    pub(super) fn new(seq: u64, fragments: u16) -> Self {
        Self {
            gate: Gate::new(seq, fragments),
            taking: None,
            saving: false,
            remakes: Vec::new(),
            jobs: Vec::new(),
            held: Held::default(),
            writing: false,
            failing: false,
            stalled: false,
        }
    }
}

impl World {
    pub(super) fn keep(&mut self, entry: Entry) {
        let seq = self.record.gate.decide(&entry);
        self.audit.on_entry(seq, &entry);
        self.note_entry(&entry);
        self.record.jobs.push(TapeJob::Row(Row { seq, at_ms: self.now.0, entry, place: None }));
        if self.spec.shell.sync_ms == 0 {
            self.write_tape();
        }
    }

    pub(super) fn keep_bodies(&mut self, job: &MergeJob) {
        let bodies = job.updates.iter().map(|update| update.body.shared()).collect();
        self.record.jobs.push(TapeJob::Bodies(job.round, bodies));
    }

    /// Writes the result of a fragment's rollback, before the row that refers to it.
    pub(super) fn keep_remade(&mut self, outcome: &MergeOutcome) {
        let bodies = vec![Arc::new(kept(&outcome.state))];
        self.record.jobs.push(TapeJob::Bodies(outcome.round, bodies));
    }

    /// Releases effects that are safe, continues the tape, and tells the core about a failing disk.
    pub(super) fn tend_tape(&mut self) {
        self.write_tape();
        self.release();
        self.step_snapshot();
        self.remake_due();
        self.judge_look();
        let is_stalled = self.record.failing;
        if is_stalled != self.record.stalled {
            self.record.stalled = is_stalled;
            self.tell_syncer(Input::Stall(is_stalled));
        }
    }

    /// Retries a failed write.
    pub(super) fn retry_tape(&mut self, generation: u32) {
        if generation != self.generation {
            return;
        }
        self.record.failing = false;
        self.tend_tape();
    }

    fn plan_retry(&mut self) {
        let generation = self.generation;
        self.queue.plan(self.now.after(RETRY_MS), Happening::RetryTape { generation });
    }

    /// Begins to write the queued jobs, unless a write is in progress or has just failed.
    fn write_tape(&mut self) {
        if self.record.writing || self.record.failing || self.record.jobs.is_empty() {
            return;
        }
        let sync_ms = self.spec.shell.sync_ms;
        let mut count = self.record.jobs.len();
        if sync_ms > 0 && self.disk.rng.chance(SPLIT_SHARE) {
            count = 1 + self.disk.rng.below(count as u64) as usize;
        }
        let batch: Vec<TapeJob> = self.record.jobs.drain(..count).collect();
        if let Err(Failed) = self.record.held.write(&batch, &mut self.disk.attempt()) {
            self.disk.failures += 1;
            // The same jobs are retried, with those that arrive in the meantime.
            self.record.jobs.splice(..0, batch);
            self.record.failing = true;
            return self.plan_retry();
        }
        let rows =
            batch.iter().filter_map(|job| if let TapeJob::Row(row) = job { Some(row.seq) } else { None });
        let Some(seq) = rows.max() else { return };
        if sync_ms == 0 {
            return self.reach(seq);
        }
        self.record.writing = true;
        let turns = 1 + u64::from(self.disk.tape.waits_for_bodies());
        let generation = self.generation;
        self.queue.plan(self.now.after(turns * sync_ms), Happening::Taped { generation, seq });
    }

    /// Marks everything up to row `seq` as on the disk.
    pub(super) fn taped(&mut self, generation: u32, seq: u64) {
        if generation != self.generation {
            return;
        }
        self.record.writing = false;
        self.reach(seq);
        self.tend_tape();
        self.answer_waiting();
    }

    fn reach(&mut self, seq: u64) {
        self.disk.tape.sync();
        self.record.gate.reach(seq);
        self.audit.on_safe(seq);
    }

    /// Releases effects that are safe.
    fn release(&mut self) {
        while let Some(said) = self.record.gate.release() {
            self.say(said);
        }
        self.close_slow();
    }

    pub(super) fn say(&mut self, said: Said) {
        match said {
            Said::Send(conns, message) => self.send_down(&conns, &message),
            Said::Close(conn, bye) => self.part(conn, bye),
        }
    }
}
