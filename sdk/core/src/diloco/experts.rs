//! Experts of a fragment: their tensors, and the tokens that are believed to have been routed to them.
//!
//! An expert is merged by its routed tokens, not by all tokens of a learner. Experts are found by tensor names as in
//! Mixtral and other models: `….experts.3.w1.weight` belongs to expert 3 of its layer.

use serde::{Deserialize, Serialize};

use crate::wire::Mixture;

/// One expert with tensors in a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentExpert {
    /// Index in the layout, in the order of first tensors, from 0.
    pub index: u32,
    /// Index of its layer among the layers with experts, from 0.
    pub layer: u32,
}

/// Merge weights of updates for one expert.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExpertWeights {
    /// Weight of each update, by learner; 0 if no token was routed.
    pub weights: Vec<f64>,
    /// Weight of missing updates, which count as zeros.
    pub absent: f64,
}

/// Returns the names of a tensor's layer and expert, if it belongs to an expert.
pub(super) fn expert_of(tensor: &str) -> Option<(&str, &str)> {
    const MARK: &str = ".experts.";
    let start = tensor.find(MARK)?;
    let number = start + MARK.len();
    let len = tensor[number..].find('.')?;
    let is_number = len > 0 && tensor[number..][..len].bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| (&tensor[..start], &tensor[..number + len]))
}

/// Returns the counted tokens for each expert of a fragment, `[experts]`. The update claims `claimed` tokens, of
/// which `counted` count, and reports `seen` tokens for its experts, `[experts]` or nothing. `mixture` is `None`
/// for a model that does not declare its experts.
///
/// A token is routed at most once to an expert, and to `per_token` experts of a layer. So at most `counted` tokens
/// are believed for an expert, and at most `counted · per_token` for all experts of a layer. An update without a
/// report counts as evenly routed.
pub(super) fn believed(
    experts: &[FragmentExpert],
    mixture: Option<Mixture>,
    seen: &[u64],
    claimed: u64,
    counted: u64,
) -> Vec<u64> {
    let part = |of: u64, times: u64, over: u64| {
        (u128::from(of) * u128::from(times) / u128::from(over.max(1))).min(u128::from(counted)) as u64
    };
    if seen.len() != experts.len() {
        let even = mixture.map_or(counted, |mixture| {
            part(counted, mixture.per_token.into(), mixture.count.into()).max(u64::from(counted > 0))
        });
        return vec![even; experts.len()];
    }
    let mut believed: Vec<u64> =
        seen.iter().map(|&seen| part(seen.min(claimed), counted.min(claimed), claimed)).collect();
    let Some(mixture) = mixture else { return believed };
    let most = counted.saturating_mul(mixture.per_token.into());
    let mut start = 0;
    // Experts of a layer are adjacent.
    for layer in experts.chunk_by(|a, b| a.layer == b.layer) {
        let of_layer = &mut believed[start..start + layer.len()];
        let sum = of_layer.iter().fold(0_u64, |sum, seen| sum.saturating_add(*seen));
        if sum > most {
            of_layer.iter_mut().for_each(|seen| *seen = part(*seen, most, sum));
        }
        start += layer.len();
    }
    believed
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIXTURE: Mixture = Mixture { count: 4, per_token: 2 };

    fn experts(layers: &[u32]) -> Vec<FragmentExpert> {
        layers.iter().zip(0..).map(|(&layer, index)| FragmentExpert { index, layer }).collect()
    }

    #[test]
    fn experts_are_known_by_the_names_of_their_tensors() {
        let layer = "model.layers.1.block_sparse_moe";
        let expert = "model.layers.1.block_sparse_moe.experts.12";
        assert_eq!(expert_of(&format!("{expert}.w2.weight")), Some((layer, expert)));
        assert_eq!(expert_of("model.layers.1.block_sparse_moe.gate.weight"), None);
        assert_eq!(expert_of("model.experts.weight"), None);
        assert_eq!(expert_of("model.experts.all.weight"), None);
        assert_eq!(expert_of("model.experts.3"), None, "no tensor of one");
    }

    #[test]
    fn what_an_expert_saw_counts_as_far_as_its_update_does() {
        let two = experts(&[0, 1]);
        let check = |seen: &[u64], counted, expected: &[u64]| {
            assert_eq!(believed(&two, Some(MIXTURE), seen, 100, counted), expected, "{seen:?} {counted}");
        };
        check(&[30, 0], 100, &[30, 0]);
        check(&[30, 0], 50, &[15, 0]);
        check(&[u64::MAX, 7], 100, &[100, 7]);
        check(&[], 100, &[50, 50]);
        check(&[], 1, &[1, 1]);
        assert_eq!(believed(&two, None, &[], 100, 80), [80, 80], "nothing is known of the model");
    }

    proptest! {
        /// For any claim, an expert counts no more tokens than its update, and a layer no more than these times the
        /// experts of one token.
        #[test]
        fn a_liar_is_believed_no_more_than_it_could_have_trained(
            seen in prop::collection::vec(prop_oneof![0_u64..1_000, Just(u64::MAX)], 6),
            claimed in prop_oneof![1_u64..500, Just(u64::MAX)],
            counted in 1_u64..500,
        ) {
            let experts = experts(&[0, 0, 0, 3, 3, 3]);
            let found = believed(&experts, Some(MIXTURE), &seen, claimed, counted);
            prop_assert!(found.iter().all(|&seen| seen <= counted), "{found:?}");
            for layer in found.chunks(3) {
                prop_assert!(layer.iter().sum::<u64>() <= 2 * counted, "{found:?}");
            }
        }

        #[test]
        fn who_is_honest_is_believed(seen in prop::collection::vec(0_u64..=100, 2), tokens in 100_u64..500) {
            let found = believed(&experts(&[0, 0]), Some(MIXTURE), &seen, tokens, tokens);
            prop_assert_eq!(found, seen);
        }
    }
}
