//! Provenance of updates: the windows of text that each was trained on, according to the tape.

use std::collections::{BTreeMap, VecDeque};

use crate::data::Window;
use crate::diloco::{Entry, MergeEntry, Part};
use crate::wire::{FragmentId, LearnerId, LeaseGrant, LeaseId};

/// Leases that are remembered for each learner. Our own constant.
const LEASES_KEPT: usize = 256;

/// Windows that one update of a merge was trained on.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainedWindows {
    /// Sender of the update.
    pub learner: LearnerId,
    /// Windows in one of its steps, at least 1.
    pub batch: f64,
    /// Sample of its windows, evenly spaced; empty if they are unknown.
    pub windows: Vec<Window>,
}

/// Leases of each learner in the order in which it trains on them, derived from the tape.
///
/// The range of an update in that order follows from the counted tokens of this update and of those before it. If a
/// learner trained before this record began, its range is unknown until its process restarts. A rough guess would not
/// do, since windows next to the right ones would suggest that the learner does not train.
#[derive(Clone, Debug)]
pub struct Trained {
    context: u32,
    fragments: u16,
    courses: BTreeMap<LearnerId, Course>,
}

/// Windows leased to one learner, in order.
#[derive(Clone, Debug)]
struct Course {
    /// Start and grant of each lease, oldest first.
    leases: VecDeque<(u64, LeaseGrant)>,
    end: u64,
    /// Highest position that the learner has reported.
    reported: u64,
    /// By fragment, `[P]`.
    merged: Vec<Mark>,
}

/// Position of a learner at its last merge.
#[derive(Clone, Copy, Debug)]
struct Mark {
    /// `None` if the learner trained before this record began.
    at: Option<u64>,
    /// Highest position that the learner had reported at that merge.
    reported: u64,
}

impl Trained {
    /// Creates an empty record for a run with windows of `context` tokens and `fragments` fragments.
    #[must_use]
    pub fn new(context: u32, fragments: u16) -> Self {
        Self { context: context.max(1), fragments, courses: BTreeMap::new() }
    }

    /// Adds the next decision. For a merge, returns up to `windows_max` windows of each update, evenly spaced over its
    /// range. The list is empty for a learner whose range is unknown.
    pub fn follow(&mut self, entry: &Entry, windows_max: usize) -> Option<Vec<TrainedWindows>> {
        match entry {
            Entry::Enrolled { learner, .. } => {
                // A new name does not change the record.
                let fragments = self.fragments;
                self.courses.entry(*learner).or_insert_with(|| Course::new(fragments, Some(0)));
            }
            Entry::Restarted { learner } => {
                self.courses.insert(*learner, Course::new(self.fragments, Some(0)));
            }
            Entry::Forgotten { learner } => {
                self.courses.remove(learner);
            }
            Entry::Leased { learner, grant } => self.course(*learner).lease(*grant),
            Entry::Reported { learner, leases, .. } => self.course(*learner).report(leases),
            Entry::Returned { learner, lease, windows, expired: false } => {
                self.course(*learner).give_back(*lease, *windows);
            }
            Entry::Merged(MergeEntry { fragment, parts, .. }) => {
                return Some(parts.iter().map(|part| self.merged(*fragment, part, windows_max)).collect());
            }
            _ => {}
        }
        None
    }

    fn course(&mut self, learner: LearnerId) -> &mut Course {
        let fragments = self.fragments;
        self.courses.entry(learner).or_insert_with(|| Course::new(fragments, None))
    }

    fn merged(&mut self, fragment: FragmentId, part: &Part, windows_max: usize) -> TrainedWindows {
        let Part { learner, steps, tokens, .. } = *part;
        let windows = tokens / u64::from(self.context);
        let batch = (windows as f64 / f64::from(steps.max(1))).max(1.0);
        TrainedWindows { learner, batch, windows: self.course(learner).merge(fragment, windows, windows_max) }
    }
}

