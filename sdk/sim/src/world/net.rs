//! Connections, and messages in transit on the links of a world.

use std::sync::Arc;

use archipelago_core::diloco::syncer;
use archipelago_core::driver::Input;
use archipelago_core::wire::{
    Assembler, BODY_BYTES_MAX, Bye, Challenge, ConnId, DecodeError, Message, Millis, encode, frames,
};

use super::event::WorldEvent;
use super::link::{Class, Delivery, LinkDirection, Packet};
use super::trace::ParcelContent;
use super::{Parcel, Trace, World};

/// Connection with an end at the syncer and an end at the learner. A closed end accepts nothing.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) machine: u32,
    pub(super) life: u32,
    pub(super) syncer_open: bool,
    pub(super) learner_open: bool,
    /// Whether all traffic is lost without notice to either end.
    pub(super) swallowed: bool,
    /// End of the current verification by the connection's reader at the syncer, in microseconds.
    read_until_us: u64,
}

impl World {
    /// Sends a connection request.
    pub(super) fn dial(&mut self, machine: u32, attempt: u32) {
        let (life, latency) =
            (self.machines[machine as usize].life, self.machines[machine as usize].link.latency_ms());
        self.queue.plan(self.now.after(latency), WorldEvent::Knock { machine, life, attempt });
    }

    pub(super) fn begin_connection(&mut self, machine: u32, life: u32, attempt: u32) {
        let conn = self.host.is_some().then_some(ConnId(self.conns_made));
        if let Some(conn) = conn {
            self.conns_made += 1;
            let (syncer_open, learner_open) = (true, true);
            let ends = Conn { machine, life, syncer_open, learner_open, swallowed: false, read_until_us: 0 };
            self.conns.insert(conn, ends);
            for way in [LinkDirection::Up, LinkDirection::Down] {
                self.machines[machine as usize].link.lane(way).begin_stream();
            }
        }
        let latency = self.machines[machine as usize].link.latency_ms();
        self.queue.plan(self.now.after(latency), WorldEvent::Dialled { machine, life, attempt, conn });
    }

    pub(super) fn dialled(&mut self, machine: u32, life: u32, attempt: u32, conn: Option<ConnId>) {
        let process = self.machines[machine as usize].alive(life);
        let Some(process) = process.filter(|process| process.dialling == Some(attempt)) else {
            // The process has ended or has abandoned the attempt, so its machine refuses the connection.
            if let Some(conn) = conn {
                self.end_at_learner(conn, true);
            }
            return;
        };
        process.dialling = None;
        let open = |conn: &ConnId| self.conns.get(conn).is_some_and(|conn| conn.learner_open);
        let Some(conn) = conn.filter(open) else {
            let reason = "nobody answers".to_owned();
            return self.learner_input(machine, Input::Closed { code: None, reason });
        };
        process.conn = Some(conn);
        self.queue.plan(self.now.after(self.spec.shell.ping_ms), WorldEvent::PingDue { conn });
        self.learner_input(machine, Input::Opened);
        // The syncer's first message arrives together with the connection.
        let run = self.spec.run;
        let challenge = Challenge { run, nonce: [0; 32] };
        self.learner_input(machine, Input::Message(Message::Challenge(challenge)));
    }

    pub(super) fn deliver_up(&mut self, conn: ConnId, payload: Payload) {
        if self.host.is_none() || !self.conns.get(&conn).is_some_and(|conn| conn.syncer_open) {
            return;
        }
        match payload.open() {
            // Updates are verified here, as in the server's readers.
            Ok(Message::Update(update)) => {
                let syncer = &self.host.as_ref().expect("checked above").core;
                let bytes = update.body.len() as u64 * self.weight();
                let verified = Box::new(syncer.verifier().verify(update));
                self.read(conn, bytes, syncer::Input::Update(conn, verified));
            }
            Ok(message) => self.read(conn, 0, syncer::Input::Message(conn, message)),
            Err(error) => {
                self.close_with(conn, Bye::new(error.close_code(), error.to_string()));
                self.read(conn, 0, syncer::Input::Disconnected(conn));
            }
        }
    }

    /// Lets the reader of connection `id` verify an input with `bytes` bytes of parameters, and then queues it for the
    /// actor.
    fn read(&mut self, id: ConnId, bytes: u64, input: syncer::Input) {
        let (now_us, look_us) =
            (1_000 * self.now.0, bytes * self.spec.shell.pace.verify_ps_per_byte / 1_000_000);
        let until_us = match self.conns.get_mut(&id) {
            Some(conn) => {
                conn.read_until_us = conn.read_until_us.max(now_us) + look_us;
                conn.read_until_us
            }
            None => now_us,
        };
        if until_us < now_us + 1_000 {
            return self.syncer_input(input);
        }
        let (generation, input) = (self.generation, Box::new(input));
        self.queue.plan(Millis(until_us / 1_000), WorldEvent::Read { generation, input });
    }

