//! Clocks of a run: merged tokens, and the part of them that its schedule counts.

use super::{Account, Ledger};
use crate::diloco::accounting::account::TURN_MS_MAX;
use crate::diloco::{ClaimReference, MergeEntry, Part};
use crate::wire::{FragmentId, LearnerId};

impl Ledger {
    /// Records the merged time of the learners in `merge`, and its schedule credit. The outcomes of the updates must
    /// be settled next.
    pub(in crate::diloco::accounting) fn note_merge(&mut self, merge: &MergeEntry) {
        merge.parts.iter().for_each(|part| self.note_pace(part));
        let (p, fragments) = (usize::from(merge.fragment.0), self.fragment_lens.len());
        if p >= fragments {
            return;
        }
        let believed = |part: &&Part| self.doubt(part.learner).is_none();
        let believed: Vec<&Part> = merge.parts.iter().filter(believed).collect();
        let before = self.usual_tokens.get(p).copied().unwrap_or(0);
        let yardstick = ClaimReference::of(before, believed.iter().copied());
        if yardstick.usual_tokens != before {
            self.usual_tokens.resize(fragments, 0);
            self.usual_tokens[p] = yardstick.usual_tokens;
        }
        believed.into_iter().for_each(|part| self.note_early(p, &yardstick, part));
    }

    fn note_pace(&mut self, part: &Part) {
        let &Part { learner, tokens, after_ms: Some(after_ms), .. } = part else { return };
        self.accounts.change(learner, |account| {
            let (before, ms) = account.pace;
            account.pace = (before.saturating_add(tokens), ms.saturating_add(after_ms));
            account.merged_ms = account.merged_ms.saturating_add(after_ms.min(TURN_MS_MAX));
        });
    }

    fn note_early(&mut self, p: usize, yardstick: &ClaimReference, part: &Part) {
        let Some(account) = self.account(part.learner) else { return };
        let before = account.early_tokens(p);
        let counted = yardstick.counted(part, self.merged_ms(part.learner), before);
        let early = before.saturating_add(part.tokens) - counted;
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

    /// Returns the usual tokens of one learner in a merge of `fragment`. While that is unknown, it returns the
    /// largest value of all fragments, or 0 before the first merge of three or more.
    #[must_use]
    pub(in crate::diloco) fn usual_tokens(&self, fragment: FragmentId) -> u64 {
        let known = self.usual_tokens.get(usize::from(fragment.0)).copied().filter(|tokens| *tokens > 0);
        known.or_else(|| self.usual_tokens.iter().copied().max()).unwrap_or(0)
    }

    /// Discards the early tokens of `learner`, which will never count.
    pub(super) fn write_off(&mut self, learner: LearnerId) {
        self.accounts.change(learner, |account| account.early_tokens.clear());
    }

    /// Returns the merged tokens of `account` that count: the mean over fragments, weighted by their lengths.
    #[must_use]
    pub fn tokens_merged(&self, account: &Account) -> u64 {
        let counted: Vec<u64> = (0..self.fragment_lens.len()).map(|p| account.tokens_counted(p)).collect();
        self.mean(&counted)
    }

    /// Returns the merged tokens of the whole run.
    #[must_use]
    pub fn clock_tokens(&self) -> u64 {
        self.mean(&self.tokens_merged)
    }

    /// Returns the merged tokens that count for the learning rate, the outer momentum and the end of the run: all
    /// except early tokens of unproven learners.
    #[must_use]
    pub fn schedule_tokens(&self) -> u64 {
        let uncounted = self.uncounted_tokens.iter().chain(std::iter::repeat(&0));
        let counted = self.tokens_merged.iter().zip(uncounted);
        let counted: Vec<u64> =
            counted.map(|(merged, uncounted)| merged.saturating_sub(*uncounted)).collect();
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
