//! Contribution ledger: each update has one fate, and each token is credited once.

use std::collections::{BTreeMap, BTreeSet};

use super::FateCounts;
use super::accounts::{Account, Accounts};
use crate::diloco::speed::lower_median;
use crate::diloco::{ClaimReference, MergeEntry, Part, Suspicion, TrustLevel};
use crate::wire::{Fate, Fingerprint, FragmentId, Identity, LearnerId, Refusal, Serial};
use serde::{Deserialize, Serialize};

/// Accounts of all learners of a run, past and present.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "Stored")]
pub struct Ledger {
    /// Number of values in each fragment, `[P]`, which are the weights of means over fragments.
    fragment_lens: Vec<u32>,
    accounts: Accounts,
    /// Typical tokens of one update in a merge on each fragment, `[P]` or empty; 0 until known.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    usual_tokens: Vec<u64>,
    /// Merged tokens on each fragment that the schedule does not credit, `[P]` or empty: the early tokens of all
    /// accounts, and early tokens that were written off.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    uncounted_tokens: Vec<u64>,
    /// Learners by the fingerprint of their identity.
    #[serde(skip)]
    identities: BTreeMap<[u8; 16], LearnerId>,
    /// Learners without merged updates.
    #[serde(skip)]
    strangers: BTreeSet<LearnerId>,
    /// Merged tokens of all learners on each fragment, `[P]`, without those merged under suspicion.
    #[serde(skip)]
    tokens_merged: Vec<u64>,
    /// Tokens that a new account may be credited beyond its leases. A lost process of the syncer may have leased them.
    #[serde(skip)]
    slack_tokens: u64,
    /// Median pace of trusted learners at the last restart, in tokens per millisecond; 0 if none was known.
    #[serde(skip)]
    pace_before: f64,
}

