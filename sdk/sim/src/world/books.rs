//! The checker's own ledger: what was leased, what was merged.

use std::collections::BTreeMap;

use super::Violation;
use super::spans::Spans;
use archipelago::diloco::syncer::Syncer;
use archipelago::wire::{Fate, FragmentId, LearnerId, LeaseGrant, LeaseId};

/// Leases and merged tokens, from what passed the syncer.
#[derive(Clone, Debug)]
pub(super) struct Books {
    /// Tokens in a window.
    context: u32,
    grants: BTreeMap<LeaseId, LeaseGrant>,
    /// Windows that are out or were trained: (epoch, shard, first) to (end, lease).
    used: BTreeMap<(u32, u32, u32), (u32, LeaseId)>,
    leased: BTreeMap<LearnerId, u64>,
    /// What a newcomer may count beyond its leases.
    slack: u64,
    merged: BTreeMap<(LearnerId, FragmentId), u64>,
    /// Steps that are merged, of each process on each fragment.
    steps: BTreeMap<(Life, FragmentId), Spans>,
}

/// A machine, and which of its processes.
pub(super) type Life = (u32, u32);

impl Books {
    pub(super) fn new(context: u32) -> Self {
        Self {
            context,
            grants: BTreeMap::new(),
            used: BTreeMap::new(),
            leased: BTreeMap::new(),
            slack: 0,
            merged: BTreeMap::new(),
            steps: BTreeMap::new(),
        }
    }

    /// After a restart: a learner may have trained on leases that the snapshot knows nothing of, also one of which that
    /// knows nothing at all.
    pub(super) fn allow_more(&mut self, syncer: &Syncer) {
        self.slack = syncer.ledger().slack_tokens();
        for (learner, account) in syncer.ledger().accounts() {
            self.leased.insert(learner, account.leased_tokens);
        }
    }

    /// # Errors
    /// [`Violation::LeaseOverlap`].
    pub(super) fn grant(&mut self, learner: LearnerId, grant: LeaseGrant) -> Result<(), Violation> {
        let LeaseGrant { lease, epoch, shard, start, windows } = grant;
        if self.grants.get(&lease) == Some(&grant) {
            // The syncer cannot know whether it arrived before the connection broke.
            return Ok(());
        }
        *self.leased.entry(learner).or_insert(self.slack) += u64::from(windows) * u64::from(self.context);
        self.grants.insert(lease, grant);
        let end = start.saturating_add(windows);
        let before = self.used.range(..(epoch, shard, end)).next_back();
        let other = before.filter(|((e, s, _), (until, _))| (*e, *s) == (epoch, shard) && *until > start);
        let overlap = other.map(|(_, (_, other))| Violation::LeaseOverlap { lease, other: *other });
        self.used.insert((epoch, shard, start), (end, lease));
        overlap.map_or(Ok(()), Err)
    }

    /// The last `windows` of `lease` go to others.
    ///
    /// # Errors
    /// [`Violation::LeaseReturn`].
    pub(super) fn take_back(&mut self, lease: LeaseId, windows: u32) -> Result<(), Violation> {
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

    pub(super) fn settle(&mut self, learner: LearnerId, fragment: FragmentId, fate: &Fate) {
        if let Fate::Merged { tokens, .. } = fate {
            *self.merged.entry((learner, fragment)).or_default() += tokens;
        }
    }

    /// Progress of a process becomes part of a fragment.
    ///
    /// # Errors
    /// [`Violation::MergedTwice`].
    pub(super) fn merge_steps(
        &mut self,
        life: Life,
        fragment: FragmentId,
        steps: &Spans,
    ) -> Result<(), Violation> {
        let merged = self.steps.entry((life, fragment)).or_default();
        let twice = merged.common(steps).first();
        merged.add(steps);
        let (machine, life) = life;
        twice.map_or(Ok(()), |step| Err(Violation::MergedTwice { machine, life, fragment, step }))
    }

    /// Steps of a process that are merged on a fragment.
    pub(super) fn steps(&self, life: Life, fragment: FragmentId) -> Spans {
        self.steps.get(&(life, fragment)).cloned().unwrap_or_default()
    }

    /// All steps that are merged.
    pub(super) fn all_steps(&self) -> impl Iterator<Item = (&(Life, FragmentId), &Spans)> {
        self.steps.iter()
    }

    /// # Errors
    /// [`Violation::Unleased`], [`Violation::Untrained`], [`Violation::Ledger`].
    pub(super) fn check(
        &self,
        syncer: &Syncer,
        trained: impl Fn(&str) -> Option<u64>,
    ) -> Result<(), Violation> {
        for (learner, account) in syncer.ledger().accounts() {
            for (fragment, &ledger) in syncer.fragments().ids().zip(&account.tokens_merged) {
                let events = self.merged.get(&(learner, fragment)).copied().unwrap_or(0);
                if ledger != events {
                    return Err(Violation::Ledger { learner, fragment, ledger, events });
                }
                let leased = self.leased.get(&learner).copied().unwrap_or(self.slack);
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
