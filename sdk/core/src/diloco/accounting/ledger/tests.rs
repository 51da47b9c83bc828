//! Tests of the ledger on its own.

use super::*;
use crate::diloco::{MergeEntry, Part};
use crate::testing;
use crate::wire::{LateReason, Version};

fn merged(tokens: u64) -> Fate {
    Fate::Merged { version: Version(1), weight: 1.0, tokens }
}

#[test]
fn an_identity_keeps_its_number() {
    let mut ledger = Ledger::new(vec![1]);
    let first = ledger.enrol(&Identity([1; 32]), "a", "cpu");
    let second = ledger.enrol(&Identity([2; 32]), "b", "cpu");
    assert_eq!((first, second), ((LearnerId(1), false), (LearnerId(2), false)));
    assert_eq!(ledger.enrol(&Identity([1; 32]), "c", "gpu"), (LearnerId(1), true));
    assert_eq!(ledger.account(LearnerId(1)).map(|a| a.name.as_str()), Some("c"));
}

#[test]
fn tokens_merged_are_weighted_by_fragment() {
    let mut ledger = Ledger::new(vec![30, 10]);
    let (learner, _) = ledger.enrol(&Identity([1; 32]), "a", "cpu");
    ledger.settle(learner, FragmentId(0), Serial(1), &merged(100));
    assert_eq!(ledger.clock_tokens(), 75);
    ledger.settle(learner, FragmentId(1), Serial(2), &merged(100));
    assert_eq!(ledger.clock_tokens(), 100);
    assert_eq!(ledger.tokens_trained(), 100, "merged tokens were trained on, whatever was said");
    ledger.lease(learner, 200);
    ledger.report(learner, 200);
    assert!((ledger.participation() - 0.5).abs() < 1e-12);
}

#[test]
fn tokens_count_up_to_the_lease() {
    let mut ledger = Ledger::new(vec![1, 1]);
    let (learner, _) = ledger.enrol(&Identity([1; 32]), "a", "cpu");
    assert_eq!(ledger.countable(learner, FragmentId(0), 10), 0);
    ledger.lease(learner, 100);
    ledger.settle(learner, FragmentId(0), Serial(1), &merged(70));
    assert_eq!(ledger.countable(learner, FragmentId(0), 50), 30);
    assert_eq!(ledger.countable(learner, FragmentId(1), 50), 50);
    assert_eq!(ledger.countable(LearnerId(9), FragmentId(1), 50), 0);
}

#[test]
fn no_word_of_a_learner_counts_beyond_its_lease() {
    let mut ledger = Ledger::new(vec![1]);
    let learners = [1, 2].map(|i| ledger.enrol(&Identity([i; 32]), "a", "cpu").0);
    for learner in learners {
        ledger.lease(learner, 100);
        ledger.report(learner, 60);
        assert_eq!(ledger.account(learner).unwrap().trained(), 60);
        ledger.report(learner, u64::MAX);
    }
    assert_eq!(ledger.tokens_trained(), 0, "the word of who never sent anything");
    learners.iter().for_each(|&learner| ledger.note_update(learner));
    assert_eq!(ledger.tokens_trained(), 200);
}

#[test]
fn what_follows_from_the_accounts_is_found_again() {
    let mut ledger = Ledger::new(vec![30, 10]);
    let identities = [1, 2, 3].map(|i| Identity([i; 32]));
    for (identity, tokens) in identities.iter().zip([10, 0, 70]) {
        let (learner, _) = ledger.enrol(identity, "a", "cpu");
        if tokens > 0 {
            ledger.settle(learner, FragmentId(1), Serial(1), &merged(tokens));
        }
    }
    assert_eq!(ledger.evict(|_| true), Some(LearnerId(2)), "it left no trace");
    let text = serde_json::to_string(&ledger).unwrap();
    let read: Ledger = serde_json::from_str(&text).unwrap();
    assert_eq!(read, ledger);
    assert_eq!(read.clock_tokens(), 20);
    let known = identities.map(|identity| read.find(&identity));
    assert_eq!(known, [Some(LearnerId(1)), None, Some(LearnerId(3))]);
    assert!(serde_json::from_str::<Ledger>(&text.replacen('{', "{\"extra\":1,", 1)).is_err());
}

