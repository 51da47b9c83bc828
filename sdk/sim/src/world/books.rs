//! The checker's own ledger: what was leased, what was merged.

use std::collections::BTreeMap;

use super::Violation;
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
    merged: BTreeMap<(LearnerId, FragmentId), u64>,
}

impl Books {
    pub(super) fn new(context: u32) -> Self {
        Self {
            context,
            grants: BTreeMap::new(),
            used: BTreeMap::new(),
            leased: BTreeMap::new(),
            merged: BTreeMap::new(),
        }
    }

    /// After a restart: a learner may have trained on leases that the snapshot knows nothing of.
    pub(super) fn allow_more(&mut self, syncer: &Syncer) {
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
        *self.leased.entry(learner).or_default() += u64::from(windows) * u64::from(self.context);
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
