//! Rounds of a fragment with experts.

use super::*;
use crate::diloco::{Layout, MergeClass, Tensor};

/// A fragment with two experts of one layer, one of them per token.
fn fragment_of_experts() -> (Rounds, Verifier) {
    let tensor = |name: &str| Tensor { name: name.into(), rows: 4, cols: 8, merge: MergeClass::Radial };
    let layout = Layout::new(vec![tensor("l.experts.0.w"), tensor("l.experts.1.w")]).unwrap();
    let fragments = Arc::new(Fragments::plan(&layout, 1.try_into().unwrap()));
    let (Rounds { terms, .. }, verifier) = fragment();
    let terms = RoundTerms {
        segments: fragments.segments(P).unwrap().to_vec(),
        experts: fragments.experts(P).to_vec(),
        mixture: Some(Mixture { count: 2, per_token: 1 }),
        ..terms
    };
    let codec = verifier.codec();
    let state = FragmentState::new(vec![0.0; fragments.len(P)]);
    (Rounds::new(terms, state), Verifier::new(fragments, codec))
}

/// Goal: an expert is merged by its routed tokens, squared over the steps, and the tape records those weights.
#[test]
fn experts_are_merged_by_their_tokens() {
    let (mut rounds, verifier) = fragment_of_experts();
    rounds.launch(Millis(100), launch(7, &[ANNE, BERT]));
    for (learner, seen) in [(ANNE, [80, 0]), (BERT, [20, 60])] {
        let answer = update_of_experts(&rounds, &verifier, 7, 0.25, &seen);
        rounds.answer(Millis(130), learner, answer, &TRUSTED).unwrap();
    }
    let found = merge(&mut rounds, Millis(140)).entry.experts;
    let weights: Vec<&[f64]> = found.iter().map(|expert| &expert.weights[..]).collect();
    assert_eq!(weights, [&[640.0, 40.0][..], &[0.0, 360.0]]);
    assert!(found.iter().all(|expert| expert.absent <= 0.1), "{found:?}");
}

/// Goal: a liar's tokens count only as far as it can have trained, and a wrong number of experts is refused.
#[test]
fn what_cannot_be_is_not_believed_of_experts() {
    let (mut rounds, verifier) = fragment_of_experts();
    rounds.launch(Millis(100), launch(7, &[ANNE, BERT]));
    let lie = update_of_experts(&rounds, &verifier, 7, 0.25, &[u64::MAX, u64::MAX]);
    rounds.answer(Millis(130), ANNE, lie, &TRUSTED).unwrap();
    let honest = update_of_experts(&rounds, &verifier, 7, 0.25, &[40, 40]);
    rounds.answer(Millis(130), BERT, honest, &TRUSTED).unwrap();
    let found = merge(&mut rounds, Millis(140)).entry.experts;
    assert!(found.iter().all(|expert| expert.weights == [160.0, 160.0]), "{found:?}");

    rounds.launch(Millis(200), launch(8, &[ANNE]));
    let strange = update_of_experts(&rounds, &verifier, 8, 0.25, &[80]);
    assert_eq!(
        rounds.answer(Millis(230), ANNE, strange, &TRUSTED).unwrap_err(),
        Fate::Refused(Refusal::Shape)
    );
}
