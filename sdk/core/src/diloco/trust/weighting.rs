//! Weights of updates in a merge.

use serde::{Deserialize, Serialize};

use super::{SenderTrust, TrustLevel};
use crate::diloco::ExpertWeights;

/// Largest share of one learner in a merge of three or more.
const HALF: f64 = 0.5;

/// Weight multiplier for a suspected learner. It is not zero, so that loss checks can still examine its updates. Our
/// own constant.
const SUSPECTED_FACTOR: f64 = 1e-6;

/// Bounds on the weights of updates in a merge.
///
/// The weight of an update is quantity times quality, `tokens · tokens / steps` (Decoupled DiLoCo). Two rules reduce
/// the weight of long or old updates. Two more bound the share of a single learner and that of all newcomers.
/// tests/evidence/STALENESS.md measures the effect of the first three on the loss: runs need the bound on a learner.
/// The cap on steps improves the loss by 0.8 points after absences of a thousand steps and costs nothing otherwise.
/// Decay by age is no better than the cap.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WeightBounds {
    /// Largest share of one learner, as a multiple of the mean share in a merge, above 1; 0 for no bound. Among three
    /// or more learners it is also at most half. If a learner in the merge is proven, a checked but unproven learner
    /// has at most the mean share.
    pub share_ratio_max: f64,
    /// Number of steps above which the weight of an update no longer grows, in multiples of H, above 0; 0 for no cap.
    pub turns_max: f64,
    /// Half-life of the weight of an update, in versions of its fragment since its base, above 0; 0 for no decay.
    pub half_life_turns: f64,
    /// Largest total share of newcomers, above 0; 1 for no bound. It applies if an established learner is in the merge
    /// or was awaited.
    pub newcomers_share_max: f64,
}

impl Default for WeightBounds {
    fn default() -> Self {
        Self { share_ratio_max: 2.0, turns_max: 2.0, half_life_turns: 0.0, newcomers_share_max: 0.15 }
    }
}

/// Properties of an update that determine its weight.
#[derive(Clone, Copy, Debug)]
pub(in crate::diloco) struct Load {
    /// Admitted steps of the update, at least 1.
    pub(in crate::diloco) steps: u32,
    /// Credited tokens, at least 1.
    pub(in crate::diloco) tokens: u64,
    /// Number of versions since the base of the update.
    pub(in crate::diloco) age: u32,
    /// Trust in the sender.
    pub(in crate::diloco) trust: SenderTrust,
}

/// Returns the number of steps from which the norm bound of each update follows. It is the number of admitted steps,
/// except that of a newcomer, which is at most the median over the trusted learners of the round, or over all learners
/// if none is trusted. Steps are a claim, and only those of an established learner are checked against its own pace.
pub(in crate::diloco) fn reaching(loads: &[Load]) -> Vec<u32> {
    let sorted = |is_in: &dyn Fn(&&Load) -> bool| {
        let mut steps: Vec<u32> = loads.iter().filter(is_in).map(|load| load.steps).collect();
        steps.sort_unstable();
        steps
    };
    let known = sorted(&|load| load.trust.level.is_trusted());
    let steps = if known.is_empty() { sorted(&|_| true) } else { known };
    let median = steps.get(steps.len() / 2).copied().unwrap_or(u32::MAX);
    loads
        .iter()
        .map(|load| if load.trust.level.is_trusted() { load.steps } else { load.steps.min(median) })
        .collect()
}

/// Returns the merge weights of updates for one expert. `tokens` are the tokens that each update routed to the expert.
///
/// The weights follow the formula and the bounds of [`WeightBounds`] for those tokens. A learner without routed tokens
/// enters as one with a single token and an update of zeros. The only learner that trained an expert therefore has no
/// larger share of it than of other parameters.
pub(in crate::diloco) fn of_expert(
    influence: &WeightBounds,
    loads: &[Load],
    tokens: impl Iterator<Item = u64> + Clone,
    sync_every: u32,
    is_known_there: bool,
) -> ExpertWeights {
    let seen = loads.iter().zip(tokens.clone());
    let seen: Vec<Load> = seen.map(|(load, tokens)| Load { tokens: tokens.max(1), ..*load }).collect();
    let Weights { updates: mut weights, mut absent } = influence.weights(&seen, sync_every, is_known_there);
    for (weight, _) in weights.iter_mut().zip(tokens).filter(|(_, tokens)| *tokens == 0) {
        absent += std::mem::take(weight);
    }
    ExpertWeights { weights, absent }
}

