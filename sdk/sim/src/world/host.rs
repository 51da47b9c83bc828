//! The syncer's process: the real syncer core and its shell.

use std::sync::Arc;

use super::World;
use super::actor::SyncerProcess;
use super::clock::Clock;
use super::happening::Happening;
use super::link::Way;
use super::payload::Payload;
use super::record::Said;
use super::trace::Sight;
use archipelago_core::diloco::syncer::{Event, Host, Input, RemakeJob, Syncer};
use archipelago_core::diloco::{Entry, MergeFailure, MergeJob, MergeOutcome, halves};
use archipelago_core::wire::{Bye, CloseCode, ConnId, Fate, FragmentId, Message, Millis};

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
        let said = Said::Send(conns.to_vec(), message.clone());
        if let Some(said) = self.record.gate.pass_message(conns, &message, said) {
            self.say(said);
        }
    }

    fn close(&mut self, conn: ConnId, bye: Bye) {
        self.hung_up.push(conn);
        self.audit.on_gone(conn);
        if let Some(said) = self.record.gate.pass(Said::Close(conn, bye)) {
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
        let happening = Happening::MergeDone { generation: self.generation, result: Box::new(job.run()) };
        self.queue.plan(at, happening);
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
                self.queue.plan(at, Happening::WakeSyncer { generation: self.generation, at });
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
            let lane = self.machines[machine as usize].link.lane(Way::Down);
            let (control, bulk) = lane.waiting();
            let full = if message.is_bulk() { bulk >= bulk_max } else { control >= CONTROL_MAX };
            if full && lane.waiting_bytes() > self.spec.shell.socket_bytes {
                self.slow.push(id);
                continue;
            }
            self.audit.on_told(id, message);
            self.ship_message(machine, Way::Down, id, message, payload.clone());
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
        self.machines[machine as usize].link.lane(Way::Down).forget(id, false);
        let bye = Message::Bye(bye);
        let payload = Payload::new(bye.clone(), self.spec.shell.encode);
        self.ship_message(machine, Way::Down, id, &bye, payload);
        self.ship_sign(machine, Way::Down, id, Happening::LostAtLearner { conn: id });
    }

    /// Closes the syncer's end with its process and drops its queue. The learner's end finds out after the data already
    /// sent.
    pub(super) fn drop_at_syncer(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&id).filter(|conn| conn.syncer_open) else { return };
        conn.syncer_open = false;
        let machine = conn.machine;
        self.machines[machine as usize].link.lane(Way::Down).forget(id, true);
        self.ship_sign(machine, Way::Down, id, Happening::LostAtLearner { conn: id });
    }

    /// Starts a syncer process around `core`.
    pub(super) fn start_host(&mut self, core: Syncer) {
        self.host = Some(SyncerProcess::new(core, Clock::new(self.now, self.spec.shell.clock_rate)));
    }

    /// Answers a request for a fragment. The syncer has one version of each, and answers with that.
    pub(super) fn answer_fragment(&mut self, machine: u32, life: u32, downloads: u32, fragment: FragmentId) {
        let fails = self.http_fails();
        let Some(host) = self.host.as_mut().filter(|_| !fails) else {
            let came = Happening::FragmentCame { machine, life, downloads, fragment, answer: None };
            return self.ship_http(machine, Way::Down, REQUEST_BYTES, came, None);
        };
        let gate = &self.record.gate;
        let Some((version, hat)) = host.core.hat(fragment).filter(|_| gate.is_version_safe(fragment)) else {
            return host.waiting.push((machine, life, downloads, fragment));
        };
        let bytes = (halves::BYTES * hat.len()) as u64 * self.weight();
        let hat = Arc::clone(&hat);
        self.audit.on_told_version(machine, fragment, version);
        let came =
            Happening::FragmentCame { machine, life, downloads, fragment, answer: Some((version, hat)) };
        self.ship_http(machine, Way::Down, bytes, came, Some(Sight::whole(fragment, bytes)));
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
        let came = Happening::ShardCame { machine, life, shard, here };
        self.ship_http(machine, Way::Down, bytes, came, None);
    }
}
