//! The syncer's process: the real syncer core and what its shell does for it.

use std::sync::Arc;

use super::World;
use super::books::Books;
use super::happening::Happening;
use super::link::Lane;
use super::payload::Payload;
use super::{Cargo, Parcel, Trace};
use archipelago::diloco::syncer::{Event, Host, Input, Syncer, SyncerRecord};
use archipelago::diloco::{FragmentState, MergeFailure, MergeJob, MergeOutcome};
use archipelago::wire::{Bye, ConnId, FragmentId, Message, Millis, Version};

/// Size of a request for a fragment or a shard, in bytes.
const REQUEST_BYTES: u64 = 200;

/// A process of the syncer.
pub(super) struct SyncerProcess {
    pub(super) core: Syncer,
    /// When this process began: the origin of its clock.
    born: Millis,
    /// The wake-up planned for the core, on the world's clock.
    wake: Option<Millis>,
    /// Requests for a fragment that was being merged when they came.
    waiting: Vec<(u32, u32, FragmentId)>,
}

/// What the syncer starts from after a crash, and what was true then.
pub(super) struct Snapshot {
    record: SyncerRecord,
    states: Vec<FragmentState>,
    /// The checker's.
    books: Books,
}

impl Snapshot {
    /// Of `syncer` now; `None` while anything is being merged.
    pub(super) fn of(syncer: &Syncer, books: &Books) -> Option<Self> {
        let record = syncer.record()?;
        Some(Self { record, states: syncer.states().cloned().collect(), books: books.clone() })
    }
}

impl SyncerProcess {
    pub(super) fn new(core: Syncer, born: Millis) -> Self {
        Self { core, born, wake: None, waiting: Vec::new() }
    }

    pub(super) fn clock(&self, now: Millis) -> Millis {
        Millis(now.since(self.born))
    }
}

impl Host for World {
    fn send(&mut self, conns: &[ConnId], message: Message) {
        self.send_down(conns, message);
    }

    fn close(&mut self, conn: ConnId, bye: Bye) {
        self.send_down(&[conn], Message::Bye(bye));
        self.end_at_syncer(conn);
    }

    fn merge(&mut self, job: MergeJob) {
        let happening = Happening::MergeDone { generation: self.generation, result: Box::new(job.run()) };
        self.queue.plan(self.now.after(self.spec.shell.merge_ms), happening);
    }

    fn note(&mut self, syncer: &Syncer, event: Event) {
        self.audit.on_event(self.now, syncer, &event);
        self.keep_event(event);
    }

    fn finished(&mut self) {
        self.finished = true;
    }
}

impl World {
    /// Does all that the syncer's core asks for, then plans its next wake-up.
    pub(super) fn drive_host(&mut self) {
        // Out of the world for the moment, so that the core can speak to the rest of it.
        let Some(mut process) = self.host.take() else { return };
        process.core.drain(self);
        self.host = Some(process);
        let Some(host) = &mut self.host else { return };
        let deadline = host.core.deadline(host.clock(self.now)).map(|at| at.after(host.born.0));
        if deadline != host.wake {
            host.wake = deadline;
            if let Some(at) = deadline {
                self.queue.plan(at, Happening::WakeSyncer { generation: self.generation, at });
            }
        }
    }

    pub(super) fn wake_syncer(&mut self, generation: u32, at: Millis) {
        let Some(host) = self.host.as_mut().filter(|host| host.wake == Some(at)) else { return };
        if generation == self.generation {
            host.wake = None;
            self.host_input(Input::Timeout);
        }
    }

    pub(super) fn merge_done(
        &mut self,
        generation: u32,
        result: Box<Result<MergeOutcome, Box<MergeFailure>>>,
    ) {
        if generation != self.generation {
            return;
        }
        if let Ok(outcome) = &*result {
            self.audit.on_outcome(outcome);
        }
        self.host_input(Input::Merged(result));
        let Some(host) = &mut self.host else { return };
        for (machine, life, fragment) in std::mem::take(&mut host.waiting) {
            self.answer_fragment(machine, life, fragment);
        }
    }

