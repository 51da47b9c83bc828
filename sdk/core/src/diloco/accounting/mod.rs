//! Accounting of leased, trained and merged tokens of each learner.
//!
//! [`Accounting`] owns the leases, the ledger, and the stock of leased text of each learner. It does not depend on
//! connections, rounds or parameters.

mod accounts;
mod lease;
mod ledger;

pub use accounts::{Account, FateCounts};
pub use lease::{LeaseError, LeasePool, Returned, Speed};
pub use ledger::Ledger;

use std::collections::{BTreeMap, VecDeque};

use super::speed::SPEED_SLACK;
use super::{Entry, MergeEntry, Suspicion, UpdateOutcome};
use crate::data::LEASES_MAX;
use crate::wire::{Fate, FragmentId, Identity, LearnerId, LeaseGrant, LeaseId, Millis, Progress, Serial};
use lease::LeaseStocks;

/// Maximum number of windows in one lease.
pub(super) const LEASE_WINDOWS_MAX: u32 = 1 << 16;
/// Minimum training time that the leases of a learner with merged updates cover, in milliseconds, for texts of any
/// size. It is several times the interval of about one second between two reports.
const AHEAD_MS: u64 = 8_000;
/// Maximum number of leases of one learner, which limits them if shards are very small.
const LEASES_HELD_MAX: usize = LEASES_MAX as usize / 2;

/// Settings of [`Accounting`].
#[derive(Clone, Copy, Debug)]
pub struct AccountingTerms {
    /// Number of tokens in a window.
    pub context: u32,
    /// Training time that one lease should cover, in milliseconds.
    pub lease_ms: u64,
    /// Time without progress after which a lease expires, in milliseconds.
    pub lease_idle_ms_max: u64,
    /// Maximum number of identities in the ledger.
    pub identities_max: u32,
    /// Maximum number of identities without merged updates.
    pub strangers_max: u32,
}

/// Leases and ledger of a run.
#[derive(Debug)]
pub struct Accounting {
    terms: AccountingTerms,
    leases: LeasePool,
    ledger: Ledger,
    stocks: LeaseStocks,
    /// Leases of each returning learner that has not reported yet which of them it still holds.
    unconfirmed: BTreeMap<LearnerId, Vec<LeaseId>>,
    /// Time of the last report of each learner; missing if unknown to this process.
    reported: BTreeMap<LearnerId, Millis>,
    /// Decisions that are not on the tape yet, oldest first.
    entries: VecDeque<Entry>,
}

impl Accounting {
    /// Creates the accounting of a run with the leases and the ledger of a snapshot, or with new ones.
    #[must_use]
    pub fn new(terms: AccountingTerms, leases: LeasePool, ledger: Ledger) -> Self {
        let (stocks, unconfirmed, reported) = (LeaseStocks::default(), BTreeMap::new(), BTreeMap::new());
        Self { terms, leases, ledger, stocks, unconfirmed, reported, entries: VecDeque::new() }
    }

    /// Appends a decision for the tape. Call it in the order in which decisions change the run.
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

    /// Returns the leases.
    #[must_use]
    pub fn leases(&self) -> &LeasePool {
        &self.leases
    }

    /// Makes room in the ledger for another identity. If a limit is reached, deletes the account of a learner without a
    /// merged or pending update, without a lease, and that is not `needed`. Returns that learner.
    ///
    /// # Errors
    /// Each variant of [`IdentityLimitError`], if no account can be deleted.
    pub fn evict_identity(
        &mut self,
        needed: impl Fn(LearnerId) -> bool,
    ) -> Result<Option<LearnerId>, IdentityLimitError> {
        let AccountingTerms { identities_max, strangers_max, .. } = self.terms;
        let full = if self.ledger.strangers() >= strangers_max as usize {
            IdentityLimitError::Strangers { strangers_max }
        } else if self.ledger.len() >= identities_max as usize {
            IdentityLimitError::Identities { identities_max }
        } else {
            return Ok(None);
        };
        let leases = &self.leases;
        let evicted = self.ledger.evict(|learner| !needed(learner) && !leases.has(learner));
        let evicted = evicted.ok_or(full)?;
        self.stocks.forget(evicted);
        self.unconfirmed.remove(&evicted);
        self.reported.remove(&evicted);
        self.note(Entry::Forgotten { learner: evicted });
        Ok(Some(evicted))
    }

