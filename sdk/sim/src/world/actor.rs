//! The syncer's actor: queued inputs, each of which occupies the actor for some time.

use std::collections::{BTreeSet, VecDeque};

use super::World;
use super::clock::Clock;
use super::happening::Happening;
use archipelago_core::diloco::syncer::{Input, Syncer};
use archipelago_core::wire::{ConnId, FragmentId, Message, Millis};

/// A process of the syncer.
pub(super) struct SyncerProcess {
    pub(super) core: Syncer,
    pub(super) clock: Clock,
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
    pub(super) fn new(core: Syncer, clock: Clock) -> Self {
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
                    self.queue.plan(at, Happening::ActorFree { generation, at });
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
