//! The way between one machine and the syncer.

use serde::{Deserialize, Serialize};

use super::Rng;
use crate::wire::Millis;

/// How long bytes take between one machine and the syncer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LinkSpec {
    /// One way, in milliseconds.
    pub latency_ms: u64,
    /// Up to this much is added to each message, in milliseconds. Messages of one connection stay in
    /// order; those of different connections overtake each other.
    pub jitter_ms: u64,
    /// Each way; `None` is without limit.
    pub bytes_per_s: Option<u64>,
}

impl Default for LinkSpec {
    fn default() -> Self {
        Self { latency_ms: 20, jitter_ms: 10, bytes_per_s: None }
    }
}

/// Control messages go ahead of bulk, as the shells interleave them by frame: control overtakes bulk
/// sent before it, bulk overtakes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lane {
    ControlUp,
    BulkUp,
    ControlDown,
    BulkDown,
    /// Answers over HTTP, which have a connection of their own.
    Http,
}

/// A link with what is under way on it.
#[derive(Debug)]
pub(super) struct Link {
    spec: LinkSpec,
    lanes: [Way; 5],
}

#[derive(Clone, Copy, Debug, Default)]
struct Way {
    free_at: Millis,
    arrived: Millis,
}

impl Link {
    pub(super) fn new(spec: LinkSpec) -> Self {
        Self { spec, lanes: [Way::default(); 5] }
    }

    /// When `bytes` sent now arrive.
    pub(super) fn send(&mut self, now: Millis, lane: Lane, bytes: u64, rng: &mut Rng) -> Millis {
        let spec = self.spec;
        let ahead = match lane {
            Lane::BulkUp => self.lanes[Lane::ControlUp as usize].arrived,
            Lane::BulkDown => self.lanes[Lane::ControlDown as usize].arrived,
            Lane::ControlUp | Lane::ControlDown | Lane::Http => Millis(0),
        };
        let way = &mut self.lanes[lane as usize];
        let send_ms = spec.bytes_per_s.map_or(0, |rate| bytes.saturating_mul(1_000) / rate.max(1));
        way.free_at = way.free_at.max(now).after(send_ms);
        let travel_ms = spec.latency_ms + rng.between(0, spec.jitter_ms);
        way.arrived = way.free_at.after(travel_ms).max(way.arrived).max(ahead);
        way.arrived
    }

    /// Forgets what was under way.
    pub(super) fn reset(&mut self) {
        self.lanes = [Way::default(); 5];
    }

    pub(super) fn latency_ms(&self) -> u64 {
        self.spec.latency_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidth_delays_and_order_holds() {
        let spec = LinkSpec { latency_ms: 10, jitter_ms: 50, bytes_per_s: Some(1_000) };
        let (mut link, mut rng) = (Link::new(spec), Rng::new(3));
        let first = link.send(Millis(0), Lane::BulkUp, 500, &mut rng);
        assert!(first >= Millis(510), "{first}");
        let mut last = first;
        for _ in 0..100 {
            let next = link.send(Millis(0), Lane::BulkUp, 1, &mut rng);
            assert!(next >= last);
            last = next;
        }
        assert!(link.send(Millis(0), Lane::ControlUp, 1, &mut rng) <= Millis(61));
        for at in 10..100 {
            let control = link.send(Millis(at), Lane::ControlDown, 1, &mut rng);
            assert!(link.send(Millis(at), Lane::BulkDown, 1, &mut rng) >= control);
        }
    }
}