    /// Enrols the learner with this identity, under `number` if one is given. Returns its number, and true if it had an
    /// account before.
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

    /// Opens an account for `learner` without an identity, unless it has one.
    pub fn know(&mut self, learner: LearnerId) {
        self.ledger.know(learner);
    }

    /// Raises the leased tokens of `learner` to at least its merged tokens plus `tokens`.
    pub fn credit(&mut self, learner: LearnerId, tokens: u64) {
        self.ledger.credit(learner, tokens);
    }

    /// Numbers further leases from `first` on.
    pub fn number_leases_from(&mut self, first: LeaseId) {
        self.leases.reopen(first);
    }

    /// Records that `learner` began a new process, whose reported tokens start at 0, and takes back the leases of the
    /// previous process.
    pub fn restart(&mut self, learner: LearnerId) -> Vec<Returned> {
        self.ledger.restart(learner);
        self.note(Entry::Restarted { learner });
        self.release(learner)
    }

    /// Takes back all leases of `learner`.
    pub fn release(&mut self, learner: LearnerId) -> Vec<Returned> {
        let returned = self.leases.release(learner);
        self.book_returned(&returned, false);
        returned
    }

    /// Records that `learner` returned. The next [`Self::report`] takes back the leases that it does not name: a grant
    /// may have been lost with the connection, and after a crash of the syncer finished leases may still be listed.
    pub fn doubt(&mut self, learner: LearnerId) {
        self.unconfirmed.insert(learner, self.leases.leases(learner));
    }

    /// Takes back expired leases. Their learners may still send updates that were trained on them.
    pub fn expire(&mut self, now: Millis) -> Vec<Returned> {
        let returned = self.leases.expire(now, now.after(self.terms.lease_idle_ms_max));
        self.book_returned(&returned, true);
        returned
    }

    /// Returns the time at which the next lease expires.
    #[must_use]
    pub fn deadline(&self) -> Option<Millis> {
        self.leases.deadline()
    }

    /// Credits training time of `learner` from `now` on, unless a time is known already.
    pub fn count_from(&mut self, now: Millis, learner: LearnerId) {
        self.reported.entry(learner).or_insert(now);
    }

    /// Returns the accepted part of `tokens`, the tokens that the current process of `learner` reports. Its increase is
    /// at most `SPEED_SLACK · tokens_per_ms` times the time since the previous report; later reports can add the
    /// rest. If this process of the syncer does not know that time, the duration of one lease replaces it.
    fn accepted_tokens(&mut self, now: Millis, learner: LearnerId, tokens: u64, tokens_per_ms: f64) -> u64 {
        let before = self.reported.insert(learner, now);
        let passed_ms = before.map_or(self.terms.lease_ms, |before| now.since(before));
        let more = SPEED_SLACK * tokens_per_ms * passed_ms as f64;
        tokens.min(self.ledger.reported(learner).saturating_add(more as u64))
    }

    /// Records a report of `learner`, which can train on at most `tokens_per_ms` tokens per millisecond. If the learner
    /// `is_live`, its unstarted leases are extended, and those in [`Self::doubt`] that the report does not name are
    /// taken back and returned. (Reports do not name unstarted leases while no steps are taken, as in a hidden tab.)
    pub fn report(
        &mut self,
        now: Millis,
        learner: LearnerId,
        progress: &Progress,
        tokens_per_ms: f64,
        is_live: bool,
    ) -> Vec<Returned> {
        let expires = now.after(self.terms.lease_idle_ms_max);
        let tokens = self.accepted_tokens(now, learner, progress.tokens, tokens_per_ms);
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
        let mut doubted =
            if is_live { self.unconfirmed.remove(&learner).unwrap_or_default() } else { Vec::new() };
        doubted.retain(|doubted| progress.leases.iter().all(|(lease, _)| lease != doubted));
        let returned = self.leases.withdraw(learner, &doubted);
        self.book_returned(&returned, false);
        returned
    }

