//! Provenance of updates: the windows of text on which each update was trained, derived from the tape.

use std::collections::{BTreeMap, VecDeque};

use crate::data::Window;
use crate::diloco::{Entry, MergeEntry, Part};
use crate::wire::{FragmentId, LearnerId, LeaseGrant, LeaseId};

/// Maximum number of remembered leases per learner. Our own constant.
const LEASES_KEPT: usize = 256;

/// Windows on which one update of a merge was trained.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainedWindows {
    /// Sender of the update.
    pub learner: LearnerId,
    /// Mean number of windows per step of the update, at least 1.
    pub batch: f64,
    /// Evenly spaced sample of the update's windows; empty if they are unknown.
    pub windows: Vec<Window>,
}

/// Leases of each learner in the order in which it trains on them, derived from the tape.
///
/// A position is the number of windows before it in that order. The range of an update follows from its credited tokens
/// and from those of earlier updates. If a learner trained before the first entry, its position is unknown until its
/// process restarts. Estimates are not used: loss checks on neighbouring windows would make an honest learner suspect.
#[derive(Clone, Debug)]
pub struct Trained {
    context: u32,
    fragments: u16,
    sequences: BTreeMap<LearnerId, LeaseSequence>,
}

/// Leases of one learner in order.
#[derive(Clone, Debug)]
struct LeaseSequence {
    /// Start position and grant of each lease, oldest first.
    leases: VecDeque<(u64, LeaseGrant)>,
    /// End position of the last lease.
    end: u64,
    /// Highest reported position.
    reported: u64,
    /// Last merge on each fragment, `[P]`.
    merged: Vec<MergePosition>,
}

/// Position of a learner at its last merged update on a fragment.
#[derive(Clone, Copy, Debug)]
struct MergePosition {
    /// End position of that update; `None` if unknown.
    at: Option<u64>,
    /// Highest position that the learner had reported at that merge.
    reported: u64,
}

impl Trained {
    /// Creates an empty record for a run with windows of `context` tokens and `fragments` fragments.
    #[must_use]
    pub fn new(context: u32, fragments: u16) -> Self {
        Self { context: context.max(1), fragments, sequences: BTreeMap::new() }
    }

    /// Adds the next entry of the tape. For a merge, returns up to `windows_max` windows of each update.
    pub fn follow(&mut self, entry: &Entry, windows_max: usize) -> Option<Vec<TrainedWindows>> {
        match entry {
            Entry::Enrolled { learner, .. } => {
                // A known learner may enrol again with a new name.
                let fragments = self.fragments;
                self.sequences.entry(*learner).or_insert_with(|| LeaseSequence::new(fragments, Some(0)));
            }
            Entry::Restarted { learner } => {
                self.sequences.insert(*learner, LeaseSequence::new(self.fragments, Some(0)));
            }
            Entry::Forgotten { learner } => {
                self.sequences.remove(learner);
            }
            Entry::Leased { learner, grant } => self.sequence(*learner).lease(*grant),
            Entry::Reported { learner, leases, .. } => self.sequence(*learner).report(leases),
            Entry::Returned { learner, lease, windows, expired: false } => {
                self.sequence(*learner).give_back(*lease, *windows);
            }
            Entry::Merged(MergeEntry { fragment, parts, .. }) => {
                return Some(parts.iter().map(|part| self.merged(*fragment, part, windows_max)).collect());
            }
            _ => {}
        }
        None
    }

    fn sequence(&mut self, learner: LearnerId) -> &mut LeaseSequence {
        let fragments = self.fragments;
        self.sequences.entry(learner).or_insert_with(|| LeaseSequence::new(fragments, None))
    }

    fn merged(&mut self, fragment: FragmentId, part: &Part, windows_max: usize) -> TrainedWindows {
        let Part { learner, steps, tokens, .. } = *part;
        let windows = tokens / u64::from(self.context);
        let batch = (windows as f64 / f64::from(steps.max(1))).max(1.0);
        TrainedWindows {
            learner,
            batch,
            windows: self.sequence(learner).merge(fragment, windows, windows_max),
        }
    }
}

