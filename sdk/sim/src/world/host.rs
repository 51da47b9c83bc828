//! Process of the syncer: the real syncer core with its input queue, writes, crashes and recovery.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use archipelago_core::diloco::syncer::{Event, Host, Input, Recovery, RollbackJob, Syncer};
use archipelago_core::diloco::tape::{Gate, PendingBodies, Row, SnapshotBuilder, TapeJob};
use archipelago_core::diloco::{Entry, MergeFailure, MergeJob, MergeOutcome, binary16, encode_state};
use archipelago_core::wire::{Bye, CloseCode, ConnId, Fate, FragmentId, Message, Millis};

use super::clock::DriftingClock;
use super::disk::{DiskError, Loss};
use super::event::WorldEvent;
use super::link::LinkDirection;
use super::net::Payload;
use super::tape::TapeEnd;
use super::trace::ParcelContent;
use super::{Fault, World};

/// Size of an HTTP request or an error response, in bytes.
pub(super) const REQUEST_BYTES: u64 = 200;
/// Maximum number of queued control messages for one connection, as in the server's outbox.
const CONTROL_MAX: usize = 1_024;
/// Maximum number of queued messages with parameters for one connection, in multiples of the number of fragments, as in
/// the server's outbox.
const BULK_TURNS_MAX: usize = 2;

impl Host for World {
    fn send(&mut self, conns: &[ConnId], message: Message) {
        for &conn in conns {
            // The core may not know yet that the connection is closed.
            self.audit.on_sent(conn, self.conns.get(&conn).map(|conn| conn.machine), &message);
        }
        let output = DeferredOutput::Send(conns.to_vec(), message.clone());
        if let Some(output) = self.record.gate.pass_message(conns, &message, output) {
            self.send_output(output);
        }
    }

    fn close(&mut self, conn: ConnId, bye: Bye) {
        self.hung_up.push(conn);
        self.audit.on_gone(conn);
        if let Some(output) = self.record.gate.pass(DeferredOutput::Close(conn, bye)) {
            self.send_output(output);
        }
    }

    fn record(&mut self, entry: Entry) {
        self.keep(entry);
    }

    fn merge(&mut self, job: MergeJob) {
        self.keep_bodies(&job);
        self.note_merge(&job);
        let values = job.updates.len() as u64 * job.state.theta.len() as u64;
        let took_ps = values * self.weight() * self.spec.shell.pace.merge_ps_per_value;
        let at = self.now.after(self.spec.shell.merge_ms + took_ps / 1_000_000_000);
        let event = WorldEvent::MergeDone { generation: self.generation, result: Box::new(job.run()) };
        self.queue.plan(at, event);
    }

    fn rollback(&mut self, job: RollbackJob) -> Option<RollbackJob> {
        self.record.rollbacks.push(job);
        None
    }

    fn note(&mut self, syncer: &Syncer, event: Event) {
        self.audit.on_event(self.syncer_now, syncer, &event);
        if let Event::Settled { learner, fate: Fate::Merged { .. }, .. } = &event
            && let Some(machine) = self.audit.home(*learner)
        {
            self.machines[machine as usize].merged_at = self.now;
        }
        self.keep_event(event);
    }

    fn finished(&mut self) {
        self.finished = true;
    }
}

impl World {
    /// Executes all pending effects of the syncer's core, then schedules its next wake-up.
    pub(super) fn drive_host(&mut self) {
        // The process is moved out of the world, so that the core can borrow the rest of it.
        let Some(mut process) = self.host.take() else { return };
        self.syncer_now = process.clock.read(self.now);
        process.core.drain(self);
        for conn in std::mem::take(&mut self.hung_up) {
            process.hang_up(conn);
        }
        self.host = Some(process);
        self.audit.on_drained();
        self.poll_tape();
        let Some(host) = &mut self.host else { return };
        let deadline = host.core.deadline(host.clock.read(self.now)).map(|at| host.clock.when(at));
        if deadline != host.wake {
            host.wake = deadline;
            if let Some(at) = deadline {
                self.queue.plan(at, WorldEvent::WakeSyncer { generation: self.generation, at });
            }
        }
    }

