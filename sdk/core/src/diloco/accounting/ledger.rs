//! Contribution ledger: each update has one fate, and each token counts once.

mod clock;
mod remote_accounts;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::FateCounts;
use super::account::{Account, PROBATION_MS, PROBATION_TURNS};
use super::accounts::Accounts;
use crate::diloco::Suspicion;
use crate::diloco::speed::lower_median;
use crate::wire::{Fate, Fingerprint, FragmentId, Identity, LearnerId, Refusal, Serial};

/// Accounts of all learners of a run, past and present.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "Stored")]
pub struct Ledger {
    /// Values in each fragment, `[P]`; weights of the mean in [`Self::tokens_merged`].
    fragment_lens: Vec<u32>,
    accounts: Accounts,
    /// Usual tokens of one learner in a merge, by fragment, `[P]` or empty; 0 until known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    usual_tokens: Vec<u64>,
    /// Merged tokens that the schedule does not count, by fragment, `[P]` or empty: the early tokens of all accounts,
    /// and those that were written off.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    uncounted_tokens: Vec<u64>,
    /// Learners by the hash of their identity.
    #[serde(skip)]
    identities: BTreeMap<[u8; 16], LearnerId>,
    /// Learners without merged updates.
    #[serde(skip)]
    strangers: BTreeSet<LearnerId>,
    /// Merged tokens of all learners, by fragment, `[P]`, without those merged under suspicion.
    #[serde(skip)]
    tokens_merged: Vec<u64>,
    /// Countable tokens of a learner beyond its leases, since a lost process may have leased more to it.
    #[serde(skip)]
    slack_tokens: u64,
    /// Median of the known paces at the last restart; 0 if none was known.
    #[serde(skip)]
    pace_before: f64,
}

/// A ledger in a snapshot, without values that follow from the accounts.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    fragment_lens: Vec<u32>,
    accounts: BTreeMap<LearnerId, Account>,
    #[serde(default)]
    usual_tokens: Vec<u64>,
    #[serde(default)]
    uncounted_tokens: Vec<u64>,
}

impl From<Stored> for Ledger {
    fn from(Stored { fragment_lens, accounts, usual_tokens, uncounted_tokens }: Stored) -> Self {
        let identities = accounts.iter().map(|(&learner, account)| (account.identity, learner)).collect();
        let counted = |p: usize| accounts.values().map(move |account| account.tokens_counted(p));
        let sum = |p: usize| counted(p).fold(0, u64::saturating_add);
        let tokens_merged = (0..fragment_lens.len()).map(sum).collect();
        let strangers =
            accounts.iter().filter(|(_, account)| account.is_stranger()).map(|(&learner, _)| learner);
        let strangers = strangers.collect();
        Self {
            fragment_lens,
            accounts: accounts.into(),
            usual_tokens,
            uncounted_tokens,
            identities,
            strangers,
            tokens_merged,
            slack_tokens: 0,
            pace_before: 0.0,
        }
    }
}

impl Ledger {
    /// Creates an empty ledger for fragments of these lengths, in values.
    #[must_use]
    pub fn new(fragment_lens: Vec<u32>) -> Self {
        let (accounts, usual_tokens, uncounted_tokens) = Default::default();
        Self::from(Stored { fragment_lens, accounts, usual_tokens, uncounted_tokens })
    }

    /// Returns the learner with this identity, if it enrolled before.
    #[must_use]
    pub fn find(&self, identity: &Identity) -> Option<LearnerId> {
        self.at(identity.fingerprint())
    }

    /// Returns the learner whose identity has this fingerprint, if it enrolled before.
    #[must_use]
    pub fn at(&self, fingerprint: Fingerprint) -> Option<LearnerId> {
        self.identities.get(&fingerprint.0).copied()
    }

    /// Returns the number of known identities.
    #[must_use]
    pub fn len(&self) -> usize {
        self.accounts.all().len()
    }

    /// Returns the number of identities without merged updates.
    #[must_use]
    pub fn strangers(&self) -> usize {
        self.strangers.len()
    }

