//! Tests of the rounds of one fragment, without a syncer.

use super::*;
use crate::diloco::{
    Fragments, Layout, MergeCause, MergeClass, OuterSpec, Tensor, TrustLevel, UpdateOutcome, checksum,
};
use crate::testing::{layout, spec};
use crate::wire::{ApplyPolicy, LateReason, Refusal, Round, RunId, Update};

const RUN: RunId = RunId(1);
const P: FragmentId = FragmentId(0);
const ANNE: LearnerId = LearnerId(1);
const BERT: LearnerId = LearnerId(2);
/// Facts about a sender whose claims are accepted in full.
const TRUSTED: SenderInfo = SenderInfo {
    step_ms_least: 1.0,
    steps_max: None,
    step_tokens: 8,
    stranger_ms: None,
    unmerged_tokens: 1_000,
    trust: SenderTrust { level: TrustLevel::Trusted, is_proven: None },
    is_in_norm_stats: true,
    clock_tokens: 0,
};

/// Creates the rounds of one fragment, and the verifier of its updates.
fn fragment() -> (Rounds, Verifier) {
    fragment_with(ApplyPolicy::Keep { residue: true })
}

fn fragment_with(apply: ApplyPolicy) -> (Rounds, Verifier) {
    let (spec, fragments) = (spec(), Fragments::plan(&layout(), 3.try_into().unwrap()));
    let (fragments, codec) = (Arc::new(fragments), Codec::new(&spec.exchange).unwrap());
    let terms = RoundTerms {
        fragment: P,
        segments: fragments.segments(P).unwrap().to_vec(),
        experts: fragments.experts(P).to_vec(),
        mixture: spec.model.experts,
        codec,
        inner: spec.inner,
        sync_every: spec.exchange.sync_every,
        is_additive: apply.is_additive(),
        lease_ms: 1_000,
        quorum: QuorumPolicy::default(),
        merge: MergeRule::Radial,
        influence: WeightBounds::default(),
        norm_ratio_max: 20.0,
    };
    let state = FragmentState::new(vec![0.0; fragments.len(P)]);
    (Rounds::new(terms, state), Verifier::new(fragments, codec))
}

/// Creates an update of ten steps in which each value is `value`.
fn update(rounds: &Rounds, verifier: &Verifier, serial: u64, value: f32) -> Verified {
    update_of_experts(rounds, verifier, serial, value, &[])
}

/// Creates an update of ten steps and 80 tokens in which each value is `value`; `seen` has the tokens for each expert.
fn update_of_experts(
    rounds: &Rounds,
    verifier: &Verifier,
    serial: u64,
    value: f32,
    seen: &[u64],
) -> Verified {
    let values = vec![value; rounds.terms.segments.iter().map(|segment| segment.len as usize).sum()];
    let body = rounds.terms.codec.encode(&rounds.terms.segments, &values);
    let (serial, base, checksum) = (Serial(serial), rounds.version(), checksum(&body));
    verifier.verify(Update {
        run: RUN,
        fragment: P,
        serial,
        base,
        steps: 10,
        tokens: 80,
        body,
        checksum,
        seen: seen.to_vec(),
    })
}

fn launch(round: u64, invited: &[LearnerId]) -> Launch {
    let invited = invited.iter().copied().collect();
    Launch { round: Round(round), fragment: P, invited, last_of: None }
}

/// Merges the collected updates at once.
fn merge(rounds: &mut Rounds, now: Millis) -> Merge {
    let job = rounds.merge(now, OuterSpec { lr: 1.0, momentum: 0.0 }, false).expect("it collects");
    let outcome = job.run().expect("it was checked");
    rounds.merged(now.after(5), outcome).expect("it is the job under way")
}

