//! Ledger of the checker, with leases and merges; and commands of the run's owner, which no crash may revoke.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use archipelago_core::diloco::syncer::SyncerRecord;
use archipelago_core::diloco::{Entry, Ledger};
use archipelago_core::wire::{FragmentId, LearnerId, LeaseGrant, LeaseId, Serial, Share};

use super::Violation;

/// Leases and merged tokens, derived from the observed traffic and decisions.
#[derive(Clone, Debug)]
pub(super) struct ShadowLedger {
    /// Number of tokens in a window.
    context: u32,
    grants: BTreeMap<LeaseId, LeaseGrant>,
    /// Windows that are leased or were trained, as a map from (epoch, shard, first window) to (end, lease).
    used: BTreeMap<(u32, u32, u32), (u32, LeaseId)>,
    leased: BTreeMap<LearnerId, u64>,
    /// Every lease that was ever granted.
    granted: BTreeSet<LeaseId>,
    merged: BTreeMap<(LearnerId, FragmentId), u64>,
    /// Every update that was ever merged.
    updates: BTreeSet<(LearnerId, FragmentId, Serial)>,
    /// Merged steps of each process on each fragment.
    steps: BTreeMap<(ProcessKey, FragmentId), Spans>,
}

/// Decision of the syncer that changes the ledger.
#[derive(Clone, Debug)]
pub(super) enum ShadowEntry {
    Granted(LearnerId, LeaseGrant),
    Returned(LeaseId, u32),
    /// Merge of an update with its credited tokens, and with its steps if the machine is honest.
    Merged {
        learner: LearnerId,
        fragment: FragmentId,
        serial: Serial,
        tokens: u64,
        steps: Option<(ProcessKey, Spans)>,
    },
}

/// Machine, and number of its process.
pub(super) type ProcessKey = (u32, u32);

impl ShadowLedger {
    pub(super) fn new(context: u32) -> Self {
        Self {
            context,
            grants: BTreeMap::new(),
            used: BTreeMap::new(),
            leased: BTreeMap::new(),
            granted: BTreeSet::new(),
            merged: BTreeMap::new(),
            updates: BTreeSet::new(),
            steps: BTreeMap::new(),
        }
    }

    /// Applies a decision to the ledger.
    ///
    /// # Errors
    /// [`Violation::LeaseOverlap`], [`Violation::LeaseReturn`], [`Violation::UpdateTwice`], [`Violation::MergedTwice`].
    pub(super) fn apply(&mut self, entry: &ShadowEntry) -> Result<(), Violation> {
        match entry {
            ShadowEntry::Granted(learner, grant) => self.grant(*learner, *grant),
            ShadowEntry::Returned(lease, windows) => self.return_windows(*lease, *windows),
            ShadowEntry::Merged { learner, fragment, serial, tokens, steps } => {
                let (learner, fragment, serial) = (*learner, *fragment, *serial);
                *self.merged.entry((learner, fragment)).or_default() += tokens;
                if !self.updates.insert((learner, fragment, serial)) {
                    return Err(Violation::UpdateTwice { learner, fragment, serial });
                }
                match steps {
                    Some((life, steps)) => self.merge_steps(*life, fragment, steps),
                    None => Ok(()),
                }
            }
        }
    }

    /// Returns true if `update` was merged.
    pub(super) fn has_update(&self, update: &(LearnerId, FragmentId, Serial)) -> bool {
        self.updates.contains(update)
    }

    /// Returns true if `lease` was ever granted.
    pub(super) fn has_lease(&self, lease: LeaseId) -> bool {
        self.granted.contains(&lease)
    }

    /// Records a granted lease.
    ///
    /// # Errors
    /// [`Violation::LeaseOverlap`].
    fn grant(&mut self, learner: LearnerId, grant: LeaseGrant) -> Result<(), Violation> {
        let LeaseGrant { lease, epoch, shard, start, windows } = grant;
        self.granted.insert(lease);
        *self.leased.entry(learner).or_default() += u64::from(windows) * u64::from(self.context);
        self.grants.insert(lease, grant);
        let end = start.saturating_add(windows);
        let before = self.used.range(..(epoch, shard, end)).next_back();
        let other = before.filter(|((e, s, _), (until, _))| (*e, *s) == (epoch, shard) && *until > start);
        let overlap = other.map(|(_, (_, other))| Violation::LeaseOverlap { lease, other: *other });
        self.used.insert((epoch, shard, start), (end, lease));
        overlap.map_or(Ok(()), Err)
    }

    /// Returns the last `windows` windows of `lease` to the pool.
    ///
    /// # Errors
    /// [`Violation::LeaseReturn`].
    fn return_windows(&mut self, lease: LeaseId, windows: u32) -> Result<(), Violation> {
        let wrong = Violation::LeaseReturn { lease, windows };
        let Some(LeaseGrant { epoch, shard, start, windows: all, .. }) = self.grants.remove(&lease) else {
            return Err(wrong);
        };
        let Some(done) = all.checked_sub(windows) else { return Err(wrong) };
        let key = (epoch, shard, start);
        if self.used.get(&key).is_none_or(|(_, holder)| *holder != lease) {
            return Err(wrong);
        }
        if done == 0 {
            self.used.remove(&key);
        } else {
            self.used.insert(key, (start + done, lease));
        }
        Ok(())
    }

    /// Records the steps of an update as merged on a fragment.
    ///
    /// # Errors
    /// [`Violation::MergedTwice`].
    fn merge_steps(
        &mut self,
        life: ProcessKey,
        fragment: FragmentId,
        steps: &Spans,
    ) -> Result<(), Violation> {
        let merged = self.steps.entry((life, fragment)).or_default();
        let twice = merged.common(steps).first();
        merged.add(steps);
        let (machine, life) = life;
        twice.map_or(Ok(()), |step| Err(Violation::MergedTwice { machine, life, fragment, step }))
    }

