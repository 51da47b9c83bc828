//! The syncer's side of its tape: what is on its way to the disk, and what waits until it is there.

use std::sync::Arc;

use super::World;
use super::attempt::Failed;
use super::happening::Happening;
use archipelago_core::diloco::syncer::{Input, RemakeJob};
use archipelago_core::diloco::tape::{Gate, Held, Row, Taking, TapeJob};
use archipelago_core::diloco::{Entry, MergeJob, MergeOutcome, kept};
use archipelago_core::wire::{Bye, ConnId, Message};

/// Time between two tries while the disk takes nothing, in milliseconds, as the server has it.
const RETRY_MS: u64 = 500;
/// How often what is written together is not all that is there: the writer takes what it finds.
const SPLIT_SHARE: f64 = 0.25;

/// Something to be told once what was decided before it is safe.
#[derive(Debug)]
pub(super) enum Said {
    Send(Vec<ConnId>, Message),
    Close(ConnId, Bye),
}

/// What a process of the syncer knows of its tape.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) gate: Gate<Said>,
    pub(super) taking: Option<Taking>,
    /// A snapshot is being written.
    pub(super) saving: bool,
    /// Fragments to be undone, whose newest version is not on the disk yet.
    pub(super) remakes: Vec<RemakeJob>,
    jobs: Vec<TapeJob>,
    held: Held,
    /// Rows are being written.
    writing: bool,
    /// The disk did not take what it was last given.
    failing: bool,
    /// The core knows that.
    stalled: bool,
}

impl Record {
    /// For a run of so many fragments, on a tape that ends with row `seq`.
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

    /// Keeps what undoing a fragment led to, before the row that says so.
    pub(super) fn keep_remade(&mut self, outcome: &MergeOutcome) {
        let bodies = vec![Arc::new(kept(&outcome.state))];
        self.record.jobs.push(TapeJob::Bodies(outcome.round, bodies));
    }

    /// Says what waited long enough, has the tape go on, and tells the core if it cannot.
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

    /// The disk may take something again.
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

    /// Begins to write what is there, unless something is being written or was not taken just now.
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
            // The same is tried again, with what there is by then.
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

    /// What was written up to row `seq` is on the disk.
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

    /// Says what waited long enough.
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
