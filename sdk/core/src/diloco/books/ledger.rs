//! The contribution ledger: every update meets one fate, every token is counted once.

mod clock;
mod elsewhere;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::FateCounts;
use super::account::{Account, PROBATION_MS, PROBATION_TURNS};
use super::accounts::Accounts;
use crate::diloco::Doubt;
use crate::diloco::speed::lower_median;
use crate::wire::{Fate, Fingerprint, FragmentId, Identity, LearnerId, Refusal, Serial};

/// All that the run knows of its learners, past and present.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "Stored")]
pub struct Ledger {
    /// Values in each fragment, `[P]`: the weights of [`Self::tokens_merged`].
    fragment_lens: Vec<u32>,
    accounts: Accounts,
    /// Tokens that one learner usually has in a merge, by fragment, `[P]` or none, 0 before that is known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    usual_tokens: Vec<u64>,
    /// Merged tokens that the schedule does not count, by fragment, `[P]` or none: the early ones of all accounts, and
    /// those that were written off.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    uncounted_tokens: Vec<u64>,
    /// Who has which identity, by its hash.
    #[serde(skip)]
    identities: BTreeMap<[u8; 16], LearnerId>,
    /// Those of whom nothing is merged.
    #[serde(skip)]
    strangers: BTreeSet<LearnerId>,
    /// Tokens merged by everyone, by fragment, `[P]`, but for those of learners who were suspected then.
    #[serde(skip)]
    tokens_merged: Vec<u64>,
    /// What a learner may count beyond its leases, since it may have had some of a process that was lost.
    #[serde(skip)]
    slack_tokens: u64,
    /// The median of the paces that were known at the last restart, 0 if there were none.
    #[serde(skip)]
    pace_before: f64,
}

