//! What was leased, trained and merged, and by whom.
//!
//! [`Books`] keeps the leases, the ledger and what each learner can have in stock. It knows nothing of connections,
//! rounds or parameters.

mod account;
mod accounts;
mod fates;
mod follow;
mod holdings;
mod lease;
mod ledger;
mod piece;
mod supply;

pub(crate) use account::TURN_MS_MAX;
pub use account::{Account, PROBATION_MS};
pub use fates::FateCounts;
pub(super) use follow::follow;
pub use lease::{LeaseError, LeasePool, Returned};
pub use ledger::Ledger;
pub use supply::Speed;
use supply::Supplies;

use std::collections::{BTreeMap, VecDeque};

use super::speed::SPEED_SLACK;
use super::{Doubt, Entry, MergeEntry, Settled};
use crate::data::LEASES_MAX;
use crate::wire::{Fate, FragmentId, Identity, LearnerId, LeaseGrant, LeaseId, Millis, Progress, Serial};

/// Windows in one lease, at most.
pub(super) const LEASE_WINDOWS_MAX: u32 = 1 << 16;
/// Minimum training time covered by the leases of a learner with merged updates, in milliseconds. It holds for texts of
/// any size, and is several times the interval of one second between two reports.
const AHEAD_MS: u64 = 8_000;
/// Leases that a learner holds at most: tiny shards must not flood it.
const LEASES_HELD_MAX: usize = LEASES_MAX as usize / 2;

/// What does not change about the books during a run.
#[derive(Clone, Copy, Debug)]
pub struct BookTerms {
    /// Tokens in a window.
    pub context: u32,
    /// Training time that one lease is meant to last, in milliseconds.
    pub lease_ms: u64,
    /// A lease without progress for longer goes to others, in milliseconds.
    pub lease_idle_ms_max: u64,
    /// Identities that the ledger remembers.
    pub identities_max: u32,
    /// Identities among them of whom nothing is merged yet.
    pub strangers_max: u32,
}

/// Leases and ledger of a run.
#[derive(Debug)]
pub struct Books {
    terms: BookTerms,
    leases: LeasePool,
    ledger: Ledger,
    supplies: Supplies,
    /// Leases of learners that came back and have yet to say which of them they still hold.
    doubts: BTreeMap<LearnerId, Vec<LeaseId>>,
    /// When what a learner trained was last taken in, as far as this process knows.
    reported: BTreeMap<LearnerId, Millis>,
    /// What was decided and is not on the tape yet, oldest first.
    entries: VecDeque<Entry>,
}

impl Books {
    /// The books as a snapshot has them, or new ones.
    #[must_use]
    pub fn new(terms: BookTerms, leases: LeasePool, ledger: Ledger) -> Self {
        let (supplies, doubts, reported) = (Supplies::default(), BTreeMap::new(), BTreeMap::new());
        Self { terms, leases, ledger, supplies, doubts, reported, entries: VecDeque::new() }
    }

    /// Notes a decision for the tape, in the order in which all that changes the run is decided.
    pub fn note(&mut self, entry: Entry) {
        self.entries.push_back(entry);
    }

    /// The oldest decision that is not on the tape yet.
    pub fn next_entry(&mut self) -> Option<Entry> {
        self.entries.pop_front()
    }

    /// The contribution ledger.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The windows on lease.
    #[must_use]
    pub fn leases(&self) -> &LeasePool {
        &self.leases
    }

    /// Whether the ledger has room for another identity, if need be after forgetting one that came to nothing and
    /// that is not `needed`. Gives the learner that was forgotten.
    ///
    /// # Errors
    /// Each variant of [`BooksFull`]: all who are remembered have come to something or are needed.
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

    /// The learner with this identity, which has this `number` if it is given one, and whether it was known before.
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

    /// Opens an account for `learner` of whom only the number is known, unless it has one.
    pub fn know(&mut self, learner: LearnerId) {
        self.ledger.know(learner);
    }

    /// Counts so many tokens of `learner` beyond what is merged of it, if fewer were leased to it here.
    pub fn credit(&mut self, learner: LearnerId, tokens: u64) {
        self.ledger.credit(learner, tokens);
    }

    /// Numbers what is leased from here on from `first` on.
    pub fn number_leases_from(&mut self, first: LeaseId) {
        self.leases.reopen(first);
    }

    /// A new process of `learner` counts its tokens from 0; what the one before held is lost and comes back.
    pub fn restart(&mut self, learner: LearnerId) -> Vec<Returned> {
        self.ledger.restart(learner);
        self.note(Entry::Restarted { learner });
        self.release(learner)
    }

    /// Takes back all that `learner` holds: it has gone for good, or begins anew, and trains on none of it any more.
    pub fn release(&mut self, learner: LearnerId) -> Vec<Returned> {
        let returned = self.leases.release(learner);
        self.came_back(&returned, false);
        returned
    }

    /// `learner` takes part again: its first report from now on says which of its leases it holds. A grant may have
    /// been lost with its connection, and a syncer that crashed may know of leases that are long finished.
    pub fn doubt(&mut self, learner: LearnerId) {
        self.doubts.insert(learner, self.leases.leases(learner));
    }