    /// Returns true if no learner ever enrolled.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.accounts.all().is_empty()
    }

    /// Returns the learner with this identity, and whether it was known before. Opens an account if needed.
    pub(crate) fn enrol(&mut self, identity: &Identity, name: &str, device: &str) -> (LearnerId, bool) {
        if let Some(learner) = self.find(identity) {
            self.accounts.change(learner, |account| account.rename(name, device));
            return (learner, true);
        }
        let learner = LearnerId(self.accounts.all().last_key_value().map_or(1, |(last, _)| last.0 + 1));
        self.open(learner, identity.fingerprint().0, name, device);
        (learner, false)
    }

    /// Opens an account for `learner`, or renames the existing one.
    pub(super) fn open(&mut self, learner: LearnerId, identity: [u8; 16], name: &str, device: &str) {
        let fragments = self.fragment_lens.len();
        self.identities.insert(identity, learner);
        if self.account(learner).is_none() {
            self.strangers.insert(learner);
        }
        self.accounts.open(learner, || Account::new(identity, fragments, self.slack_tokens));
        self.accounts.change(learner, |account| account.rename(name, device));
    }

    /// Forgets the first learner without contribution for which `absent` returns true, to make room. The last account
    /// stays, so that no number is given twice.
    pub(super) fn evict(&mut self, absent: impl Fn(LearnerId) -> bool) -> Option<LearnerId> {
        let (&last, _) = self.accounts.all().last_key_value()?;
        let is_blank = |learner| self.account(learner).is_some_and(Account::is_blank);
        let mut strangers = self.strangers.iter().copied();
        let learner = strangers.find(|&learner| learner != last && is_blank(learner) && absent(learner))?;
        self.forget(learner);
        Some(learner)
    }

    /// Forgets `learner`.
    pub(super) fn forget(&mut self, learner: LearnerId) {
        if let Some(account) = self.accounts.close(learner) {
            self.identities.remove(&account.identity);
            self.strangers.remove(&learner);
        }
    }

    /// Returns the account of `learner`.
    #[must_use]
    pub fn account(&self, learner: LearnerId) -> Option<&Account> {
        self.accounts.all().get(&learner)
    }

    /// Returns the merged time of `learner` in milliseconds, as the mean over fragments.
    #[must_use]
    pub fn merged_ms(&self, learner: LearnerId) -> u64 {
        let merged_ms = self.account(learner).map_or(0, |account| account.merged_ms);
        merged_ms / (self.fragment_lens.len() as u64).max(1)
    }

    /// Returns why `learner` is suspected of not training what it claims, if it is.
    #[must_use]
    pub fn doubt(&self, learner: LearnerId) -> Option<Suspicion> {
        self.account(learner)?.doubt
    }

    /// Returns true if `learner` is a newcomer: it is suspected, has fewer than eight turns of merged updates, or too
    /// little merged time. The required time is `PROBATION_MS`, or half of `longest_ms` if that is shorter.
    ///
    /// `longest_ms` is the longest merged time of a connected learner. Without it, all learners of a young run would
    /// be newcomers, and the first one off probation would dominate a merge.
    #[must_use]
    pub fn is_newcomer(&self, learner: LearnerId, longest_ms: u64) -> bool {
        let turns = PROBATION_TURNS * self.fragment_lens.len() as u64;
        let is_short = self.account(learner).is_none_or(|account| account.fates.merged < turns);
        is_short
            || self.doubt(learner).is_some()
            || self.merged_ms(learner) < PROBATION_MS.min(longest_ms / 2)
    }

    /// Returns the merged tokens of `learner` per millisecond, if its pace is known.
    #[must_use]
    pub fn pace(&self, learner: LearnerId) -> Option<f64> {
        let (tokens, ms) = self.account(learner)?.pace;
        (tokens > 0 && ms > 0).then(|| tokens as f64 / ms as f64)
    }

    /// Returns the median of the known paces before the last restart of the syncer, in tokens per millisecond; 0 if
    /// none was known.
    #[must_use]
    pub(in crate::diloco) fn pace_before(&self) -> f64 {
        self.pace_before
    }

    /// Records that updates of `learner` did harm. Its probation begins again.
    pub(super) fn blame(&mut self, learner: LearnerId) {
        self.accounts.change(learner, |account| {
            account.harms = account.harms.saturating_add(1);
            (account.merged_ms, account.pace) = (0, (0, 0));
        });
        self.write_off(learner);
    }

    /// Sets or clears the suspicion against `learner`. Returns true if that changed whether it is suspected.
    pub(super) fn suspect(&mut self, learner: LearnerId, doubt: Option<Suspicion>) -> bool {
        let before = self.accounts.change(learner, |account| std::mem::replace(&mut account.doubt, doubt));
        if doubt.is_some() {
            self.write_off(learner);
        }
        before.is_some_and(|before| before.is_some() != doubt.is_some())
    }

    /// Records that the owner pardoned `learner`.
    pub(super) fn pardon(&mut self, learner: LearnerId) {
        self.accounts.change(learner, |account| account.harms = 0);
    }

    /// Records that `tokens` more were leased to `learner`.
    pub(super) fn lease(&mut self, learner: LearnerId, tokens: u64) {
        self.accounts.change(learner, |account| {
            account.leased_tokens = account.leased_tokens.saturating_add(tokens);
        });
    }

    /// Records that `tokens` leased to `learner` were returned: untrained by its own report, or no longer mergeable.
    /// Merged tokens stay counted as leased, even if the report of their training never came. Otherwise each lost
    /// process would leave a debt to the next one.
    pub(super) fn take_back(&mut self, learner: LearnerId, tokens: u64) {
        self.accounts.change(learner, |account| {
            let merged = account.tokens_merged.iter().copied().fold(0, u64::max);
            account.leased_tokens = account.leased_tokens.saturating_sub(tokens).max(merged);
        });
    }

    /// Records that an update of `learner` was received.
    pub(super) fn note_update(&mut self, learner: LearnerId) {
        self.accounts.change(learner, |account| account.updates += 1);
    }

    /// Returns all accounts, by learner.
    pub fn accounts(&self) -> impl Iterator<Item = (LearnerId, &Account)> {
        self.accounts.all().iter().map(|(learner, account)| (*learner, account))
    }

    /// Records the outcome of an update of `learner` on `fragment`.
    pub(super) fn settle(&mut self, learner: LearnerId, fragment: FragmentId, serial: Serial, fate: &Fate) {
        self.accounts.settle(learner, fate);
        let (strangers, all_merged) = (&mut self.strangers, &mut self.tokens_merged);
        self.accounts.change(learner, |account| match fate {
            Fate::Merged { tokens, .. } => {
                let p = usize::from(fragment.0);
                account.tokens_merged[p] = account.tokens_merged[p].saturating_add(*tokens);
                if account.doubt.is_none() {
                    all_merged[p] = all_merged[p].saturating_add(*tokens);
                } else {
                    account.doubted_tokens.resize(account.tokens_merged.len(), 0);
                    account.doubted_tokens[p] = account.doubted_tokens[p].saturating_add(*tokens);
                }
                account.merged[p] = Some(serial);
                account.refused_in_a_row = 0;
                if !account.is_stranger() {
                    strangers.remove(&learner);
                }
            }
            // The update was not judged, so it says nothing about its learner.
            Fate::Late(_) | Fate::Refused(Refusal::UnresolvedUpdate) => {}
            Fate::Refused(_) => account.refused_in_a_row += 1,
        });
    }

    /// Records that a new process of `learner` counts its tokens from 0. Refusals of the previous process do not
    /// count against the new one.
    pub(super) fn restart(&mut self, learner: LearnerId) {
        self.accounts.change(learner, |account| {
            (account.reported_tokens, account.refused_in_a_row) = (0, 0);
        });
    }

    /// Returns the tokens that the present process of `learner` reported, as far as they were believed.
    pub(super) fn reported(&self, learner: LearnerId) -> u64 {
        self.account(learner).map_or(0, |account| account.reported_tokens)
    }

    /// Records that the present process of `learner` reports `tokens` of training in all. Tokens beyond those leased
    /// to it are not believed. Returns true if it reported more than before.
    pub(super) fn report(&mut self, learner: LearnerId, tokens: u64) -> bool {
        let is_more = self.accounts.change(learner, |account| {
            let more = tokens.saturating_sub(account.reported_tokens);
            let trained = account.tokens_trained.saturating_add(more);
            account.tokens_trained = trained.min(account.leased_tokens.max(account.tokens_trained));
            account.reported_tokens = account.reported_tokens.max(tokens);
            more > 0
        });
        is_more.unwrap_or(false)
    }

    /// Prepares the ledger after a restart. Pending updates of the snapshot's rounds are forgotten here, and their
    /// learners keep them. Each learner, including one whose enrolment was lost, may count `tokens` more than were
    /// leased to it.
    pub(in crate::diloco) fn reopen(&mut self, tokens: u64) {
        self.slack_tokens = tokens;
        let everyone = || self.accounts.all().keys();
        let longest_ms = everyone().map(|&learner| self.merged_ms(learner)).max().unwrap_or(0);
        let known = everyone().filter(|&&learner| !self.is_newcomer(learner, longest_ms));
        self.pace_before = lower_median(known.filter_map(|&learner| self.pace(learner)));
        self.accounts.change_all(|account| {
            account.updates = account.fates.total();
            account.leased_tokens = account.leased_tokens.saturating_add(tokens);
        });
    }

    /// Returns how many of `tokens` on `fragment` this learner can have trained: at most those leased to it and not
    /// yet merged.
    #[must_use]
    pub(crate) fn countable(&self, learner: LearnerId, fragment: FragmentId, tokens: u64) -> u64 {
        self.account(learner).map_or(0, |account| {
            let merged = account.tokens_merged[usize::from(fragment.0)];
            tokens.min(account.leased_tokens.saturating_sub(merged))
        })
    }

    /// Returns the trained tokens of the whole run. The claim of a learner that never sent an update does not count.
    #[must_use]
    pub fn tokens_trained(&self) -> u64 {
        self.accounts.tokens_trained()
    }

    /// Returns the number of updates received, regardless of their fates.
    #[must_use]
    pub fn updates(&self) -> u64 {
        self.accounts.updates()
    }

    /// Returns the fates of all updates.
    #[must_use]
    pub fn fates(&self) -> &FateCounts {
        self.accounts.fates()
    }

    /// Returns the learners that are suspected of not training what they claim.
    pub fn suspects(&self) -> impl Iterator<Item = LearnerId> {
        self.accounts.suspects().iter().copied()
    }

    /// Returns merged tokens over trained tokens, 0 to 1; 1 before the first.
    #[must_use]
    pub fn participation(&self) -> f64 {
        match self.tokens_trained() {
            0 => 1.0,
            trained => self.clock_tokens() as f64 / trained as f64,
        }
    }
}

#[cfg(test)]
mod tests;