/// Weights in a merge, not normalised.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::diloco) struct Weights {
    /// Weight of each update, above 0.
    pub(in crate::diloco) updates: Vec<f64>,
    /// Weight of established learners that the round awaited without result.
    pub(in crate::diloco) absent: f64,
}

impl WeightBounds {
    /// Returns the weights of updates. `sync_every` is H, in steps; `is_known_there` is true if the round awaited an
    /// established learner. Newcomers have the same total share whether the awaited learner answered or not. Otherwise
    /// a fast newcomer could have a merge to itself.
    pub(in crate::diloco) fn weights(
        &self,
        loads: &[Load],
        sync_every: u32,
        is_known_there: bool,
    ) -> Weights {
        let mut weights: Vec<f64> = loads.iter().map(|load| self.weight(load, sync_every)).collect();
        // Each group is bounded alone, so that newcomers do not affect the ratios among other learners.
        let of = |at: usize| loads[at].trust;
        let (mut new, known): (Vec<usize>, Vec<usize>) =
            (0..loads.len()).partition(|&at| !of(at).level.is_trusted());
        let suspected: Vec<usize> = new.extract_if(.., |at| of(*at).level == TrustLevel::Suspected).collect();
        for group in [&new, &known, &suspected] {
            let mut its: Vec<f64> = group.iter().map(|&at| weights[at]).collect();
            if self.share_ratio_max > 0.0 {
                bound(&mut its, &self.shares_max(group.iter().map(|&at| of(at).is_proven)));
            }
            group.iter().zip(its).for_each(|(&at, weight)| weights[at] = weight);
        }
        for at in suspected {
            weights[at] = (weights[at] * SUSPECTED_FACTOR).max(f64::MIN_POSITIVE);
            new.push(at);
        }
        let sum = |group: &[usize]| group.iter().map(|&at| weights[at]).sum::<f64>();
        let (of_new, of_known) = (sum(&new), sum(&known));
        let share_max = self.newcomers_share_max;
        if of_known > 0.0 && share_max < 1.0 && of_new > share_max * (of_new + of_known) {
            let factor = share_max / (1.0 - share_max) * of_known / of_new;
            new.iter().for_each(|&at| weights[at] = (weights[at] * factor).max(f64::MIN_POSITIVE));
        }
        let is_apart = of_known == 0.0 && is_known_there && share_max > 0.0 && share_max < 1.0;
        let absent = if is_apart { of_new * (1.0 - share_max) / share_max } else { 0.0 };
        Weights { updates: weights, absent: if absent.is_finite() { absent } else { 0.0 } }
    }

    /// Returns the largest share of each learner in a group. `are_proven` has the results of their loss checks.
    fn shares_max(&self, are_proven: impl ExactSizeIterator<Item = Option<bool>> + Clone) -> Vec<f64> {
        let (count, is_any) = (are_proven.len(), are_proven.clone().any(|is_proven| is_proven == Some(true)));
        // Among three, no learner may outweigh the two others. Between two, it is unclear which of them lies, and a
        // bound would discard most of the progress of a fast learner next to a slow one.
        let most = if count > 2 { HALF } else { 1.0 };
        let share_max = most.min(self.share_ratio_max / count as f64);
        let mean = share_max.min(1.0 / count as f64);
        are_proven
            .map(|is_proven| if is_any && is_proven == Some(false) { mean } else { share_max })
            .collect()
    }

