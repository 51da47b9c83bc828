//! The checker's own ledger of leases and merges.

use std::collections::{BTreeMap, BTreeSet};

use super::Violation;
use super::spans::Spans;
use archipelago_core::diloco::Ledger;
use archipelago_core::wire::{FragmentId, LearnerId, LeaseGrant, LeaseId, Serial};

/// Leases and merged tokens, derived from the observed traffic.
#[derive(Clone, Debug)]
pub(super) struct Books {
    /// Tokens in a window.
    context: u32,
    grants: BTreeMap<LeaseId, LeaseGrant>,
    /// Windows that are leased or trained: (epoch, shard, first) to (end, lease).
    used: BTreeMap<(u32, u32, u32), (u32, LeaseId)>,
    leased: BTreeMap<LearnerId, u64>,
    /// Every lease ever granted.
    granted: BTreeSet<LeaseId>,
    merged: BTreeMap<(LearnerId, FragmentId), u64>,
    /// Every update ever merged.
    updates: BTreeSet<(LearnerId, FragmentId, Serial)>,
    /// Merged steps of each process on each fragment.
    steps: BTreeMap<(Life, FragmentId), Spans>,
}

/// A decision of the syncer, as a book entry.
#[derive(Clone, Debug)]
pub(super) enum Booked {
    Granted(LearnerId, LeaseGrant),
    TakenBack(LeaseId, u32),
    /// A merged update and its tokens; `steps` are the steps in it, if its machine is honest.
    Merged {
        learner: LearnerId,
        fragment: FragmentId,
        serial: Serial,
        tokens: u64,
        steps: Option<(Life, Spans)>,
    },
}

/// A machine and the number of its process.
pub(super) type Life = (u32, u32);

impl Books {
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

    /// Books a decision.
    ///
    /// # Errors
    /// [`Violation::LeaseOverlap`], [`Violation::LeaseReturn`], [`Violation::UpdateTwice`], [`Violation::MergedTwice`].
    pub(super) fn book(&mut self, booked: &Booked) -> Result<(), Violation> {
        match booked {
            Booked::Granted(learner, grant) => self.grant(*learner, *grant),
            Booked::TakenBack(lease, windows) => self.take_back(*lease, *windows),
            Booked::Merged { learner, fragment, serial, tokens, steps } => {
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

    /// Returns true if this update was merged.
    pub(super) fn has_update(&self, update: &(LearnerId, FragmentId, Serial)) -> bool {
        self.updates.contains(update)
    }

    /// Returns true if this lease was ever granted.
    pub(super) fn has_lease(&self, lease: LeaseId) -> bool {
        self.granted.contains(&lease)
    }

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

    /// Returns the last `windows` of `lease` to the pool.
    ///
    /// # Errors
    /// [`Violation::LeaseReturn`].
    fn take_back(&mut self, lease: LeaseId, windows: u32) -> Result<(), Violation> {
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

    /// Books the steps of an update as merged into a fragment.
    ///
    /// # Errors
    /// [`Violation::MergedTwice`].
    fn merge_steps(&mut self, life: Life, fragment: FragmentId, steps: &Spans) -> Result<(), Violation> {
        let merged = self.steps.entry((life, fragment)).or_default();
        let twice = merged.common(steps).first();
        merged.add(steps);
        let (machine, life) = life;
        twice.map_or(Ok(()), |step| Err(Violation::MergedTwice { machine, life, fragment, step }))
    }

    /// Returns the steps of a process that are merged into a fragment.
    pub(super) fn steps(&self, life: Life, fragment: FragmentId) -> Spans {
        self.steps.get(&(life, fragment)).cloned().unwrap_or_default()
    }

    /// Returns all merged steps.
    pub(super) fn all_steps(&self) -> impl Iterator<Item = (&(Life, FragmentId), &Spans)> {
        self.steps.iter()
    }

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