    pub(super) fn wake_syncer(&mut self, generation: u32, at: Millis) {
        let Some(host) = self.host.as_mut().filter(|host| host.wake == Some(at)) else { return };
        if generation == self.generation {
            host.wake = None;
            self.syncer_input(Input::Timeout);
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
        self.syncer_input(Input::Merged(result));
        self.answer_waiting();
    }

    /// Answers waiting requests for fragments, whose version was not on the disk or which were being merged.
    pub(super) fn answer_waiting(&mut self) {
        let Some(host) = &mut self.host else { return };
        for (machine, life, downloads, fragment) in std::mem::take(&mut host.waiting) {
            self.answer_fragment(machine, life, downloads, fragment);
        }
    }

    pub(super) fn send_down(&mut self, conns: &[ConnId], message: &Message) {
        let payload = Payload::new(message.clone(), self.spec.shell.encode);
        let turns = BULK_TURNS_MAX * usize::from(self.spec.run_spec.exchange.fragments.max(1));
        let bulk_max = turns.max(self.spec.shell.bulk_messages_min);
        for &id in conns {
            let Some(conn) = self.conns.get(&id).filter(|conn| conn.syncer_open) else { continue };
            let machine = conn.machine;
            let lane = self.machines[machine as usize].link.lane(LinkDirection::Down);
            let (control, bulk) = lane.waiting();
            let full = if message.is_bulk() { bulk >= bulk_max } else { control >= CONTROL_MAX };
            if full && lane.waiting_bytes() > self.spec.shell.socket_bytes {
                self.slow.push(id);
                continue;
            }
            self.audit.on_delivered(id, message);
            self.ship_message(machine, LinkDirection::Down, id, message, payload.clone());
        }
    }

    /// Closes connections with a full send queue. Such a slow reader should reconnect.
    pub(super) fn close_slow(&mut self) {
        for conn in std::mem::take(&mut self.slow) {
            if self.conns.get(&conn).is_some_and(|conn| conn.syncer_open) {
                self.slow_readers += 1;
                self.close_with(conn, Bye::new(CloseCode::SlowReader, "its queue is full"));
                self.syncer_input(Input::Disconnected(conn));
            }
        }
    }

    /// Sends a close message ahead of queued parameters, and closes the syncer's end of the connection.
    pub(super) fn close_with(&mut self, id: ConnId, bye: Bye) {
        let Some(conn) = self.conns.get_mut(&id).filter(|conn| conn.syncer_open) else { return };
        conn.syncer_open = false;
        let machine = conn.machine;
        self.machines[machine as usize].link.lane(LinkDirection::Down).forget(id, false);
        let bye = Message::Bye(bye);
        let payload = Payload::new(bye.clone(), self.spec.shell.encode);
        self.ship_message(machine, LinkDirection::Down, id, &bye, payload);
        self.ship_sign(machine, LinkDirection::Down, id, WorldEvent::LostAtLearner { conn: id });
    }

    /// Closes the syncer's end of a connection without a message, and drops its queue. The learner's end is notified
    /// after the data that was already sent.
    pub(super) fn drop_at_syncer(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&id).filter(|conn| conn.syncer_open) else { return };
        conn.syncer_open = false;
        let machine = conn.machine;
        self.machines[machine as usize].link.lane(LinkDirection::Down).forget(id, true);
        self.ship_sign(machine, LinkDirection::Down, id, WorldEvent::LostAtLearner { conn: id });
    }

    /// Starts a syncer process with `core`.
    pub(super) fn start_host(&mut self, core: Syncer) {
        self.host = Some(SyncerProcess::new(core, DriftingClock::new(self.now, self.spec.shell.clock_rate)));
    }

    /// Answers a request for a fragment with its only version. If that is not available yet, the request waits.
    pub(super) fn answer_fragment(&mut self, machine: u32, life: u32, downloads: u32, fragment: FragmentId) {
        let fails = self.http_fails();
        let Some(host) = self.host.as_mut().filter(|_| !fails) else {
            let came = WorldEvent::FragmentCame { machine, life, downloads, fragment, answer: None };
            return self.ship_http(machine, LinkDirection::Down, REQUEST_BYTES, came, None);
        };
        let gate = &self.record.gate;
        let Some((version, hat)) = host.core.hat(fragment).filter(|_| gate.is_version_safe(fragment)) else {
            return host.waiting.push((machine, life, downloads, fragment));
        };
        let bytes = (binary16::BYTES * hat.len()) as u64 * self.weight();
        let hat = Arc::clone(&hat);
        self.audit.on_version_delivered(machine, fragment, version);
        let came =
            WorldEvent::FragmentCame { machine, life, downloads, fragment, answer: Some((version, hat)) };
        self.ship_http(
            machine,
            LinkDirection::Down,
            bytes,
            came,
            Some(ParcelContent::whole(fragment, bytes)),
        );
    }