impl LeaseSequence {
    fn new(fragments: u16, at: Option<u64>) -> Self {
        let merged = vec![MergePosition { at, reported: 0 }; fragments.into()];
        Self { leases: VecDeque::new(), end: 0, reported: 0, merged }
    }

    fn lease(&mut self, grant: LeaseGrant) {
        self.leases.push_back((self.end, grant));
        self.end += u64::from(grant.windows);
        if self.leases.len() > LEASES_KEPT {
            self.leases.pop_front();
        }
    }

    fn report(&mut self, leases: &[(LeaseId, u32)]) {
        for &(lease, done) in leases.iter().filter(|(_, done)| *done > 0) {
            let held = self.leases.iter().find(|(_, grant)| grant.lease == lease);
            let at = held.map_or(0, |(first, grant)| first + u64::from(done.min(grant.windows)));
            self.reported = self.reported.max(at);
        }
    }

    /// Removes the last `windows` windows of a lease, which were not trained on, and moves later leases forward.
    fn give_back(&mut self, lease: LeaseId, windows: u32) {
        let Some(at) = self.leases.iter().position(|(_, grant)| grant.lease == lease) else { return };
        let grant = &mut self.leases[at].1;
        let less = windows.min(grant.windows);
        grant.windows -= less;
        for (first, _) in self.leases.iter_mut().skip(at + 1) {
            *first -= u64::from(less);
        }
        self.end -= u64::from(less);
    }

    /// Adds a merged update of `windows` windows and returns a sample of at most `windows_max` of them.
    fn merge(&mut self, fragment: FragmentId, windows: u64, windows_max: usize) -> Vec<Window> {
        let reported = self.reported;
        let Some(last) = self.merged.get_mut(usize::from(fragment.0)) else { return Vec::new() };
        let Some(at) = last.at else { return Vec::new() };
        // The update ends no earlier than the position reported at the previous merge, since windows up to there were
        // trained before. It ends no later than the last lease, so that a learner that claims more than it was leased
        // is checked on its last windows.
        let to = (at + windows).max(last.reported).min(self.end);
        *last = MergePosition { at: Some(to), reported };
        let windows = windows.min(to);
        if windows == 0 {
            return Vec::new();
        }
        let count = windows.min(windows_max as u64);
        let found = (0..count)
            .filter_map(|i| self.window(to - windows + (2 * i + 1) * windows / (2 * count)))
            .collect();
        self.prune();
        found
    }

    /// Forgets leases that end before the last merge of each fragment, except for the newest lease.
    fn prune(&mut self) {
        let past = self.merged.iter().map(|last| last.at.unwrap_or(0)).min().unwrap_or(0);
        let is_past = |(first, grant): &(u64, LeaseGrant)| first + u64::from(grant.windows) <= past;
        while self.leases.len() > 1 && self.leases.front().is_some_and(is_past) {
            self.leases.pop_front();
        }
    }