    /// Takes back what has expired. Its learner may come back and hand in what it trained on that.
    pub fn expire(&mut self, now: Millis) -> Vec<Returned> {
        let returned = self.leases.expire(now, now.after(self.terms.lease_idle_ms_max));
        self.came_back(&returned, true);
        returned
    }

    /// When the next lease expires.
    #[must_use]
    pub fn deadline(&self) -> Option<Millis> {
        self.leases.deadline()
    }

    /// From `now` on `learner` trains, unless an earlier moment is known.
    pub fn count_from(&mut self, now: Millis, learner: LearnerId) {
        self.reported.entry(learner).or_insert(now);
    }

    /// How many of the `tokens` that the present process of `learner` says it has trained on are believed, if it can
    /// train on so many in a millisecond: no more than in the time since it said so before. What is left over is
    /// believed as time passes. Nobody knows how much time that is after a restart of the syncer, nor of one that
    /// has not begun: then it is as much as a lease lasts.
    fn believed(&mut self, now: Millis, learner: LearnerId, tokens: u64, tokens_per_ms: f64) -> u64 {
        let before = self.reported.insert(learner, now);
        let passed_ms = before.map_or(self.terms.lease_ms, |before| now.since(before));
        let more = SPEED_SLACK * tokens_per_ms * passed_ms as f64;
        tokens.min(self.ledger.reported(learner).saturating_add(more as u64))
    }

    /// What `learner` says it has trained, who can train on so many tokens in a millisecond; what comes back because it
    /// does not hold it. One that `is_live` keeps the leases that wait for their turn: in a hidden tab or a long pause
    /// it takes no step, and names no lease that came after its last.
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

    /// Leases that keep `learner` supplied for about `lease_ms`.
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
        // A grant ends with its shard, so that it may take several to have a batch at all.
        let enough = wanted.div_ceil(2).max(batch);
        let mut grants = Vec::new();
        while held < enough && self.supplies.may_lease(now, learner, speed, lease_ms) {
            let more = LEASES_HELD_MAX.saturating_sub(self.leases.leases(learner).len()) as u32;
            if more == 0 {
                break;
            }
            // Others may have left pieces of a window each: half of the leases take what comes, and with the rest there
            // is a batch.
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

    /// The leases of `learner`.
    #[must_use]
    pub fn leased(&self, learner: LearnerId) -> Vec<LeaseId> {
        self.leases.leases(learner)
    }

    /// Whether nothing was ever leased to `learner`.
    #[must_use]
    pub fn is_new(&self, learner: LearnerId) -> bool {
        self.ledger.account(learner).is_some_and(|account| account.leased_tokens == 0)
    }

    /// An update of `learner` came in.
    pub fn note_update(&mut self, learner: LearnerId) {
        self.ledger.note_update(learner);
    }

    /// Tokens that were leased to `learner` and are not merged on `fragment`.
    #[must_use]
    pub fn unmerged_tokens(&self, learner: LearnerId, fragment: FragmentId) -> u64 {
        self.ledger.countable(learner, fragment, u64::MAX)
    }

    /// The last update of `learner` that was merged on `fragment`.
    #[must_use]
    pub fn last_merged(&self, learner: LearnerId, fragment: FragmentId) -> Option<Serial> {
        *self.ledger.account(learner)?.merged.get(usize::from(fragment.0))?
    }

    /// Notes a merge for the tape, and for how long its learners have been merged by then. What became of their updates
    /// is to be settled next.
    pub fn note_merge(&mut self, entry: MergeEntry) {
        self.ledger.note_merge(&entry);
        self.note(Entry::Merged(entry));
    }

    /// Updates of `learner` did harm: it has to prove itself anew.
    pub fn blame(&mut self, learner: LearnerId) {
        self.ledger.blame(learner);
        self.note(Entry::Blamed { learner });
    }

    /// `learner` is suspected of not training what it says it does, or is not any more. Whether that is news.
    pub fn suspect(&mut self, learner: LearnerId, doubt: Option<Doubt>) -> bool {
        let is_news = self.ledger.suspect(learner, doubt);
        if is_news {
            self.note(Entry::Doubted { learner, doubt });
        }
        is_news
    }

    /// The owner forgives `learner`.
    pub fn pardon(&mut self, learner: LearnerId) {
        self.ledger.pardon(learner);
        self.note(Entry::Pardoned { learner });
    }

    /// Books the fate of an update. Those of a merge are on the tape with it.
    pub fn settle(&mut self, settled: &Settled) {
        let &Settled { learner, fragment, serial, fate, .. } = settled;
        self.ledger.settle(learner, fragment, serial, &fate);
        if !matches!(fate, Fate::Merged { .. }) {
            self.note(Entry::Settled { fragment, learner, serial, fate });
        }
    }

    /// Refusals of `learner` since one of its updates was merged.
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

/// The ledger remembers as many identities as it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BooksFull {
    /// In all.
    #[error("{identities_max} identities have been here, which is the limit")]
    Identities {
        /// How many that are.
        identities_max: u32,
    },
    /// Of those that came to nothing yet.
    #[error(
        "{strangers_max} identities are here of whom nothing is merged yet, which is the limit: come back later"
    )]
    Strangers {
        /// How many that are.
        strangers_max: u32,
    },
}

#[cfg(test)]
mod tests;
