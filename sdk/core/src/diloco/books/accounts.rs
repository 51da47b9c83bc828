//! The accounts of a ledger and what they come to, kept up to date with each of them: a status must not ask everybody
//! who was ever here.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Serialize, Serializer};

use super::{Account, FateCounts};
use crate::wire::{Fate, LearnerId};

/// All accounts, by id. As JSON it is the accounts alone.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Accounts {
    by_id: BTreeMap<LearnerId, Account>,
    /// Tokens trained on, by those of whom an update has come.
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
    /// All of them, to be read.
    pub(super) fn all(&self) -> &BTreeMap<LearnerId, Account> {
        &self.by_id
    }

    /// Opens `account`, unless `learner` has one.
    pub(super) fn open(&mut self, learner: LearnerId, account: impl FnOnce() -> Account) {
        // A new one has nothing that would add up to anything.
        self.by_id.entry(learner).or_insert_with(account);
    }

    /// Changes the account of `learner`, but for its fates; `None` if it has none.
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

    /// Tokens trained on, by those of whom an update has come.
    pub(super) fn tokens_trained(&self) -> u64 {
        u64::try_from(self.trained).unwrap_or(u64::MAX)
    }

    /// Updates that came in.
    pub(super) fn updates(&self) -> u64 {
        self.updates
    }

    /// What became of them.
    pub(super) fn fates(&self) -> &FateCounts {
        &self.fates
    }

    /// Those who are suspected.
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

/// Tokens that `account` counts for among all: the word alone of one that never sends anything says nothing of the run.
fn counted(account: &Account) -> u128 {
    let has_sent = account.updates > 0 || account.fates.total() > 0;
    if has_sent { account.trained().into() } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diloco::Doubt;
    use crate::rng::Rng;
    use crate::wire::{LateReason, Refusal, Version};

    /// Goal: the sums are those of all accounts, whatever was changed in which order.
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
                    let doubt = (rng.below(2) > 0).then_some(Doubt { looks: 1 });
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