#[test]
fn a_round_from_launch_to_version() {
    let (mut rounds, verifier) = fragment();
    let timing = Timing::default();
    rounds.launch(Millis(100), launch(7, &[ANNE, BERT]));
    let waits = rounds.decide(Millis(100), &timing).unwrap();
    assert!(matches!(waits.decision, Decision::AwaitQuorum { missing: 1, .. }));

    let answer = update(&rounds, &verifier, 7, 0.25);
    let answered = rounds.answer(Millis(130), ANNE, answer, &TRUSTED);
    assert_eq!(answered, Ok(AdmittedAnswer { round: Some(Round(7)), tokens: 80, after_ms: Some(30) }));
    assert_eq!(rounds.pass(Millis(140), BERT).map(|answered| answered.tokens), Some(0));
    let quorum = rounds.reach_quorum(Millis(140)).unwrap();
    assert_eq!((quorum.updates, quorum.after_ms), (1, 40));
    let ends = rounds.decide(Millis(140), &timing).unwrap();
    assert_eq!(ends.decision, Decision::Merge { why: MergeCause::AllAnswered });

    let merge = merge(&mut rounds, Millis(140));
    assert_eq!(
        (merge.entry.base, merge.entry.version, merge.collect_ms, merge.sync_ms),
        (Version(0), Version(7), 40, 5)
    );
    let fate = Fate::Merged { version: Version(7), weight: 1.0, tokens: 80 };
    let (round, serial) = (Some(Round(7)), Serial(7));
    assert_eq!(
        merge.outcomes,
        [UpdateOutcome { round, fragment: P, learner: ANNE, serial, tokens: 80, fate }]
    );
    assert!(
        rounds.is_idle() && rounds.state().unwrap().theta.iter().all(|value| (value + 0.25).abs() < 2e-3)
    );
}

/// Goal: progress over missed merges moves Θ once, and not once for each missed merge; H is six steps.
#[test]
fn outer_step_shrinks_for_updates_that_span_missed_merges() {
    let (mut rounds, verifier) = fragment();
    let mut serial = 0;
    let mut turn = |answers: &[(LearnerId, u32)]| {
        serial += 1;
        rounds.launch(Millis(serial * 1_000), launch(serial, &[ANNE, BERT]));
        for &(learner, steps) in answers {
            let answer = Verified { steps, ..update(&rounds, &verifier, serial, 0.01) };
            rounds.answer(Millis(serial * 1_000 + 5), learner, answer, &TRUSTED).unwrap();
        }
        merge(&mut rounds, Millis(serial * 1_000 + 9)).entry.outer.lr
    };
    assert_eq!(turn(&[(ANNE, 12), (BERT, 12)]), 1.0, "nobody moved anything before");
    assert_eq!(turn(&[(ANNE, 6)]), 1.0);
    assert_eq!(turn(&[(ANNE, 24)]), 1.0, "it is fast, and missed nothing");
    assert_eq!(turn(&[(BERT, 18)]), 1.0 / 3.0, "the two turns before went by without it");
    assert_eq!(turn(&[(ANNE, 6)]), 1.0, "it stood still in the one that it missed");
    assert_eq!(turn(&[(ANNE, 6)]), 1.0);
    let both = turn(&[(ANNE, 6), (BERT, 18)]);
    assert!(both > 1.0 / 3.0 && both < 1.0, "by their weights: {both}");
}

#[test]
fn update_without_a_round_joins_the_next_round() {
    let (mut rounds, verifier) = fragment();
    assert_eq!(rounds.launch(Millis(0), launch(4, &[ANNE, BERT])), [ANNE, BERT]);
    let near = update(&rounds, &verifier, 1, 0.1);
    rounds.answer(Millis(5), ANNE, near, &TRUSTED).unwrap();
    let far = update(&rounds, &verifier, 2, 0.3);
    assert_eq!(merge(&mut rounds, Millis(20)).outcomes.len(), 1);

    let early = rounds.answer(Millis(80), BERT, far.clone(), &TRUSTED);
    assert_eq!(early, Ok(AdmittedAnswer { round: None, tokens: 80, after_ms: Some(80) }));
    assert_eq!((rounds.unresolved(BERT), rounds.has_early()), (Some(Serial(2)), true));
    let again = rounds.answer(Millis(81), BERT, far, &TRUSTED);
    assert_eq!(again, Err(Fate::Refused(Refusal::Unsettled)), "one at a time");

    assert_eq!(rounds.launch(Millis(100), launch(5, &[ANNE, BERT])), [ANNE], "its answer is there");
    rounds.cancel_request(ANNE);
    let verdict = rounds.decide(Millis(100), &Timing::default()).unwrap();
    assert_eq!(verdict.decision, Decision::Merge { why: MergeCause::AllAnswered });
    let outcomes = merge(&mut rounds, Millis(100)).outcomes;
    assert_eq!(outcomes.iter().map(|one| (one.learner, one.serial)).collect::<Vec<_>>(), [(BERT, Serial(2))]);
    assert_eq!(rounds.unresolved(BERT), None);
}

