//! Accounting of leased, trained and merged tokens, by learner.
//!
//! [`Books`] owns the leases, the ledger and the stock of each learner. It does not depend on connections, rounds or
//! parameters.

mod account;
mod accounts;
mod fates;
mod lease;
mod lease_index;
mod lease_sizing;
mod ledger;
mod replay;
mod window_range;

pub(crate) use account::TURN_MS_MAX;
pub use account::{Account, PROBATION_MS};
pub use fates::FateCounts;
pub use lease::{LeaseError, LeasePool, Returned};
pub use lease_sizing::Speed;
use lease_sizing::Supplies;
pub use ledger::Ledger;
pub(super) use replay::follow;

use std::collections::{BTreeMap, VecDeque};

use super::speed::SPEED_SLACK;
use super::{Entry, MergeEntry, Suspicion, UpdateOutcome};
use crate::data::LEASES_MAX;
use crate::wire::{Fate, FragmentId, Identity, LearnerId, LeaseGrant, LeaseId, Millis, Progress, Serial};

/// Windows in one lease, at most.
pub(super) const LEASE_WINDOWS_MAX: u32 = 1 << 16;
/// Minimum training time covered by the leases of a learner with merged updates, in milliseconds. It holds for texts of
/// any size, and is several times the interval of one second between two reports.
const AHEAD_MS: u64 = 8_000;
/// Largest number of leases of one learner, so that tiny shards do not flood it.
const LEASES_HELD_MAX: usize = LEASES_MAX as usize / 2;

/// Constants of the books during a run.
#[derive(Clone, Copy, Debug)]
pub struct BookTerms {
    /// Tokens in a window.
    pub context: u32,
    /// Training time that one lease should last, in milliseconds.
    pub lease_ms: u64,
    /// Time without progress after which a lease expires, in milliseconds.
    pub lease_idle_ms_max: u64,
    /// Largest number of identities in the ledger.
    pub identities_max: u32,
    /// Largest number of identities without merged updates.
    pub strangers_max: u32,
}

/// Leases and ledger of a run.
#[derive(Debug)]
pub struct Books {
    terms: BookTerms,
    leases: LeasePool,
    ledger: Ledger,
    supplies: Supplies,
    /// Leases of returning learners that have not yet reported which of them they still hold.
    doubts: BTreeMap<LearnerId, Vec<LeaseId>>,
    /// Time of the last report of each learner, as far as this process knows.
    reported: BTreeMap<LearnerId, Millis>,
    /// Decisions that are not on the tape yet, oldest first.
    entries: VecDeque<Entry>,
}

impl Books {
    /// Creates the books from a snapshot, or new ones.
    #[must_use]
    pub fn new(terms: BookTerms, leases: LeasePool, ledger: Ledger) -> Self {
        let (supplies, doubts, reported) = (Supplies::default(), BTreeMap::new(), BTreeMap::new());
        Self { terms, leases, ledger, supplies, doubts, reported, entries: VecDeque::new() }
    }

    /// Appends a decision for the tape, in the order in which decisions change the run.
    pub fn note(&mut self, entry: Entry) {
        self.entries.push_back(entry);
    }

    /// Removes and returns the oldest decision that is not on the tape yet.
    pub fn next_entry(&mut self) -> Option<Entry> {
        self.entries.pop_front()
    }

    /// Returns the contribution ledger.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Returns the windows on lease.
    #[must_use]
    pub fn leases(&self) -> &LeasePool {
        &self.leases
    }

