//! Schedule clock of one fragment, for an owner that keeps no ledger.

use std::collections::BTreeMap;

use crate::diloco::{ClaimReference, MergeEntry, TURN_MS_MAX};
use crate::wire::LearnerId;

/// Schedule clock of one fragment without a ledger. It counts the fragment's merged tokens, as far as the schedule
/// credits them.
#[derive(Debug, Default)]
pub(super) struct FragmentClock {
    /// Tokens credited to the schedule.
    tokens: u64,
    /// Usual tokens of one learner in a merge; 0 while unknown.
    usual_tokens: u64,
    /// Merged time of each learner, in milliseconds, and its early tokens.
    learners: BTreeMap<LearnerId, (u64, u64)>,
}

impl FragmentClock {
    /// Counts one more merge. A cluster has no suspected learners because it checks no single updates.
    pub(super) fn count(&mut self, merge: &MergeEntry) {
        let yardstick = ClaimReference::of(self.usual_tokens, merge.parts.iter());
        self.usual_tokens = yardstick.usual_tokens;
        for part in &merge.parts {
            let (merged_ms, early) = self.learners.entry(part.learner).or_default();
            *merged_ms = merged_ms.saturating_add(part.after_ms.unwrap_or(0).min(TURN_MS_MAX));
            let counted = yardstick.counted(part, *merged_ms, *early);
            *early = early.saturating_add(part.tokens) - counted;
            self.tokens = self.tokens.saturating_add(counted);
        }
    }

    /// Returns true if the clock has counted any merge.
    pub(super) fn has_begun(&self) -> bool {
        !self.learners.is_empty()
    }

    /// Returns the tokens credited to the schedule.
    pub(super) fn schedule_tokens(&self) -> u64 {
        self.tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diloco::{BookTerms, Books, LeasePool, Ledger, Part};
    use crate::rng::Rng;
    use crate::testing;
    use crate::wire::{FragmentId, Identity};

    /// Returns a random plausible part of a learner in a merge.
    fn part(rng: &mut Rng, learner: LearnerId, is_shown: bool) -> Part {
        let (usual, is_ahead) = (50 + u64::from(rng.below(20)), learner.0 > 3 && rng.below(2) > 0);
        let tokens = if is_ahead { 40 * usual } else { usual };
        Part { after_ms: Some(500), is_shown, ..testing::part(learner, tokens) }
    }

    /// Goal: an owner and the books of a gateway credit the same tokens to the schedule, whatever learners claim. The
    /// books also count the merged time of other fragments; this test has only one fragment.
    #[test]
    fn an_owner_counts_as_the_books_do() {
        let (context, lease_ms, lease_idle_ms_max) = (4, 1_000, 500);
        let terms = BookTerms { context, lease_ms, lease_idle_ms_max, identities_max: 9, strangers_max: 9 };
        let mut books = Books::new(terms, LeasePool::new(vec![10_000]).unwrap(), Ledger::new(vec![7]));
        let (mut rng, mut clock) = (Rng::new(5), FragmentClock::default());
        let learners = [1, 2, 3, 4, 5].map(|i| books.enrol(&Identity([i; 32]), "a", "cpu", None).0);
        let (mut most, mut paid) = (0, 0);
        for turn in 0..300 {
            let parts = learners.map(|learner| part(&mut rng, learner, learner.0 == 4 && turn > 200));
            let parts: Vec<Part> = parts.into_iter().filter(|_| rng.below(4) > 0).collect();
            let Some(&first) = parts.first() else { continue };
            let merge = MergeEntry { parts, ..testing::merge(FragmentId(0), first) };
            clock.count(&merge);
            books.note_merge(merge.clone());
            merge.settled().for_each(|settled| books.settle(&settled));
            let ledger = books.ledger();
            let early = ledger.clock_tokens() - ledger.schedule_tokens();
            (most, paid) = (early.max(most), paid.max(most.saturating_sub(early)));
            assert_eq!(clock.schedule_tokens(), ledger.schedule_tokens(), "{turn}");
        }
        assert!(most > 10_000 && paid > 10_000, "nothing was early, or all of it stayed so: {most} {paid}");
    }
}
