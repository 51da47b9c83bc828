//! How far the schedule of a run moves with a merge.
//!
//! The learning rate and the outer momentum follow the tokens that are merged, and those are a learner's word. Liars
//! that claim many would push the schedule of a young run ahead until they are noticed. So whoever is new, and has not
//! shown that it trains, moves the schedule no more than a few others do. What it has above that is *early*: it is
//! counted later, as the learner becomes known.

use serde::{Deserialize, Serialize};

use super::speed::lower_median;

/// So many times what is usual one counts of whom nothing is known… Constant of ours.
const USUAL_RATIO: f64 = 2.0;
/// …and twice as much after each so many milliseconds for which it was merged. Constant of ours.
const DOUBLING_MS: f64 = 60_000.0;
/// In a merge of so many it is seen what is usual. Of two learners nobody knows which one lies, and a bound would make
/// the schedule of a fast one beside a slow one wait. Constant of ours.
const PARTS_MIN: usize = 3;

/// Whether it is believed of the sender of an update that it trains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Belief {
    /// Nothing is known for sure.
    #[default]
    Open,
    /// Its updates show it.
    Shown,
    /// Its updates do not show it though they should: its tokens count for nothing.
    Doubted,
}

impl Belief {
    pub(super) fn is_open(&self) -> bool {
        *self == Self::Open
    }
}

/// Tokens that one learner usually has in a merge of a fragment: the lower median of the last merge of three or more;
/// `before` that, 0 for unknown, if this one is of fewer.
pub(crate) fn usual_tokens(before: u64, tokens: impl ExactSizeIterator<Item = u64>) -> u64 {
    if tokens.len() < PARTS_MIN { before } else { lower_median(tokens.map(|tokens| tokens as f64)) as u64 }
}

/// Tokens of a learner that wait to be counted once an update of `tokens` is merged, beside the `early` ones that
/// waited before.
///
/// With the update at most as many of those are counted as it has itself, so that the schedule never jumps. Where it
/// was `usual` before to have so many in a merge, 0 for unknown, a learner that was merged for `merged_ms` is counted
/// for `2 · 2^(merged minutes)` times that, unless its updates show that it trains.
pub(crate) fn early_tokens(belief: Belief, usual: u64, merged_ms: u64, early: u64, tokens: u64) -> u64 {
    if belief == Belief::Doubted {
        return early;
    }
    let due = tokens.saturating_add(early.min(tokens));
    let is_bounded = belief == Belief::Open && usual > 0;
    let most = USUAL_RATIO * libm::exp2(merged_ms as f64 / DOUBLING_MS) * usual as f64;
    let counted = if is_bounded { due.min(most as u64) } else { due };
    early.saturating_add(tokens) - counted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_say_what_is_usual_and_two_do_not() {
        let usual = |before, tokens: &[u64]| usual_tokens(before, tokens.iter().copied());
        assert_eq!(usual(0, &[900, 10]), 0);
        assert_eq!(usual(7, &[900, 10]), 7, "as it was before");
        assert_eq!(usual(7, &[900, 10, 12]), 12);
        assert_eq!(usual(7, &[900, 10, 900, 12]), 12, "not even half of them");
    }

    /// Goal: of who claims much only twice the usual counts at first, and all of it in the end, without a jump.
    #[test]
    fn what_is_early_waits_until_its_learner_is_known() {
        let wait = |merged_ms, early| early_tokens(Belief::Open, 10, merged_ms, early, 100);
        assert_eq!(wait(0, 0), 80);
        assert_eq!(wait(0, 80), 160);
        assert_eq!(wait(60_000, 160), 220, "40 count after a minute");
        assert_eq!(wait(180_000, 220), 160, "and 160 after three");
        assert_eq!(wait(240_000, 160), 60, "no more than twice its own");
        assert_eq!(wait(240_000, 60), 0);
        assert_eq!(wait(u64::MAX, 0), 0);
    }

    #[test]
    fn who_shows_that_it_trains_waits_for_nothing_and_a_suspect_for_ever() {
        assert_eq!(early_tokens(Belief::Shown, 10, 0, 0, 100), 0);
        assert_eq!(early_tokens(Belief::Shown, 10, 0, 300, 100), 200);
        assert_eq!(
            early_tokens(Belief::Doubted, 10, 0, 300, 100),
            300,
            "what it sends is not merged for good"
        );
        assert_eq!(early_tokens(Belief::Open, 0, 0, 0, 100), 0, "nobody knows what is usual");
        assert_eq!(early_tokens(Belief::Open, 10, 0, 0, 20), 0, "who is as fast as others waits for nothing");
    }

    proptest::proptest! {
        /// No token is counted twice or lost, whatever is claimed: what waits is part of what was merged.
        #[test]
        fn no_more_waits_than_was_merged(claims in proptest::collection::vec((0_u64..1 << 40, 0_u64..400_000), 1..50)) {
            let (mut early, mut merged, mut schedule) = (0, 0, 0);
            for (tokens, merged_ms) in claims {
                early = early_tokens(Belief::Open, 50, merged_ms, early, tokens);
                merged += tokens;
                proptest::prop_assert!(early <= merged);
                let counted = merged - early;
                proptest::prop_assert!(counted >= schedule && counted - schedule <= 2 * tokens);
                schedule = counted;
            }
        }
    }
}
