//! Accounts of a ledger, one for each learner, with incremental totals.

use std::collections::{BTreeMap, BTreeSet};

use crate::diloco::trust::TrustRecord;
use crate::wire::{Fate, Fingerprint, LateReason, LearnerId, Refusal, Serial};
use serde::{Deserialize, Serialize, Serializer};

/// All accounts, by learner, with their totals. Serialises as a map of accounts.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Accounts {
    by_id: BTreeMap<LearnerId, Account>,
    /// Trained tokens of learners that have sent an update.
    trained: u128,
    /// Number of received updates.
    updates: u64,
    fates: FateCounts,
    suspects: BTreeSet<LearnerId>,
}

impl Serialize for Accounts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.by_id.serialize(serializer)
    }
}

impl From<BTreeMap<LearnerId, Account>> for Accounts {
    fn from(by_id: BTreeMap<LearnerId, Account>) -> Self {
        let mut accounts = Self { by_id, ..Self::default() };
        accounts.add_up();
        accounts
    }
}

impl Accounts {
    /// Returns all accounts.
    pub(super) fn all(&self) -> &BTreeMap<LearnerId, Account> {
        &self.by_id
    }

    /// Opens the new account `account` for `learner`, unless it has one.
    pub(super) fn open(&mut self, learner: LearnerId, account: impl FnOnce() -> Account) {
        // A new account does not change the totals.
        self.by_id.entry(learner).or_insert_with(account);
    }

    /// Applies `change` to the account of `learner` and returns its result; `None` if there is no account. Total fates
    /// are not updated: see [`Self::record_outcome`].
    pub(super) fn change<R>(
        &mut self,
        learner: LearnerId,
        change: impl FnOnce(&mut Account) -> R,
    ) -> Option<R> {
        let account = self.by_id.get_mut(&learner)?;
        let (trained, updates) = (trained_if_sent(account), account.updates);
        let done = change(account);
        self.trained = self.trained - trained + trained_if_sent(account);
        self.updates = self.updates - updates + account.updates;
        if account.trust.suspicion().is_some() {
            self.suspects.insert(learner);
        } else {
            self.suspects.remove(&learner);
        }
        Some(done)
    }

    /// Adds the fate of an update of `learner`.
    pub(super) fn record_outcome(&mut self, learner: LearnerId, fate: &Fate) {
        if self.change(learner, |account| account.fates.add(fate)).is_some() {
            self.fates.add(fate);
        }
    }

    /// Removes and returns the account of `learner`.
    pub(super) fn close(&mut self, learner: LearnerId) -> Option<Account> {
        let account = self.by_id.remove(&learner)?;
        self.trained -= trained_if_sent(&account);
        self.updates -= account.updates;
        self.fates.take_all(&account.fates);
        self.suspects.remove(&learner);
        Some(account)
    }

    /// Applies `change` to every account and recomputes the totals.
    pub(super) fn change_all(&mut self, change: impl FnMut(&mut Account)) {
        self.by_id.values_mut().for_each(change);
        self.add_up();
    }

    /// Returns the trained tokens of learners that have sent an update.
    pub(super) fn tokens_trained(&self) -> u64 {
        u64::try_from(self.trained).unwrap_or(u64::MAX)
    }

    /// Returns the number of received updates.
    pub(super) fn updates(&self) -> u64 {
        self.updates
    }

    /// Returns the number of updates by fate.
    pub(super) fn fates(&self) -> &FateCounts {
        &self.fates
    }

    /// Returns the suspected learners.
    pub(super) fn suspects(&self) -> &BTreeSet<LearnerId> {
        &self.suspects
    }

    fn add_up(&mut self) {
        (self.trained, self.updates, self.fates) = (0, 0, FateCounts::default());
        self.suspects.clear();
        for (&learner, account) in &self.by_id {
            self.trained += trained_if_sent(account);
            self.updates += account.updates;
            self.fates.add_all(&account.fates);
            if account.trust.suspicion().is_some() {
                self.suspects.insert(learner);
            }
        }
    }
}

/// Returns the trained tokens of `account`, or 0 if its learner has never sent an update.
fn trained_if_sent(account: &Account) -> u128 {
    let has_sent = account.updates > 0 || account.fates.total() > 0;
    if has_sent { account.trained().into() } else { 0 }
}