    fn send_down(&mut self, conns: &[ConnId], message: Message) {
        for &conn in conns {
            self.audit.on_sent(conn, &message);
        }
        let lane = if message.is_bulk() { Lane::BulkDown } else { Lane::ControlDown };
        let payload = Payload::new(message.clone(), self.spec.shell.encode);
        for &id in conns {
            let Some(conn) = self.conns.get(&id).filter(|conn| conn.syncer_open) else { continue };
            let machine = conn.machine;
            let at = self.arrival(machine, lane, payload.bytes());
            self.note_parcel(machine, &message, payload.bytes(), at);
            self.queue.plan(at, Happening::ToLearner { conn: id, payload: payload.clone() });
        }
    }

    /// Closes the syncer's end; the learner's end finds out after all that was sent to it.
    pub(super) fn end_at_syncer(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&id).filter(|conn| conn.syncer_open) else { return };
        conn.syncer_open = false;
        let machine = conn.machine;
        let bulk = self.arrival(machine, Lane::BulkDown, 0);
        let control = self.arrival(machine, Lane::ControlDown, 0);
        self.queue.plan(bulk.max(control), Happening::LostAtLearner { conn: id });
    }

    pub(super) fn ask_fragment(&mut self, machine: u32, life: u32, fragment: FragmentId, _version: Version) {
        // A syncer has one version of each fragment, and sends whoever asks for another one there.
        self.answer_fragment(machine, life, fragment);
    }

    fn answer_fragment(&mut self, machine: u32, life: u32, fragment: FragmentId) {
        let Some(host) = &mut self.host else {
            let at = self.arrival(machine, Lane::Http, REQUEST_BYTES);
            return self.queue.plan(at, Happening::FragmentCame { machine, life, fragment, answer: None });
        };
        let Some((version, hat)) = host.core.hat(fragment) else {
            return host.waiting.push((machine, life, fragment));
        };
        let bytes = 4 * hat.len() as u64;
        let (from, at) = (self.now, self.arrival(machine, Lane::Http, bytes));
        self.note_trace(|| {
            let (what, round, body) = (Cargo::Whole, None, Vec::new());
            Some(Trace::Parcel(Parcel { machine, what, round, fragment, bytes, from, until: at, body }))
        });
        let answer = Some((version, Arc::clone(&hat)));
        self.queue.plan(at, Happening::FragmentCame { machine, life, fragment, answer });
    }

    pub(super) fn ask_shard(&mut self, machine: u32, life: u32, shard: u32) {
        let here = self.host.is_some();
        let bytes =
            self.spec.shards.get(shard as usize).filter(|_| here).map_or(REQUEST_BYTES, |s| s.len() as u64);
        let at = self.arrival(machine, Lane::Http, bytes);
        self.queue.plan(at, Happening::ShardCame { machine, life, shard, here });
    }

    pub(super) fn plan_snapshot(&mut self) {
        let at = self.now.after(self.spec.shell.snapshot_ms.max(1));
        self.queue.plan(at, Happening::Snapshot { generation: self.generation });
    }

    pub(super) fn take_snapshot(&mut self, generation: u32) {
        let Some(host) = self.host.as_ref().filter(|_| generation == self.generation) else { return };
        match Snapshot::of(&host.core, self.audit.books()) {
            Some(snapshot) => {
                self.snapshot = snapshot;
                self.plan_snapshot();
            }
            // Something is being merged; that takes milliseconds.
            None => self.queue.plan(self.now.after(1), Happening::Snapshot { generation }),
        }
    }

    pub(super) fn crash_syncer(&mut self) {
        if self.host.take().is_none() {
            return;
        }
        self.generation += 1;
        for conn in self.conns.keys().copied().collect::<Vec<_>>() {
            self.end_at_syncer(conn);
        }
    }

    pub(super) fn restart_syncer(&mut self) {
        if self.host.is_some() {
            return;
        }
        let Snapshot { record, states, books } = &self.snapshot;
        let core = Syncer::restore(record.clone(), &self.layout, self.spec.syncer, states.clone())
            .expect("the snapshot is this run's own");
        self.audit.roll_back(books, &core);
        self.generation += 1;
        self.host = Some(SyncerProcess::new(core, self.now));
        // At once, so that a second crash does not lead to the same versions again.
        self.take_snapshot(self.generation);
        self.drive_host();
    }
}
