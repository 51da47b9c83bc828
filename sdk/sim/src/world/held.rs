//! What a world holds in memory, to see whether any of it grows with time.

use super::World;
use super::link::Way;

/// How much of each thing is held at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Things that will happen.
    pub planned: usize,
    /// Connections of which one end at least is open.
    pub connections: usize,
    /// Messages that wait on links.
    pub messages: usize,
    /// Decisions that are not on the syncer's disk.
    pub unsaved: u64,
    /// Identities that the syncer knows.
    pub identities: usize,
}

impl Held {
    /// The larger of each.
    #[must_use]
    pub fn larger(self, other: Self) -> Self {
        Self {
            planned: self.planned.max(other.planned),
            connections: self.connections.max(other.connections),
            messages: self.messages.max(other.messages),
            unsaved: self.unsaved.max(other.unsaved),
            identities: self.identities.max(other.identities),
        }
    }
}

impl World {
    /// What is held now.
    pub fn held(&mut self) -> Held {
        let mut messages = 0;
        for machine in &mut self.machines {
            for way in [Way::Up, Way::Down] {
                let (control, bulk) = machine.link.lane(way).waiting();
                messages += control + bulk;
            }
        }
        Held {
            planned: self.queue.len(),
            connections: self.conns.len(),
            messages,
            unsaved: self.record.gate.unsaved(),
            identities: self.host.as_ref().map_or(0, |host| host.core.ledger().len()),
        }
    }
}