#[test]
fn each_fate_is_counted() {
    let mut ledger = Ledger::new(vec![1]);
    let (learner, _) = ledger.enrol(&Identity([1; 32]), "a", "cpu");
    let fates = [
        merged(1),
        Fate::Late(LateReason::RoundOver),
        Fate::Refused(Refusal::Norm),
        Fate::Refused(Refusal::Shape),
    ];
    for fate in &fates {
        ledger.settle(learner, FragmentId(0), Serial(1), fate);
    }
    let account = ledger.account(learner).unwrap();
    assert_eq!((account.fates.total(), account.refused_in_a_row), (4, 2));
}

/// Merges an update of `learner` on each of two fragments, `after_ms` after the previous one.
fn turn(ledger: &mut Ledger, learner: LearnerId, after_ms: Option<u64>) {
    for p in [0, 1] {
        let part = Part { after_ms, ..testing::part(learner, 1) };
        ledger.note_merge(&testing::merge(FragmentId(p), part));
        ledger.settle(learner, FragmentId(p), Serial(1), &merged(1));
    }
}

/// Goal: neither rapid merges nor a long wait end a probation; in a young run, half of its time does.
#[test]
fn a_newcomer_is_known_after_merges_and_time() {
    let known_after = |after_ms, longest_ms| {
        let mut ledger = Ledger::new(vec![1, 1]);
        let (learner, _) = ledger.enrol(&Identity([1; 32]), "a", "cpu");
        turn(&mut ledger, learner, None);
        (1..100_000).find(|_| {
            turn(&mut ledger, learner, Some(after_ms));
            !ledger.is_newcomer(learner, longest_ms)
        })
    };
    let old = 2 * PROBATION_MS;
    assert_eq!(known_after(10, old), Some(60_000), "ten minutes, however many merges that is");
    assert_eq!(known_after(10, u64::MAX), Some(60_000));
    assert_eq!(known_after(u64::MAX, old), Some(8), "who waits between two merges needs as many as eight");
    assert_eq!(known_after(10, 60_000), Some(3_000), "of a run that is a minute old a half is enough");
    assert_eq!(known_after(10, 0), Some(7), "nobody is there who was ever merged, but for itself");
}

#[test]
fn a_pace_is_known_once_time_has_passed_between_merges() {
    let mut ledger = Ledger::new(vec![1, 1]);
    let (learner, _) = ledger.enrol(&Identity([1; 32]), "a", "cpu");
    turn(&mut ledger, learner, None);
    turn(&mut ledger, learner, Some(0));
    assert_eq!(ledger.pace(learner), None);
    turn(&mut ledger, learner, Some(16));
    assert_eq!(ledger.pace(learner), Some(0.125), "4 tokens in 32 ms");
}

/// Merges one update of each learner from 1 on, on the first of two fragments of equal size. `parts` gives its
/// tokens, and whether the learner is proven. Each update comes 10 s after the previous one.
fn merge(ledger: &mut Ledger, parts: &[(u64, bool)]) {
    let part = |(&(tokens, is_shown), learner): (&(u64, bool), u32)| Part {
        after_ms: Some(10_000),
        is_shown,
        ..testing::part(LearnerId(learner), tokens)
    };
    let parts: Vec<Part> = parts.iter().zip(1..).map(part).collect();
    ledger.note_merge(&MergeEntry { parts: parts.clone(), ..testing::merge(FragmentId(0), parts[0]) });
    for part in parts {
        ledger.settle(part.learner, FragmentId(0), Serial(1), &merged(part.tokens));
    }
}

/// Creates a ledger with three learners and two fragments.
fn three() -> Ledger {
    let mut ledger = Ledger::new(vec![1, 1]);
    let _ = [1, 2, 3].map(|i| ledger.enrol(&Identity([i; 32]), "a", "cpu"));
    ledger
}