/// Account of one learner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Account {
    /// Fingerprint of the learner's identity.
    pub(super) identity: [u8; 16],
    /// Display name.
    pub name: String,
    /// Display name of the device.
    pub device: String,
    /// Claimed trained tokens, at most the leased tokens.
    #[serde(rename = "trained_tokens")]
    pub tokens_trained: u64,
    /// Accepted tokens that the learner's current process reported.
    pub(super) reported_tokens: u64,
    /// Leased tokens, without those that were returned untrained.
    pub leased_tokens: u64,
    /// Merged tokens on each fragment, `[P]`.
    #[serde(rename = "merged_tokens")]
    pub tokens_merged: Vec<u64>,
    /// Serial number of the last merged update on each fragment, `[P]`.
    pub merged: Vec<Option<Serial>>,
    /// Number of received updates.
    pub updates: u64,
    /// Number of updates by fate.
    pub fates: FateCounts,
    /// Number of refusals since the last merged update.
    pub refused_in_a_row: u32,
    /// Trust in the learner.
    #[serde(flatten)]
    pub trust: TrustRecord,
    /// Part of `tokens_merged` on each fragment that was merged under suspicion, `[P]` or empty. These tokens are not
    /// credited.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) doubted_tokens: Vec<u64>,
    /// Merged tokens on each fragment that the schedule does not credit yet, `[P]` or empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) early_tokens: Vec<u64>,
    /// Merged tokens of updates with a known time since the previous one, and the sum of these times in milliseconds,
    /// both summed over fragments.
    pub(super) pace: (u64, u64),
}

impl Account {
    /// Creates an account in a run with `fragments` fragments. The learner may be credited `slack_tokens` beyond its
    /// leases.
    pub(super) fn new(identity: [u8; 16], fragments: usize, slack_tokens: u64) -> Self {
        Self {
            identity,
            name: String::new(),
            device: String::new(),
            tokens_trained: 0,
            reported_tokens: 0,
            leased_tokens: slack_tokens,
            tokens_merged: vec![0; fragments],
            merged: vec![None; fragments],
            updates: 0,
            fates: FateCounts::default(),
            refused_in_a_row: 0,
            trust: TrustRecord::default(),
            doubted_tokens: Vec::new(),
            early_tokens: Vec::new(),
            pace: (0, 0),
        }
    }

    /// Changes the display names of the learner and its device.
    pub(super) fn rename(&mut self, name: &str, device: &str) {
        (self.name, self.device) = (name.into(), device.into());
    }

    /// Returns the fingerprint of the learner's key.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint(self.identity)
    }

    /// Returns the merged tokens on fragment `p` without those merged under suspicion.
    pub(super) fn tokens_credited(&self, p: usize) -> u64 {
        let of = |tokens: &[u64]| tokens.get(p).copied().unwrap_or_default();
        of(&self.tokens_merged).saturating_sub(of(&self.doubted_tokens))
    }

    /// Returns the merged tokens on fragment `p` that the schedule does not credit yet.
    pub(super) fn early_tokens(&self, p: usize) -> u64 {
        self.early_tokens.get(p).copied().unwrap_or_default()
    }

    /// Returns true if no update of the learner was merged.
    #[must_use]
    pub(crate) fn is_stranger(&self) -> bool {
        self.tokens_merged.iter().all(|&tokens| tokens == 0)
    }

    /// Returns true if the learner has neither merged nor pending updates.
    pub(super) fn is_blank(&self) -> bool {
        self.is_stranger() && self.updates == self.fates.total()
    }

    /// Returns the trained tokens: the claimed ones, or the merged ones if they are more because a report is missing.
    #[must_use]
    pub fn trained(&self) -> u64 {
        self.tokens_merged.iter().copied().fold(self.tokens_trained, u64::max)
    }
}

/// Number of updates by fate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FateCounts {
    /// Number of merged updates.
    pub merged: u64,
    /// Number of late updates by reason.
    pub late: BTreeMap<LateReason, u64>,
    /// Number of refused updates by reason.
    pub refused: BTreeMap<Refusal, u64>,
}

