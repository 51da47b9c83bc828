//! What will happen, sorted by time and then by the order in which it was planned.

use std::collections::BTreeMap;

use archipelago_core::wire::Millis;

/// A queue of planned happenings.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    planned: BTreeMap<(Millis, u64), T>,
    next: u64,
}

impl<T> Queue<T> {
    pub(crate) fn new() -> Self {
        Self { planned: BTreeMap::new(), next: 0 }
    }

    /// How much is planned.
    pub(crate) fn len(&self) -> usize {
        self.planned.len()
    }

    /// Plans `what` for `at`; among equal times the first planned comes first.
    pub(crate) fn plan(&mut self, at: Millis, what: T) {
        self.planned.insert((at, self.next), what);
        self.next += 1;
    }

    /// Takes the next happening, if it is planned for `until` or before.
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