/// Serialised form of a [`Ledger`], without derived values.
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
        let credited = |p: usize| accounts.values().map(move |account| account.tokens_credited(p));
        let sum = |p: usize| credited(p).fold(0, u64::saturating_add);
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
    /// Creates an empty ledger. `fragment_lens` is the number of values in each fragment, `[P]`.
    #[must_use]
    pub fn new(fragment_lens: Vec<u32>) -> Self {
        let (accounts, usual_tokens, uncounted_tokens) = Default::default();
        Self::from(Stored { fragment_lens, accounts, usual_tokens, uncounted_tokens })
    }

    /// Returns the learner with this identity, if it has an account.
    #[must_use]
    pub fn find(&self, identity: &Identity) -> Option<LearnerId> {
        self.at(identity.fingerprint())
    }

    /// Returns the learner whose identity has this fingerprint, if it has an account.
    #[must_use]
    pub fn at(&self, fingerprint: Fingerprint) -> Option<LearnerId> {
        self.identities.get(&fingerprint.0).copied()
    }

    /// Returns the number of accounts.
    #[must_use]
    pub fn len(&self) -> usize {
        self.accounts.all().len()
    }

    /// Returns the number of accounts without merged updates.
    #[must_use]
    pub fn strangers(&self) -> usize {
        self.strangers.len()
    }

    /// Returns true if there are no accounts.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.accounts.all().is_empty()
    }

    /// Enrols the learner with this identity: opens an account, or renames the existing one. Returns its number, and
    /// true if it had an account before.
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

    /// Deletes the account of the first learner without merged or pending updates for which `absent` returns true. The
    /// last account stays, so that no number is assigned twice.
    pub(super) fn evict(&mut self, absent: impl Fn(LearnerId) -> bool) -> Option<LearnerId> {
        let (&last, _) = self.accounts.all().last_key_value()?;
        let is_blank = |learner| self.account(learner).is_some_and(Account::is_blank);
        let mut strangers = self.strangers.iter().copied();
        let learner = strangers.find(|&learner| learner != last && is_blank(learner) && absent(learner))?;
        self.forget(learner);
        Some(learner)
    }

    /// Deletes the account of `learner`.
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
        self.account(learner).map_or(0, |account| account.trust.merged_ms(self.fragment_lens.len()))
    }

    /// Returns the reason to suspect `learner`; `None` if it is not suspected.
    #[must_use]
    pub fn suspicion(&self, learner: LearnerId) -> Option<Suspicion> {
        self.account(learner)?.trust.suspicion()
    }

    /// Returns the level of trust in `learner`, except `Banned`. `longest_ms` is the longest merged time of a live
    /// learner, in milliseconds.
    #[must_use]
    pub fn level(&self, learner: LearnerId, longest_ms: u64) -> TrustLevel {
        let fragments = self.fragment_lens.len();
        let level = |account: &Account| account.trust.level(account.fates.merged, fragments, longest_ms);
        self.account(learner).map_or(TrustLevel::Newcomer, level)
    }

    /// Returns the pace of `learner`, in merged tokens per millisecond, if it is known.
    #[must_use]
    pub fn pace(&self, learner: LearnerId) -> Option<f64> {
        let (tokens, ms) = self.account(learner)?.pace;
        (tokens > 0 && ms > 0).then(|| tokens as f64 / ms as f64)
    }

    /// Returns the lower median pace of trusted learners at the last restart of the syncer, in tokens per millisecond;
    /// 0 if none was known.
    #[must_use]
    pub(in crate::diloco) fn pace_before(&self) -> f64 {
        self.pace_before
    }

    /// Records the conviction of `learner`. Its probation begins again, and its early tokens are written off.
    pub(super) fn convict(&mut self, learner: LearnerId) {
        self.accounts.change(learner, |account| {
            account.trust.convict();
            account.pace = (0, 0);
        });
        self.write_off(learner);
    }

    /// Sets the suspicion against `learner`, or clears it with `None`. Returns true if the learner became suspected or
    /// was cleared. A suspicion writes off early tokens.
    pub(super) fn suspect(&mut self, learner: LearnerId, suspicion: Option<Suspicion>) -> bool {
        let is_news = self.accounts.change(learner, |account| account.trust.suspect(suspicion));
        if suspicion.is_some() {
            self.write_off(learner);
        }
        is_news.unwrap_or(false)
    }

    /// Records the pardon of `learner`. Returns true if it had convictions.
    pub(super) fn pardon(&mut self, learner: LearnerId) -> bool {
        self.accounts.change(learner, |account| account.trust.pardon()).unwrap_or(false)
    }

    /// Records a lease of `tokens` tokens to `learner`.
    pub(super) fn lease(&mut self, learner: LearnerId, tokens: u64) {
        self.accounts.change(learner, |account| {
            account.leased_tokens = account.leased_tokens.saturating_add(tokens);
        });
    }

    /// Records that `learner` returned leases with `tokens` untrained tokens. Leased tokens do not fall below merged
    /// ones, although a lost process may not have reported them as trained. Otherwise the next process would get less
    /// credit.
    pub(super) fn record_returned(&mut self, learner: LearnerId, tokens: u64) {
        self.accounts.change(learner, |account| {
            let merged = account.tokens_merged.iter().copied().fold(0, u64::max);
            account.leased_tokens = account.leased_tokens.saturating_sub(tokens).max(merged);
        });
    }

    /// Records that an update of `learner` was received.
    pub(super) fn note_update(&mut self, learner: LearnerId) {
        self.accounts.change(learner, |account| account.updates += 1);
    }

    /// Returns all accounts, ordered by learner id.
    pub fn accounts(&self) -> impl Iterator<Item = (LearnerId, &Account)> {
        self.accounts.all().iter().map(|(learner, account)| (*learner, account))
    }

    /// Records the outcome of an update of `learner` on `fragment`.
    pub(super) fn record_outcome(
        &mut self,
        learner: LearnerId,
        fragment: FragmentId,
        serial: Serial,
        fate: &Fate,
    ) {
        self.accounts.record_outcome(learner, fate);
        let (strangers, all_merged) = (&mut self.strangers, &mut self.tokens_merged);
        self.accounts.change(learner, |account| match fate {
            Fate::Merged { tokens, .. } => {
                let p = usize::from(fragment.0);
                account.tokens_merged[p] = account.tokens_merged[p].saturating_add(*tokens);
                if account.trust.suspicion().is_none() {
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
            // The update was not examined.
            Fate::Late(_) | Fate::Refused(Refusal::Unsettled) => {}
            Fate::Refused(_) => account.refused_in_a_row += 1,
        });
    }

    /// Records that `learner` began a new process. Its reported tokens and its consecutive refusals start at 0.
    pub(super) fn restart(&mut self, learner: LearnerId) {
        self.accounts.change(learner, |account| {
            (account.reported_tokens, account.refused_in_a_row) = (0, 0);
        });
    }

    /// Returns the accepted tokens that the current process of `learner` reported.
    pub(super) fn reported(&self, learner: LearnerId) -> u64 {
        self.account(learner).map_or(0, |account| account.reported_tokens)
    }

    /// Records that the current process of `learner` has trained on `tokens` tokens so far. Trained tokens are limited
    /// to leased ones. Returns true if `tokens` is more than before.
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

    /// Prepares the ledger for a new process of the syncer. Updates that were pending are no longer counted as
    /// received, since their learners still have that progress. Each learner, including those without an account, may
    /// be credited up to `tokens` tokens beyond its leases.
    pub(in crate::diloco) fn reopen(&mut self, tokens: u64) {
        self.slack_tokens = tokens;
        let everyone = || self.accounts.all().keys();
        let longest_ms = everyone().map(|&learner| self.merged_ms(learner)).max().unwrap_or(0);
        let known = everyone().filter(|&&learner| self.level(learner, longest_ms).is_trusted());
        self.pace_before = lower_median(known.filter_map(|&learner| self.pace(learner)));
        self.accounts.change_all(|account| {
            account.updates = account.fates.total();
            account.leased_tokens = account.leased_tokens.saturating_add(tokens);
        });
    }

    /// Returns the part of `tokens` for which `learner` can be credited on `fragment`: at most its leased tokens that
    /// are not merged there.
    #[must_use]
    pub(crate) fn creditable(&self, learner: LearnerId, fragment: FragmentId, tokens: u64) -> u64 {
        self.account(learner).map_or(0, |account| {
            let merged = account.tokens_merged[usize::from(fragment.0)];
            tokens.min(account.leased_tokens.saturating_sub(merged))
        })
    }

    /// Returns the trained tokens of all learners that have sent an update.
    #[must_use]
    pub fn tokens_trained(&self) -> u64 {
        self.accounts.tokens_trained()
    }

    /// Returns the number of received updates.
    #[must_use]
    pub fn updates(&self) -> u64 {
        self.accounts.updates()
    }

    /// Returns the number of updates by fate.
    #[must_use]
    pub fn fates(&self) -> &FateCounts {
        self.accounts.fates()
    }

    /// Returns the suspected learners, ordered by id.
    pub fn suspects(&self) -> impl Iterator<Item = LearnerId> {
        self.accounts.suspects().iter().copied()
    }

    /// Returns the ratio of merged to trained tokens, 0 to 1; 1 without trained tokens.
    #[must_use]
    pub fn participation(&self) -> f64 {
        match self.tokens_trained() {
            0 => 1.0,
            trained => self.clock_tokens() as f64 / trained as f64,
        }
    }
}

impl Ledger {
    /// Records the merged time and the schedule credit of the learners in `merge`. Call [`Self::record_outcome`] for
    /// each of its updates next.
    pub(in crate::diloco::accounting) fn note_merge(&mut self, merge: &MergeEntry) {
        merge.parts.iter().for_each(|part| self.note_pace(part));
        let (p, fragments) = (usize::from(merge.fragment.0), self.fragment_lens.len());
        if p >= fragments {
            return;
        }
        let believed = |part: &&Part| self.suspicion(part.learner).is_none();
        let believed: Vec<&Part> = merge.parts.iter().filter(believed).collect();
        let before = self.usual_tokens.get(p).copied().unwrap_or(0);
        let reference = ClaimReference::of(before, believed.iter().copied());
        if reference.usual_tokens != before {
            self.usual_tokens.resize(fragments, 0);
            self.usual_tokens[p] = reference.usual_tokens;
        }
        believed.into_iter().for_each(|part| self.note_early(p, &reference, part));
    }

    fn note_pace(&mut self, part: &Part) {
        let &Part { learner, tokens, after_ms: Some(after_ms), .. } = part else { return };
        self.accounts.change(learner, |account| {
            let (before, ms) = account.pace;
            account.pace = (before.saturating_add(tokens), ms.saturating_add(after_ms));
            account.trust.merged(after_ms);
        });
    }

    fn note_early(&mut self, p: usize, reference: &ClaimReference, part: &Part) {
        let Some(account) = self.account(part.learner) else { return };
        let before = account.early_tokens(p);
        let credited = reference.counted(part, self.merged_ms(part.learner), before);
        let early = before.saturating_add(part.tokens) - credited;
        if early == before {
            return;
        }
        let fragments = self.fragment_lens.len();
        self.accounts.change(part.learner, |account| {
            account.early_tokens.resize(fragments, 0);
            account.early_tokens[p] = early;
        });
        self.uncounted_tokens.resize(fragments, 0);
        let uncounted = &mut self.uncounted_tokens[p];
        *uncounted = uncounted.saturating_sub(before).saturating_add(early);
    }

    /// Returns the typical tokens of one update in a merge on `fragment`. If they are unknown, returns the largest
    /// value of any fragment, or 0 if all are unknown.
    #[must_use]
    pub(in crate::diloco) fn usual_tokens(&self, fragment: FragmentId) -> u64 {
        let known = self.usual_tokens.get(usize::from(fragment.0)).copied().filter(|tokens| *tokens > 0);
        known.or_else(|| self.usual_tokens.iter().copied().max()).unwrap_or(0)
    }

    /// Writes off the early tokens of `learner`, which the schedule will never credit.
    fn write_off(&mut self, learner: LearnerId) {
        self.accounts.change(learner, |account| account.early_tokens.clear());
    }

    /// Returns the merged tokens of `account`, without those merged under suspicion, as the mean over fragments
    /// weighted by their lengths.
    #[must_use]
    pub fn tokens_merged(&self, account: &Account) -> u64 {
        let credited: Vec<u64> = (0..self.fragment_lens.len()).map(|p| account.tokens_credited(p)).collect();
        self.mean(&credited)
    }

    /// Returns the merged tokens of all learners, without those merged under suspicion, as the mean over fragments
    /// weighted by their lengths.
    #[must_use]
    pub fn clock_tokens(&self) -> u64 {
        self.mean(&self.tokens_merged)
    }

    /// Returns the tokens that the schedule credits, which determine the learning rate, the outer momentum and the end
    /// of the run: [`Self::clock_tokens`] without early tokens and those that were written off.
    #[must_use]
    pub fn schedule_tokens(&self) -> u64 {
        let uncounted = self.uncounted_tokens.iter().chain(std::iter::repeat(&0));
        let credited = self.tokens_merged.iter().zip(uncounted);
        let credited: Vec<u64> =
            credited.map(|(merged, uncounted)| merged.saturating_sub(*uncounted)).collect();
        self.mean(&credited)
    }

    fn mean(&self, by_fragment: &[u64]) -> u64 {
        let total: u128 = self.fragment_lens.iter().map(|&len| u128::from(len)).sum();
        let sum: u128 = self
            .fragment_lens
            .iter()
            .zip(by_fragment)
            .map(|(&len, &n)| u128::from(len) * u128::from(n))
            .sum();
        u64::try_from(sum / total.max(1)).unwrap_or(u64::MAX)
    }
}

impl Ledger {
    /// Enrols the learner with this identity under a number from another process. Returns the number, and true if it
    /// had an account before.
    pub(in crate::diloco::accounting) fn enrol_as(
        &mut self,
        learner: LearnerId,
        identity: &Identity,
        name: &str,
        device: &str,
    ) -> (LearnerId, bool) {
        let returning = self.account(learner).is_some();
        let identity = identity.fingerprint().0;
        self.open(learner, identity, name, device);
        self.accounts.change(learner, |account| account.identity = identity);
        (learner, returning)
    }

    /// Opens an account for `learner` without an identity, unless it has one.
    pub(in crate::diloco::accounting) fn know(&mut self, learner: LearnerId) {
        if self.account(learner).is_none() {
            let fragments = self.fragment_lens.len();
            self.strangers.insert(learner);
            self.accounts.open(learner, || Account::new([0; 16], fragments, 0));
        }
    }

    /// Raises the leased tokens of `learner` to at least its merged tokens plus `tokens`.
    pub(in crate::diloco::accounting) fn credit(&mut self, learner: LearnerId, tokens: u64) {
        self.accounts.change(learner, |account| {
            let merged = account.tokens_merged.iter().copied().fold(0, u64::max);
            account.leased_tokens = account.leased_tokens.max(merged.saturating_add(tokens));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diloco::trust::PROBATION_MS;
    use crate::diloco::{MergeEntry, Part};
    use crate::testing;
    use crate::wire::{LateReason, Version};

    fn merged(tokens: u64) -> Fate {
        Fate::Merged { version: Version(1), weight: 1.0, tokens }
    }

    #[test]
    fn an_identity_keeps_its_number() {
        let mut ledger = Ledger::new(vec![1]);
        let first = ledger.enrol(&Identity([1; 32]), "a", "cpu");
        let second = ledger.enrol(&Identity([2; 32]), "b", "cpu");
        assert_eq!((first, second), ((LearnerId(1), false), (LearnerId(2), false)));
        assert_eq!(ledger.enrol(&Identity([1; 32]), "c", "gpu"), (LearnerId(1), true));
        assert_eq!(ledger.account(LearnerId(1)).map(|a| a.name.as_str()), Some("c"));
    }

    #[test]
    fn tokens_merged_are_weighted_by_fragment() {
        let mut ledger = Ledger::new(vec![30, 10]);
        let (learner, _) = ledger.enrol(&Identity([1; 32]), "a", "cpu");
        ledger.record_outcome(learner, FragmentId(0), Serial(1), &merged(100));
        assert_eq!(ledger.clock_tokens(), 75);
        ledger.record_outcome(learner, FragmentId(1), Serial(2), &merged(100));
        assert_eq!(ledger.clock_tokens(), 100);
        assert_eq!(ledger.tokens_trained(), 100, "merged tokens were trained on, whatever was said");
        ledger.lease(learner, 200);
        ledger.report(learner, 200);
        assert!((ledger.participation() - 0.5).abs() < 1e-12);
    }

    #[test]
    fn tokens_are_creditable_up_to_the_lease() {
        let mut ledger = Ledger::new(vec![1, 1]);
        let (learner, _) = ledger.enrol(&Identity([1; 32]), "a", "cpu");
        assert_eq!(ledger.creditable(learner, FragmentId(0), 10), 0);
        ledger.lease(learner, 100);
        ledger.record_outcome(learner, FragmentId(0), Serial(1), &merged(70));
        assert_eq!(ledger.creditable(learner, FragmentId(0), 50), 30);
        assert_eq!(ledger.creditable(learner, FragmentId(1), 50), 50);
        assert_eq!(ledger.creditable(LearnerId(9), FragmentId(1), 50), 0);
    }

    #[test]
    fn trained_tokens_are_limited_to_leases() {
        let mut ledger = Ledger::new(vec![1]);
        let learners = [1, 2].map(|i| ledger.enrol(&Identity([i; 32]), "a", "cpu").0);
        for learner in learners {
            ledger.lease(learner, 100);
            ledger.report(learner, 60);
            assert_eq!(ledger.account(learner).unwrap().trained(), 60);
            ledger.report(learner, u64::MAX);
        }
        assert_eq!(ledger.tokens_trained(), 0, "the word of who never sent anything");
        learners.iter().for_each(|&learner| ledger.note_update(learner));
        assert_eq!(ledger.tokens_trained(), 200);
    }

    #[test]
    fn derived_values_survive_serialisation() {
        let mut ledger = Ledger::new(vec![30, 10]);
        let identities = [1, 2, 3].map(|i| Identity([i; 32]));
        for (identity, tokens) in identities.iter().zip([10, 0, 70]) {
            let (learner, _) = ledger.enrol(identity, "a", "cpu");
            if tokens > 0 {
                ledger.record_outcome(learner, FragmentId(1), Serial(1), &merged(tokens));
            }
        }
        assert_eq!(ledger.evict(|_| true), Some(LearnerId(2)), "it left no trace");
        let text = serde_json::to_string(&ledger).unwrap();
        let read: Ledger = serde_json::from_str(&text).unwrap();
        assert_eq!(read, ledger);
        assert_eq!(read.clock_tokens(), 20);
        let known = identities.map(|identity| read.find(&identity));
        assert_eq!(known, [Some(LearnerId(1)), None, Some(LearnerId(3))]);
        assert!(serde_json::from_str::<Ledger>(&text.replacen('{', "{\"extra\":1,", 1)).is_err());
    }

    #[test]
    fn each_fate_is_counted() {
        let mut ledger = Ledger::new(vec![1]);
        let (learner, _) = ledger.enrol(&Identity([1; 32]), "a", "cpu");
        let fates = [
            merged(1),
            Fate::Late(LateReason::RoundOver),
            Fate::Refused(Refusal::Norm),
            Fate::Refused(Refusal::Shape),
        ];
        for fate in &fates {
            ledger.record_outcome(learner, FragmentId(0), Serial(1), fate);
        }
        let account = ledger.account(learner).unwrap();
        assert_eq!((account.fates.total(), account.refused_in_a_row), (4, 2));
    }

    /// Records a merge with one update of `learner` on each of two fragments, `after_ms` after the previous ones.
    fn turn(ledger: &mut Ledger, learner: LearnerId, after_ms: Option<u64>) {
        for p in [0, 1] {
            let part = Part { after_ms, ..testing::part(learner, 1) };
            ledger.note_merge(&testing::merge(FragmentId(p), part));
            ledger.record_outcome(learner, FragmentId(p), Serial(1), &merged(1));
        }
    }

    /// Goal: neither rapid merges nor a long wait end a probation. In a young run, half of the longest merged time
    /// does.
    #[test]
    fn probation_ends_after_merges_and_merged_time() {
        let known_after = |after_ms, longest_ms| {
            let mut ledger = Ledger::new(vec![1, 1]);
            let (learner, _) = ledger.enrol(&Identity([1; 32]), "a", "cpu");
            turn(&mut ledger, learner, None);
            (1..100_000).find(|_| {
                turn(&mut ledger, learner, Some(after_ms));
                ledger.level(learner, longest_ms).is_trusted()
            })
        };
        let old = 2 * PROBATION_MS;
        assert_eq!(known_after(10, old), Some(60_000), "ten minutes, however many merges that is");
        assert_eq!(known_after(10, u64::MAX), Some(60_000));
        assert_eq!(
            known_after(u64::MAX, old),
            Some(8),
            "who waits between two merges needs as many as eight"
        );
        assert_eq!(known_after(10, 60_000), Some(3_000), "of a run that is a minute old a half is enough");
        assert_eq!(known_after(10, 0), Some(7), "nobody is there who was ever merged, but for itself");
    }

    #[test]
    fn a_pace_is_known_once_time_has_passed_between_merges() {
        let mut ledger = Ledger::new(vec![1, 1]);
        let (learner, _) = ledger.enrol(&Identity([1; 32]), "a", "cpu");
        turn(&mut ledger, learner, None);
        turn(&mut ledger, learner, Some(0));
        assert_eq!(ledger.pace(learner), None);
        turn(&mut ledger, learner, Some(16));
        assert_eq!(ledger.pace(learner), Some(0.125), "4 tokens in 32 ms");
    }

    /// Records a merge on the first of two fragments with one update of each learner, from learner 1 on. `parts` has
    /// the tokens of the update and whether its learner is proven. Updates of a learner are 10 s apart.
    fn merge(ledger: &mut Ledger, parts: &[(u64, bool)]) {
        let part = |(&(tokens, is_proven), learner): (&(u64, bool), u32)| Part {
            after_ms: Some(10_000),
            is_proven,
            ..testing::part(LearnerId(learner), tokens)
        };
        let parts: Vec<Part> = parts.iter().zip(1..).map(part).collect();
        ledger.note_merge(&MergeEntry { parts: parts.clone(), ..testing::merge(FragmentId(0), parts[0]) });
        for part in parts {
            ledger.record_outcome(part.learner, FragmentId(0), Serial(1), &merged(part.tokens));
        }
    }

    /// Creates a ledger with three learners and two fragments.
    fn three() -> Ledger {
        let mut ledger = Ledger::new(vec![1, 1]);
        let _ = [1, 2, 3].map(|i| ledger.enrol(&Identity([i; 32]), "a", "cpu"));
        ledger
    }

    /// Returns the increases of clock tokens and schedule tokens by a merge. Checks that the ledger survives a
    /// serialisation.
    fn moved(ledger: &mut Ledger, parts: &[(u64, bool)]) -> (u64, u64) {
        let before = (ledger.clock_tokens(), ledger.schedule_tokens());
        merge(ledger, parts);
        let text = serde_json::to_string(ledger).unwrap();
        assert_eq!(serde_json::from_str::<Ledger>(&text).unwrap(), *ledger);
        (ledger.clock_tokens() - before.0, ledger.schedule_tokens() - before.1)
    }

    /// Goal: an unproven learner advances the schedule at most as far as two other learners, also if it is alone in a
    /// merge. `clock_tokens` includes all its tokens at once, `schedule_tokens` once it is proven.
    #[test]
    fn schedule_credit_of_an_unproven_learner_is_bounded() {
        let mut ledger = three();
        let (open, shown) = (|tokens| (tokens, false), |tokens| (tokens, true));
        assert_eq!(
            moved(&mut ledger, &[open(1_000), open(100)]),
            (550, 550),
            "nobody knows which of two lies"
        );
        assert_eq!(moved(&mut ledger, &[open(100), open(100), open(100)]), (150, 150));
        let (_, at_once) = moved(&mut ledger, &[open(1_000), open(100), open(100)]);
        assert!((200..220).contains(&at_once), "{at_once}");
        let (all, alone) = moved(&mut ledger, &[open(1_000)]);
        assert!(all == 500 && (100..130).contains(&alone), "{alone}");
        let early = ledger.clock_tokens() - ledger.schedule_tokens();
        let (_, back) = moved(&mut ledger, &[shown(1_000), shown(100), shown(100)]);
        assert_eq!(back, 1_100, "twice its own");
        let rest = early - 500;
        assert_eq!(moved(&mut ledger, &[shown(1_000), shown(100), shown(100)]), (600, 600 + rest));
        assert_eq!(ledger.schedule_tokens(), ledger.clock_tokens());
    }

    /// Goal: time lifts the bound on schedule credit if no learner is proven, and never if a learner is proven.
    #[test]
    fn time_lifts_the_credit_bound_only_without_proven_learners() {
        for is_proven in [false, true] {
            let mut ledger = three();
            let last =
                (0..60).map(|_| moved(&mut ledger, &[(1_000, false), (100, is_proven), (100, is_proven)]));
            assert_eq!(last.last(), Some((600, if is_proven { 200 } else { 600 })));
            assert_eq!(
                ledger.schedule_tokens() == ledger.clock_tokens(),
                !is_proven,
                "all of it was counted"
            );
        }
    }

    /// Goal: a suspected learner no longer advances the schedule: not by new updates, by early tokens, or by an effect
    /// on the usual tokens. Its updates in flight do not move the schedule back.
    #[test]
    fn suspects_do_not_advance_the_schedule() {
        let mut ledger = three();
        let liar = LearnerId(1);
        for _ in 0..3 {
            moved(&mut ledger, &[(1_000, false), (100, false), (100, false)]);
        }
        assert!(ledger.account(liar).unwrap().early_tokens(0) > 2_000);
        ledger.suspect(liar, Some(Suspicion { looks: 9 }));
        assert_eq!(
            moved(&mut ledger, &[(1_000, false), (100, true), (100, true)]),
            (100, 100),
            "it was in flight"
        );
        ledger.suspect(LearnerId(2), Some(Suspicion { looks: 9 }));
        assert_eq!(moved(&mut ledger, &[(9_000, false), (9_000, false), (100, true)]), (50, 50));
        ledger.suspect(liar, None);
        let (_, honest) = moved(&mut ledger, &[(100, true), (9_000, false), (100, true)]);
        assert_eq!(honest, 100, "what it lied is not counted because it trains now");

        moved(&mut ledger, &[(1_000, false), (100, true), (100, true)]);
        ledger.convict(LearnerId(1));
        assert_eq!(ledger.account(liar).unwrap().early_tokens(0), 0);
    }
}