    /// Returns the steps of a process that were merged on a fragment.
    pub(super) fn steps(&self, life: ProcessKey, fragment: FragmentId) -> Spans {
        self.steps.get(&(life, fragment)).cloned().unwrap_or_default()
    }

    /// Returns the merged steps of all processes and fragments.
    pub(super) fn all_steps(&self) -> impl Iterator<Item = (&(ProcessKey, FragmentId), &Spans)> {
        self.steps.iter()
    }

    /// Compares `ledger`, the syncer's, with this ledger. `trained` returns an honest learner's trained tokens by its
    /// name.
    ///
    /// # Errors
    /// [`Violation::Unleased`], [`Violation::Untrained`], [`Violation::Ledger`].
    pub(super) fn check(
        &self,
        ledger: &Ledger,
        trained: impl Fn(&str) -> Option<u64>,
    ) -> Result<(), Violation> {
        for (learner, account) in ledger.accounts() {
            for (fragment, &ledger) in (0..).map(FragmentId).zip(&account.tokens_merged) {
                let events = self.merged.get(&(learner, fragment)).copied().unwrap_or(0);
                if ledger != events {
                    return Err(Violation::Ledger { learner, fragment, ledger, events });
                }
                let leased = self.leased.get(&learner).copied().unwrap_or(0);
                if events > leased {
                    return Err(Violation::Unleased { learner, fragment, merged: events, leased });
                }
                if let Some(trained) = trained(&account.name).filter(|&trained| events > trained) {
                    return Err(Violation::Untrained { learner, fragment, merged: events, trained });
                }
            }
        }
        Ok(())
    }
}

/// Set of numbers, as ascending, disjoint, half-open spans.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Spans(Vec<(u32, u32)>);

impl Spans {
    /// Returns the set `start..end`.
    pub(super) fn of(start: u32, end: u32) -> Self {
        Self(if start < end { vec![(start, end)] } else { Vec::new() })
    }

    /// Adds all numbers in `other`.
    pub(super) fn add(&mut self, other: &Self) {
        *self = self.combine(other, |ours, theirs| ours || theirs);
    }

    /// Removes all numbers in `other`.
    pub(super) fn remove(&mut self, other: &Self) {
        *self = self.combine(other, |ours, theirs| ours && !theirs);
    }

    /// Returns the intersection.
    pub(super) fn common(&self, other: &Self) -> Self {
        self.combine(other, |ours, theirs| ours && theirs)
    }

    /// Returns the lowest number, if there is one.
    pub(super) fn first(&self) -> Option<u32> {
        self.0.first().map(|(start, _)| *start)
    }

    /// Returns the spans in ascending order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, u32)> {
        self.0.iter().copied()
    }

    fn combine(&self, other: &Self, keep: impl Fn(bool, bool) -> bool) -> Self {
        let bounds = |spans: &Self| spans.0.iter().flat_map(|&(start, end)| [start, end]).collect::<Vec<_>>();
        let (ours, theirs) = (bounds(self), bounds(other));
        let mut all: Vec<u32> = ours.iter().chain(&theirs).copied().collect();
        all.sort_unstable();
        all.dedup();
        // A position is inside a span if the number of bounds up to it is odd.
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

/// Commands of the run's owner, each with the number of its row on the tape.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnerCommands(VecDeque<(u64, Entry)>);

impl OwnerCommands {
    /// Records the decision in row `seq` if it is a command of the owner.
    pub(super) fn record(&mut self, seq: u64, entry: &Entry) {
        let is_order = matches!(
            entry,
            Entry::Held { .. } | Entry::Paced { .. } | Entry::Dropped { .. } | Entry::Finishing
        );
        if is_order {
            self.0.push_back((seq, entry.clone()));
        }
    }

    /// Removes the commands after row `last`, which never reached the disk.
    pub(super) fn discard_after(&mut self, last: u64) {
        self.0.retain(|(seq, _)| *seq <= last);
    }

    /// Returns true if the owner has ended the run.
    pub(super) fn is_finishing(&self) -> bool {
        self.0.iter().any(|(_, entry)| *entry == Entry::Finishing)
    }

    /// Checks that a syncer that restarts from `record` follows all commands.
    ///
    /// # Errors
    /// [`Violation::OwnerUndone`].
    pub(super) fn check(&self, record: &SyncerRecord) -> Result<(), Violation> {
        let undone = |what: String| Err(Violation::OwnerUndone { what });
        let mut is_held = false;
        let mut restrictions: BTreeMap<LearnerId, (Share, u32)> = BTreeMap::new();
        for (_, entry) in &self.0 {
            match *entry {
                Entry::Held { held } => is_held = held,
                Entry::Paced { learner, share } => {
                    restrictions.entry(learner).or_insert((Share::FULL, 0)).0 = share
                }
                Entry::Dropped { learner, wait_ms } => {
                    restrictions.entry(learner).or_insert((Share::FULL, 0)).1 = wait_ms;
                }
                _ => {}
            }
        }
        if record.held != is_held {
            return undone(format!("the pause state of the run: {is_held}"));
        }
        if record.finishing != self.is_finishing() {
            return undone("the end of the run".to_owned());
        }
        for (learner, (share, wait_ms)) in restrictions {
            let found = (record.restrictions.share(learner), record.restrictions.wait_ms(learner));
            if found != (share, wait_ms) {
                return undone(format!(
                    "learner {learner}, which trains for {} of its time and was sent away for {wait_ms} ms",
                    share.ratio()
                ));
            }
        }
        Ok(())
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
