//! Connections: dialling, delivering, breaking.

use super::World;
use super::happening::Happening;
use super::link::Lane;
use super::payload::Payload;
use archipelago::diloco::syncer;
use archipelago::member::Input;
use archipelago::wire::{Bye, ConnId, Message};

/// One connection, with an end at the syncer and one at the learner. A closed end takes nothing in.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) machine: u32,
    pub(super) life: u32,
    pub(super) syncer_open: bool,
    pub(super) learner_open: bool,
    /// What it carries is lost, and neither end knows.
    pub(super) swallowed: bool,
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
            let ends = Conn { machine, life, syncer_open: true, learner_open: true, swallowed: false };
            self.conns.insert(conn, ends);
            self.machines[machine as usize].link.reset();
        }
        let latency = self.machines[machine as usize].link.latency_ms();
        self.queue.plan(self.now.after(latency), Happening::Dialled { machine, life, attempt, conn });
    }

    pub(super) fn dialled(&mut self, machine: u32, life: u32, attempt: u32, conn: Option<ConnId>) {
        let process = self.machines[machine as usize].alive(life);
        let Some(process) = process.filter(|process| process.dialling == Some(attempt)) else {
            // A process that has died since, or given this attempt up: its kernel refuses the connection.
            if let Some(conn) = conn {
                self.end_at_learner(conn);
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
        self.queue.plan(self.now.after(self.spec.shell.ping_ms), Happening::Ping { conn });
        self.learner_input(machine, Input::Opened);
    }

    pub(super) fn deliver_up(&mut self, conn: ConnId, payload: Payload) {
        if self.host.is_none() || !self.conns.get(&conn).is_some_and(|conn| conn.syncer_open) {
            return;
        }
        match payload.open() {
            Ok(message) => {
                let syncer = &self.host.as_ref().expect("checked above").core;
                self.audit.on_arrived(conn, &message, syncer);
                // As the server's readers do.
                let input = match message {
                    Message::Update(update) => {
                        syncer::Input::Update(conn, Box::new(syncer.verifier().verify(update)))
                    }
                    message => syncer::Input::Message(conn, message),
                };
                self.host_input(input);
            }
            Err(error) => {
                let bye = Bye::new(error.close_code(), error.to_string());
                self.send_bye(conn, bye);
                self.host_input(syncer::Input::Disconnected(conn));
            }
        }
    }

    fn send_bye(&mut self, id: ConnId, bye: Bye) {
        let Some(conn) = self.conns.get(&id) else { return };
        let payload = Payload::new(Message::Bye(bye), self.spec.shell.encode);
        let at = self.arrival(conn.machine, Lane::ControlDown, payload.bytes());
        self.queue.plan(at, Happening::ToLearner { conn: id, payload });
        self.end_at_syncer(id);
    }

    pub(super) fn deliver_down(&mut self, id: ConnId, payload: Payload) {
        let Some(conn) = self.conns.get(&id).filter(|conn| conn.learner_open) else { return };
        let (machine, life) = (conn.machine, conn.life);
        if self.machines[machine as usize].alive(life).is_some() {
            let message = payload.open().expect("the syncer sends what it should");
            self.learner_input(machine, Input::Message(message));
        }
    }

    pub(super) fn lost_at_syncer(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if std::mem::replace(&mut conn.syncer_open, false) {
            self.host_input(syncer::Input::Disconnected(id));
        }
        self.forget(id);
    }

    pub(super) fn lost_at_learner(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let (machine, life) = (conn.machine, conn.life);
        if std::mem::replace(&mut conn.learner_open, false) {
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

    /// Closes the learner's end; the syncer's end finds out after all that was sent to it.
    pub(super) fn end_at_learner(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&id).filter(|conn| conn.learner_open) else { return };
        conn.learner_open = false;
        let machine = conn.machine;
        let bulk = self.arrival(machine, Lane::BulkUp, 0);
        let control = self.arrival(machine, Lane::ControlUp, 0);
        self.queue.plan(bulk.max(control), Happening::LostAtSyncer { conn: id });
    }

    /// Both ends lose the connection, and what is in flight.
    pub(super) fn break_connection(&mut self, machine: u32) {
        let Some(id) = self.machines[machine as usize].process.as_ref().and_then(|process| process.conn)
        else {
            return;
        };
        self.lost_at_syncer(id);
        self.lost_at_learner(id);
    }

    /// From now on what the connection carries is lost.
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

    /// The learner's end answers a ping; with it goes the next one.
    pub(super) fn ping(&mut self, id: ConnId) {
        let open = |conn: &&Conn| conn.learner_open && conn.syncer_open;
        let Some(&Conn { machine, life, .. }) = self.conns.get(&id).filter(open) else { return };
        if self.machines[machine as usize].alive(life).is_none() {
            return;
        }
        let at = self.arrival(machine, Lane::ControlUp, 2);
        self.queue.plan(at, Happening::Pong { conn: id });
        self.queue.plan(self.now.after(self.spec.shell.ping_ms), Happening::Ping { conn: id });
        self.learner_input(machine, Input::Heard);
    }

    pub(super) fn pong(&mut self, id: ConnId) {
        if self.conns.get(&id).is_some_and(|conn| conn.syncer_open) {
            self.host_input(syncer::Input::Heard(id));
        }
    }
}
