//! Accounts of a ledger with incremental totals, so that a status need not visit every account.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Serialize, Serializer};

use super::{Account, FateCounts};
use crate::wire::{Fate, LearnerId};

/// All accounts, by learner. Serialises as the plain map of accounts.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Accounts {
    by_id: BTreeMap<LearnerId, Account>,
    /// Trained tokens of learners that have sent an update.
    trained: u128,
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

    /// Opens `account`, unless `learner` has one.
    pub(super) fn open(&mut self, learner: LearnerId, account: impl FnOnce() -> Account) {
        // A new account adds nothing to the totals.
        self.by_id.entry(learner).or_insert_with(account);
    }

    /// Changes the account of `learner`, except its fates. Returns `None` if there is no account.
    pub(super) fn change<R>(
        &mut self,
        learner: LearnerId,
        change: impl FnOnce(&mut Account) -> R,
    ) -> Option<R> {
        let account = self.by_id.get_mut(&learner)?;
        let (trained, updates) = (counted(account), account.updates);
        let done = change(account);
        self.trained = self.trained - trained + counted(account);
        self.updates = self.updates - updates + account.updates;
        if account.doubt.is_some() {
            self.suspects.insert(learner);
        } else {
            self.suspects.remove(&learner);
        }
        Some(done)
    }

    /// Counts the fate of an update of `learner`.
    pub(super) fn settle(&mut self, learner: LearnerId, fate: &Fate) {
        if self.change(learner, |account| account.fates.add(fate)).is_some() {
            self.fates.add(fate);
        }
    }

    /// Closes the account of `learner`.
    pub(super) fn close(&mut self, learner: LearnerId) -> Option<Account> {
        let account = self.by_id.remove(&learner)?;
        self.trained -= counted(&account);
        self.updates -= account.updates;
        self.fates.take_all(&account.fates);
        self.suspects.remove(&learner);
        Some(account)
    }

    /// Changes every account.
    pub(super) fn change_all(&mut self, change: impl FnMut(&mut Account)) {
        self.by_id.values_mut().for_each(change);
        self.add_up();
    }

    /// Returns the trained tokens of learners that have sent an update.
    pub(super) fn tokens_trained(&self) -> u64 {
        u64::try_from(self.trained).unwrap_or(u64::MAX)
    }

    /// Returns the number of updates received.
    pub(super) fn updates(&self) -> u64 {
        self.updates
    }

    /// Returns the fates of all updates.
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
            self.trained += counted(account);
            self.updates += account.updates;
            self.fates.add_all(&account.fates);
            if account.doubt.is_some() {
                self.suspects.insert(learner);
            }
        }
    }
}

/// Returns the tokens that `account` adds to the total. The claim of a learner that never sent an update does not
/// count.
fn counted(account: &Account) -> u128 {
    let has_sent = account.updates > 0 || account.fates.total() > 0;
    if has_sent { account.trained().into() } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diloco::Suspicion;
    use crate::rng::Rng;
    use crate::wire::{LateReason, Refusal, Version};

    /// Goal: the totals equal the sums over all accounts after any sequence of changes.
    #[test]
    fn what_accounts_come_to_is_what_one_gets_by_adding_them_up() {
        let mut rng = Rng::new(3);
        let mut accounts = Accounts::default();
        for turn in 0..4_000 {
            let learner = LearnerId(rng.below(20));
            match rng.below(7) {
                0 => accounts.open(learner, || Account::new([0; 16], 2, 0)),
                1 => drop(accounts.change(learner, |account| account.updates += 1)),
                2 => drop(accounts.change(learner, |account| account.tokens_trained += 5)),
                3 => {
                    let doubt = (rng.below(2) > 0).then_some(Suspicion { looks: 1 });
                    accounts.change(learner, |account| account.doubt = doubt);
                }
                4 if turn % 7 == 0 => drop(accounts.close(learner)),
                4 if turn % 97 == 0 => accounts.change_all(|account| account.updates = account.fates.total()),
                5 => accounts.settle(learner, &Fate::Late(LateReason::RoundOver)),
                6 => accounts.settle(learner, &Fate::Refused(Refusal::Norm)),
                _ => {
                    let fate = Fate::Merged { version: Version(1), weight: 1.0, tokens: 3 };
                    accounts.settle(learner, &fate);
                }
            }
            assert_eq!(accounts, Accounts::from(accounts.by_id.clone()), "{turn}");
        }
        assert!(accounts.trained > 0 && accounts.fates.total() > 0 && !accounts.suspects.is_empty());
    }
}
