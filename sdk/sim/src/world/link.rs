//! The way between one machine and the syncer.

use serde::{Deserialize, Serialize};

use super::Rng;
use archipelago::wire::Millis;

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
    /// Share of transmissions that are lost, 0 to 1. The connection sends them anew, as TCP does: nothing is
    /// missing, but it and all behind it come later.
    pub loss: f64,
}

impl Default for LinkSpec {
    fn default() -> Self {
        Self { latency_ms: 20, jitter_ms: 10, bytes_per_s: None, loss: 0.0 }
    }
}

/// Shortest time before something lost is sent anew, in milliseconds (RFC 6298 has 1 s, Linux 200 ms).
const RESEND_MS_MIN: u64 = 200;
/// Most losses of one message in a row; with more the connection would break.
const LOSSES_MAX: u32 = 6;

impl LinkSpec {
    /// Time until a message that may get lost is sent for the last time, in milliseconds; the wait doubles
    /// each time.
    fn resend_ms(&self, rng: &mut Rng) -> u64 {
        if self.loss <= 0.0 {
            return 0;
        }
        let losses = (0..LOSSES_MAX).take_while(|_| rng.chance(self.loss)).count();
        (2 * self.latency_ms).max(RESEND_MS_MIN) * ((1 << losses) - 1)
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
        let travel_ms = spec.latency_ms + rng.between(0, spec.jitter_ms) + spec.resend_ms(rng);
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
        let spec = LinkSpec { latency_ms: 10, jitter_ms: 50, bytes_per_s: Some(1_000), loss: 0.0 };
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

    #[test]
    fn what_is_lost_comes_later() {
        let spec = LinkSpec { latency_ms: 10, jitter_ms: 0, bytes_per_s: None, loss: 0.5 };
        let mut rng = Rng::new(1);
        // A link of its own for each, so that none waits for the one before.
        let mut send =
            |loss| Link::new(LinkSpec { loss, ..spec }).send(Millis(0), Lane::BulkUp, 1, &mut rng).0;
        let late: Vec<u64> = (0..1_000).map(|_| send(0.5)).filter(|&at| at != 10).collect();
        assert!((450..550).contains(&late.len()), "{}", late.len());
        assert!(late.iter().all(|at| [210, 610, 1_410, 3_010, 6_210, 12_610].contains(at)), "{late:?}");
        assert_eq!(send(1.0), 12_610, "in the end it comes");
        assert_eq!(send(0.0), 10);
    }
}
