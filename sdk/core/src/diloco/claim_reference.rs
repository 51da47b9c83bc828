//! Schedule credit: the tokens by which a merge advances the schedule of a run.
//!
//! The learning rate and the outer momentum follow merged tokens, which learners only claim. Inflated claims would
//! advance the schedule of a young run before they are noticed. The credit of an unproven learner is therefore bounded
//! by a multiple of the usual tokens of one update. The bound grows with time, but only in merges without a proven
//! learner. Tokens above the bound are *early*: they are credited later, once the bound allows it.

use super::Part;
use super::speed::lower_median;

/// Upper bound on the credit of an unproven learner, as a multiple of the usual tokens. Our own constant.
pub(crate) const USUAL_RATIO: u64 = 2;
/// Merged time of a learner after which its bound doubles, in milliseconds, in merges without a proven learner. Our own
/// constant.
const DOUBLING_MS: f64 = 60_000.0;
/// Minimum number of updates in a merge that changes the usual tokens. With two updates, the syncer cannot tell a lying
/// learner from a much faster one, and a bound would hold back the schedule of an honest run. Our own constant.
const PARTS_MIN: usize = 3;
/// Largest growth factor of the usual tokens from one merge to the next, so that a single merge with few updates does
/// not determine them. Our own constant.
const GROWTH_MAX: u64 = 2;

/// Reference values of one merge that bound the schedule credit of its learners.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClaimReference {
    /// Typical tokens of one update in a merge; 0 while unknown.
    pub(crate) usual_tokens: u64,
    /// Whether the merge has an update of a proven learner.
    is_any_proven: bool,
}

impl ClaimReference {
    /// Derives the reference from `parts`, the updates of learners that are not suspected. The usual tokens are the
    /// lower median of at least [`PARTS_MIN`] updates, otherwise `before`. They grow at most by [`GROWTH_MAX`].
    pub(crate) fn of<'a>(before: u64, parts: impl Iterator<Item = &'a Part>) -> Self {
        let (tokens, proven): (Vec<f64>, Vec<bool>) =
            parts.map(|part| (part.tokens as f64, part.is_proven)).unzip();
        let median = if tokens.len() < PARTS_MIN { before } else { lower_median(tokens.into_iter()) as u64 };
        let most = if before > 0 { before.saturating_mul(GROWTH_MAX) } else { u64::MAX };
        Self { usual_tokens: median.min(most), is_any_proven: proven.contains(&true) }
    }

    /// Returns the tokens that the schedule credits for `part`. Its learner is not suspected, has `merged_ms` of merged
    /// time, and has `early` tokens from earlier merges. So that the schedule does not jump, at most as many early
    /// tokens are credited as the update itself has.
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
    fn usual_tokens_follow_three_updates_but_not_two() {
        assert_eq!(usual(0, &[900, 10]), 0);
        assert_eq!(usual(7, &[900, 10]), 7, "as it was before");
        assert_eq!(usual(7, &[900, 10, 12]), 12);
        assert_eq!(usual(7, &[900, 10, 900, 12]), 12, "not even half of them");
        assert_eq!(usual(7, &[900, 900, 12]), 14, "and most of them not at once");
        assert_eq!(usual(700, &[9, 9, 12]), 9);
        assert_eq!(usual(u64::MAX, &[u64::MAX; 3]), u64::MAX);
    }

    /// Returns the credited tokens of an update of 100 tokens, if 10 are usual.
    fn counted(proven: [bool; 2], merged_ms: u64, early: u64) -> u64 {
        let [is_proven, is_other_proven] = proven;
        let mut merge = parts(&[10, 10, 100], is_other_proven);
        merge[2].is_proven = is_proven;
        ClaimReference::of(10, merge.iter()).counted(&merge[2], merged_ms, early)
    }

    /// Goal: at first only twice the usual tokens of a large claim are credited, and later all of them without a jump.
    #[test]
    fn early_tokens_are_credited_as_merged_time_grows() {
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

    /// Goal: in a merge with a proven learner, time does not raise the bound of an unproven one. The bound ends when
    /// the learner is proven itself.
    #[test]
    fn credit_bound_ends_when_the_learner_is_proven() {
        assert_eq!(counted([false, true], u64::MAX, 300), 20);
        assert_eq!(counted([true, false], 0, 0), 100);
        assert_eq!(counted([true, true], 0, 300), 200);
    }

    proptest::proptest! {
        /// Goal: no token is credited twice or lost, whatever learners claim.
        #[test]
        fn credited_and_early_tokens_add_up_to_merged_tokens(
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