    fn window(&self, at: u64) -> Option<Window> {
        let after = self.leases.partition_point(|(first, _)| *first <= at);
        let (first, grant) = self.leases.get(after.checked_sub(1)?)?;
        let offset = u32::try_from(at - first).ok().filter(|offset| *offset < grant.windows)?;
        Some(Window { epoch: grant.epoch, shard: grant.shard, index: grant.start + offset })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    const LEARNER: LearnerId = LearnerId(1);

    fn leased(lease: u64, start: u32, windows: u32) -> Entry {
        let grant = LeaseGrant { lease: LeaseId(lease), epoch: 0, shard: 0, start, windows };
        Entry::Leased { learner: LEARNER, grant }
    }

    fn reported(lease: u64, done: u32) -> Entry {
        Entry::Reported { learner: LEARNER, tokens: 0, leases: vec![(LeaseId(lease), done)] }
    }

    /// Creates a merge with an update of `windows` windows of ten tokens each.
    fn merged(fragment: u16, windows: u64) -> Entry {
        Entry::Merged(testing::merge(FragmentId(fragment), testing::part(LEARNER, 10 * windows)))
    }

    /// Returns the indices of the sampled windows for the last of `entries`, which is a merge.
    fn window_indices(trained: &mut Trained, entries: &[Entry]) -> Vec<u32> {
        let mut windows = None;
        for entry in entries {
            windows = trained.follow(entry, 4);
        }
        windows.expect("a merge")[0].windows.iter().map(|window| window.index).collect()
    }

    fn trained() -> Trained {
        Trained::new(10, 2)
    }

    #[test]
    fn update_range_begins_at_the_end_of_the_previous_update() {
        let mut trained = trained();
        let begins = [Entry::Restarted { learner: LEARNER }, leased(1, 100, 4), leased(2, 50, 9)];
        begins.iter().for_each(|entry| assert!(trained.follow(entry, 4).is_none()));
        assert_eq!(window_indices(&mut trained, &[merged(0, 2)]), [100, 101]);
        assert_eq!(window_indices(&mut trained, &[merged(0, 4)]), [102, 103, 50, 51]);
        assert_eq!(
            window_indices(&mut trained, &[merged(1, 8)]),
            [101, 103, 51, 53],
            "the other one, evenly spread"
        );
        assert_eq!(window_indices(&mut trained, &[merged(0, 8)]), [52, 54, 56, 58], "the last that it had");
    }

    /// Goal: a learner that reports all windows as done and is credited more tokens is still checked.
    #[test]
    fn reports_do_not_prevent_checks() {
        let mut trained = trained();
        let begins = [Entry::Restarted { learner: LEARNER }, leased(1, 100, 8), reported(1, 8)];
        begins.iter().for_each(|entry| assert!(trained.follow(entry, 4).is_none()));
        for turn in 0..9 {
            assert_eq!(window_indices(&mut trained, &[merged(0, 3)]).len(), 3, "{turn}");
            assert_eq!(window_indices(&mut trained, &[merged(1, 20)]).len(), 4, "{turn}");
        }
        assert_eq!(window_indices(&mut trained, &[merged(0, 3)]), [105, 106, 107], "the last that it had");
        let lent = [leased(2, 300, 9), merged(0, 2)];
        assert_eq!(window_indices(&mut trained, &lent), [300, 301]);
    }

    #[test]
    fn returned_windows_are_not_trained_on() {
        let mut trained = trained();
        let back = |expired| Entry::Returned { learner: LEARNER, lease: LeaseId(1), windows: 3, expired };
        let begins = [Entry::Restarted { learner: LEARNER }, leased(1, 100, 4), leased(2, 50, 9)];
        begins.iter().for_each(|entry| assert!(trained.follow(entry, 4).is_none()));
        let mut expired = trained.clone();
        assert_eq!(window_indices(&mut trained, &[back(false), merged(0, 3)]), [100, 50, 51]);
        assert_eq!(
            window_indices(&mut expired, &[back(true), merged(0, 3)]),
            [100, 101, 102],
            "it may train on that"
        );
    }

    /// Goal: no learner is checked on windows that are only near its own.
    #[test]
    fn windows_are_unknown_until_a_restart_without_the_start() {
        let mut trained = trained();
        assert_eq!(window_indices(&mut trained, &[leased(1, 100, 20), merged(0, 4)]), [0; 0]);
        assert_eq!(window_indices(&mut trained, &[reported(1, 6), merged(0, 4)]), [0; 0]);
        assert_eq!(window_indices(&mut trained, &[merged(0, 4)]), [0; 0]);
        let again = [Entry::Restarted { learner: LEARNER }, leased(2, 50, 20), merged(0, 4)];
        assert_eq!(window_indices(&mut trained, &again), [50, 51, 52, 53]);
    }

    /// Goal: windows that were trained but never merged are skipped once reports show it.
    #[test]
    fn reports_skip_windows_that_were_never_merged() {
        let mut trained = trained();
        let begins = [Entry::Restarted { learner: LEARNER }, leased(1, 100, 30), reported(1, 10)];
        begins.iter().for_each(|entry| assert!(trained.follow(entry, 4).is_none()));
        assert_eq!(window_indices(&mut trained, &[merged(0, 4)]), [100, 101, 102, 103]);
        assert_eq!(
            window_indices(&mut trained, &[merged(0, 4)]),
            [106, 107, 108, 109],
            "it had been at 10 before"
        );
    }
}
