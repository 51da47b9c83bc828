//! Accounts of learners that also enrol and are merged in other processes.

use super::{Account, Ledger};
use crate::wire::{Identity, LearnerId};

impl Ledger {
    /// Enrols the learner with this identity under a number from another process. Returns the number, and whether it
    /// was known before.
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

    /// Opens an account for `learner`, of which only the number is known, unless it has one.
    pub(in crate::diloco::accounting) fn know(&mut self, learner: LearnerId) {
        if self.account(learner).is_none() {
            let fragments = self.fragment_lens.len();
            self.strangers.insert(learner);
            self.accounts.open(learner, || Account::new([0; 16], fragments, 0));
        }
    }

    /// Raises the leased tokens of `learner` to its merged tokens plus `tokens`, if they are lower.
    pub(in crate::diloco::accounting) fn credit(&mut self, learner: LearnerId, tokens: u64) {
        self.accounts.change(learner, |account| {
            let merged = account.tokens_merged.iter().copied().fold(0, u64::max);
            account.leased_tokens = account.leased_tokens.max(merged.saturating_add(tokens));
        });
    }
}
