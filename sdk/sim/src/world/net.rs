//! Connections: dialling, delivering, breaking.

use super::World;
use super::happening::Happening;
use super::link::Way;
use super::payload::Payload;
use archipelago_core::diloco::syncer;
use archipelago_core::driver::Input;
use archipelago_core::wire::{Bye, Challenge, ConnId, Message, Millis};

/// One connection, with an end at the syncer and one at the learner. A closed end accepts nothing.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) machine: u32,
    pub(super) life: u32,
    pub(super) syncer_open: bool,
    pub(super) learner_open: bool,
    /// Whether all traffic is lost without the ends' knowledge.
    pub(super) swallowed: bool,
    /// End of the current check by its reader at the syncer, in microseconds; updates are checked one after the other.
    read_until_us: u64,
}

impl World {
    /// Begins to connect.
    pub(super) fn dial(&mut self, machine: u32, attempt: u32) {
        let (life, latency) =
            (self.machines[machine as usize].life, self.machines[machine as usize].link.latency_ms());
        self.queue.plan(self.now.after(latency), Happening::Knock { machine, life, attempt });
    }

    pub(super) fn knock(&mut self, machine: u32, life: u32, attempt: u32) {
        let conn = self.host.is_some().then_some(ConnId(self.conns_made));
        if let Some(conn) = conn {
            self.conns_made += 1;
            let (syncer_open, learner_open) = (true, true);
            let ends = Conn { machine, life, syncer_open, learner_open, swallowed: false, read_until_us: 0 };
            self.conns.insert(conn, ends);
            for way in [Way::Up, Way::Down] {
                self.machines[machine as usize].link.lane(way).begin_stream();
            }
        }
        let latency = self.machines[machine as usize].link.latency_ms();
        self.queue.plan(self.now.after(latency), Happening::Dialled { machine, life, attempt, conn });
    }

    pub(super) fn dialled(&mut self, machine: u32, life: u32, attempt: u32, conn: Option<ConnId>) {
        let process = self.machines[machine as usize].alive(life);
        let Some(process) = process.filter(|process| process.dialling == Some(attempt)) else {
            // The process has died since, or has given this attempt up: its kernel refuses the connection.
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
        self.queue.plan(self.now.after(self.spec.shell.ping_ms), Happening::PingDue { conn });
        self.learner_input(machine, Input::Opened);
        // The syncer's first message comes with the acceptance of the connection.
        let run = self.spec.run;
        let challenge = Challenge { run, nonce: [0; 32] };
        self.learner_input(machine, Input::Message(Message::Challenge(challenge)));
    }

    pub(super) fn deliver_up(&mut self, conn: ConnId, payload: Payload) {
        if self.host.is_none() || !self.conns.get(&conn).is_some_and(|conn| conn.syncer_open) {
            return;
        }
        match payload.open() {
            // Verified here, as in the server's readers.
            Ok(Message::Update(update)) => {
                let syncer = &self.host.as_ref().expect("checked above").core;
                let bytes = update.body.len() as u64 * self.weight();
                let verified = Box::new(syncer.verifier().verify(update));
                self.read(conn, bytes, syncer::Input::Update(conn, verified));
            }
            Ok(message) => self.read(conn, 0, syncer::Input::Message(conn, message)),
            Err(error) => {
                self.part(conn, Bye::new(error.close_code(), error.to_string()));
                self.read(conn, 0, syncer::Input::Disconnected(conn));
            }
        }
    }

    /// Lets the reader of `conn` check an input with `bytes` of parameters, then hands it to the actor.
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
            return self.tell_syncer(input);
        }
        let (generation, input) = (self.generation, Box::new(input));
        self.queue.plan(Millis(until_us / 1_000), Happening::Read { generation, input });
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
            self.machines[machine as usize].link.lane(Way::Down).forget(id, true);
            self.read(id, 0, syncer::Input::Disconnected(id));
        }
        self.forget(id);
    }

    pub(super) fn lost_at_learner(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let (machine, life) = (conn.machine, conn.life);
        if std::mem::replace(&mut conn.learner_open, false) {
            self.machines[machine as usize].link.lane(Way::Up).forget(id, true);
            self.disconnect_process(machine, life, id);
        }
        self.forget(id);
    }

    /// Tells a process that its connection is gone.
    fn disconnect_process(&mut self, machine: u32, life: u32, id: ConnId) {
        let Some(process) = self.machines[machine as usize].alive(life) else { return };
        if process.conn == Some(id) {
            process.conn = None;
            let reason = "the connection broke".to_owned();
            self.learner_input(machine, Input::Closed { code: None, reason });
        }
    }

    /// Closes the learner's end. The syncer's end finds out after the data already sent. Queued messages are dropped:
    /// all of them if the process died, otherwise only parameters.
    pub(super) fn end_at_learner(&mut self, id: ConnId, died: bool) {
        let Some(conn) = self.conns.get_mut(&id).filter(|conn| conn.learner_open) else { return };
        conn.learner_open = false;
        let machine = conn.machine;
        self.machines[machine as usize].link.lane(Way::Up).forget(id, died);
        self.ship_sign(machine, Way::Up, id, Happening::LostAtSyncer { conn: id });
    }

    /// Closes both ends and loses all data in flight.
    pub(super) fn break_connection(&mut self, machine: u32) {
        let Some(id) = self.machines[machine as usize].process.as_ref().and_then(|process| process.conn)
        else {
            return;
        };
        self.lost_at_syncer(id);
        self.lost_at_learner(id);
    }

    /// Loses all traffic of the connection from now on.
    pub(super) fn swallow(&mut self, machine: u32) {
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
        self.ship_sign(machine, Way::Up, id, Happening::Pong { conn: id });
        self.learner_input(machine, Input::Heard);
    }

    /// Sends a ping from the syncer's end and plans the next one.
    pub(super) fn ping_due(&mut self, id: ConnId) {
        let Some(&Conn { machine, .. }) = self.conns.get(&id).filter(|conn| conn.syncer_open) else { return };
        self.ship_sign(machine, Way::Down, id, Happening::Ping { conn: id });
        self.queue.plan(self.now.after(self.spec.shell.ping_ms), Happening::PingDue { conn: id });
    }

    pub(super) fn pong(&mut self, id: ConnId) {
        if self.conns.get(&id).is_some_and(|conn| conn.syncer_open) {
            self.read(id, 0, syncer::Input::Heard(id));
        }
    }
}
