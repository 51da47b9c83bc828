//! What a run came to: the tokens that are merged, and those of them that its schedule counts.

use super::{Account, Ledger};
use crate::diloco::books::account::TURN_MS_MAX;
use crate::diloco::clock::{early_tokens, usual_tokens};
use crate::diloco::{MergeEntry, Part};

impl Ledger {
    /// Notes for how long the learners of `merge` have been merged by then, and what the schedule counts of it. What
    /// became of their updates is to be settled next.
    pub(in crate::diloco::books) fn note_merge(&mut self, merge: &MergeEntry) {
        let p = usize::from(merge.fragment.0);
        let before = self.usual_tokens.get(p).copied().unwrap_or(0);
        let usual = usual_tokens(before, merge.parts.iter().map(|part| part.tokens));
        if usual != before && p < self.fragment_lens.len() {
            self.usual_tokens.resize(self.fragment_lens.len(), 0);
            self.usual_tokens[p] = usual;
        }
        for part in &merge.parts {
            self.note_pace(part);
            self.note_early(p, usual, part);
        }
    }

    fn note_pace(&mut self, part: &Part) {
        let &Part { learner, tokens, after_ms: Some(after_ms), .. } = part else { return };
        self.accounts.change(learner, |account| {
            let (before, ms) = account.pace;
            account.pace = (before.saturating_add(tokens), ms.saturating_add(after_ms));
            account.merged_ms = Some(account.merged_ms().saturating_add(after_ms.min(TURN_MS_MAX)));
        });
    }

    fn note_early(&mut self, p: usize, usual: u64, part: &Part) {
        let before = self.account(part.learner).map_or(0, |account| account.early_tokens(p));
        let early = early_tokens(part.belief, usual, self.merged_ms(part.learner), before, part.tokens);
        let Some(all) = self.early_tokens.get_mut(p).filter(|_| early != before) else { return };
        let fragments = self.fragment_lens.len();
        let changed = self.accounts.change(part.learner, |account| {
            account.early_tokens.resize(fragments, 0);
            account.early_tokens[p] = early;
        });
        if changed.is_some() {
            *all = all.saturating_sub(before).saturating_add(early);
        }
    }

    /// Tokens of `account` that are merged and count: the mean over fragments, weighted by their sizes.
    #[must_use]
    pub fn tokens_merged(&self, account: &Account) -> u64 {
        let counted: Vec<u64> = (0..self.fragment_lens.len()).map(|p| account.tokens_counted(p)).collect();
        self.mean(&counted)
    }

    /// Tokens of the whole run that are merged.
    #[must_use]
    pub fn clock_tokens(&self) -> u64 {
        self.mean(&self.tokens_merged)
    }

    /// Those of them that count for the learning rate and the outer momentum: all but the early ones of learners who
    /// are new and far ahead of the others.
    #[must_use]
    pub fn schedule_tokens(&self) -> u64 {
        let counted = self.tokens_merged.iter().zip(&self.early_tokens);
        let counted: Vec<u64> = counted.map(|(merged, early)| merged.saturating_sub(*early)).collect();
        self.mean(&counted)
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