    /// Returns true if an HTTP response is an error, at random.
    fn http_fails(&mut self) -> bool {
        let share = self.spec.shell.http_failures;
        share > 0.0 && self.rng.chance(share)
    }

    pub(super) fn ask_shard(&mut self, machine: u32, life: u32, shard: u32) {
        let here = !self.http_fails() && self.host.is_some();
        let bytes =
            self.spec.shards.get(shard as usize).filter(|_| here).map_or(REQUEST_BYTES, |s| s.len() as u64);
        let came = WorldEvent::ShardCame { machine, life, shard, here };
        self.ship_http(machine, LinkDirection::Down, bytes, came, None);
    }
}

/// Process of the syncer.
pub(super) struct SyncerProcess {
    pub(super) core: Syncer,
    pub(super) clock: DriftingClock,
    /// Scheduled wake-up of the core, on the world's clock.
    pub(super) wake: Option<Millis>,
    /// Requests for fragments that wait for an available version.
    pub(super) waiting: Vec<(u32, u32, u32, FragmentId)>,
    /// Connections that the syncer has closed. Inputs from them are discarded.
    hung_up: BTreeSet<ConnId>,
    mailbox: VecDeque<Input>,
    /// End of the actor's current work, in microseconds of the world's clock.
    busy_us: u64,
    /// Scheduled end of the wait for the actor, if one is scheduled.
    next: Option<Millis>,
}

impl SyncerProcess {
    pub(super) fn new(core: Syncer, clock: DriftingClock) -> Self {
        Self {
            core,
            clock,
            wake: None,
            waiting: Vec::new(),
            hung_up: BTreeSet::new(),
            mailbox: VecDeque::new(),
            busy_us: 0,
            next: None,
        }
    }

    /// Discards all queued and future inputs from `conn`.
    pub(super) fn hang_up(&mut self, conn: ConnId) {
        self.hung_up.insert(conn);
        self.mailbox.retain(|input| source(input) != Some(conn));
    }

    /// Keeps the actor busy for `us` more microseconds.
    pub(super) fn work(&mut self, now: Millis, us: u64) {
        self.busy_us = self.busy_us.max(micros(now)).saturating_add(us);
    }

    /// Returns true if the actor can begin new work within the millisecond `now`.
    fn is_free(&self, now: Millis) -> bool {
        self.busy_us < micros(now.after(1))
    }
}

impl World {
    /// Queues `input` for the syncer's actor.
    pub(super) fn syncer_input(&mut self, input: Input) {
        let Some(host) = &mut self.host else { return };
        if source(&input).is_some_and(|conn| host.hung_up.contains(&conn)) {
            return;
        }
        host.mailbox.push_back(input);
        self.act();
    }

    /// Processes queued inputs, unless the event is outdated.
    pub(super) fn actor_free(&mut self, generation: u32, at: Millis) {
        let Some(host) = self.host.as_mut().filter(|host| host.next == Some(at)) else { return };
        if generation == self.generation {
            host.next = None;
            self.act();
        }
    }

    /// Processes queued inputs until the queue is empty or the actor is busy.
    fn act(&mut self) {
        let (now, generation) = (self.now, self.generation);
        loop {
            let Some(host) = self.host.as_mut().filter(|_| self.generation == generation) else { return };
            if host.mailbox.is_empty() {
                return;
            }
            if !host.is_free(now) {
                let at = Millis(host.busy_us / 1_000);
                if host.next != Some(at) {
                    host.next = Some(at);
                    self.queue.plan(at, WorldEvent::ActorFree { generation, at });
                }
                return;
            }
            let Some(input) = host.mailbox.pop_front() else { return };
            host.work(now, self.spec.shell.pace.input_us);
            let clock = host.clock.read(now);
            match &input {
                Input::Update(conn, update) => self.audit.on_arrived(*conn, update, &host.core),
                Input::Disconnected(conn) | Input::Message(conn, Message::Bye(_)) => {
                    self.audit.on_gone(*conn)
                }
                _ => {}
            }
            host.core.handle(clock, input);
            self.drive_host();
        }
    }
}

