//! Congestion window: a bound on the data that one side has sent without confirmation.

use crate::wire::Millis;

/// Smallest ratio of a round trip to the shortest one that indicates a queue on the link.
const CROWDED_RATIO: f64 = 2.0;
/// Smallest excess of a round trip over the shortest one that indicates a queue, in milliseconds. Below it, coarse
/// clocks or busy machines may be the cause.
const CROWDED_MS: f64 = 100.0;
/// Factor by which the window shrinks when data queues.
const CUT: f64 = 0.7;
/// Factor by which the remembered shortest round trip grows with each confirmation, since links change.
const FORGET: f64 = 1.01;

/// Congestion window in any unit: bodies for uploads, bytes for downloads.
///
/// The window doubles each round trip until data begins to queue on the link. It then shrinks, and from there on grows
/// by `least` per round trip. This is congestion control by delay (Brakmo and Peterson, TCP Vegas, 1995): it uses the
/// whole bandwidth of links with long round trips, and causes only short queues on slow ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    size: f64,
    least: f64,
    most: f64,
    /// Whether data has queued since the start.
    was_crowded: bool,
    /// Shortest recent round trip, in milliseconds; 0 before the first confirmation.
    shortest_ms: f64,
}

impl Window {
    /// Creates a window of initial size `first`, whose size stays between `least` and `most`.
    pub(super) fn new(least: f64, first: f64, most: f64) -> Self {
        Self { size: first.min(most).max(least), least, most, was_crowded: false, shortest_ms: 0.0 }
    }

    /// Returns true if more may be sent while `under_way` is unconfirmed.
    pub(super) fn has_room(&self, under_way: f64) -> bool {
        under_way < self.size
    }

    /// Returns the shortest recent round trip, in milliseconds; 0 before the first confirmation.
    pub(super) fn shortest_ms(&self) -> f64 {
        self.shortest_ms
    }

    /// Records that `amount`, sent at `sent`, was confirmed at `now`. The receiver reads messages only every `step_ms`
    /// milliseconds.
    pub(super) fn confirmed(&mut self, now: Millis, sent: Millis, amount: f64, step_ms: f64) {
        let took_ms = now.since(sent) as f64;
        let known_ms = self.shortest_ms * FORGET;
        self.shortest_ms = if self.shortest_ms == 0.0 { took_ms } else { took_ms.min(known_ms) }.max(1.0);
        let crowded_ms =
            (CROWDED_RATIO * self.shortest_ms).max(self.shortest_ms + CROWDED_MS.max(2.0 * step_ms));
        let size = if took_ms > crowded_ms {
            self.was_crowded = true;
            CUT * self.size
        } else if self.was_crowded {
            self.size + self.least * amount / self.size
        } else {
            self.size + amount
        };
        self.size = size.min(self.most).max(self.least);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the window after the confirmation of `count` bodies with round trips of `took_ms` each.
    fn after(mut window: Window, count: u32, took_ms: u64) -> Window {
        (0..count).for_each(|_| window.confirmed(Millis(took_ms), Millis(0), 1.0, 0.0));
        window
    }

    fn room(window: &Window) -> u32 {
        (0..).take_while(|&under_way| window.has_room(f64::from(under_way))).count() as u32
    }

    fn bodies() -> Window {
        Window::new(2.0, 2.0, 8.0)
    }

    #[test]
    fn window_grows_until_data_queues() {
        let far = after(bodies(), 6, 300);
        assert_eq!((room(&bodies()), room(&far)), (2, 8));
        assert_eq!(room(&after(far, 10, 2_000)), 2, "bodies wait for each other");
    }

    #[test]
    fn window_grows_slowly_after_a_queue() {
        let crowded = after(after(bodies(), 6, 300), 10, 2_000);
        assert_eq!(room(&after(crowded, 2, 300)), 4);
        assert_eq!(room(&after(crowded, 100, 300)), 8);
    }

    #[test]
    fn busy_machines_and_long_steps_are_not_queues() {
        let near = after(bodies(), 100, 1);
        assert_eq!(room(&after(near, 10, 60)), 8);
        let mut slow = near;
        (0..10).for_each(|_| slow.confirmed(Millis(1_900), Millis(0), 1.0, 1_000.0));
        assert_eq!(room(&slow), 8);
    }

    #[test]
    fn window_adapts_to_a_longer_round_trip() {
        let near = after(bodies(), 100, 100);
        assert_eq!(room(&after(near, 400, 500)), 8);
    }
}