    /// Ensures that the ledger has room for another identity. If necessary it forgets a learner without contribution
    /// that is not `needed`, and returns it.
    ///
    /// # Errors
    /// Each variant of [`BooksFull`]: all known learners have contributed or are needed.
    pub fn make_room(&mut self, needed: impl Fn(LearnerId) -> bool) -> Result<Option<LearnerId>, BooksFull> {
        let BookTerms { identities_max, strangers_max, .. } = self.terms;
        let full = if self.ledger.strangers() >= strangers_max as usize {
            BooksFull::Strangers { strangers_max }
        } else if self.ledger.len() >= identities_max as usize {
            BooksFull::Identities { identities_max }
        } else {
            return Ok(None);
        };
        let leases = &self.leases;
        let evicted = self.ledger.evict(|learner| !needed(learner) && !leases.has(learner));
        let evicted = evicted.ok_or(full)?;
        self.supplies.forget(evicted);
        self.doubts.remove(&evicted);
        self.reported.remove(&evicted);
        self.note(Entry::Forgotten { learner: evicted });
        Ok(Some(evicted))
    }

    /// Enrols the learner with this identity, under `number` if one is given. Returns its number, and whether it was
    /// known before.
    pub fn enrol(
        &mut self,
        identity: &Identity,
        name: &str,
        device: &str,
        number: Option<LearnerId>,
    ) -> (LearnerId, bool) {
        let named = |account: &Account| account.name == name && account.device == device;
        let same =
            self.ledger.find(identity).and_then(|learner| self.ledger.account(learner)).is_some_and(named);
        let (learner, returning) = match number {
            None => self.ledger.enrol(identity, name, device),
            Some(learner) => self.ledger.enrol_as(learner, identity, name, device),
        };
        if let Some(account) = self.ledger.account(learner).filter(|_| !same) {
            let (identity, name, device) = (account.identity, name.to_owned(), device.to_owned());
            self.note(Entry::Enrolled { learner, identity, name, device });
        }
        (learner, returning)
    }

    /// Opens an account for `learner`, of which only the number is known, unless it has one.
    pub fn know(&mut self, learner: LearnerId) {
        self.ledger.know(learner);
    }

    /// Lets `learner` count at least `tokens` beyond its merged tokens, even if fewer were leased to it here.
    pub fn credit(&mut self, learner: LearnerId, tokens: u64) {
        self.ledger.credit(learner, tokens);
    }

    /// Numbers further leases from `first` on.
    pub fn number_leases_from(&mut self, first: LeaseId) {
        self.leases.reopen(first);
    }

    /// Records that a new process of `learner` counts its tokens from 0. The leases of the previous process are lost
    /// and taken back.
    pub fn restart(&mut self, learner: LearnerId) -> Vec<Returned> {
        self.ledger.restart(learner);
        self.note(Entry::Restarted { learner });
        self.release(learner)
    }

    /// Takes back all leases of `learner`, which has left for good or starts again without them.
    pub fn release(&mut self, learner: LearnerId) -> Vec<Returned> {
        let returned = self.leases.release(learner);
        self.came_back(&returned, false);
        returned
    }

    /// Records that `learner` takes part again. Its next report says which of its leases it holds. A grant may have
    /// been lost with its connection, and a syncer that crashed may still list leases that were finished long ago.
    pub fn doubt(&mut self, learner: LearnerId) {
        self.doubts.insert(learner, self.leases.leases(learner));
    }

    /// Takes back expired leases. Their learners may return and send updates that were trained on them.
    pub fn expire(&mut self, now: Millis) -> Vec<Returned> {
        let returned = self.leases.expire(now, now.after(self.terms.lease_idle_ms_max));
        self.came_back(&returned, true);
        returned
    }

    /// Returns the time at which the next lease expires.
    #[must_use]
    pub fn deadline(&self) -> Option<Millis> {
        self.leases.deadline()
    }

    /// Counts training time of `learner` from `now`, unless an earlier time is known.
    pub fn count_from(&mut self, now: Millis, learner: LearnerId) {
        self.reported.entry(learner).or_insert(now);
    }