/// Returns how far a merge advances the clock and the schedule. A process that continues from a snapshot counts
/// alike.
fn moved(ledger: &mut Ledger, parts: &[(u64, bool)]) -> (u64, u64) {
    let before = (ledger.clock_tokens(), ledger.schedule_tokens());
    merge(ledger, parts);
    let text = serde_json::to_string(ledger).unwrap();
    assert_eq!(serde_json::from_str::<Ledger>(&text).unwrap(), *ledger);
    (ledger.clock_tokens() - before.0, ledger.schedule_tokens() - before.1)
}

/// Goal: claims of an unproven learner advance the schedule as far as two other learners, also in a merge of its own.
/// All its tokens count for the run, and for the schedule once it is proven.
#[test]
fn the_schedule_waits_for_who_is_far_ahead() {
    let mut ledger = three();
    let (open, shown) = (|tokens| (tokens, false), |tokens| (tokens, true));
    assert_eq!(moved(&mut ledger, &[open(1_000), open(100)]), (550, 550), "nobody knows which of two lies");
    assert_eq!(moved(&mut ledger, &[open(100), open(100), open(100)]), (150, 150));
    let (_, at_once) = moved(&mut ledger, &[open(1_000), open(100), open(100)]);
    assert!((200..220).contains(&at_once), "{at_once}");
    let (all, alone) = moved(&mut ledger, &[open(1_000)]);
    assert!(all == 500 && (100..130).contains(&alone), "{alone}");
    let early = ledger.clock_tokens() - ledger.schedule_tokens();
    let (_, back) = moved(&mut ledger, &[shown(1_000), shown(100), shown(100)]);
    assert_eq!(back, 1_100, "twice its own");
    let rest = early - 500;
    assert_eq!(moved(&mut ledger, &[shown(1_000), shown(100), shown(100)]), (600, 600 + rest));
    assert_eq!(ledger.schedule_tokens(), ledger.clock_tokens());
}

/// Goal: time lifts the bound if no learner is proven, and never next to a proven one.
#[test]
fn time_is_no_proof_beside_one() {
    for is_shown in [false, true] {
        let mut ledger = three();
        let last = (0..60).map(|_| moved(&mut ledger, &[(1_000, false), (100, is_shown), (100, is_shown)]));
        assert_eq!(last.last(), Some((600, if is_shown { 200 } else { 600 })));
        assert_eq!(ledger.schedule_tokens() == ledger.clock_tokens(), !is_shown, "all of it was counted");
    }
}

/// Goal: a suspected learner no longer advances the schedule by new updates, early tokens, or an effect on the usual
/// tokens. Its updates in flight do not move the schedule back.
#[test]
fn who_is_suspected_does_not_move_the_schedule() {
    let mut ledger = three();
    let liar = LearnerId(1);
    for _ in 0..3 {
        moved(&mut ledger, &[(1_000, false), (100, false), (100, false)]);
    }
    assert!(ledger.account(liar).unwrap().early_tokens(0) > 2_000);
    ledger.suspect(liar, Some(Suspicion { looks: 9 }));
    assert_eq!(
        moved(&mut ledger, &[(1_000, false), (100, true), (100, true)]),
        (100, 100),
        "it was in flight"
    );
    ledger.suspect(LearnerId(2), Some(Suspicion { looks: 9 }));
    assert_eq!(moved(&mut ledger, &[(9_000, false), (9_000, false), (100, true)]), (50, 50));
    ledger.suspect(liar, None);
    let (_, honest) = moved(&mut ledger, &[(100, true), (9_000, false), (100, true)]);
    assert_eq!(honest, 100, "what it lied is not counted because it trains now");

    moved(&mut ledger, &[(1_000, false), (100, true), (100, true)]);
    ledger.blame(LearnerId(1));
    assert_eq!(ledger.account(liar).unwrap().early_tokens(0), 0);
}
