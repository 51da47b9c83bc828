//! The syncer's process: the real syncer core, its shell and queue of inputs, its writes, its death and its recovery.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use archipelago_core::diloco::syncer::{Event, Host, Input, Recovery, RemakeJob, Syncer};
use archipelago_core::diloco::tape::{Gate, Held, Row, Taking, TapeJob};
use archipelago_core::diloco::{Entry, MergeFailure, MergeJob, MergeOutcome, halves, kept};
use archipelago_core::wire::{Bye, CloseCode, ConnId, Fate, FragmentId, Message, Millis};

use super::clock::DriftingClock;
use super::disk::{DiskError, Loss};
use super::event::WorldEvent;
use super::link::LinkDirection;
use super::net::Payload;
use super::tape::TapeEnd;
use super::trace::ParcelContent;
use super::{Fault, World};

/// Size of a request for a fragment or a shard, in bytes.
pub(super) const REQUEST_BYTES: u64 = 200;
/// Limit of queued short messages for one connection, as in the server's outbox.
const CONTROL_MAX: usize = 1_024;
/// Limit of queued messages with parameters for one connection, in turns of all fragments, as in the server.
const BULK_TURNS_MAX: usize = 2;

impl Host for World {
    fn send(&mut self, conns: &[ConnId], message: Message) {
        for &conn in conns {
            // The connection may already be gone without the core's knowledge.
            self.audit.on_sent(conn, self.conns.get(&conn).map(|conn| conn.machine), &message);
        }
        let said = DeferredOutput::Send(conns.to_vec(), message.clone());
        if let Some(said) = self.record.gate.pass_message(conns, &message, said) {
            self.say(said);
        }
    }

    fn close(&mut self, conn: ConnId, bye: Bye) {
        self.hung_up.push(conn);
        self.audit.on_gone(conn);
        if let Some(said) = self.record.gate.pass(DeferredOutput::Close(conn, bye)) {
            self.say(said);
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

    fn remake(&mut self, job: RemakeJob) -> Option<RemakeJob> {
        self.record.remakes.push(job);
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
    /// Executes all pending effects of the syncer's core, then plans its next wake-up.
    pub(super) fn drive_host(&mut self) {
        // The process is taken out of the world, so that the core can borrow the rest of it.
        let Some(mut process) = self.host.take() else { return };
        self.syncer_now = process.clock.read(self.now);
        process.core.drain(self);
        for conn in std::mem::take(&mut self.hung_up) {
            process.hang_up(conn);
        }
        self.host = Some(process);
        self.audit.on_drained();
        self.tend_tape();
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
            self.tell_syncer(Input::Timeout);
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
        self.tell_syncer(Input::Merged(result));
        self.answer_waiting();
    }

    /// Answers requests for fragments that were being merged, or whose version was not on the disk.
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
            self.audit.on_told(id, message);
            self.ship_message(machine, LinkDirection::Down, id, message, payload.clone());
        }
    }

    /// Closes connections whose outbox is full; such slow readers do better to reconnect.
    pub(super) fn close_slow(&mut self) {
        for conn in std::mem::take(&mut self.slow) {
            if self.conns.get(&conn).is_some_and(|conn| conn.syncer_open) {
                self.slow_readers += 1;
                self.part(conn, Bye::new(CloseCode::SlowReader, "its queue is full"));
                self.tell_syncer(Input::Disconnected(conn));
            }
        }
    }

    /// Sends a goodbye ahead of all queued parameters and closes the syncer's end.
    pub(super) fn part(&mut self, id: ConnId, bye: Bye) {
        let Some(conn) = self.conns.get_mut(&id).filter(|conn| conn.syncer_open) else { return };
        conn.syncer_open = false;
        let machine = conn.machine;
        self.machines[machine as usize].link.lane(LinkDirection::Down).forget(id, false);
        let bye = Message::Bye(bye);
        let payload = Payload::new(bye.clone(), self.spec.shell.encode);
        self.ship_message(machine, LinkDirection::Down, id, &bye, payload);
        self.ship_sign(machine, LinkDirection::Down, id, WorldEvent::LostAtLearner { conn: id });
    }

    /// Closes the syncer's end with its process and drops its queue. The learner's end finds out after the data already
    /// sent.
    pub(super) fn drop_at_syncer(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&id).filter(|conn| conn.syncer_open) else { return };
        conn.syncer_open = false;
        let machine = conn.machine;
        self.machines[machine as usize].link.lane(LinkDirection::Down).forget(id, true);
        self.ship_sign(machine, LinkDirection::Down, id, WorldEvent::LostAtLearner { conn: id });
    }

    /// Starts a syncer process around `core`.
    pub(super) fn start_host(&mut self, core: Syncer) {
        self.host = Some(SyncerProcess::new(core, DriftingClock::new(self.now, self.spec.shell.clock_rate)));
    }