    /// Returns how many of the reported `tokens` of the present process of `learner` are believed. The increase is
    /// bounded by `tokens_per_ms` and the time since the previous report. The excess is believed as time passes.
    /// After a restart of the syncer, or before a learner begins, that time is unknown; the duration of one lease is
    /// assumed.
    fn believed(&mut self, now: Millis, learner: LearnerId, tokens: u64, tokens_per_ms: f64) -> u64 {
        let before = self.reported.insert(learner, now);
        let passed_ms = before.map_or(self.terms.lease_ms, |before| now.since(before));
        let more = SPEED_SLACK * tokens_per_ms * passed_ms as f64;
        tokens.min(self.ledger.reported(learner).saturating_add(more as u64))
    }

    /// Takes in a report of `learner`, which can train on `tokens_per_ms` tokens per millisecond. Returns the leases
    /// that it does not hold. If it `is_live`, its leases that wait for their turn are extended. In a hidden tab or a
    /// long pause it takes no step, so it does not name them.
    pub fn report(
        &mut self,
        now: Millis,
        learner: LearnerId,
        progress: &Progress,
        tokens_per_ms: f64,
        is_live: bool,
    ) -> Vec<Returned> {
        let expires = now.after(self.terms.lease_idle_ms_max);
        let tokens = self.believed(now, learner, progress.tokens, tokens_per_ms);
        let mut is_news = self.ledger.report(learner, tokens);
        if is_live {
            self.leases.extend(learner, expires);
        }
        for &(lease, done) in &progress.leases {
            is_news |= self.leases.progress(learner, lease, done, expires);
        }
        if is_news {
            let leases = progress.leases.clone();
            self.note(Entry::Reported { learner, tokens, leases });
        }
        let mut doubted = if is_live { self.doubts.remove(&learner).unwrap_or_default() } else { Vec::new() };
        doubted.retain(|doubted| progress.leases.iter().all(|(lease, _)| lease != doubted));
        let returned = self.leases.withdraw(learner, &doubted);
        self.came_back(&returned, false);
        returned
    }

    /// Grants leases that supply `learner` for about `lease_ms`.
    pub fn grant(&mut self, now: Millis, learner: LearnerId, speed: &Speed) -> Vec<LeaseGrant> {
        let BookTerms { context, lease_ms, lease_idle_ms_max, .. } = self.terms;
        let batch = speed.batch;
        let wanted = speed.lease_steps(lease_ms).saturating_mul(batch);
        // A learner holds at most an eighth of the data, so that all learners share each pass. On a small text, a
        // learner with merged updates also gets leases of the next passes, or it would starve between two reports.
        // A learner without merged updates does not: its batch and speed are unproven claims.
        let share = u32::try_from(self.leases.epoch_windows() / 8).unwrap_or(u32::MAX);
        let is_known =
            speed.step_ms > 0.0 && self.ledger.account(learner).is_some_and(|account| !account.is_stranger());
        let ahead = if is_known { speed.lease_steps(AHEAD_MS).saturating_mul(batch) } else { 0 };
        let wanted = wanted.min(LEASE_WINDOWS_MAX).min(share.max(ahead)).max(batch);
        let mut held = self.leases.remaining(learner);
        // A grant ends with its shard, so that one batch may need several grants.
        let enough = wanted.div_ceil(2).max(batch);
        let mut grants = Vec::new();
        while held < enough && self.supplies.may_lease(now, learner, speed, lease_ms) {
            let more = LEASES_HELD_MAX.saturating_sub(self.leases.leases(learner).len()) as u32;
            if more == 0 {
                break;
            }
            // Other learners may have returned pieces of a single window. Half of the leases accept any piece, and
            // the other half must then complete a batch.
            let is_choosy = more <= LEASES_HELD_MAX as u32 / 2;
            let least = if is_choosy { batch.saturating_sub(held).div_ceil(more) } else { 1 };
            let grant = self.leases.grant(learner, wanted - held, least, now.after(lease_idle_ms_max));
            held += grant.windows;
            self.supplies.add(learner, grant.windows);
            self.ledger.lease(learner, u64::from(grant.windows) * u64::from(context));
            self.note(Entry::Leased { learner, grant });
            grants.push(grant);
        }
        grants
    }

