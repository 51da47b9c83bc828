//! Traffic counters of the sockets.

use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_core::wire::{Class, Message};
use serde::{Deserialize, Serialize};

/// Counter group to which the bytes of a message are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Handshake and fetched parameters, once for each joining learner.
    Join,
    /// Everything else.
    Run,
}

impl Phase {
    /// Returns the counter group of `message`.
    #[must_use]
    pub fn of(message: &Message) -> Self {
        match message.tag().class() {
            Class::Greeting => Self::Join,
            Class::Control | Class::Bulk => Self::Run,
        }
    }
}

/// Counters that all connections share. Up is learner → syncer.
#[derive(Debug, Default)]
pub struct Meters {
    bytes_up: AtomicU64,
    bytes_down: AtomicU64,
    values_up: AtomicU64,
    values_down: AtomicU64,
    join_bytes: AtomicU64,
    data_bytes: AtomicU64,
}

/// Values of the counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Traffic {
    /// WebSocket bytes from learners while training, including frame headers and pings.
    pub bytes_up: u64,
    /// WebSocket bytes to learners while training, including frame headers and pings.
    pub bytes_down: u64,
    /// Parameters in all updates received.
    pub values_up: u64,
    /// Parameters in all merged fragments sent.
    pub values_down: u64,
    /// Bytes of handshakes and fetched parameters, both ways.
    pub join_bytes: u64,
    /// Bytes of fetched shards.
    pub data_bytes: u64,
}

impl Meters {
    /// Creates counters that continue from `traffic`.
    #[must_use]
    pub fn from(traffic: Traffic) -> Self {
        Self {
            bytes_up: traffic.bytes_up.into(),
            bytes_down: traffic.bytes_down.into(),
            values_up: traffic.values_up.into(),
            values_down: traffic.values_down.into(),
            join_bytes: traffic.join_bytes.into(),
            data_bytes: traffic.data_bytes.into(),
        }
    }

    /// Counts a frame from a learner.
    pub fn up(&self, phase: Phase, payload_bytes: usize) {
        let counter = if phase == Phase::Join { &self.join_bytes } else { &self.bytes_up };
        // Clients mask their frames, which takes 4 more bytes.
        add(counter, payload_bytes as u64 + frame_head_bytes(payload_bytes) + 4);
    }

    /// Counts a frame to a learner.
    pub fn down(&self, phase: Phase, payload_bytes: usize) {
        let counter = if phase == Phase::Join { &self.join_bytes } else { &self.bytes_down };
        add(counter, payload_bytes as u64 + frame_head_bytes(payload_bytes));
    }

    /// Counts the parameters of an update.
    pub fn values_up(&self, values: u64) {
        add(&self.values_up, values);
    }

    /// Counts the parameters of a merged fragment that is sent.
    pub fn values_down(&self, values: u64) {
        add(&self.values_down, values);
    }

    /// Counts the bytes of a response with parameters.
    pub fn fetched(&self, bytes: u64) {
        add(&self.join_bytes, bytes);
    }

    /// Counts the bytes of a response with training data.
    pub fn data(&self, bytes: u64) {
        add(&self.data_bytes, bytes);
    }

    /// Returns the current values.
    #[must_use]
    pub fn read(&self) -> Traffic {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Traffic {
            bytes_up: read(&self.bytes_up),
            bytes_down: read(&self.bytes_down),
            values_up: read(&self.values_up),
            values_down: read(&self.values_down),
            join_bytes: read(&self.join_bytes),
            data_bytes: read(&self.data_bytes),
        }
    }
}

impl Traffic {
    /// Returns the socket bits per uploaded parameter; `None` before the first upload.
    #[must_use]
    pub fn bits_per_param_up(&self) -> Option<f64> {
        bits(self.bytes_up, self.values_up)
    }

    /// Returns the socket bits per downloaded parameter; `None` before the first download.
    #[must_use]
    pub fn bits_per_param_down(&self) -> Option<f64> {
        bits(self.bytes_down, self.values_down)
    }
}

fn bits(bytes: u64, values: u64) -> Option<f64> {
    (values > 0).then(|| bytes as f64 * 8.0 / values as f64)
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

/// Returns the header size of an unmasked WebSocket frame (RFC 6455, section 5.2).
fn frame_head_bytes(payload_bytes: usize) -> u64 {
    match payload_bytes {
        0..126 => 2,
        126..65_536 => 4,
        _ => 10,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_frames_with_their_heads() {
        let meters = Meters::default();
        meters.down(Phase::Run, 125);
        meters.down(Phase::Run, 126);
        meters.down(Phase::Run, 65_536);
        meters.up(Phase::Run, 10);
        meters.up(Phase::Join, 0);
        meters.values_up(8);
        let traffic = meters.read();
        assert_eq!(traffic.bytes_down, 127 + 130 + 65_546);
        assert_eq!((traffic.bytes_up, traffic.join_bytes), (16, 6));
        assert_eq!(traffic.bits_per_param_up(), Some(16.0));
        assert_eq!(traffic.bits_per_param_down(), None);
        assert_eq!(Meters::from(traffic).read(), traffic);
    }
}