/// A ledger as a snapshot has it: without what follows from the accounts.
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
    /// An empty ledger for fragments of so many values.
    #[must_use]
    pub fn new(fragment_lens: Vec<u32>) -> Self {
        let (accounts, usual_tokens, uncounted_tokens) = Default::default();
        Self::from(Stored { fragment_lens, accounts, usual_tokens, uncounted_tokens })
    }

    /// The learner with this identity, if it was here before.
    #[must_use]
    pub fn find(&self, identity: &Identity) -> Option<LearnerId> {
        self.at(identity.fingerprint())
    }

    /// The learner whose identity has this fingerprint, if it was here before.
    #[must_use]
    pub fn at(&self, fingerprint: Fingerprint) -> Option<LearnerId> {
        self.identities.get(&fingerprint.0).copied()
    }

    /// Identities ever seen.
    #[must_use]
    pub fn len(&self) -> usize {
        self.accounts.all().len()
    }

    /// Identities of whom nothing is merged.
    #[must_use]
    pub fn strangers(&self) -> usize {
        self.strangers.len()
    }

    /// Whether nobody ever came.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.accounts.all().is_empty()
    }

    /// The learner with this identity, and whether it was known before.
    pub(crate) fn enrol(&mut self, identity: &Identity, name: &str, device: &str) -> (LearnerId, bool) {
        if let Some(learner) = self.find(identity) {
            self.accounts.change(learner, |account| account.rename(name, device));
            return (learner, true);
        }
        let learner = LearnerId(self.accounts.all().last_key_value().map_or(1, |(last, _)| last.0 + 1));
        self.open(learner, identity.fingerprint().0, name, device);
        (learner, false)
    }

    /// Opens the account of `learner`, or gives the one that there is another name.
    pub(super) fn open(&mut self, learner: LearnerId, identity: [u8; 16], name: &str, device: &str) {
        let fragments = self.fragment_lens.len();
        self.identities.insert(identity, learner);
        if self.account(learner).is_none() {
            self.strangers.insert(learner);
        }
        self.accounts.open(learner, || Account::new(identity, fragments, self.slack_tokens));
        self.accounts.change(learner, |account| account.rename(name, device));
    }

    /// Forgets the first learner that left no trace in the run and that may be forgotten as far as `absent` goes, to
    /// make room. The last one stays, so that no number is given twice.
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

    /// The account of `learner`.
    #[must_use]
    pub fn account(&self, learner: LearnerId) -> Option<&Account> {
        self.accounts.all().get(&learner)
    }

    /// For how long `learner` has been merged, in milliseconds: the mean over fragments.
    #[must_use]
    pub fn merged_ms(&self, learner: LearnerId) -> u64 {
        let merged_ms = self.account(learner).map_or(0, |account| account.merged_ms);
        merged_ms / (self.fragment_lens.len() as u64).max(1)
    }

    /// Why `learner` is suspected of not training what it says it does, if it is.
    #[must_use]
    pub fn doubt(&self, learner: LearnerId) -> Option<Doubt> {
        self.account(learner)?.doubt
    }

    /// Whether `learner` has yet to prove itself: it is suspected, fewer than eight turns of its updates are
    /// merged, or they were merged for less than `PROBATION_MS`, or than half of `longest_ms`, the longest time
    /// that anybody present was merged. Without the second all would be new in a young run, and the first who
    /// is not would have a merge for itself.
    #[must_use]
    pub fn is_newcomer(&self, learner: LearnerId, longest_ms: u64) -> bool {
        let turns = PROBATION_TURNS * self.fragment_lens.len() as u64;
        let is_short = self.account(learner).is_none_or(|account| account.fates.merged < turns);
        is_short
            || self.doubt(learner).is_some()
            || self.merged_ms(learner) < PROBATION_MS.min(longest_ms / 2)
    }

    /// How many tokens of `learner` were merged in a millisecond, as long as its pace is known.
    #[must_use]
    pub fn pace(&self, learner: LearnerId) -> Option<f64> {
        let (tokens, ms) = self.account(learner)?.pace;
        (tokens > 0 && ms > 0).then(|| tokens as f64 / ms as f64)
    }

    /// How many tokens of a learner were merged in a millisecond before the syncer was started anew: the median of
    /// those who were known, 0 if nobody was.
    #[must_use]
    pub(in crate::diloco) fn pace_before(&self) -> f64 {
        self.pace_before
    }

    /// Notes that updates of `learner` did harm: it has to prove itself anew.
    pub(super) fn blame(&mut self, learner: LearnerId) {
        self.accounts.change(learner, |account| {
            account.harms = account.harms.saturating_add(1);
            (account.merged_ms, account.pace) = (0, (0, 0));
        });
        self.write_off(learner);
    }

    /// Notes that `learner` is suspected, or is not any more. Whether that is news.
    pub(super) fn suspect(&mut self, learner: LearnerId, doubt: Option<Doubt>) -> bool {
        let before = self.accounts.change(learner, |account| std::mem::replace(&mut account.doubt, doubt));
        if doubt.is_some() {
            self.write_off(learner);
        }
        before.is_some_and(|before| before.is_some() != doubt.is_some())
    }

    /// Notes that the owner forgives `learner`.
    pub(super) fn pardon(&mut self, learner: LearnerId) {
        self.accounts.change(learner, |account| account.harms = 0);
    }

    /// Notes that `tokens` more were leased to `learner`.
    pub(super) fn lease(&mut self, learner: LearnerId, tokens: u64) {
        self.accounts.change(learner, |account| {
            account.leased_tokens = account.leased_tokens.saturating_add(tokens);
        });
    }

    /// Notes that `tokens` leased to `learner` came back, on which it has not trained by its own word, or nothing of
    /// which can still be merged. What is merged by then was leased, even where its word of having trained it never
    /// came: or each process that is lost would leave a debt to the next.
    pub(super) fn take_back(&mut self, learner: LearnerId, tokens: u64) {
        self.accounts.change(learner, |account| {
            let merged = account.tokens_merged.iter().copied().fold(0, u64::max);
            account.leased_tokens = account.leased_tokens.saturating_sub(tokens).max(merged);
        });
    }

    /// Notes that an update of `learner` came in.
    pub(super) fn note_update(&mut self, learner: LearnerId) {
        self.accounts.change(learner, |account| account.updates += 1);
    }

    /// All accounts, by id.
    pub fn accounts(&self) -> impl Iterator<Item = (LearnerId, &Account)> {
        self.accounts.all().iter().map(|(learner, account)| (*learner, account))
    }

    /// Notes what became of an update of `learner` on `fragment`.
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
            // Nobody looked into it, so it speaks neither for its learner nor against.
            Fate::Late(_) | Fate::Refused(Refusal::Unsettled) => {}
            Fate::Refused(_) => account.refused_in_a_row += 1,
        });
    }

    /// Notes that a new process of `learner` counts its tokens from 0. What was refused of the one before says nothing
    /// of it.
    pub(super) fn restart(&mut self, learner: LearnerId) {
        self.accounts.change(learner, |account| {
            (account.reported_tokens, account.refused_in_a_row) = (0, 0);
        });
    }

    /// What the present process of `learner` said that it has trained on, as far as it was believed.
    pub(super) fn reported(&self, learner: LearnerId) -> u64 {
        self.account(learner).map_or(0, |account| account.reported_tokens)
    }

    /// Notes that the present process of `learner` says it has trained on `tokens` so far; more than were leased to
    /// it are not believed. Whether it said more than before.
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

    /// After a restart: forgets the updates of rounds that the snapshot caught in flight, which their learners keep,
    /// and lets each learner, also one whose enrolment was lost, count so many tokens more than were leased to it.
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

    /// How many of `tokens` on `fragment` this learner can have trained on: no more than were leased
    /// to it and are not merged yet.
    #[must_use]
    pub(crate) fn countable(&self, learner: LearnerId, fragment: FragmentId, tokens: u64) -> u64 {
        self.account(learner).map_or(0, |account| {
            let merged = account.tokens_merged[usize::from(fragment.0)];
            tokens.min(account.leased_tokens.saturating_sub(merged))
        })
    }

    /// Tokens of the whole run that were trained on, by learners of whom an update has come: the word alone of one
    /// that never sends anything says nothing of the run.
    #[must_use]
    pub fn tokens_trained(&self) -> u64 {
        self.accounts.tokens_trained()
    }

    /// Updates that came in, whatever became of them.
    #[must_use]
    pub fn updates(&self) -> u64 {
        self.accounts.updates()
    }

    /// What became of the updates of everyone.
    #[must_use]
    pub fn fates(&self) -> &FateCounts {
        self.accounts.fates()
    }

    /// Those who are suspected of not training what they say they do.
    pub fn suspects(&self) -> impl Iterator<Item = LearnerId> {
        self.accounts.suspects().iter().copied()
    }

    /// Tokens merged of tokens trained on, 0 to 1; 1 before the first.
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