    /// Returns the leases of `learner`.
    #[must_use]
    pub fn leased(&self, learner: LearnerId) -> Vec<LeaseId> {
        self.leases.leases(learner)
    }

    /// Returns true if nothing was ever leased to `learner`.
    #[must_use]
    pub fn is_new(&self, learner: LearnerId) -> bool {
        self.ledger.account(learner).is_some_and(|account| account.leased_tokens == 0)
    }

    /// Records that an update of `learner` was received.
    pub fn note_update(&mut self, learner: LearnerId) {
        self.ledger.note_update(learner);
    }

    /// Returns the tokens that were leased to `learner` and are not merged on `fragment`.
    #[must_use]
    pub fn unmerged_tokens(&self, learner: LearnerId, fragment: FragmentId) -> u64 {
        self.ledger.countable(learner, fragment, u64::MAX)
    }

    /// Returns the last update of `learner` that was merged on `fragment`.
    #[must_use]
    pub fn last_merged(&self, learner: LearnerId, fragment: FragmentId) -> Option<Serial> {
        *self.ledger.account(learner)?.merged.get(usize::from(fragment.0))?
    }

    /// Records a merge for the tape, and the merged time of its learners. The outcomes of the updates must be settled
    /// next.
    pub fn note_merge(&mut self, entry: MergeEntry) {
        self.ledger.note_merge(&entry);
        self.note(Entry::Merged(entry));
    }

    /// Records that updates of `learner` did harm. Its probation begins again.
    pub fn blame(&mut self, learner: LearnerId) {
        self.ledger.blame(learner);
        self.note(Entry::Blamed { learner });
    }

    /// Sets or clears the suspicion that `learner` does not train what it claims. Returns true if that changed
    /// whether it is suspected.
    pub fn suspect(&mut self, learner: LearnerId, doubt: Option<Suspicion>) -> bool {
        let is_news = self.ledger.suspect(learner, doubt);
        if is_news {
            self.note(Entry::Doubted { learner, doubt });
        }
        is_news
    }

    /// Records that the owner pardoned `learner`.
    pub fn pardon(&mut self, learner: LearnerId) {
        self.ledger.pardon(learner);
        self.note(Entry::Pardoned { learner });
    }

    /// Books the outcome of an update. The outcomes of a merge are on the tape with it.
    pub fn settle(&mut self, settled: &UpdateOutcome) {
        let &UpdateOutcome { learner, fragment, serial, fate, .. } = settled;
        self.ledger.settle(learner, fragment, serial, &fate);
        if !matches!(fate, Fate::Merged { .. }) {
            self.note(Entry::Settled { fragment, learner, serial, fate });
        }
    }

    /// Returns the refusals of `learner` since its last merged update.
    #[must_use]
    pub fn refusals(&self, learner: LearnerId) -> u32 {
        self.ledger.account(learner).map_or(0, |account| account.refused_in_a_row)
    }

    fn came_back(&mut self, returned: &[Returned], expired: bool) {
        for &Returned { learner, lease, windows } in returned {
            self.supplies.take_back(learner, windows);
            if !expired {
                self.ledger.take_back(learner, u64::from(windows) * u64::from(self.terms.context));
            }
            self.note(Entry::Returned { learner, lease, windows, expired });
        }
    }
}

/// Reached limits on the identities in the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BooksFull {
    /// The limit on all identities.
    #[error("the run has {identities_max} identities, which is the limit")]
    Identities {
        /// The limit.
        identities_max: u32,
    },
    /// The limit on identities without merged updates.
    #[error(
        "{strangers_max} identities without a merged update are present, which is the limit: come back later"
    )]
    Strangers {
        /// The limit.
        strangers_max: u32,
    },
}

#[cfg(test)]
mod tests;
