//! Planned events, sorted by time and then by the order of planning.

use std::collections::BTreeMap;

use archipelago_core::wire::Millis;

/// A queue of planned events.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    planned: BTreeMap<(Millis, u64), T>,
    next: u64,
}

impl<T> Queue<T> {
    pub(crate) fn new() -> Self {
        Self { planned: BTreeMap::new(), next: 0 }
    }

    /// Returns the number of planned events.
    pub(crate) fn len(&self) -> usize {
        self.planned.len()
    }

    /// Plans `what` for `at`; among equal times, the first planned comes first.
    pub(crate) fn plan(&mut self, at: Millis, what: T) {
        self.planned.insert((at, self.next), what);
        self.next += 1;
    }

    /// Takes the next event if its time is at most `until`.
    pub(crate) fn next_until(&mut self, until: Millis) -> Option<(Millis, T)> {
        let entry = self.planned.first_entry()?;
        let at = entry.key().0;
        (at <= until).then(|| (at, entry.remove()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorts_by_time_then_by_planning() {
        let mut queue = Queue::new();
        for (at, what) in [(5, 'b'), (3, 'a'), (5, 'c'), (9, 'd')] {
            queue.plan(Millis(at), what);
        }
        let mut order = Vec::new();
        while let Some((at, what)) = queue.next_until(Millis(5)) {
            order.push((at.0, what));
        }
        assert_eq!(order, [(3, 'a'), (5, 'b'), (5, 'c')]);
    }
}
