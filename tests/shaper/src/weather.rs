//! What a link is like for a while, on top of its shape.

use std::time::Duration;

/// Bytes of payload in a packet, for counting what is lost.
const PACKET_BYTES: usize = 1_460;
/// A packet that was lost is sent again after so long at least, as TCP does when nothing came after it.
const SENT_AGAIN: Duration = Duration::from_millis(200);

/// Changes while connections are open, without breaking one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weather {
    /// Nothing passes. What is sent waits, as it does behind a router that has lost its line.
    pub cut: bool,
    /// Time that each way takes longer.
    pub delay: Duration,
    /// Rate each way in Mbit/s, in place of that of the link's shape.
    pub mbit_per_s: Option<f64>,
    /// Share of the packets that are lost, 0 to 1. A stream knows loss as waiting: whoever is behind a lost packet
    /// waits until that was sent again.
    pub lost: f64,
}

impl Weather {
    /// The link as its shape says.
    pub const FAIR: Self = Self { cut: false, delay: Duration::ZERO, mbit_per_s: None, lost: 0.0 };

    /// Bytes a second that it allows, if it says so.
    pub(crate) fn bytes_per_s(&self) -> Option<f64> {
        self.mbit_per_s.map(|rate| rate * 1e6 / 8.0)
    }

    /// How much later `bytes` arrive, given an even number `chance` of 0 to 1, over a link whose one way takes
    /// `one_way`.
    pub(crate) fn later(&self, bytes: usize, chance: f64, one_way: Duration) -> Duration {
        let packets = bytes.div_ceil(PACKET_BYTES).min(1_000) as i32;
        let all_arrive = (1.0 - self.lost).powi(packets);
        if chance < all_arrive {
            return self.delay;
        }
        self.delay + SENT_AGAIN.max((one_way + self.delay) * 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_is_waited_for() {
        let one_way = Duration::from_millis(20);
        let rain = Weather { lost: 0.1, delay: Duration::from_millis(5), ..Weather::FAIR };
        assert_eq!(Weather::FAIR.later(100_000, 0.999, one_way), Duration::ZERO);
        // One packet arrives in 0.9 of the cases, two together in 0.81.
        assert_eq!(rain.later(1_460, 0.89, one_way), Duration::from_millis(5));
        assert_eq!(rain.later(1_460, 0.91, one_way), Duration::from_millis(205));
        assert_eq!(rain.later(1_461, 0.82, one_way), Duration::from_millis(205));
        // Over a long way it takes a round trip until it is known.
        assert_eq!(rain.later(1, 0.95, Duration::from_millis(300)), Duration::from_millis(615));
    }
}