impl FateCounts {
    /// Returns the number of updates with a fate.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.merged + self.late.values().sum::<u64>() + self.refused.values().sum::<u64>()
    }

    /// Adds the counts of `other`.
    pub(crate) fn add_all(&mut self, other: &Self) {
        self.merged += other.merged;
        for (reason, count) in &other.late {
            *self.late.entry(*reason).or_default() += count;
        }
        for (reason, count) in &other.refused {
            *self.refused.entry(*reason).or_default() += count;
        }
    }

    /// Subtracts the counts of `other`, which must not be larger.
    pub(super) fn take_all(&mut self, other: &Self) {
        self.merged -= other.merged;
        take(&mut self.late, &other.late);
        take(&mut self.refused, &other.refused);
    }

    pub(super) fn add(&mut self, fate: &Fate) {
        *match fate {
            Fate::Merged { .. } => &mut self.merged,
            Fate::Late(reason) => self.late.entry(*reason).or_default(),
            Fate::Refused(reason) => self.refused.entry(*reason).or_default(),
        } += 1;
    }
}

/// Subtracts the counts in `others` from `counts`, and removes reasons whose count becomes 0.
fn take<K: Copy + Ord>(counts: &mut BTreeMap<K, u64>, others: &BTreeMap<K, u64>) {
    for (reason, count) in others {
        if let Some(left) = counts.get_mut(reason) {
            *left -= count;
            if *left == 0 {
                counts.remove(reason);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diloco::Suspicion;
    use crate::rng::Rng;
    use crate::wire::{LateReason, Refusal, Version};

    /// Goal: an account serialises the fields of its trust record as its own, and refuses unknown fields.
    #[test]
    fn trust_record_is_flattened_into_the_account() {
        let mut account = Account::new([7; 16], 1, 0);
        let new = serde_json::to_string(&account).unwrap();
        assert!(new.ends_with(r#""refused_in_a_row":0,"merged_ms":0,"pace":[0,0]}"#), "{new}");
        account.trust.convict();
        account.trust.merged(9);
        account.trust.suspect(Some(Suspicion { looks: 24 }));
        account.doubted_tokens = vec![3];
        let text = serde_json::to_string(&account).unwrap();
        let trust = r#""merged_ms":9,"harms":1,"doubt":{"looks":24},"doubted_tokens":[3],"pace":[0,0]}"#;
        assert!(text.ends_with(trust), "{text}");
        assert_eq!(serde_json::from_str::<Account>(&text).unwrap(), account);
        for (field, other) in [("merged_ms", "merged_s"), ("harms", "harm"), ("pace", "paces")] {
            assert!(serde_json::from_str::<Account>(&text.replace(field, other)).is_err(), "{other}");
        }
    }

    /// Goal: the totals equal the sums over all accounts after any sequence of changes.
    #[test]
    fn totals_equal_sums_over_accounts() {
        let mut rng = Rng::new(3);
        let mut accounts = Accounts::default();
        for turn in 0..4_000 {
            let learner = LearnerId(rng.below(20));
            match rng.below(7) {
                0 => accounts.open(learner, || Account::new([0; 16], 2, 0)),
                1 => drop(accounts.change(learner, |account| account.updates += 1)),
                2 => drop(accounts.change(learner, |account| account.tokens_trained += 5)),
                3 => {
                    let suspicion = (rng.below(2) > 0).then_some(Suspicion { looks: 1 });
                    accounts.change(learner, |account| account.trust.suspect(suspicion));
                }
                4 if turn % 7 == 0 => drop(accounts.close(learner)),
                4 if turn % 97 == 0 => accounts.change_all(|account| account.updates = account.fates.total()),
                5 => accounts.record_outcome(learner, &Fate::Late(LateReason::RoundOver)),
                6 => accounts.record_outcome(learner, &Fate::Refused(Refusal::Norm)),
                _ => {
                    let fate = Fate::Merged { version: Version(1), weight: 1.0, tokens: 3 };
                    accounts.record_outcome(learner, &fate);
                }
            }
            assert_eq!(accounts, Accounts::from(accounts.by_id.clone()), "{turn}");
        }
        assert!(accounts.trained > 0 && accounts.fates.total() > 0 && !accounts.suspects.is_empty());
    }
}