    /// Grants leases that keep `learner` busy for about `lease_ms`, if it has less than half of that left.
    pub fn grant(&mut self, now: Millis, learner: LearnerId, speed: &Speed) -> Vec<LeaseGrant> {
        let AccountingTerms { context, lease_ms, lease_idle_ms_max, .. } = self.terms;
        let batch = speed.batch;
        let wanted = speed.lease_steps(lease_ms).saturating_mul(batch);
        // A learner holds at most an eighth of the text, so that all learners share each epoch. On a small text, a
        // learner with merged updates also gets leases of the next epochs, or it would run out of text between two
        // reports. A learner without merged updates does not: its batch and speed are unproven claims.
        let share = u32::try_from(self.leases.epoch_windows() / 8).unwrap_or(u32::MAX);
        let is_known =
            speed.step_ms > 0.0 && self.ledger.account(learner).is_some_and(|account| !account.is_stranger());
        let ahead = if is_known { speed.lease_steps(AHEAD_MS).saturating_mul(batch) } else { 0 };
        let wanted = wanted.min(LEASE_WINDOWS_MAX).min(share.max(ahead)).max(batch);
        let mut held = self.leases.remaining(learner);
        // A grant ends with its shard, so that one batch may need several grants.
        let enough = wanted.div_ceil(2).max(batch);
        let mut grants = Vec::new();
        while held < enough && self.stocks.may_lease(now, learner, speed, lease_ms) {
            let more = LEASES_HELD_MAX.saturating_sub(self.leases.leases(learner).len()) as u32;
            if more == 0 {
                break;
            }
            // Other learners may have returned ranges of a single window. Half of the leases may be of any size, and
            // the other half must then be large enough to complete a batch.
            let is_choosy = more <= LEASES_HELD_MAX as u32 / 2;
            let least = if is_choosy { batch.saturating_sub(held).div_ceil(more) } else { 1 };
            let grant = self.leases.grant(learner, wanted - held, least, now.after(lease_idle_ms_max));
            held += grant.windows;
            self.stocks.add(learner, grant.windows);
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

    /// Returns true if no text was ever leased to `learner`.
    #[must_use]
    pub fn is_new(&self, learner: LearnerId) -> bool {
        self.ledger.account(learner).is_some_and(|account| account.leased_tokens == 0)
    }

    /// Records that an update of `learner` was received.
    pub fn note_update(&mut self, learner: LearnerId) {
        self.ledger.note_update(learner);
    }

    /// Returns the number of tokens that were leased to `learner` and are not merged on `fragment`.
    #[must_use]
    pub fn unmerged_tokens(&self, learner: LearnerId, fragment: FragmentId) -> u64 {
        self.ledger.creditable(learner, fragment, u64::MAX)
    }

    /// Returns the serial number of the last merged update of `learner` on `fragment`.
    #[must_use]
    pub fn last_merged(&self, learner: LearnerId, fragment: FragmentId) -> Option<Serial> {
        *self.ledger.account(learner)?.merged.get(usize::from(fragment.0))?
    }

    /// Records a merge: its entry, the merged time of its learners, and their schedule credit. Call
    /// [`Self::record_outcome`] for each of its updates next.
    pub fn note_merge(&mut self, entry: MergeEntry) {
        self.ledger.note_merge(&entry);
        self.note(Entry::Merged(entry));
    }

    /// Records the conviction of `learner`, whose probation begins again.
    pub fn convict(&mut self, learner: LearnerId) {
        self.ledger.convict(learner);
        self.note(Entry::Blamed { learner });
    }

    /// Sets the suspicion that `learner` does not train what it claims, or clears it with `None`. Returns true if the
    /// learner became suspected or was cleared.
    pub fn suspect(&mut self, learner: LearnerId, suspicion: Option<Suspicion>) -> bool {
        let is_news = self.ledger.suspect(learner, suspicion);
        if is_news {
            self.note(Entry::Doubted { learner, doubt: suspicion });
        }
        is_news
    }

    /// Records the pardon of `learner`. Returns false, and changes nothing, if it has no convictions.
    pub fn pardon(&mut self, learner: LearnerId) -> bool {
        let was_convicted = self.ledger.pardon(learner);
        if was_convicted {
            self.note(Entry::Pardoned { learner });
        }
        was_convicted
    }

    /// Records the outcome of an update. The entry of a merge already has the outcomes of its updates.
    pub fn record_outcome(&mut self, outcome: &UpdateOutcome) {
        let &UpdateOutcome { learner, fragment, serial, fate, .. } = outcome;
        self.ledger.record_outcome(learner, fragment, serial, &fate);
        if !matches!(fate, Fate::Merged { .. }) {
            self.note(Entry::Settled { fragment, learner, serial, fate });
        }
    }

    /// Returns the number of refusals of `learner` since its last merged update.
    #[must_use]
    pub fn refusals(&self, learner: LearnerId) -> u32 {
        self.ledger.account(learner).map_or(0, |account| account.refused_in_a_row)
    }

    fn book_returned(&mut self, returned: &[Returned], expired: bool) {
        for &Returned { learner, lease, windows } in returned {
            self.stocks.remove_windows(learner, windows);
            if !expired {
                self.ledger.record_returned(learner, u64::from(windows) * u64::from(self.terms.context));
            }
            self.note(Entry::Returned { learner, lease, windows, expired });
        }
    }
}

/// Error if the ledger has no room for another identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityLimitError {
    /// The limit on all identities is reached.
    #[error("the run has {identities_max} identities, which is the limit")]
    Identities {
        /// The limit.
        identities_max: u32,
    },
    /// The limit on identities without merged updates is reached.
    #[error(
        "{strangers_max} identities without a merged update are present, which is the limit: come back later"
    )]
    Strangers {
        /// The limit.
        strangers_max: u32,
    },
}

