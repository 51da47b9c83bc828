//! Memory use of a world, to detect growth over time.

use super::World;
use super::link::Way;

/// Sizes of a world's collections at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Planned events.
    pub planned: usize,
    /// Connections with at least one open end.
    pub connections: usize,
    /// Messages queued on links.
    pub messages: usize,
    /// Decisions that are not yet on the syncer's disk.
    pub unsaved: u64,
    /// Identities known to the syncer.
    pub identities: usize,
}

impl Held {
    /// Returns the elementwise maximum.
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
    /// Returns the current sizes.
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