#[test]
fn learner_is_asked_again_only_after_its_connection_is_gone() {
    let (mut rounds, _) = fragment();
    assert_eq!(rounds.launch(Millis(0), launch(4, &[ANNE, BERT])), [ANNE, BERT]);
    rounds.abandon();
    assert!(!rounds.may_ask_ahead(ANNE));
    assert_eq!(rounds.launch(Millis(50), launch(5, &[ANNE, BERT])), []);
    rounds.abandon();
    rounds.cancel_request(ANNE);
    assert!(rounds.may_ask_ahead(ANNE) && !rounds.may_ask_ahead(BERT));
    rounds.ask_ahead(Millis(60), ANNE);
    assert_eq!(rounds.launch(Millis(70), launch(6, &[ANNE, BERT])), []);
    assert_eq!(rounds.pass(Millis(90), ANNE).map(|answered| answered.after_ms), Some(Some(30)));
    assert_eq!(rounds.pass(Millis(91), ANNE), None, "once is enough");
    assert!(rounds.ask_again(Millis(92), BERT) && !rounds.ask_again(Millis(92), ANNE));
}

#[test]
fn overdue_learner_does_not_delay_the_next_round() {
    let (mut rounds, verifier) = fragment();
    rounds.terms.quorum.updates_min = NonZeroU32::new(2).unwrap();
    let decision = |rounds: &mut Rounds, now, serial, number| {
        rounds.launch(Millis(now), launch(number, &[ANNE, BERT]));
        let update = update(rounds, &verifier, serial, 0.1);
        rounds.answer(Millis(now + 10), ANNE, update, &TRUSTED).unwrap();
        rounds.decide(Millis(now + 10), &Timing::default()).unwrap().decision
    };
    let first = decision(&mut rounds, 0, 1, 4);
    assert!(matches!(first, Decision::AwaitQuorum { missing: 1, .. }), "{first:?}");
    merge(&mut rounds, Millis(5_000));
    let second = decision(&mut rounds, 5_100, 2, 5);
    assert!(!matches!(second, Decision::AwaitQuorum { .. }), "{second:?}");
    merge(&mut rounds, Millis(5_200));
    rounds.pass(Millis(5_300), BERT);
    let third = decision(&mut rounds, 5_400, 3, 6);
    assert!(matches!(third, Decision::AwaitQuorum { missing: 1, .. }), "it answers again: {third:?}");
}

#[test]
fn learner_without_an_update_is_asked_ahead_once() {
    let (mut rounds, _) = fragment();
    assert!(rounds.may_ask_ahead(ANNE));
    rounds.ask_ahead(Millis(0), ANNE);
    assert_eq!(rounds.pass(Millis(1), ANNE), None);
    assert!(!rounds.may_ask_ahead(ANNE) && rounds.may_ask_ahead(BERT));
    assert_eq!(rounds.launch(Millis(2), launch(4, &[ANNE])), [ANNE], "the round itself asks");
    rounds.pass(Millis(3), ANNE);
    rounds.abandon();
    assert!(rounds.may_ask_ahead(ANNE));
}

/// Goal: without an additive policy, learners lose their progress with the next version, so late updates are not
/// merged.
#[test]
fn update_must_be_in_time_without_an_additive_policy() {
    let (mut rounds, verifier) = fragment_with(ApplyPolicy::Overwrite);
    let check = |rounds: &mut Rounds, learner, update: Verified, expected: Fate| {
        assert_eq!(rounds.answer(Millis(50), learner, update, &TRUSTED), Err(expected));
    };
    let first = update(&rounds, &verifier, 3, 0.1);
    check(&mut rounds, ANNE, first.clone(), Fate::Late(LateReason::RoundOver));
    rounds.launch(Millis(0), launch(4, &[ANNE]));
    check(&mut rounds, BERT, first.clone(), Fate::Refused(Refusal::NotInvited));
    let stale = Verified { base: Version(9), ..first };
    check(&mut rounds, ANNE, stale, Fate::Late(LateReason::StaleBase));
    rounds.abandon();
    assert!(!rounds.may_ask_ahead(BERT));
    assert_eq!(rounds.launch(Millis(60), launch(5, &[ANNE])), [ANNE], "the question is of another version");
}