    pub(super) fn deliver_down(&mut self, id: ConnId, payload: Payload) {
        let Some(conn) = self.conns.get(&id).filter(|conn| conn.learner_open) else { return };
        let (machine, life) = (conn.machine, conn.life);
        if self.machines[machine as usize].alive(life).is_some() {
            let message = payload.open().expect("the syncer sends what it should");
            self.learner_input(machine, Input::Message(message));
            self.flushed(machine);
        }
    }

    pub(super) fn lost_at_syncer(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let machine = conn.machine;
        if std::mem::replace(&mut conn.syncer_open, false) {
            self.machines[machine as usize].link.lane(LinkDirection::Down).forget(id, true);
            self.read(id, 0, syncer::Input::Disconnected(id));
        }
        self.forget(id);
    }

    pub(super) fn lost_at_learner(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let (machine, life) = (conn.machine, conn.life);
        if std::mem::replace(&mut conn.learner_open, false) {
            self.machines[machine as usize].link.lane(LinkDirection::Up).forget(id, true);
            self.disconnect_process(machine, life, id);
        }
        self.forget(id);
    }

    /// Notifies a process that its connection is closed.
    fn disconnect_process(&mut self, machine: u32, life: u32, id: ConnId) {
        let Some(process) = self.machines[machine as usize].alive(life) else { return };
        if process.conn == Some(id) {
            process.conn = None;
            let reason = "the connection broke".to_owned();
            self.learner_input(machine, Input::Closed { code: None, reason });
        }
    }

    /// Closes the learner's end. The syncer's end is notified after the data that was already sent. If the process
    /// died, all queued messages are dropped; otherwise only bulk messages are.
    pub(super) fn end_at_learner(&mut self, id: ConnId, died: bool) {
        let Some(conn) = self.conns.get_mut(&id).filter(|conn| conn.learner_open) else { return };
        conn.learner_open = false;
        let machine = conn.machine;
        self.machines[machine as usize].link.lane(LinkDirection::Up).forget(id, died);
        self.ship_sign(machine, LinkDirection::Up, id, WorldEvent::LostAtSyncer { conn: id });
    }

    /// Closes both ends of the connection. All data in flight is lost.
    pub(super) fn break_connection(&mut self, machine: u32) {
        let Some(id) = self.machines[machine as usize].process.as_ref().and_then(|process| process.conn)
        else {
            return;
        };
        self.lost_at_syncer(id);
        self.lost_at_learner(id);
    }

    /// Makes the connection lose all traffic from now on.
    pub(super) fn blackhole(&mut self, machine: u32) {
        let process = self.machines[machine as usize].process.as_ref();
        if let Some(conn) = process.and_then(|process| self.conns.get_mut(&process.conn?)) {
            conn.swallowed = true;
        }
    }

    fn forget(&mut self, id: ConnId) {
        if self.conns.get(&id).is_some_and(|conn| !conn.syncer_open && !conn.learner_open) {
            self.conns.remove(&id);
        }
    }

    /// Answers a ping at the learner's end.
    pub(super) fn ping(&mut self, id: ConnId) {
        let open = |conn: &&Conn| conn.learner_open && conn.syncer_open;
        let Some(&Conn { machine, life, .. }) = self.conns.get(&id).filter(open) else { return };
        if self.machines[machine as usize].alive(life).is_none() {
            return;
        }
        self.ship_sign(machine, LinkDirection::Up, id, WorldEvent::Pong { conn: id });
        self.learner_input(machine, Input::Heard);
    }

    /// Sends a ping from the syncer's end, and schedules the next one.
    pub(super) fn ping_due(&mut self, id: ConnId) {
        let Some(&Conn { machine, .. }) = self.conns.get(&id).filter(|conn| conn.syncer_open) else { return };
        self.ship_sign(machine, LinkDirection::Down, id, WorldEvent::Ping { conn: id });
        self.queue.plan(self.now.after(self.spec.shell.ping_ms), WorldEvent::PingDue { conn: id });
    }

    pub(super) fn pong(&mut self, id: ConnId) {
        if self.conns.get(&id).is_some_and(|conn| conn.syncer_open) {
            self.read(id, 0, syncer::Input::Heard(id));
        }
    }
}

/// Size of a ping, a pong, or the end of a connection, in bytes.
const SIGN_BYTES: u64 = 2;