    fn weight(&self, load: &Load, sync_every: u32) -> f64 {
        let (steps, tokens) = (f64::from(load.steps), load.tokens as f64);
        let steps_max = self.turns_max * f64::from(sync_every);
        let counted = if steps_max > 0.0 { (steps_max / steps).min(1.0) } else { 1.0 };
        let halvings =
            if self.half_life_turns > 0.0 { f64::from(load.age) / self.half_life_turns } else { 0.0 };
        // A weight of 0 is invalid in a merge.
        (counted * tokens * tokens / steps * libm::exp2(-halvings)).max(f64::MIN_POSITIVE)
    }
}

/// Lowers as few of `weights` as possible until each is at most its fraction `shares_max` of their sum. The other
/// weights stay unchanged.
///
/// If the fractions of the lowered weights add up to `h` and the other weights to `rest`, the sum is `rest / (1 − h)`.
fn bound(weights: &mut [f64], shares_max: &[f64]) {
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by(|&a, &b| (weights[b] / shares_max[b]).total_cmp(&(weights[a] / shares_max[a])));
    let (mut rest, mut share): (f64, f64) = (weights.iter().sum(), 0.0);
    for (held, &at) in order.iter().enumerate() {
        if share >= 1.0 || weights[at] <= shares_max[at] * rest / (1.0 - share) {
            return;
        }
        rest -= weights[at];
        share += shares_max[at];
        let sum = rest / (1.0 - share);
        if !(sum > 0.0 && sum.is_finite()) {
            return;
        }
        order[..=held].iter().for_each(|&at| weights[at] = shares_max[at] * sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(influence: WeightBounds, loads: &[Load]) -> Vec<f64> {
        let Weights { updates, absent } = influence.weights(loads, 10, true);
        let total = absent + updates.iter().sum::<f64>();
        updates.iter().map(|weight| (1e4 * weight / total).round() / 1e4).collect()
    }

    const NEW: SenderTrust = SenderTrust { level: TrustLevel::Newcomer, is_proven: None };
    const KNOWN: SenderTrust = SenderTrust { level: TrustLevel::Trusted, is_proven: None };

    fn load(steps: u32, trust: SenderTrust) -> Load {
        Load { steps, tokens: u64::from(steps) * 8, age: 0, trust }
    }

    fn steps(steps: &[u32]) -> Vec<Load> {
        steps.iter().map(|&steps| load(steps, KNOWN)).collect()
    }

    const FREE: WeightBounds =
        WeightBounds { share_ratio_max: 0.0, turns_max: 0.0, half_life_turns: 0.0, newcomers_share_max: 1.0 };

    #[test]
    fn quantity_times_quality_without_rules() {
        assert_eq!(shares(FREE, &steps(&[10, 30])), [0.25, 0.75]);
        let quality = [load(10, KNOWN), Load { tokens: 160, age: 9, ..load(10, KNOWN) }];
        assert_eq!(shares(FREE, &quality), [0.2, 0.8], "twice the batch: twice the tokens, twice as good");
    }

    #[test]
    fn shares_are_bounded_and_other_weights_keep_their_ratio() {
        let bounded = WeightBounds { share_ratio_max: 2.0, ..FREE };
        assert_eq!(shares(bounded, &steps(&[10])), [1.0]);
        assert_eq!(shares(bounded, &steps(&[10, 1_000])), [0.0099, 0.9901], "twice the mean of two is all");
        assert_eq!(shares(bounded, &steps(&[1_000, 10, 30])), [0.5, 0.125, 0.375], "no majority of three");
        assert_eq!(shares(bounded, &steps(&[1_000, 10, 30, 10])), [0.5, 0.1, 0.3, 0.1]);
        // The second exceeds its bound only because the first is lowered.
        assert_eq!(
            shares(bounded, &steps(&[10_000, 5_000, 10, 10, 10, 10, 10, 10]))[..3],
            [0.25, 0.25, 0.0833]
        );
    }

    #[test]
    fn long_or_old_updates_can_weigh_less() {
        let long = WeightBounds { turns_max: 2.0, ..FREE };
        assert_eq!(shares(long, &steps(&[10, 20, 1_000])), [0.2, 0.4, 0.4]);
        let old = WeightBounds { half_life_turns: 2.0, ..FREE };
        let ages = [0, 2, 4].map(|age| Load { age, ..load(10, KNOWN) });
        assert_eq!(shares(old, &ages), [0.5714, 0.2857, 0.1429]);
        let ancient = [Load { age: u32::MAX, ..ages[0] }];
        assert_eq!(shares(old, &ancient), [1.0]);
    }

    #[test]
    fn reach_steps_of_newcomers_are_at_most_the_median() {
        let load = |(steps, is_new)| load(steps, if is_new { NEW } else { KNOWN });
        let check = |loads: &[(u32, bool)], expected: &[u32]| {
            let loads: Vec<Load> = loads.iter().copied().map(load).collect();
            assert_eq!(reaching(&loads), expected);
        };
        check(&[(10, false), (40, false), (12, false), (9_000, true), (3, true)], &[10, 40, 12, 12, 3]);
        check(&[(10, true), (11, true), (9_000, true)], &[10, 11, 11]);
        check(&[(9_000, true)], &[9_000]);
    }

    /// Goal: the total share of newcomers is bounded, whatever their number and claims.
    #[test]
    fn newcomers_have_a_small_share_together() {
        let guarded = WeightBounds { share_ratio_max: 2.0, newcomers_share_max: 0.15, ..FREE };
        let new = |steps: u32| load(steps, NEW);
        let known = |steps: u32| load(steps, KNOWN);
        assert_eq!(shares(guarded, &[known(10), new(10), new(10)]), [0.85, 0.075, 0.075]);
        assert_eq!(shares(guarded, &[known(30), known(10), new(10_000)]), [0.6375, 0.2125, 0.15]);
        assert_eq!(shares(guarded, &[known(99), new(1)]), [0.99, 0.01], "less is less");
        assert_eq!(shares(guarded, &[new(10), new(30)]), [0.0375, 0.1125], "nobody else answered");
        let free = guarded.weights(&[new(10), new(30)], 10, false);
        assert_eq!(free, Weights { updates: vec![640.0, 1_920.0], absent: 0.0 }, "nobody else is there");
    }

    /// Goal: expert weights follow routed tokens, and an update without routed tokens has weight 0.
    #[test]
    fn expert_weights_follow_routed_tokens() {
        let of = |influence: &WeightBounds, loads: &[Load], tokens: &[u64]| {
            let ExpertWeights { weights, absent } =
                of_expert(influence, loads, tokens.iter().copied(), 10, true);
            let total = absent + weights.iter().sum::<f64>();
            weights.into_iter().map(|weight| (1e4 * weight / total).round() / 1e4).collect::<Vec<f64>>()
        };
        assert_eq!(of(&FREE, &steps(&[10, 10]), &[30, 10]), [0.9, 0.1], "squares over steps");
        assert_eq!(of(&FREE, &steps(&[10, 30]), &[30, 30]), [0.75, 0.25]);
        assert_eq!(of(&FREE, &steps(&[10, 10, 10]), &[4_000, 0, 4_000]), [0.5, 0.0, 0.5]);
        assert_eq!(of(&WeightBounds::default(), &steps(&[10, 10]), &[80, 0]), [0.9998, 0.0]);
        // The only one of four learners that trained the expert has the same share as of other parameters.
        assert_eq!(of(&WeightBounds::default(), &steps(&[10; 4]), &[80, 0, 0, 0]), [0.5, 0.0, 0.0, 0.0]);
        assert_eq!(of(&WeightBounds::default(), &steps(&[10; 8]), &[80, 0, 0, 0, 0, 0, 0, 0])[0], 0.25);
        assert_eq!(of(&FREE, &steps(&[10, 10]), &[0, 0]), [0.0, 0.0], "nobody trained it");
    }

    proptest::proptest! {
        /// Goal: whatever tokens are claimed for an expert, the bounds on one learner and on all newcomers hold for it.
        #[test]
        fn no_claim_takes_more_of_an_expert_than_the_caps_allow(
            claims in proptest::collection::vec((0_u64..1_000_000, 1_u32..100, proptest::bool::ANY), 3..12),
        ) {
            let load = |&(tokens, steps, is_new): &(u64, u32, bool)|
                Load { steps, tokens, age: 0, trust: if is_new { NEW } else { KNOWN } };
            let loads: Vec<Load> = claims.iter().map(load).collect();
            let influence = WeightBounds::default();
            let found = of_expert(&influence, &loads, claims.iter().map(|claim| claim.0), 10, true);
            let total = found.absent + found.weights.iter().sum::<f64>();
            let share = |is_new: bool, of: &dyn Fn(f64, f64) -> f64| {
                let both = found.weights.iter().zip(&loads);
                both.filter(|(_, load)| load.trust.level.is_trusted() != is_new).map(|(w, _)| w / total).fold(0.0, of)
            };
            let known = loads.iter().filter(|load| load.trust.level.is_trusted()).count();
            if known > 2 {
                let most = HALF.min(influence.share_ratio_max / known as f64);
                proptest::prop_assert!(share(false, &f64::max) <= most + 1e-9, "{found:?}");
            }
            let new = share(true, &|a, b| a + b);
            proptest::prop_assert!(new <= influence.newcomers_share_max + 1e-9, "{found:?}");
            for (weight, claim) in found.weights.iter().zip(&claims) {
                proptest::prop_assert_eq!(*weight == 0.0, claim.0 == 0);
            }
        }
    }

    #[test]
    fn unproven_learners_have_at_most_the_mean_share_next_to_proven_ones() {
        let bounded = WeightBounds { share_ratio_max: 2.0, ..FREE };
        let looked = |steps, is_proven| load(steps, SenderTrust { is_proven, ..KNOWN });
        let (shown, open) = (|steps| looked(steps, Some(true)), |steps| looked(steps, Some(false)));
        assert_eq!(shares(bounded, &[open(90), open(10), open(10), open(10)]), [0.5, 0.1667, 0.1667, 0.1667]);
        assert_eq!(shares(bounded, &[open(90), shown(10), open(10), open(10)]), [0.25, 0.25, 0.25, 0.25]);
        assert_eq!(shares(bounded, &[shown(90), shown(10), open(10), open(10)])[0], 0.5);
        assert_eq!(shares(bounded, &[open(900), shown(90), open(10), open(10)]), [0.25, 0.5, 0.125, 0.125]);
        assert_eq!(shares(bounded, &[open(1), shown(10), shown(10), shown(10)])[0], 0.0323, "less is less");
        assert_eq!(
            shares(bounded, &[looked(90, None), shown(10), shown(10), open(10)])[0],
            0.5,
            "nobody looks"
        );
        assert_eq!(shares(FREE, &[open(90), shown(10)]), [0.9, 0.1], "no bound is none");
    }

    /// Goal: suspects have almost no share, whatever their number, and do not reduce the share of newcomers.
    #[test]
    fn suspects_have_next_to_nothing() {
        let guarded = WeightBounds { share_ratio_max: 2.0, newcomers_share_max: 0.15, ..FREE };
        let suspect = load(10, SenderTrust { level: TrustLevel::Suspected, ..NEW });
        let (known, new) = (load(10, KNOWN), load(10, NEW));
        assert_eq!(shares(guarded, &[known, suspect, suspect, suspect]), [1.0, 0.0, 0.0, 0.0]);
        assert_eq!(shares(guarded, &[known, new, suspect, suspect]), [0.85, 0.15, 0.0, 0.0]);
        assert_eq!(shares(guarded, &[suspect, suspect]), [0.075, 0.075], "nobody else answered");
        assert!(guarded.weights(&[known, suspect], 10, true).updates[1] > 0.0);
    }
}
