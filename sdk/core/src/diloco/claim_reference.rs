//! Schedule credit: how far a merge advances the schedule of a run.
//!
//! The learning rate and the outer momentum follow merged tokens, which learners only claim. Inflated claims would
//! push the schedule of a young run ahead before they are noticed. So the credit of an unproven learner is bounded by
//! a multiple of the usual tokens. The bound grows with time only in merges without a proven learner. Tokens above
//! the bound are *early*: they count later, once the bound allows it.

use super::Part;
use super::speed::lower_median;

/// Bound on the credit of an unproven learner, as a multiple of the usual tokens. Constant of ours.
pub(crate) const USUAL_RATIO: u64 = 2;
/// Merged time after which that bound doubles in a merge without proven learners, in milliseconds. Constant of ours.
const DOUBLING_MS: f64 = 60_000.0;
/// Minimum number of parts in a merge that updates the usual tokens. Of two learners, the syncer cannot know which one
/// lies. A bound would then hold the schedule back if one learner is honest and much faster than the other. Constant of
/// ours.
const PARTS_MIN: usize = 3;
/// Largest growth factor of the usual tokens from one merge to the next, so that no single merge with few answers sets
/// them. Constant of ours.
const GROWTH_MAX: u64 = 2;

/// Reference values of one merge, which bound the tokens that its learners claim.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClaimReference {
    /// Tokens that one learner usually has in a merge; 0 while that is unknown.
    pub(crate) usual_tokens: u64,
    /// Whether the merge holds an update of a proven learner.
    is_any_proven: bool,
}

impl ClaimReference {
    /// Derives the reference from a merge of `parts` of learners that are not suspected. With three or more parts it
    /// is their lower median, otherwise `before`.
    pub(crate) fn of<'a>(before: u64, parts: impl Iterator<Item = &'a Part>) -> Self {
        let (tokens, proven): (Vec<f64>, Vec<bool>) =
            parts.map(|part| (part.tokens as f64, part.is_proven)).unzip();
        let median = if tokens.len() < PARTS_MIN { before } else { lower_median(tokens.into_iter()) as u64 };
        let most = if before > 0 { before.saturating_mul(GROWTH_MAX) } else { u64::MAX };
        Self { usual_tokens: median.min(most), is_any_proven: proven.contains(&true) }
    }

    /// Returns the tokens that the schedule counts for `part`. Its learner is not suspected, has `merged_ms` of merged
    /// time, and has `early` tokens from earlier merges. At most as many early tokens count as the update itself has,
    /// so that the schedule never jumps.
    pub(crate) fn counted(&self, part: &Part, merged_ms: u64, early: u64) -> u64 {
        let due = part.tokens.saturating_add(early.min(part.tokens));
        if part.is_proven || self.usual_tokens == 0 {
            return due;
        }
        let doublings = if self.is_any_proven { 0.0 } else { merged_ms as f64 / DOUBLING_MS };
        due.min((USUAL_RATIO as f64 * libm::exp2(doublings) * self.usual_tokens as f64) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::part;
    use crate::wire::LearnerId;

    fn parts(tokens: &[u64], is_proven: bool) -> Vec<Part> {
        tokens.iter().map(|&tokens| Part { is_proven, ..part(LearnerId(1), tokens) }).collect()
    }

    fn usual(before: u64, tokens: &[u64]) -> u64 {
        ClaimReference::of(before, parts(tokens, false).iter()).usual_tokens
    }

    #[test]
    fn three_say_what_is_usual_and_two_do_not() {
        assert_eq!(usual(0, &[900, 10]), 0);
        assert_eq!(usual(7, &[900, 10]), 7, "as it was before");
        assert_eq!(usual(7, &[900, 10, 12]), 12);
        assert_eq!(usual(7, &[900, 10, 900, 12]), 12, "not even half of them");
        assert_eq!(usual(7, &[900, 900, 12]), 14, "and most of them not at once");
        assert_eq!(usual(700, &[9, 9, 12]), 9);
        assert_eq!(usual(u64::MAX, &[u64::MAX; 3]), u64::MAX);
    }

    /// Returns the tokens that count in an update of 100 tokens, if 10 are usual.
    fn counted(proven: [bool; 2], merged_ms: u64, early: u64) -> u64 {
        let [is_proven, is_other_proven] = proven;
        let mut merge = parts(&[10, 10, 100], is_other_proven);
        merge[2].is_proven = is_proven;
        ClaimReference::of(10, merge.iter()).counted(&merge[2], merged_ms, early)
    }

    /// Goal: of a large claim, only twice the usual tokens count at first. In the end all of it counts, without a jump.
    #[test]
    fn what_is_early_waits_until_its_learner_is_known() {
        let open = |merged_ms, early| counted([false, false], merged_ms, early);
        assert_eq!([open(0, 0), open(0, 80), open(60_000, 160), open(180_000, 220)], [20, 20, 40, 160]);
        assert_eq!([open(240_000, 160), open(240_000, 60), open(u64::MAX, 0)], [200, 160, 100]);
        let honest = parts(&[10, 10, 20], false);
        assert_eq!(
            ClaimReference::of(10, honest.iter()).counted(&honest[2], 0, 0),
            20,
            "as fast as others: at once"
        );
        assert_eq!(ClaimReference::of(0, honest[1..].iter()).counted(&parts(&[100], false)[0], 0, 0), 100);
    }

    /// Goal: in a merge with a proven learner, time does not raise the bound of an unproven one. Its own proof removes
    /// the bound.
    #[test]
    fn to_show_that_one_trains_is_the_way_to_be_counted() {
        assert_eq!(counted([false, true], u64::MAX, 300), 20);
        assert_eq!(counted([true, false], 0, 0), 100);
        assert_eq!(counted([true, true], 0, 300), 200);
    }

    proptest::proptest! {
        /// No token is counted twice or lost, regardless of the claims: early tokens are part of merged tokens.
        #[test]
        fn no_more_waits_than_was_merged(
            claims in proptest::collection::vec((0_u64..1 << 40, 0_u64..400_000, 0_u64..1 << 20, 0_u8..3), 1..50),
        ) {
            let (mut early, mut before) = (0_u64, 0);
            for (tokens, merged_ms, others, proven) in claims {
                let mut merge = parts(&[others, others, tokens], proven == 1);
                merge[2].is_proven = proven == 2;
                let yardstick = ClaimReference::of(before, merge.iter());
                before = yardstick.usual_tokens;
                let counted = yardstick.counted(&merge[2], merged_ms, early);
                proptest::prop_assert!(counted <= early + tokens && counted <= 2 * tokens);
                early = early + tokens - counted;
            }
        }
    }
}