#[test]
fn norm_scale_follows_the_rate_and_the_root_of_the_steps() {
    let (mut rounds, _) = fragment();
    let inner = crate::model::Preset::Tiny.inner();
    rounds.terms.inner = inner;
    let clock_tokens = inner.total_tokens / 2;
    let rate = f64::from(crate::diloco::learning_rate(&inner, clock_tokens));
    assert!(rate > 0.0 && rate != 1.0);
    assert_eq!(rounds.norm_scale(1, clock_tokens), rate);
    assert_eq!(rounds.norm_scale(400, clock_tokens), 20.0 * rate);
    // A learning rate of 0 is valid.
    rounds.terms.inner.lr_max = 0.0;
    assert_eq!(rounds.norm_scale(4, clock_tokens), 2.0);
}

#[test]
fn share_of_a_merge_is_bounded_and_reported() {
    let (mut rounds, verifier) = fragment();
    rounds.terms.influence = WeightBounds { turns_max: 0.0, ..WeightBounds::default() };
    let everyone: Vec<LearnerId> = (1..=4).map(LearnerId).collect();
    rounds.launch(Millis(0), launch(4, &everyone));
    for &learner in &everyone {
        let one = update(&rounds, &verifier, 1, 0.1);
        let steps = if learner == ANNE { 100 } else { 10 };
        let one = Verified { steps, tokens: u64::from(steps) * 8, ..one };
        rounds.answer(Millis(5), learner, one, &TRUSTED).unwrap();
    }
    let weights: Vec<f32> = merge(&mut rounds, Millis(9))
        .outcomes
        .iter()
        .map(|one| if let Fate::Merged { weight, .. } = one.fate { weight } else { 0.0 })
        .collect();
    assert_eq!(
        weights,
        [0.5, 1.0 / 6.0, 1.0 / 6.0, 1.0 / 6.0],
        "ten times the steps, at most twice the mean"
    );
}

#[test]
fn refused_update_is_an_answer() {
    let (mut rounds, verifier) = fragment();
    rounds.launch(Millis(0), launch(4, &[ANNE]));
    let huge = update(&rounds, &verifier, 4, 1e9);
    let refused = rounds.answer(Millis(50), ANNE, huge, &TRUSTED);
    assert_eq!(refused, Err(Fate::Refused(Refusal::Norm)));
    let verdict = rounds.decide(Millis(50), &Timing::default()).unwrap();
    assert!(matches!(verdict.decision, Decision::Abandon { .. }), "{verdict:?}");
    rounds.abandon();
    assert!(rounds.is_idle());
}

#[test]
fn tokens_are_credited_up_to_steps_and_leases() {
    let check = |sender: SenderInfo, expected: Result<u64, Fate>| {
        let (mut rounds, verifier) = fragment();
        rounds.count_from(Millis(0), ANNE);
        rounds.launch(Millis(0), launch(4, &[ANNE]));
        let update = update(&rounds, &verifier, 4, 0.1);
        let answered = rounds.answer(Millis(10), ANNE, update, &sender);
        assert_eq!(answered.map(|answered| answered.tokens), expected, "{sender:?}");
    };
    check(TRUSTED, Ok(80));
    check(SenderInfo { unmerged_tokens: 30, ..TRUSTED }, Ok(30));
    check(SenderInfo { unmerged_tokens: 0, ..TRUSTED }, Err(Fate::Refused(Refusal::Unleased)));
    // In 10 ms, a learner at 10 ms per step takes 2 steps with the slack, and H = 6 more are always admitted.
    check(SenderInfo { step_ms_least: 10.0, ..TRUSTED }, Ok(64));
    check(SenderInfo { steps_max: Some(1), ..TRUSTED }, Ok(56));
}

