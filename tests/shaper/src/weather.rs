//! Temporary conditions of a link, on top of its shape.

use std::time::Duration;

/// Payload bytes of a packet, for counting losses.
const PACKET_BYTES: usize = 1_460;
/// Shortest time until a lost packet is sent again, as in TCP if no later packet arrives.
const SENT_AGAIN: Duration = Duration::from_millis(200);

/// Conditions that apply without breaking open connections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weather {
    /// True if nothing passes. Sent bytes wait, as behind a router that has lost its line.
    pub cut: bool,
    /// Additional delay in each direction.
    pub delay: Duration,
    /// Rate in each direction in Mbit/s, in place of the shape's rate.
    pub mbit_per_s: Option<f64>,
    /// Fraction of lost packets, 0 to 1. In a stream, loss appears as delay: bytes behind a lost packet wait for its
    /// retransmission.
    pub lost: f64,
}

impl Weather {
    /// Conditions that leave the link's shape unchanged.
    pub const FAIR: Self = Self { cut: false, delay: Duration::ZERO, mbit_per_s: None, lost: 0.0 };

    /// Returns the rate in bytes per second, if it is set.
    pub(crate) fn bytes_per_s(&self) -> Option<f64> {
        self.mbit_per_s.map(|rate| rate * 1e6 / 8.0)
    }

    /// Returns the extra delay of `bytes` on a link with the delay `one_way`. `chance` is uniform from 0 to 1.
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
        // On a long link the loss is known only after a round trip.
        assert_eq!(rain.later(1, 0.95, Duration::from_millis(300)), Duration::from_millis(615));
    }
}
