//! Traffic on the links of a world.

use super::happening::Happening;
use super::link::{Class, Freight, Passage, Way};
use super::payload::{Payload, body_bytes};
use super::trace::Sight;
use super::{Parcel, Trace, World};
use archipelago_core::wire::{ConnId, Message, Millis};

/// Size of a ping, a pong or a close, in bytes.
const SIGN_BYTES: u64 = 2;

impl World {
    /// Queues a message for `conn` on the link of `machine`.
    pub(super) fn ship_message(
        &mut self,
        machine: u32,
        way: Way,
        conn: ConnId,
        message: &Message,
        payload: Payload,
    ) {
        let class = if message.is_bulk() { Class::Bulk } else { Class::Control };
        let bytes = payload.bytes() + (self.weight() - 1) * body_bytes(message);
        let sight = self.traces.is_some().then(|| Sight::of(message, bytes)).flatten().map(Box::new);
        let carries = match way {
            Way::Up => Happening::ToSyncer { conn, payload },
            Way::Down => Happening::ToLearner { conn, payload },
        };
        self.ship(machine, way, Freight { class, bytes, conn: Some(conn), carries, sight });
    }

    /// Queues a signal without content for `conn` on the link of `machine`, ahead of parameters.
    pub(super) fn ship_sign(&mut self, machine: u32, way: Way, conn: ConnId, carries: Happening) {
        let freight =
            Freight { class: Class::Control, bytes: SIGN_BYTES, conn: Some(conn), carries, sight: None };
        self.ship(machine, way, freight);
    }

    /// Queues an HTTP request or response on the link of `machine`.
    pub(super) fn ship_http(
        &mut self,
        machine: u32,
        way: Way,
        bytes: u64,
        carries: Happening,
        sight: Option<Sight>,
    ) {
        let sight = sight.filter(|_| self.traces.is_some()).map(Box::new);
        self.ship(machine, way, Freight { class: Class::Http, bytes, conn: None, carries, sight });
    }

    /// Returns the bytes that one byte of parameters counts for on a link.
    pub(super) fn weight(&self) -> u64 {
        u64::from(self.spec.shell.weight.max(1))
    }

    fn ship(&mut self, machine: u32, way: Way, freight: Freight<Happening>) {
        self.machines[machine as usize].link.lane(way).take(freight);
        self.pump(machine, way);
    }

    /// Lets a link send its next items, unless the link is cut.
    pub(super) fn pump(&mut self, machine: u32, way: Way) {
        let there = &mut self.machines[machine as usize];
        if there.cut {
            return;
        }
        let (passages, free_at) = there.link.lane(way).pump(self.now, &mut self.rng);
        let planned = &mut there.pumps[way as usize];
        let is_new = *planned != free_at;
        *planned = free_at;
        if let Some(at) = free_at.filter(|_| is_new) {
            self.queue.plan(at, Happening::LinkFree { machine, way, at });
        }
        for passage in passages {
            match passage {
                Passage::Sent { arrives, carries } => self.queue.plan(arrives, carries),
                Passage::Began { until, sight } => {
                    let Sight { what, round, fragment, bytes, body } = *sight;
                    let from = self.now;
                    let parcel = Parcel { machine, what, round, fragment, bytes, from, until, body };
                    self.note_trace(|| Some(Trace::Parcel(parcel)));
                }
            }
        }
    }

    pub(super) fn link_free(&mut self, machine: u32, way: Way, at: Millis) {
        let planned = &mut self.machines[machine as usize].pumps[way as usize];
        if *planned == Some(at) {
            *planned = None;
            self.pump(machine, way);
            if way == Way::Up {
                self.flushed(machine);
            }
        }
    }
}