impl World {
    /// Queues a message for `conn` on the link of `machine`.
    pub(super) fn ship_message(
        &mut self,
        machine: u32,
        way: LinkDirection,
        conn: ConnId,
        message: &Message,
        payload: Payload,
    ) {
        let class = if message.is_bulk() { Class::Bulk } else { Class::Control };
        let bytes = payload.bytes() + (self.weight() - 1) * body_bytes(message);
        let content =
            self.traces.is_some().then(|| ParcelContent::of(message, bytes)).flatten().map(Box::new);
        let carries = match way {
            LinkDirection::Up => WorldEvent::ToSyncer { conn, payload },
            LinkDirection::Down => WorldEvent::ToLearner { conn, payload },
        };
        self.ship(machine, way, Packet { class, bytes, conn: Some(conn), carries, content });
    }

    /// Queues a ping, a pong, or the end of `conn` on the link of `machine`, ahead of bulk messages.
    pub(super) fn ship_sign(&mut self, machine: u32, way: LinkDirection, conn: ConnId, carries: WorldEvent) {
        let packet =
            Packet { class: Class::Control, bytes: SIGN_BYTES, conn: Some(conn), carries, content: None };
        self.ship(machine, way, packet);
    }

    /// Queues an HTTP request or response on the link of `machine`.
    pub(super) fn ship_http(
        &mut self,
        machine: u32,
        way: LinkDirection,
        bytes: u64,
        carries: WorldEvent,
        content: Option<ParcelContent>,
    ) {
        let content = content.filter(|_| self.traces.is_some()).map(Box::new);
        self.ship(machine, way, Packet { class: Class::Http, bytes, conn: None, carries, content });
    }

    /// Returns the factor on the size of parameters on a link.
    pub(super) fn weight(&self) -> u64 {
        u64::from(self.spec.shell.weight.max(1))
    }

    fn ship(&mut self, machine: u32, way: LinkDirection, packet: Packet<WorldEvent>) {
        self.machines[machine as usize].link.lane(way).enqueue(packet);
        self.pump(machine, way);
    }

    /// Lets a link send its due packets, unless the link is cut, and schedules the arrivals.
    pub(super) fn pump(&mut self, machine: u32, way: LinkDirection) {
        let there = &mut self.machines[machine as usize];
        if there.cut {
            return;
        }
        let (deliveries, free_at) = there.link.lane(way).pump(self.now, &mut self.rng);
        let planned = &mut there.pumps[way as usize];
        let is_new = *planned != free_at;
        *planned = free_at;
        if let Some(at) = free_at.filter(|_| is_new) {
            self.queue.plan(at, WorldEvent::LinkFree { machine, way, at });
        }
        for delivery in deliveries {
            match delivery {
                Delivery::Sent { arrives, carries } => self.queue.plan(arrives, carries),
                Delivery::Began { until, content } => {
                    let ParcelContent { what, round, fragment, bytes, body } = *content;
                    let from = self.now;
                    let parcel = Parcel { machine, what, round, fragment, bytes, from, until, body };
                    self.note_trace(|| Some(Trace::Parcel(parcel)));
                }
            }
        }
    }

    pub(super) fn link_free(&mut self, machine: u32, way: LinkDirection, at: Millis) {
        let planned = &mut self.machines[machine as usize].pumps[way as usize];
        if *planned == Some(at) {
            *planned = None;
            self.pump(machine, way);
            if way == LinkDirection::Up {
                self.flushed(machine);
            }
        }
    }
}

/// Assumed size of a message without its body, in bytes, if messages are not encoded.
const ENVELOPE_BYTES: u64 = 64;

/// Message in transit.
#[derive(Clone, Debug)]
pub(super) enum Payload {
    /// Encoded frames, as on the wire.
    Frames(Arc<Vec<Vec<u8>>>),
    /// Message that is not encoded, for speed.
    Whole(Arc<Message>),
}

impl Payload {
    pub(super) fn new(message: Message, real: bool) -> Self {
        if real {
            Self::Frames(Arc::new(frames(encode(&message), 0).collect()))
        } else {
            Self::Whole(Arc::new(message))
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Frames(frames) => frames.iter().map(|frame| frame.len() as u64).sum(),
            Self::Whole(message) => ENVELOPE_BYTES + body_bytes(message),
        }
    }

    pub(super) fn open(self) -> Result<Message, DecodeError> {
        match self {
            Self::Whole(message) => Ok(Arc::unwrap_or_clone(message)),
            Self::Frames(frames) => {
                let mut assembler = Assembler::new(BODY_BYTES_MAX);
                let mut last = None;
                for frame in &*frames {
                    last = assembler.push(frame)?;
                }
                Ok(last.expect("the last frame completes the message"))
            }
        }
    }
}

/// Returns the size of the parameters in `message`, in bytes.
pub(super) fn body_bytes(message: &Message) -> u64 {
    match message {
        Message::Update(update) => update.body.len() as u64,
        Message::Merged(merged) => merged.body.len() as u64,
        _ => 0,
    }
}