/// Goal: after a restart of the syncer, a learner is credited at most the training of one lease.
#[test]
fn credit_after_a_restart_is_limited_to_one_lease() {
    let (mut rounds, verifier) = fragment();
    rounds.launch(Millis(0), launch(4, &[ANNE]));
    let update = update(&rounds, &verifier, 4, 0.1);
    let slow = SenderInfo { step_ms_least: 2_000.0, ..TRUSTED };
    let answered = rounds.answer(Millis(10), ANNE, update, &slow);
    assert_eq!(answered.map(|answered| answered.tokens), Ok(56), "a step in a second with the slack, and 6");
}

/// Goal: a forgotten learner leaves no state, so that short visits do not fill the memory.
#[test]
fn nothing_is_left_of_who_is_forgotten() {
    let (mut rounds, verifier) = fragment();
    rounds.count_from(Millis(0), ANNE);
    rounds.launch(Millis(0), launch(4, &[ANNE]));
    rounds.abandon();
    assert!(!rounds.may_ask_ahead(ANNE));
    rounds.forget(ANNE);
    assert!(rounds.may_ask_ahead(ANNE), "nothing was asked of it");
    rounds.count_from(Millis(1_000), ANNE);
    let update = update(&rounds, &verifier, 4, 0.1);
    let slow = SenderInfo { step_ms_least: 10.0, ..TRUSTED };
    let answered = rounds.answer(Millis(1_010), ANNE, update, &slow);
    assert_eq!(answered.map(|answered| answered.tokens), Ok(64), "its time counts from when it came");
}

#[test]
fn failed_merge_leaves_the_fragment_unchanged() {
    let (mut rounds, verifier) = fragment();
    rounds.launch(Millis(0), launch(4, &[ANNE]));
    let update = update(&rounds, &verifier, 4, 0.1);
    rounds.answer(Millis(5), ANNE, update, &TRUSTED).unwrap();
    let mut job = rounds.merge(Millis(5), OuterSpec::default(), false).unwrap();
    assert!(rounds.is_merging() && rounds.hat().is_none());
    assert!(
        rounds.merge(Millis(5), OuterSpec::default(), false).is_none() && rounds.is_merging(),
        "one job at a time"
    );
    job.updates.clear();
    let outcomes = rounds.failed(*job.run().unwrap_err()).unwrap();
    assert_eq!(outcomes[0].fate, Fate::Late(LateReason::RoundOver));
    assert_eq!((rounds.is_idle(), rounds.hat().unwrap().0), (true, Version(0)));
}

#[test]
fn outcome_of_another_job_is_ignored() {
    let (mut rounds, verifier) = fragment();
    rounds.launch(Millis(0), launch(4, &[ANNE]));
    let answer = update(&rounds, &verifier, 4, 0.1);
    rounds.answer(Millis(5), ANNE, answer, &TRUSTED).unwrap();
    let job = rounds.merge(Millis(5), OuterSpec::default(), false).unwrap();
    let stranger = crate::diloco::MergeOutcome { round: Round(3), ..job.clone().run().unwrap() };
    assert_eq!(rounds.merged(Millis(6), stranger), None);
    assert!(rounds.is_merging());
    assert!(rounds.merged(Millis(6), job.run().unwrap()).is_some());
}

#[test]
fn last_round_waits_for_all_live_learners() {
    let (mut rounds, verifier) = fragment();
    rounds.launch(Millis(0), Launch { last_of: Some(3), ..launch(4, &[ANNE, BERT]) });
    let update = update(&rounds, &verifier, 4, 0.1);
    rounds.answer(Millis(5), ANNE, update, &TRUSTED).unwrap();
    let decide = |rounds: &mut Rounds| rounds.decide(Millis(5), &Timing::default()).unwrap().decision;
    assert!(matches!(decide(&mut rounds), Decision::AwaitQuorum { .. }));
    rounds.cancel_request(BERT);
    assert!(matches!(decide(&mut rounds), Decision::Merge { .. }));
    assert!(rounds.ask_again(Millis(5), BERT), "it is back");
    assert!(matches!(decide(&mut rounds), Decision::AwaitQuorum { .. }));
}

/// Creates the rounds of a fragment with two experts in one layer, one expert per token.
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

/// Goal: weights for an expert are its routed tokens squared, divided by the steps, and the tape records them.
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

/// Goal: claimed expert tokens are credited only up to those of the update, and a wrong number of experts is refused.
#[test]
fn impossible_expert_tokens_are_not_credited() {
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