/// Returns the connection of an input that arrives over an open one.
fn source(input: &Input) -> Option<ConnId> {
    match input {
        Input::Message(conn, _) | Input::Update(conn, _) | Input::Heard(conn) => Some(*conn),
        _ => None,
    }
}

fn micros(at: Millis) -> u64 {
    at.0.saturating_mul(1_000)
}

/// Time before a failed start is retried, in milliseconds.
const START_AGAIN_MS: u64 = 1_000;

impl World {
    /// Kills the syncer's process. With `loss`, the power fails too.
    pub(super) fn crash_syncer(&mut self, loss: Option<Loss>) {
        let was_starting = std::mem::take(&mut self.starting);
        let was_up = self.host.take().is_some();
        if !was_starting && !was_up {
            return;
        }
        self.generation += 1;
        self.disk.tape.crash(loss, &mut self.disk.rng);
        for conn in self.conns.keys().copied().collect::<Vec<_>>() {
            self.drop_at_syncer(conn);
        }
    }

    /// Begins to start a syncer from its disk.
    pub(super) fn restart_syncer(&mut self) {
        if self.host.is_some() || self.starting {
            return;
        }
        self.starting = true;
        match self.spec.shell.start_ms {
            0 => self.recover_and_serve(self.generation),
            start_ms => {
                let generation = self.generation;
                self.queue.plan(self.now.after(start_ms), WorldEvent::Started { generation });
            }
        }
    }

    /// Recovers from the disk and serves. As in the server, the syncer does not start if it cannot write or if its data
    /// is damaged; the start is then retried.
    pub(super) fn recover_and_serve(&mut self, generation: u32) {
        if generation != self.generation || !std::mem::take(&mut self.starting) {
            return;
        }
        if self.disk.fails() {
            return self.retry_start();
        }
        let (recovery, followed) = match self.recover() {
            Ok(recovered) => recovered,
            Err(why) => {
                self.refusals.push(why);
                return self.retry_start();
            }
        };
        self.recoveries += 1;
        self.audit.on_recovered(followed.last, &recovery);
        // The world begins one second after the Unix epoch.
        let started_s = u32::try_from(1 + self.now.0 / 1_000).unwrap_or(u32::MAX);
        let core = Syncer::resume(recovery, &self.layout, self.spec.syncer, started_s)
            .expect("it was followed to its end");
        self.audit.on_started(&core);
        self.generation += 1;
        self.disk.tape.reopen(&followed);
        self.record = TapeState::new(followed.last, core.fragments().count());
        self.forget_moments();
        self.start_host(core);
        self.plan_snapshot();
        self.drive_host();
    }

    /// Replays the tape from the newest undamaged snapshot, or from the beginning. Returns the run at the tape's end.
    fn recover(&self) -> Result<(Recovery, TapeEnd), String> {
        let (record, states, seq) = match self.disk.latest() {
            Some(snapshot) => (snapshot.record.clone(), snapshot.states.clone(), snapshot.seq),
            None => {
                let spec = &self.spec;
                let syncer =
                    Syncer::new(spec.run, spec.run_spec.clone(), spec.syncer, &self.layout, &spec.theta);
                let syncer = syncer.expect("the run began like this");
                (syncer.record_amid(), syncer.states().cloned().collect(), 0)
            }
        };
        let mut recovery =
            Recovery::new(record, &self.layout, states).expect("the snapshot is this run's own");
        let followed = self.disk.tape.follow(&mut recovery, seq)?;
        Ok((recovery, followed))
    }

    fn retry_start(&mut self) {
        self.queue.plan(self.now.after(START_AGAIN_MS), WorldEvent::Fault(Fault::RestartSyncer));
    }
}

/// Time before a failed write is retried, in milliseconds, as in the server.
const RETRY_MS: u64 = 500;
/// Probability that a write takes only some of the queued jobs. The server's writer takes the jobs that it finds.
const SPLIT_SHARE: f64 = 0.25;