/// Applies an entry of the tape to the leases and the ledger. A window has `context` tokens.
///
/// # Errors
/// [`LeaseError::OutOfTurn`] if a grant does not follow the previous ones.
pub(in crate::diloco) fn follow(
    entry: &Entry,
    leases: &mut LeasePool,
    ledger: &mut Ledger,
    context: u32,
) -> Result<(), LeaseError> {
    let tokens = |windows: u32| u64::from(windows) * u64::from(context);
    match entry {
        Entry::Began { next_round, slack_tokens } => {
            leases.reopen(LeaseId(*next_round));
            ledger.reopen(*slack_tokens);
        }
        Entry::Enrolled { learner, identity, name, device } => ledger.open(*learner, *identity, name, device),
        Entry::Forgotten { learner } => ledger.forget(*learner),
        Entry::Restarted { learner } => ledger.restart(*learner),
        Entry::Leased { learner, grant } => {
            leases.regrant(*learner, *grant)?;
            ledger.lease(*learner, tokens(grant.windows));
        }
        Entry::Reported { learner, tokens, leases: done } => {
            ledger.report(*learner, *tokens);
            for &(lease, done) in done {
                // Expiry times are set again after a restart.
                leases.progress(*learner, lease, done, Millis(0));
            }
        }
        Entry::Returned { learner, lease, expired, .. } => {
            for back in leases.withdraw(*learner, &[*lease]) {
                if !expired {
                    ledger.record_returned(*learner, tokens(back.windows));
                }
            }
        }
        Entry::Settled { fragment, learner, serial, fate } => {
            ledger.record_outcome(*learner, *fragment, *serial, fate)
        }
        Entry::Merged(merge) => {
            ledger.note_merge(merge);
            for (part, outcome) in merge.parts.iter().zip(merge.outcomes()) {
                ledger.record_outcome(part.learner, merge.fragment, part.serial, &outcome.fate);
            }
        }
        Entry::Blamed { learner } => ledger.convict(*learner),
        Entry::Doubted { learner, doubt } => {
            ledger.suspect(*learner, *doubt);
        }
        Entry::Pardoned { learner } => {
            ledger.pardon(*learner);
        }
        Entry::RolledBack(_)
        | Entry::Abandoned { .. }
        | Entry::Held { .. }
        | Entry::Paced { .. }
        | Entry::Dropped { .. }
        | Entry::Finishing
        | Entry::Finished => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Fate, LearnerState, Round, RunId, Serial, Version};

    const TERMS: AccountingTerms = AccountingTerms {
        context: 4,
        lease_ms: 1_000,
        lease_idle_ms_max: 500,
        identities_max: 2,
        strangers_max: 1_000,
    };
    const SPEED: Speed = Speed { step_ms: 100.0, step_ms_least: 100.0, batch: 2 };

    fn accounting() -> Accounting {
        Accounting::new(TERMS, LeasePool::new(vec![10_000]).unwrap(), Ledger::new(vec![1]))
    }

    fn enrol(accounting: &mut Accounting, identity: u8) -> LearnerId {
        accounting.enrol(&Identity([identity; 32]), "a", "cpu", None).0
    }

    fn progress(tokens: u64, leases: Vec<(LeaseId, u32)>) -> Progress {
        let (run, state) = (RunId(1), LearnerState::Training);
        Progress { run, leases, steps: 0, tokens, step_ms: 100.0, loss: f32::NAN, state }
    }

    #[test]
    fn lease_covers_its_training_time() {
        let mut accounting = accounting();
        let anne = enrol(&mut accounting, 1);
        assert!(accounting.is_new(anne));
        let grants = accounting.grant(Millis(0), anne, &SPEED);
        // 1 s at 100 ms a step is 10 steps of 2 windows, of 4 tokens each.
        assert_eq!(grants.iter().map(|grant| grant.windows).collect::<Vec<_>>(), [20]);
        assert_eq!((accounting.unmerged_tokens(anne, FragmentId(0)), accounting.is_new(anne)), (80, false));
        assert_eq!(accounting.grant(Millis(0), anne, &SPEED), [], "it has enough");
        let done = vec![(grants[0].lease, 15)];
        accounting.report(Millis(700), anne, &progress(60, done), 1e3, true);
        assert_eq!(accounting.grant(Millis(700), anne, &SPEED)[0].windows, 15, "less than half is left");
    }

    /// Creates an accounting with `windows` windows in one shard and one learner, which has a merged update if
    /// `is_merged`.
    fn small_text(windows: u32, is_merged: bool) -> (Accounting, LearnerId) {
        let terms = AccountingTerms { lease_ms: 30_000, lease_idle_ms_max: 60_000, ..TERMS };
        let mut accounting =
            Accounting::new(terms, LeasePool::new(vec![windows]).unwrap(), Ledger::new(vec![1]));
        let anne = enrol(&mut accounting, 1);
        if is_merged {
            let fate = Fate::Merged { version: Version(1), weight: 1.0, tokens: 1 };
            let (fragment, serial, round) = (FragmentId(0), Serial(1), Some(Round(1)));
            accounting.note_update(anne);
            accounting.record_outcome(&UpdateOutcome {
                round,
                fragment,
                learner: anne,
                serial,
                tokens: 1,
                fate,
            });
        }
        (accounting, anne)
    }

    /// Goal: a learner with merged updates never waits for text, even if an epoch is very short. Its steps take 60 ms,
    /// it reports each second, and it gets leases 200 ms after a report.
    #[test]
    fn short_epochs_do_not_starve_learners() {
        const BATCH: u32 = 8;
        for steps_a_pass in [3, 22, 100] {
            let (mut accounting, anne) = small_text(steps_a_pass * BATCH, true);
            let speed = Speed { step_ms: 60.0, step_ms_least: 60.0, batch: BATCH };
            let mut held: VecDeque<(LeaseGrant, u32)> = VecDeque::new();
            let mut seen = std::collections::BTreeSet::new();
            let (mut steps, mut starved) = (0_u32, 0_u32);
            let mut under_way = accounting.grant(Millis(0), anne, &speed);
            let mut done = BTreeMap::new();
            for tick in 0..2_000_u64 {
                let now = Millis(60 * tick);
                match tick % 17 {
                    0 => {
                        let said: Vec<(LeaseId, u32)> =
                            done.iter().map(|(&lease, &done)| (lease, done)).collect();
                        accounting.report(
                            now,
                            anne,
                            &progress(u64::from(4 * BATCH * steps), said),
                            1e3,
                            true,
                        );
                        under_way.extend(accounting.grant(now, anne, &speed));
                        assert!(accounting.leases.leases(anne).len() <= LEASES_HELD_MAX);
                        assert!(accounting.leases.remaining(anne) <= 8_000 / 60 * BATCH, "it is bounded");
                    }
                    4 => {
                        for grant in under_way.drain(..) {
                            done.insert(grant.lease, 0);
                            held.push_back((grant, 0));
                        }
                    }
                    _ => {}
                }
                let ready: u32 = held.iter().map(|(grant, done)| grant.windows - done).sum();
                if ready < BATCH {
                    starved += u32::from(tick > 4);
                    continue;
                }
                steps += 1;
                for _ in 0..BATCH {
                    let (grant, at) = held.front_mut().unwrap();
                    assert!(seen.insert((grant.epoch, grant.start + *at)), "a window twice in a pass");
                    *at += 1;
                    done.insert(grant.lease, *at);
                    if *at == grant.windows {
                        held.pop_front();
                    }
                }
            }
            assert_eq!(starved, 0, "{steps_a_pass} steps a pass: starved for {starved} of 2,000 steps");
            assert!(steps > 1_990, "{steps}");
        }
    }

    /// Goal: a learner without merged updates gets an eighth of the text or one batch, whatever it claims.
    #[test]
    fn learner_without_merges_gets_no_leases_of_later_epochs() {
        for step_ms in [0.0, 0.01, 60.0] {
            let (mut accounting, anne) = small_text(176, false);
            let speed = Speed { step_ms, step_ms_least: step_ms.max(0.01), batch: 8 };
            accounting.grant(Millis(0), anne, &speed);
            assert_eq!(accounting.leases.remaining(anne), 22, "{step_ms}");
            let (mut accounting, anne) = small_text(176, true);
            accounting.grant(Millis(0), anne, &speed);
            assert!(accounting.leases.remaining(anne) <= LEASES_HELD_MAX as u32 * 176, "{step_ms}");
        }
    }

    #[test]
    fn leases_wait_for_training_time_despite_reports() {
        let mut accounting = accounting();
        let anne = enrol(&mut accounting, 1);
        let mut leased = 0;
        for _ in 0..1_000 {
            for grant in accounting.grant(Millis(0), anne, &SPEED) {
                leased += grant.windows;
                accounting.report(
                    Millis(0),
                    anne,
                    &progress(0, vec![(grant.lease, grant.windows)]),
                    1e3,
                    true,
                );
            }
        }
        // The largest stock, and one grant more.
        assert!((512..=532).contains(&leased), "{leased}");
    }

    #[test]
    fn what_comes_back_makes_room_for_as_much_and_no_more() {
        let mut accounting = accounting();
        let anne = enrol(&mut accounting, 1);
        let mut done = 0;
        for turn in 0..1_000 {
            for grant in accounting.grant(Millis(0), anne, &SPEED) {
                if turn % 2 == 0 {
                    assert_eq!(accounting.release(anne).len(), 1);
                } else {
                    done += grant.windows;
                    accounting.report(
                        Millis(0),
                        anne,
                        &progress(0, vec![(grant.lease, grant.windows)]),
                        1e3,
                        true,
                    );
                }
            }
        }
        assert!((512..=532).contains(&done), "as much as without coming and going: {done}");
    }

    #[test]
    fn expired_leases_are_granted_again() {
        let mut accounting = accounting();
        let [anne, bert] = [1, 2].map(|identity| enrol(&mut accounting, identity));
        let lost = accounting.grant(Millis(0), anne, &SPEED).remove(0);
        assert_eq!(accounting.deadline(), Some(Millis(500)));
        assert_eq!(accounting.expire(Millis(499)), []);
        assert_eq!(accounting.expire(Millis(500)).len(), 1);
        let again = accounting.grant(Millis(500), bert, &SPEED).remove(0);
        assert_eq!((again.start, again.windows), (lost.start, lost.windows));
        assert_eq!(accounting.release(bert).len(), 1);
        assert_eq!(accounting.restart(bert), [], "nothing is left to come back");
    }

    /// Goal: a learner gets a full batch although others returned ranges of one window each and the number of its
    /// leases is limited.
    #[test]
    fn ranges_smaller_than_a_batch_do_not_starve_learners() {
        let mut accounting = accounting();
        let [anne, bert] = [1, 2].map(|identity| enrol(&mut accounting, identity));
        assert_eq!(accounting.grant(Millis(0), anne, &Speed { batch: 4, ..SPEED })[0].windows, 40);
        accounting.release(anne);
        let slow = Speed { step_ms: 3.6e6, step_ms_least: 3.6e6, batch: 1 };
        for _ in 0..40 {
            accounting.grant(Millis(0), anne, &slow);
            accounting.release(anne);
        }
        accounting.grant(Millis(0), bert, &Speed { batch: 64, ..SPEED });
        assert!(accounting.leases.remaining(bert) >= 64, "{}", accounting.leases.remaining(bert));
    }

    /// Goal: if the time of the last report is unknown, as after a restart, a report is accepted up to one lease.
    #[test]
    fn first_report_after_a_restart_is_limited_to_one_lease() {
        let mut accounting = accounting();
        let anne = enrol(&mut accounting, 1);
        accounting.grant(Millis(0), anne, &SPEED);
        accounting.report(Millis(0), anne, &progress(u64::MAX, vec![]), 0.01, true);
        assert_eq!(
            accounting.ledger.reported(anne),
            20,
            "a lease of 1 s at a hundredth of a token, and twice that"
        );
    }

    #[test]
    fn a_word_for_what_is_trained_is_believed_as_far_as_time_allows() {
        let mut accounting = accounting();
        let anne = enrol(&mut accounting, 1);
        assert_eq!(accounting.grant(Millis(0), anne, &SPEED)[0].windows, 20, "80 tokens");
        accounting.count_from(Millis(0), anne);
        let mut accepted_tokens = |at, said| {
            accounting.report(Millis(at), anne, &progress(said, vec![]), 0.1, true);
            accounting.ledger.reported(anne)
        };
        // The rate is 0.1 tokens per millisecond, which the slack doubles.
        assert_eq!(accepted_tokens(100, 75), 20);
        assert_eq!(accepted_tokens(100, 75), 20, "no time has passed");
        assert_eq!(accepted_tokens(300, 75), 60, "what is left over is believed as time passes");
        assert_eq!(accepted_tokens(1_300, 75), 75, "never more than it says");
    }

    /// Goal: a learner that is merged and repeatedly restarts before it reports its finished windows loses no credit.
    #[test]
    fn lost_processes_do_not_reduce_later_credit() {
        let mut accounting = accounting();
        let anne = enrol(&mut accounting, 1);
        for process in 0..10 {
            accounting.grant(Millis(0), anne, &SPEED);
            assert_eq!(accounting.unmerged_tokens(anne, FragmentId(0)), 80, "process {process}");
            let fate = Fate::Merged { version: Version(1), weight: 1.0, tokens: 24 };
            let (fragment, serial, round) = (FragmentId(0), Serial(process), Some(Round(1)));
            accounting.record_outcome(&UpdateOutcome {
                round,
                fragment,
                learner: anne,
                serial,
                tokens: 24,
                fate,
            });
            accounting.restart(anne);
            assert_eq!(accounting.unmerged_tokens(anne, FragmentId(0)), 0, "nothing is leased any more");
        }
    }

    #[test]
    fn leases_that_a_returning_learner_does_not_name_are_taken_back() {
        let mut accounting = accounting();
        let [anne, bert] = [1, 2].map(|identity| enrol(&mut accounting, identity));
        let held = accounting.grant(Millis(0), anne, &SPEED).remove(0);
        accounting.report(Millis(100), anne, &progress(60, vec![(held.lease, 15)]), 1e3, true);
        let lost = accounting.grant(Millis(100), anne, &SPEED).remove(0);
        let of_bert = accounting.grant(Millis(100), bert, &SPEED).remove(0);
        assert_eq!(
            accounting.report(Millis(100), anne, &progress(60, vec![]), 1e3, true),
            [],
            "nothing is in doubt"
        );
        accounting.doubt(anne);
        let news = accounting.grant(Millis(200), anne, &SPEED);
        assert_eq!(news, [], "what is in doubt counts");
        assert_eq!(
            accounting.report(Millis(200), anne, &progress(60, vec![]), 1e3, false),
            [],
            "it is not here yet"
        );
        let named = progress(64, vec![(held.lease, 16)]);
        let back = accounting.report(Millis(200), anne, &named, 1e3, true);
        assert_eq!(back, [Returned { learner: anne, lease: lost.lease, windows: lost.windows }]);
        assert_eq!(accounting.unmerged_tokens(anne, FragmentId(0)), 80, "20 windows of 4 tokens are left");
        assert_eq!(accounting.leased(bert), [of_bert.lease]);
        let again = accounting.grant(Millis(200), anne, &SPEED).remove(0);
        assert_eq!((again.start, again.windows), (lost.start, lost.windows), "it is supplied at once");
        assert_eq!(
            accounting.report(Millis(300), anne, &progress(64, vec![]), 1e3, true),
            [],
            "that was the first report"
        );
    }

    #[test]
    fn reconnecting_without_training_earns_no_credit() {
        let mut accounting = accounting();
        let anne = enrol(&mut accounting, 1);
        for round in 0..100 {
            assert!(!accounting.grant(Millis(round), anne, &SPEED).is_empty());
            match round % 3 {
                0 => drop(accounting.release(anne)),
                1 => drop(accounting.restart(anne)),
                _ => {
                    accounting.doubt(anne);
                    accounting.report(Millis(round), anne, &progress(0, vec![]), 1e3, true);
                }
            }
            assert_eq!(accounting.unmerged_tokens(anne, FragmentId(0)), 0);
        }
    }

    #[test]
    fn account_without_merges_is_deleted_to_make_room() {
        let mut accounting = accounting();
        let [anne, bert] = [1, 2].map(|identity| enrol(&mut accounting, identity));
        let full = IdentityLimitError::Identities { identities_max: 2 };
        assert_eq!(
            accounting.evict_identity(|learner| learner == anne),
            Err(full),
            "the last one keeps its number"
        );
        assert_eq!(accounting.evict_identity(|_| false), Ok(Some(anne)));
        assert_eq!(accounting.evict_identity(|_| false), Ok(None), "there is room now");
        let fate = Fate::Merged { version: Version(1), weight: 1.0, tokens: 1 };
        let (round, serial, fragment) = (Some(Round(1)), Serial(1), FragmentId(0));
        let outcome = UpdateOutcome { round, fragment, learner: bert, serial, tokens: 1, fate };
        accounting.note_update(bert);
        accounting.record_outcome(&outcome);
        enrol(&mut accounting, 3);
        assert_eq!(accounting.evict_identity(|_| false), Err(full), "one that was merged is remembered");
    }
}
