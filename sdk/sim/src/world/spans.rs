//! A compact set of mostly consecutive numbers.

/// Half-open, ascending, disjoint spans of numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Spans(Vec<(u32, u32)>);

impl Spans {
    /// Returns the set `start..end`.
    pub(super) fn of(start: u32, end: u32) -> Self {
        Self(if start < end { vec![(start, end)] } else { Vec::new() })
    }

    /// Adds all of `other`.
    pub(super) fn add(&mut self, other: &Self) {
        *self = self.combine(other, |ours, theirs| ours || theirs);
    }

    /// Removes all of `other`.
    pub(super) fn remove(&mut self, other: &Self) {
        *self = self.combine(other, |ours, theirs| ours && !theirs);
    }

    /// Returns the intersection.
    pub(super) fn common(&self, other: &Self) -> Self {
        self.combine(other, |ours, theirs| ours && theirs)
    }

    /// Returns the lowest number.
    pub(super) fn first(&self) -> Option<u32> {
        self.0.first().map(|(start, _)| *start)
    }

    /// Returns the spans, ascending.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, u32)> {
        self.0.iter().copied()
    }

    fn combine(&self, other: &Self, keep: impl Fn(bool, bool) -> bool) -> Self {
        let bounds = |spans: &Self| spans.0.iter().flat_map(|&(start, end)| [start, end]).collect::<Vec<_>>();
        let (ours, theirs) = (bounds(self), bounds(other));
        let mut all: Vec<u32> = ours.iter().chain(&theirs).copied().collect();
        all.sort_unstable();
        all.dedup();
        // After an odd number of bounds, a position is inside a span.
        let inside = |bounds: &[u32], at: u32| bounds.partition_point(|bound| *bound <= at) % 2 == 1;
        let mut spans: Vec<(u32, u32)> = Vec::new();
        for pair in all.windows(2) {
            if keep(inside(&ours, pair[0]), inside(&theirs, pair[0])) {
                match spans.last_mut().filter(|(_, end)| *end == pair[0]) {
                    Some((_, end)) => *end = pair[1],
                    None => spans.push((pair[0], pair[1])),
                }
            }
        }
        Self(spans)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_sets() {
        let set = |numbers: &[u32]| {
            let mut spans = Spans::default();
            numbers.iter().for_each(|&number| spans.add(&Spans::of(number, number + 1)));
            spans
        };
        let mut spans = set(&[5, 1, 2, 7, 6]);
        assert_eq!(spans.iter().collect::<Vec<_>>(), [(1, 3), (5, 8)]);
        assert_eq!(spans.common(&set(&[0, 2, 3, 6, 9])), set(&[2, 6]));
        spans.remove(&Spans::of(2, 6));
        assert_eq!((spans.clone(), spans.first()), (set(&[1, 6, 7]), Some(1)));
        assert_eq!(Spans::of(3, 3), Spans::default());
        assert_eq!(spans.common(&Spans::default()), Spans::default());
    }
}
