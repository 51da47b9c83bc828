//! The services between the machines: transport, and execution of owners' orders.

use std::sync::Arc;

use archipelago_core::cluster::{GatewayInput, LeaderInput, LeaderOutput, Record};
use archipelago_core::wire::Millis;

use super::tape::{REPLICAS, Taken};
use super::{Cluster, Happening, LEASE_MS, carried};

/// An appended record that is not committed yet.
#[derive(Debug)]
pub(super) struct Awaited {
    turn: u64,
    seq: u64,
    view: u64,
    record: Record,
}

/// The process at the other end of a message to or from a service.
#[derive(Clone, Copy, Debug)]
pub(super) enum Service {
    FragmentLeader(usize),
    Gateway(usize),
}

impl Cluster {
    /// Sends a message to or from a service, unless it is lost. The machines repeat unanswered requests.
    pub(super) fn ship(&mut self, who: Service, what: Happening) {
        let apart = match who {
            Service::FragmentLeader(at) => self.owners[at].apart,
            Service::Gateway(at) => self.gateways[at].apart,
        };
        if apart <= self.now && !self.rng.chance(self.weather.loss) {
            let ms = self.rng.between(1, self.weather.delay_ms);
            self.plan_in(ms, what);
        }
    }

    /// Sends a message over the bus.
    pub(super) fn ship_between(&mut self, gateway: usize, owner: usize, what: Happening) {
        if self.gateways[gateway].apart > self.now || self.owners[owner].apart > self.now {
            return;
        }
        if self.rng.chance(self.weather.twice) {
            let again = match &what {
                Happening::FragmentLeader(at, life, input) => {
                    Happening::FragmentLeader(*at, *life, input.clone())
                }
                Happening::Gateway(at, life, input) => Happening::Gateway(*at, *life, input.clone()),
                _ => return,
            };
            let ms = self.rng.between(1, 3 * self.weather.delay_ms);
            self.plan_in(ms, again);
        }
        if !self.rng.chance(self.weather.loss) {
            let ms = self.rng.between(1, self.weather.delay_ms);
            self.plan_in(ms, what);
        }
    }

    /// Executes an owner's order.
    pub(super) fn serve(&mut self, at: usize, life: u32, order: LeaderOutput) {
        match order {
            LeaderOutput::Append { turn, expect, record } => match self.tape.append(expect, carried(&record))
            {
                Taken::Silence => {}
                Taken::Refused => self.answer_owner(at, life, LeaderInput::Refused),
                Taken::At(seq, view) => {
                    self.copy_to_all();
                    self.look_after(at, life, Awaited { turn, seq, view, record });
                }
            },
            LeaderOutput::Read(after) => {
                if let Some(records) = self.tape.read(after) {
                    self.answer_owner(at, life, LeaderInput::Records(after, records));
                }
            }
            LeaderOutput::Store(key, bytes) => {
                let there = self.blobs.entry(key).or_insert_with(|| Arc::clone(&bytes));
                let is_ours = *there == bytes;
                self.archive.entry(key).or_insert(bytes);
                self.answer_owner(at, life, LeaderInput::Stored(key, is_ours));
            }
            LeaderOutput::Load(key) => {
                let bytes = self.blobs.get(&key).map(|bytes| bytes.to_vec());
                self.answer_owner(at, life, LeaderInput::Loaded(key, bytes));
            }
            LeaderOutput::Begin => {
                let initial = self.run.initial.clone();
                self.answer_owner(at, life, LeaderInput::Begun(initial));
            }
            LeaderOutput::Forget(keys) => keys.for_each(|key| drop(self.blobs.remove(&key))),
            LeaderOutput::Tell(_) => {}
        }
    }

    /// Acknowledges a record once it is committed; never, if its view has ended.
    pub(super) fn look_after(&mut self, at: usize, life: u32, awaited: Awaited) {
        let Awaited { turn, seq, view, .. } = awaited;
        if self.tape.has(seq, view) {
            self.acknowledged.insert(seq, awaited.record);
            self.answer_owner(at, life, LeaderInput::Appended { turn, seq });
        } else if self.tape.is_of(view) {
            self.plan_in(5, Happening::Await(at, life, awaited));
        }
    }

    /// Plans copies of the leader's log to all replicas.
    pub(super) fn copy_to_all(&mut self) {
        for replica in 0..REPLICAS {
            let ms = self.rng.between(1, self.weather.disk_ms);
            self.plan_in(ms, Happening::Copied(replica));
        }
    }

    /// Claims or renews the lease for an owner.
    pub(super) fn claim(&mut self, at: usize) {
        let process = &self.owners[at];
        let (life, late_ms) = (process.life, process.late_ms);
        if process.paused > self.now || process.apart > self.now {
            return;
        }
        let is_free =
            self.lease.is_none_or(|(owner, its, until)| until < self.now || (owner, its) == (at, life));
        if is_free {
            let until = Millis(self.now.0 + LEASE_MS);
            self.lease = Some((at, life, until));
            self.answer_owner(at, life, LeaderInput::Leased(Millis(until.0 + late_ms)));
        } else if late_ms == 0 {
            self.answer_owner(at, life, LeaderInput::NotLeased);
        }
    }

    pub(super) fn answer_owner(&mut self, at: usize, life: u32, input: LeaderInput) {
        self.ship(Service::FragmentLeader(at), Happening::FragmentLeader(at, life, input));
    }

    pub(super) fn answer_gateway(&mut self, at: usize, life: u32, input: GatewayInput) {
        self.ship(Service::Gateway(at), Happening::Gateway(at, life, input));
    }
}