    /// Answers a request for a fragment. The syncer has one version of each, and answers with that.
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
        let bytes = (halves::BYTES * hat.len()) as u64 * self.weight();
        let hat = Arc::clone(&hat);
        self.audit.on_told_version(machine, fragment, version);
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

/// A process of the syncer.
pub(super) struct SyncerProcess {
    pub(super) core: Syncer,
    pub(super) clock: DriftingClock,
    /// The wake-up planned for the core, on the world's clock.
    pub(super) wake: Option<Millis>,
    /// Requests for a fragment that was being merged on arrival.
    pub(super) waiting: Vec<(u32, u32, u32, FragmentId)>,
    /// Connections that the syncer has closed. Their queued inputs are discarded.
    hung_up: BTreeSet<ConnId>,
    mailbox: VecDeque<Input>,
    /// End of the actor's current work, in microseconds on the world's clock.
    busy_us: u64,
    /// The planned time of the actor's next turn, if any.
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

    /// Discards all queued and later inputs from `conn`.
    pub(super) fn hang_up(&mut self, conn: ConnId) {
        self.hung_up.insert(conn);
        self.mailbox.retain(|input| source(input) != Some(conn));
    }

    /// Keeps the actor busy for another `us` microseconds.
    pub(super) fn work(&mut self, now: Millis, us: u64) {
        self.busy_us = self.busy_us.max(micros(now)).saturating_add(us);
    }

    /// Returns true if the actor can begin new work within the millisecond `now`.
    fn is_free(&self, now: Millis) -> bool {
        self.busy_us < micros(now.after(1))
    }
}

impl World {
    /// Puts `input` into the mailbox of the syncer's actor.
    pub(super) fn tell_syncer(&mut self, input: Input) {
        let Some(host) = &mut self.host else { return };
        if source(&input).is_some_and(|conn| host.hung_up.contains(&conn)) {
            return;
        }
        host.mailbox.push_back(input);
        self.act();
    }

    /// Continues with the mailbox if the turn planned for `at` is still current.
    pub(super) fn actor_free(&mut self, generation: u32, at: Millis) {
        let Some(host) = self.host.as_mut().filter(|host| host.next == Some(at)) else { return };
        if generation == self.generation {
            host.next = None;
            self.act();
        }
    }

    /// Processes queued inputs while the actor is free.
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

/// Returns the connection of an input that arrived over an open one.
fn source(input: &Input) -> Option<ConnId> {
    match input {
        Input::Message(conn, _) | Input::Update(conn, _) | Input::Heard(conn) => Some(*conn),
        _ => None,
    }
}

fn micros(at: Millis) -> u64 {
    at.0.saturating_mul(1_000)
}

/// Wait before a failed start is retried, in milliseconds.
const START_AGAIN_MS: u64 = 1_000;

impl World {
    /// Kills the syncer's process; with `loss`, the power fails too.
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

    /// Begins to start a syncer from the disk.
    pub(super) fn restart_syncer(&mut self) {
        if self.host.is_some() || self.starting {
            return;
        }
        self.starting = true;
        match self.spec.shell.start_ms {
            0 => self.go_on(self.generation),
            start_ms => {
                let generation = self.generation;
                self.queue.plan(self.now.after(start_ms), WorldEvent::Started { generation });
            }
        }
    }

    /// Recovers from the disk and serves. As the server, the syncer does not start if it cannot write, or if the disk's
    /// content is damaged.
    pub(super) fn go_on(&mut self, generation: u32) {
        if generation != self.generation || !std::mem::take(&mut self.starting) {
            return;
        }
        if self.disk.fails() {
            return self.start_again();
        }
        let (recovery, followed) = match self.recover() {
            Ok(recovered) => recovered,
            Err(why) => {
                self.refusals.push(why);
                return self.start_again();
            }
        };
        self.recoveries += 1;
        self.audit.on_recovered(followed.last, &recovery);
        // The world began one second after the Unix epoch.
        let started_s = u32::try_from(1 + self.now.0 / 1_000).unwrap_or(u32::MAX);
        let core = Syncer::go_on(recovery, &self.layout, self.spec.syncer, started_s)
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

    /// Returns the run at the end of its tape, from the newest intact snapshot or from the beginning.
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

    fn start_again(&mut self) {
        self.queue.plan(self.now.after(START_AGAIN_MS), WorldEvent::Fault(Fault::RestartSyncer));
    }
}

/// Time between two attempts while the disk fails, in milliseconds, as in the server.
const RETRY_MS: u64 = 500;
/// Chance that a write takes only some of the queued jobs: the server's writer takes the jobs that it finds.
const SPLIT_SHARE: f64 = 0.25;

/// An effect that waits until the decisions before it are on the disk.
#[derive(Debug)]
pub(super) enum DeferredOutput {
    Send(Vec<ConnId>, Message),
    Close(ConnId, Bye),
}

/// State of the tape in a syncer process.
#[derive(Debug)]
pub(super) struct TapeState {
    pub(super) gate: Gate<DeferredOutput>,
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

impl TapeState {
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
        self.queue.plan(self.now.after(turns * sync_ms), WorldEvent::Taped { generation, seq });
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

    pub(super) fn say(&mut self, said: DeferredOutput) {
        match said {
            DeferredOutput::Send(conns, message) => self.send_down(&conns, &message),
            DeferredOutput::Close(conn, bye) => self.part(conn, bye),
        }
    }
}
