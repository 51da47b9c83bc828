//! The experts of a fragment: which tensors are one expert's, and how many tokens are believed to have gone through it.
//!
//! An expert is merged by the tokens that it saw and not by all that its learner trained on. Experts are found by the
//! names of tensors, as Mixtral's and others' are: `….experts.3.w1.weight` is one of expert 3 of its layer.

use serde::{Deserialize, Serialize};

use crate::wire::Mixture;

/// One expert with tensors in a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentExpert {
    /// Which it is in the layout, in the order of first tensors, from 0.
    pub index: u32,
    /// Which of the layers with experts it belongs to, from 0.
    pub layer: u32,
}

/// What updates weigh in the merge of one expert.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ExpertWeights {
    /// Each update's, by learner; 0 where it saw no token.
    pub weights: Vec<f64>,
    /// As if so much had sent zeros.
    pub absent: f64,
}

/// The names of its layer and of the expert that a tensor is a part of, if it is one of an expert's.
pub(super) fn expert_of(tensor: &str) -> Option<(&str, &str)> {
    const MARK: &str = ".experts.";
    let start = tensor.find(MARK)?;
    let number = start + MARK.len();
    let len = tensor[number..].find('.')?;
    let is_number = len > 0 && tensor[number..][..len].bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| (&tensor[..start], &tensor[..number + len]))
}

/// Tokens that count for each expert of a fragment, `[experts]`, of an update that claims `claimed` tokens, of which
/// `counted` count, and says that its experts saw `seen`, `[experts]` or nothing. `mixture` is known of a model that is
/// described.
///
/// A token goes through an expert once at most, and through `per_token` of a layer: nobody is believed more than
/// `counted` for an expert, nor more than `counted · per_token` for those of a layer together. Who says nothing counts
/// as one whose tokens went to all experts alike.
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
    // Experts of a layer are neighbours.
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
        /// Whatever is claimed, an expert counts for no more tokens than its update, and a layer for no more than
        /// each of these through as many experts as a token has.
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