/// Message or close that waits until the decisions before it are on the disk.
#[derive(Debug)]
pub(super) enum DeferredOutput {
    Send(Vec<ConnId>, Message),
    Close(ConnId, Bye),
}

/// State of the tape in a syncer process.
#[derive(Debug)]
pub(super) struct TapeState {
    pub(super) gate: Gate<DeferredOutput>,
    pub(super) builder: Option<SnapshotBuilder>,
    /// Whether a snapshot is being written.
    pub(super) saving: bool,
    /// Rollbacks of fragments that wait until the fragment's newest version is on the disk.
    pub(super) rollbacks: Vec<RollbackJob>,
    jobs: Vec<TapeJob>,
    held: PendingBodies,
    /// Whether rows are being written.
    writing: bool,
    /// Whether the last write failed and was not retried yet.
    failing: bool,
    /// Whether the core was notified of the failure.
    stalled: bool,
}

impl TapeState {
    /// Creates the state for a run of `fragments` fragments, with a tape that ends with row `seq`.
    pub(super) fn new(seq: u64, fragments: u16) -> Self {
        Self {
            gate: Gate::new(seq, fragments),
            builder: None,
            saving: false,
            rollbacks: Vec::new(),
            jobs: Vec::new(),
            held: PendingBodies::default(),
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

    /// Queues the result of a fragment's rollback to be written before the row that refers to it.
    pub(super) fn keep_rollback(&mut self, outcome: &MergeOutcome) {
        let bodies = vec![Arc::new(encode_state(&outcome.state))];
        self.record.jobs.push(TapeJob::Bodies(outcome.round, bodies));
    }

    /// Writes the tape, releases deferred output, continues snapshots and rollbacks, and notifies the core if the disk
    /// begins or ceases to fail.
    pub(super) fn poll_tape(&mut self) {
        self.write_tape();
        self.release();
        self.step_snapshot();
        self.run_due_rollbacks();
        self.check_measurement();
        let is_stalled = self.record.failing;
        if is_stalled != self.record.stalled {
            self.record.stalled = is_stalled;
            self.syncer_input(Input::Stall(is_stalled));
        }
    }

    /// Retries a failed write.
    pub(super) fn retry_tape(&mut self, generation: u32) {
        if generation != self.generation {
            return;
        }
        self.record.failing = false;
        self.poll_tape();
    }

    fn plan_retry(&mut self) {
        let generation = self.generation;
        self.queue.plan(self.now.after(RETRY_MS), WorldEvent::RetryTape { generation });
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
        if let Err(DiskError) = self.record.held.write(&batch, &mut self.disk.attempt()) {
            self.disk.failures += 1;
            // The same jobs are retried, before those that arrive in the meantime.
            self.record.jobs.splice(..0, batch);
            self.record.failing = true;
            return self.plan_retry();
        }
        let rows =
            batch.iter().filter_map(|job| if let TapeJob::Row(row) = job { Some(row.seq) } else { None });
        let Some(seq) = rows.max() else { return };
        if sync_ms == 0 {
            return self.mark_on_disk(seq);
        }
        self.record.writing = true;
        let turns = 1 + u64::from(self.disk.tape.waits_for_bodies());
        let generation = self.generation;
        self.queue.plan(self.now.after(turns * sync_ms), WorldEvent::Taped { generation, seq });
    }

    /// Records that all rows up to `seq` are on the disk.
    pub(super) fn taped(&mut self, generation: u32, seq: u64) {
        if generation != self.generation {
            return;
        }
        self.record.writing = false;
        self.mark_on_disk(seq);
        self.poll_tape();
        self.answer_waiting();
    }

    fn mark_on_disk(&mut self, seq: u64) {
        self.disk.tape.sync();
        self.record.gate.reach(seq);
        self.audit.on_safe(seq);
    }

    /// Releases output whose decisions are on the disk.
    fn release(&mut self) {
        while let Some(output) = self.record.gate.release() {
            self.send_output(output);
        }
        self.close_slow();
    }

    pub(super) fn send_output(&mut self, output: DeferredOutput) {
        match output {
            DeferredOutput::Send(conns, message) => self.send_down(&conns, &message),
            DeferredOutput::Close(conn, bye) => self.close_with(conn, bye),
        }
    }
}