impl Course {
    fn new(fragments: u16, at: Option<u64>) -> Self {
        let merged = vec![Mark { at, reported: 0 }; fragments.into()];
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

    /// Removes windows that were not trained on from the end of a lease, and moves later leases forward.
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

    /// Adds a merged update of `windows` windows and returns a sample of them.
    fn merge(&mut self, fragment: FragmentId, windows: u64, windows_max: usize) -> Vec<Window> {
        let reported = self.reported;
        let Some(mark) = self.merged.get_mut(usize::from(fragment.0)) else { return Vec::new() };
        let Some(at) = mark.at else { return Vec::new() };
        // Windows that were reported at the previous merge were trained before this update was made. Positions end with
        // the last lease: a learner that reports everything done and claims more is checked on its last windows.
        let to = (at + windows).max(mark.reported).min(self.end);
        *mark = Mark { at: Some(to), reported };
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

    /// Forgets leases that all fragments have passed, except for the last one.
    fn prune(&mut self) {
        let past = self.merged.iter().map(|mark| mark.at.unwrap_or(0)).min().unwrap_or(0);
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

    /// A merge with an update of `windows` windows of ten tokens each.
    fn merged(fragment: u16, windows: u64) -> Entry {
        Entry::Merged(testing::merge(FragmentId(fragment), testing::part(LEARNER, 10 * windows)))
    }

    /// Returns the indices of the windows of the merge that ends `entries`.
    fn places(trained: &mut Trained, entries: &[Entry]) -> Vec<u32> {
        let mut fruit = None;
        for entry in entries {
            fruit = trained.follow(entry, 4);
        }
        fruit.expect("a merge")[0].windows.iter().map(|window| window.index).collect()
    }

    fn trained() -> Trained {
        Trained::new(10, 2)
    }

    #[test]
    fn an_update_is_the_fruit_of_what_comes_after_the_one_before() {
        let mut trained = trained();
        let begins = [Entry::Restarted { learner: LEARNER }, leased(1, 100, 4), leased(2, 50, 9)];
        begins.iter().for_each(|entry| assert!(trained.follow(entry, 4).is_none()));
        assert_eq!(places(&mut trained, &[merged(0, 2)]), [100, 101]);
        assert_eq!(places(&mut trained, &[merged(0, 4)]), [102, 103, 50, 51]);
        assert_eq!(places(&mut trained, &[merged(1, 8)]), [101, 103, 51, 53], "the other one, evenly spread");
        assert_eq!(places(&mut trained, &[merged(0, 8)]), [52, 54, 56, 58], "the last that it had");
    }

    /// Goal: a learner that reports everything done and is counted for more after that is checked all the same.
    #[test]
    fn no_word_of_what_is_done_keeps_looks_away() {
        let mut trained = trained();
        let begins = [Entry::Restarted { learner: LEARNER }, leased(1, 100, 8), reported(1, 8)];
        begins.iter().for_each(|entry| assert!(trained.follow(entry, 4).is_none()));
        for turn in 0..9 {
            assert_eq!(places(&mut trained, &[merged(0, 3)]).len(), 3, "{turn}");
            assert_eq!(places(&mut trained, &[merged(1, 20)]).len(), 4, "{turn}");
        }
        assert_eq!(places(&mut trained, &[merged(0, 3)]), [105, 106, 107], "the last that it had");
        let lent = [leased(2, 300, 9), merged(0, 2)];
        assert_eq!(places(&mut trained, &lent), [300, 301]);
    }

    #[test]
    fn what_comes_back_is_not_trained_on() {
        let mut trained = trained();
        let back = |expired| Entry::Returned { learner: LEARNER, lease: LeaseId(1), windows: 3, expired };
        let begins = [Entry::Restarted { learner: LEARNER }, leased(1, 100, 4), leased(2, 50, 9)];
        begins.iter().for_each(|entry| assert!(trained.follow(entry, 4).is_none()));
        let mut expired = trained.clone();
        assert_eq!(places(&mut trained, &[back(false), merged(0, 3)]), [100, 50, 51]);
        assert_eq!(
            places(&mut expired, &[back(true), merged(0, 3)]),
            [100, 101, 102],
            "it may train on that"
        );
    }

    /// Goal: no learner is judged on windows that are only near its own.
    #[test]
    fn of_whom_the_beginning_is_unknown_nothing_is_told_until_it_starts_anew() {
        let mut trained = trained();
        assert_eq!(places(&mut trained, &[leased(1, 100, 20), merged(0, 4)]), [0; 0]);
        assert_eq!(places(&mut trained, &[reported(1, 6), merged(0, 4)]), [0; 0]);
        assert_eq!(places(&mut trained, &[merged(0, 4)]), [0; 0]);
        let anew = [Entry::Restarted { learner: LEARNER }, leased(2, 50, 20), merged(0, 4)];
        assert_eq!(places(&mut trained, &anew), [50, 51, 52, 53]);
    }

    /// Goal: windows that were trained but never merged are skipped once reports show it.
    #[test]
    fn reports_tell_what_was_lost() {
        let mut trained = trained();
        let begins = [Entry::Restarted { learner: LEARNER }, leased(1, 100, 30), reported(1, 10)];
        begins.iter().for_each(|entry| assert!(trained.follow(entry, 4).is_none()));
        assert_eq!(places(&mut trained, &[merged(0, 4)]), [100, 101, 102, 103]);
        assert_eq!(places(&mut trained, &[merged(0, 4)]), [106, 107, 108, 109], "it had been at 10 before");
    }
}
