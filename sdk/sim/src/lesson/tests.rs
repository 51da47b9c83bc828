//! Tests of lessons: deterministic results, and the effect of each action.

use std::{env, fs};

use archipelago_core::diloco::MergeRule;
use archipelago_core::wire::{Code, Refusal};
use serde::{Deserialize, Serialize};

use super::*;

fn spec() -> LessonSpec {
    LessonSpec { islands: 3, ..LessonSpec::default() }
}

fn act(at_ms: u32, island: u32, deed: Deed) -> Action {
    Action { at_ms, island, deed, factor: 1.0 }
}

/// Returns a lesson of `spec` with `actions`, advanced to `ms` milliseconds.
fn lesson(spec: LessonSpec, actions: &[Action], ms: u64) -> Lesson {
    let mut lesson = Lesson::new(spec).unwrap();
    for action in actions {
        lesson.act(*action).unwrap();
    }
    lesson.advance(ms);
    lesson
}

fn twin(spec: LessonSpec, actions: &[Action], ms: u64) -> Twin {
    let mut twin = Twin::new(spec).unwrap();
    for action in actions {
        twin.act(*action).unwrap();
    }
    twin.advance(ms);
    twin
}

#[test]
fn both_learn_and_the_sample_changes() {
    let (mut lesson, mut twin) = (lesson(spec(), &[], 0), twin(spec(), &[], 0));
    let before = lesson.sample(40);
    assert_eq!(before, twin.sample(40), "both begin alike");
    lesson.advance(20_000);
    twin.advance(20_000);
    let (of_lesson, of_twin) = (lesson.frame(), twin.frame());
    let (loss, twins) = (of_lesson.run.held_out.unwrap(), of_twin.held_out.unwrap());
    assert!(loss < 2.6 && twins < 2.6, "{loss} {twins}");
    assert!(f64::from(loss) > of_lesson.run.floor);
    assert_ne!(lesson.sample(40), before);
    assert!(of_lesson.run.participation > 0.9 && of_lesson.run.goodput > 0.9, "{:?}", of_lesson.run);
    assert!(of_twin.goodput < of_lesson.run.goodput, "lock-step pays for the spread: {}", of_twin.goodput);
}

/// Goal: during a merge, a sample comes from the latest measured Θ, never from the initial one.
#[test]
fn a_sample_is_never_from_before_training() {
    let mut lesson = lesson(spec(), &[], 0);
    let before = lesson.sample(16);
    for at_ms in 10_000..10_600 {
        lesson.advance(at_ms);
        assert_ne!(lesson.sample(16), before, "at {at_ms} ms");
    }
}

#[test]
fn a_dead_island_stops_the_twin_alone() {
    let kill = [act(5_000, 1, Deed::Kill)];
    let (mut lesson, mut twin) = (lesson(spec(), &kill, 6_000), twin(spec(), &kill, 6_000));
    let before = (lesson.frame(), twin.frame());
    lesson.advance(12_000);
    twin.advance(12_000);
    let after = (lesson.frame(), twin.frame());
    assert_eq!(after.0.islands[1].state, IslandState::Dead);
    assert_eq!(after.0.islands[1].steps, before.0.islands[1].steps);
    assert!(after.0.run.tokens_merged > before.0.run.tokens_merged + 50 * 128);
    assert_eq!(after.1.steps, before.1.steps);
    assert_eq!(after.1.stalled_by, [1]);

    lesson.act(act(0, 1, Deed::Restart)).unwrap();
    twin.act(act(0, 1, Deed::Restart)).unwrap();
    lesson.advance(16_000);
    twin.advance(16_000);
    assert!(lesson.frame().islands[1].steps > after.0.islands[1].steps);
    let twin = twin.frame();
    assert!(twin.steps > after.1.steps && twin.stalled_by.is_empty());
    let stall = TwinMark::Stall { island: 1, from_ms: 5_000, until_ms: Some(12_000) };
    assert!(twin.marks.contains(&stall), "{:?}", twin.marks);
}

#[test]
fn poison_is_refused_by_the_one_and_ruins_the_other() {
    let poison = [act(8_000, 0, Deed::Poison)];
    let (mut lesson, mut twin) = (lesson(spec(), &poison, 8_000), twin(spec(), &poison, 8_000));
    let before = (lesson.frame().run.held_out.unwrap(), twin.frame().held_out.unwrap());
    lesson.advance(16_000);
    twin.advance(16_000);
    let (after, twins) = (lesson.frame(), twin.frame());
    assert!(after.run.refused > 0 && after.islands[0].poisoned, "{:?}", after.run);
    assert!(after.marks.iter().any(|mark| matches!(mark, Mark::Refused { island: 0, .. })));
    assert!(after.run.held_out.unwrap() < before.0, "{before:?} {:?}", after.run);
    assert!(twins.held_out.unwrap() > before.1, "{before:?} {:?}", twins.held_out);
    lesson.act(act(0, 0, Deed::Cure)).unwrap();
    let merged = after.islands[0].merged;
    lesson.advance(24_000);
    let cured = lesson.frame();
    assert!(cured.islands[0].stopped.is_none() && cured.islands[0].merged > merged, "{:?}", cured.islands[0]);
}

#[test]
fn poison_is_refused_in_every_code() {
    for code in [Code::Int4, Code::E3m0, Code::Int2, Code::Int1, Code::F32] {
        let spec = LessonSpec { code, ..spec() };
        let run = lesson(spec, &[act(3_000, 0, Deed::Poison)], 6_000).frame();
        assert!(run.run.refused > 0, "{code:?}: {:?}", run.run);
        let refused = run.marks.iter().filter_map(|mark| match mark {
            Mark::Refused { island, why, .. } => Some((*island, *why)),
            _ => None,
        });
        let refused: Vec<(u32, Refusal)> = refused.collect();
        assert!(refused.iter().all(|refusal| *refusal == (0, Refusal::Norm)), "{code:?}: {refused:?}");
    }
}

/// Goal: honest updates are not refused when they grow. The warm-up raises the learning rate a hundredfold after many
/// updates have entered the norm statistics.
#[test]
fn no_honest_update_is_refused_for_having_grown() {
    for seed in [1, 4] {
        let spec = LessonSpec { seed, islands: 8, spread: 0.1, ..spec() };
        let run = lesson(spec, &[], 12_000).frame().run;
        assert!(run.refused == 0 && run.participation > 0.85, "seed {seed}: {run:?}");
    }
}

#[test]
fn a_partition_heals_and_nothing_is_lost() {
    let actions = [act(4_000, 2, Deed::Partition), act(9_000, 2, Deed::Heal)];
    let mut lesson = lesson(spec(), &actions, 8_000);
    let cut = lesson.frame();
    assert!(
        cut.islands[2].partitioned && cut.islands[2].tokens > cut.islands[2].merged + 20 * 128,
        "it trains on"
    );
    lesson.advance(20_000);
    let healed = lesson.frame();
    assert!(healed.run.participation > 0.9, "{:?}", healed.run);
    let twin = twin(spec(), &actions, 20_000).frame();
    assert!(twin.goodput < 0.75, "{}", twin.goodput);
}

#[test]
fn islands_that_come_later_speed_both_up() {
    let spec = LessonSpec { late: 1, late_ms: 3_000, kilobytes_per_s: 200, ..spec() };
    let (mut lesson, mut twin) = (lesson(spec, &[], 2_900), twin(spec, &[], 2_900));
    assert_eq!((lesson.frame().run.live, twin.frame().tokens % (2 * 128)), (2, 0));
    lesson.advance(10_000);
    twin.advance(10_000);
    assert_eq!(lesson.frame().run.live, 3);
    let steps = twin.frame().marks.into_iter().filter_map(|mark| match mark {
        TwinMark::Step { from_ms, until_ms, .. } => Some((from_ms, until_ms)),
        _ => None,
    });
    let steps: Vec<(u64, u64)> = steps.collect();
    let gap = steps.windows(2).map(|pair| pair[1].0 - pair[0].1).max();
    assert!(gap.unwrap() > 1_000, "everybody waits while the new one fetches 370 kB");
}

#[test]
fn action_before_the_start_time_has_no_effect() {
    let spec = LessonSpec { late: 1, late_ms: 3_000, ..spec() };
    let early = [act(1_000, 2, Deed::Restart), act(2_000, 2, Deed::Kill)];
    let (mut run, mut twins) = (lesson(spec, &early, 2_500), twin(spec, &early, 2_500));
    let states: Vec<IslandState> = run.frame().islands.iter().map(|island| island.state).collect();
    assert_eq!(states, [IslandState::Training, IslandState::Training, IslandState::Expected]);
    assert!(twins.frame().stalled_by.is_empty());
    run.advance(6_000);
    twins.advance(6_000);
    assert_eq!(run.digest(), lesson(spec, &[], 6_000).digest());
    assert_eq!(twins.digest(), twin(spec, &[], 6_000).digest());
    assert_eq!(run.frame().islands[2].state, IslandState::Training);
    for run in [lesson(spec, &[act(3_000, 2, Deed::Kill)], 4_000), lesson(spec, &[act(0, 0, Deed::Kill)], 0)]
    {
        let mut run = run;
        assert!(
            run.frame().islands.iter().any(|island| island.state == IslandState::Dead),
            "once it is there"
        );
    }
}

#[test]
fn links_carry_the_model_to_both_and_the_text_to_neither() {
    // Θ has 124 kB, which take 2.5 s.
    let spec = LessonSpec { islands: 2, kilobytes_per_s: 50, latency_ms: 0, ..spec() };
    let actions = [act(6_000, 1, Deed::Kill), act(7_000, 1, Deed::Restart)];
    let marks = lesson(spec, &actions, 12_000).frame().marks;
    let of_lesson: Vec<u64> = marks
        .iter()
        .filter_map(|mark| match mark {
            Mark::Step { island: 1, from_ms, .. } => Some(*from_ms),
            _ => None,
        })
        .collect();
    let marks = twin(spec, &actions, 30_000).frame().marks;
    let of_twin: Vec<u64> = marks
        .iter()
        .filter_map(|mark| match mark {
            TwinMark::Step { from_ms, .. } => Some(*from_ms),
            _ => None,
        })
        .collect();
    let first_after = |steps: &[u64], ms: u64| steps.iter().find(|at| **at >= ms).copied().unwrap() - ms;
    let within = |found: u64, low: u64| assert!((low..low + 600).contains(&found), "{found}, not {low}");
    within(first_after(&of_lesson, 0), 1_240);
    within(first_after(&of_lesson, 7_000), 1_240);
    within(first_after(&of_twin, 0), 2_460);
    // In lockstep, the moments are transferred too.
    within(first_after(&of_twin, 7_000), 3 * 2_460);
}

#[test]
fn a_slow_island_slows_the_twin_alone() {
    let slow = [Action { factor: 5.0, ..act(0, 0, Deed::Slow) }];
    let count =
        |actions: &[Action]| (lesson(spec(), actions, 8_000).frame(), twin(spec(), actions, 8_000).frame());
    let (plain, slowed) = (count(&[]), count(&slow));
    assert!(slowed.0.run.tokens_trained as f64 > 0.6 * plain.0.run.tokens_trained as f64);
    assert!((slowed.1.tokens as f64) < 0.4 * plain.1.tokens as f64);
    assert_eq!(slowed.0.islands[0].slow, 5.0);
}

#[test]
fn a_radial_merge_is_as_long_as_its_updates_and_a_mean_is_shorter() {
    // This is measured late in training, when updates point in different directions.
    let lengths = |merge| {
        let mut lesson = lesson(LessonSpec { islands: 8, spread: 0.1, merge, ..spec() }, &[], 8_000);
        lesson.frame();
        lesson.advance(14_000);
        let length_of = |mark: &Mark| match mark {
            Mark::Merged { shares, length, .. } if shares.len() == 8 => Some(*length),
            _ => None,
        };
        let all: Vec<f64> = lesson.frame().marks.iter().filter_map(length_of).collect();
        assert!(all.len() > 3, "{all:?}");
        all.iter().sum::<f64>() / all.len() as f64
    };
    let (radial, mean) = (lengths(MergeRule::Radial), lengths(MergeRule::Mean));
    assert!((0.9..1.01).contains(&radial), "{radial}");
    assert!(mean < 0.85, "{mean}");
}

#[test]
fn a_far_island_is_merged_on_and_slows_the_twin_alone() {
    let far = [Action { factor: 50.0, ..act(0, 0, Deed::Far) }];
    let count =
        |actions: &[Action]| (lesson(spec(), actions, 20_000).frame(), twin(spec(), actions, 20_000).frame());
    let (plain, moved) = (count(&[]), count(&far));
    let latency_ms = u64::from(spec().latency_ms) + 490;
    assert_eq!(moved.0.islands[0].latency_ms, latency_ms);
    assert!(moved.0.run.tokens_trained as f64 > 0.8 * plain.0.run.tokens_trained as f64);
    assert!(
        moved.0.islands[0].merged as f64 > 0.5 * plain.0.islands[0].merged as f64,
        "{:?}",
        moved.0.islands
    );
    assert!((moved.1.tokens as f64) < 0.5 * plain.1.tokens as f64);
    // After the return, delayed messages arrive first, and then all is as before.
    let back = [far[0], Action { factor: 1.0, ..act(6_000, 0, Deed::Far) }];
    let back = count(&back);
    assert_eq!(back.0.islands[0].latency_ms, u64::from(spec().latency_ms));
    assert!(back.1.tokens > moved.1.tokens);
}

#[test]
fn elastic_twin_continues_without_a_missing_island_and_readmits_it() {
    let elastic = LessonSpec { lockstep: Lockstep::Elastic, ..spec() };
    let (kill, restart) = (act(4_000, 1, Deed::Kill), act(12_000, 1, Deed::Restart));
    let frame = |spec, actions: &[Action]| twin(spec, actions, 20_000).frame();
    let (calm, rigid) = (frame(elastic, &[]), frame(spec(), &[kill]));
    assert_eq!(calm.tokens, frame(spec(), &[]).tokens, "without a fault there is no difference");
    let (left, back) = (frame(elastic, &[kill]), frame(elastic, &[kill, restart]));
    assert!(rigid.tokens < left.tokens && left.tokens < back.tokens && back.tokens < calm.tokens);
    assert_eq!((left.stalled_by.len(), rigid.stalled_by.len()), (0, 1));
    let stalls = |frame: &TwinFrame| {
        let stall = |mark: &TwinMark| match *mark {
            TwinMark::Stall { from_ms, until_ms, .. } => Some((from_ms, until_ms)),
            _ => None,
        };
        frame.marks.iter().filter_map(stall).collect::<Vec<_>>()
    };
    assert_eq!(stalls(&left), [(4_000, Some(7_000))]);
    // A disconnection of less than 3 s costs only the wait. Without any island, the run does not continue.
    let mended = [act(4_000, 1, Deed::Partition), act(5_000, 1, Deed::Heal)];
    assert_eq!(stalls(&frame(elastic, &mended)), [(4_000, Some(5_000))]);
    let all = [0, 1, 2].map(|island| act(4_000, island, Deed::Kill));
    assert_eq!(stalls(&frame(elastic, &all)), [(4_000, None)]);
    let cut_before_it_comes = LessonSpec { late: 1, late_ms: 5_000, ..elastic };
    assert!(frame(cut_before_it_comes, &[act(1_000, 2, Deed::Partition)]).stalled_by.is_empty());
}

#[test]
fn marks_tell_a_round_from_launch_to_apply() {
    let mut lesson = lesson(spec(), &[], 6_000);
    let marks = lesson.frame().marks;
    let merged = marks.iter().find_map(|mark| match mark {
        Mark::Merged { round, shares, .. } if shares.len() == 3 => Some((*round, shares.clone())),
        _ => None,
    });
    let (round, shares) = merged.expect("a round in which all took part");
    assert!((shares.iter().map(|share| share.share).sum::<f32>() - 1.0).abs() < 1e-5, "{shares:?}");
    let has = |is: &dyn Fn(&Mark) -> bool| marks.iter().any(is);
    assert!(has(&|mark| matches!(mark, Mark::Launched { round: r, .. } if *r == round)));
    assert!(has(&|mark| matches!(mark, Mark::Quorum { round: r, .. } if *r == round)));
    assert!(has(&|mark| matches!(mark, Mark::Answered { round: r, .. } if *r == Some(round))));
    assert!(has(&|mark| matches!(mark, Mark::Applied { .. })));
    let glimpses: Vec<&Vec<i8>> = marks
        .iter()
        .filter_map(|mark| match mark {
            Mark::Parcel { what: ParcelKind::Update, glimpse, .. } => Some(glimpse),
            _ => None,
        })
        .collect();
    assert!(!glimpses.is_empty());
    assert!(glimpses.iter().all(|codes| codes.len() == 32 && codes.iter().all(|code| code.abs() <= 7)));
    assert!(lesson.frame().marks.is_empty(), "each mark is told once");
}

#[test]
fn frequency_of_frames_does_not_change_results() {
    let actions = [act(1_234, 1, Deed::Kill), act(2_345, 1, Deed::Restart)];
    let (whole, twins) = (lesson(spec(), &actions, 4_000), twin(spec(), &actions, 4_000));
    let (mut sliced, mut sliced_twin) = (Lesson::new(spec()).unwrap(), Twin::new(spec()).unwrap());
    for ms in (0..=4_000).step_by(17).chain([4_000]) {
        if ms == 0 {
            for action in actions {
                sliced.act(action).unwrap();
                sliced_twin.act(action).unwrap();
            }
        }
        sliced.advance(ms);
        sliced_twin.advance(ms);
        sliced.frame();
        sliced_twin.frame();
    }
    assert_eq!(sliced.digest(), whole.digest());
    assert_eq!(sliced_twin.digest(), twins.digest());
    assert_ne!(lesson(LessonSpec { seed: 2, ..spec() }, &actions, 4_000).digest(), whole.digest());
}

/// Expected results of a lesson. A test in Chromium compares its results with the same file.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Golden {
    spec: LessonSpec,
    actions: Vec<Action>,
    until_ms: u64,
    lesson: String,
    twin: String,
}

/// Goal: the digests equal those in the file. If a change of bits is intended, renew it with `cargo xtask test --bless
/// lesson`.
#[test]
fn digests_are_those_of_every_machine() {
    const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/lesson.json");
    let spec = LessonSpec { islands: 4, loss: 0.05, kilobytes_per_s: 400, ..LessonSpec::default() };
    let actions = vec![
        act(3_000, 1, Deed::Kill),
        act(4_000, 2, Deed::Partition),
        Action { factor: 3.0, ..act(5_000, 3, Deed::Slow) },
        act(6_000, 1, Deed::Restart),
        act(7_500, 2, Deed::Heal),
        act(9_000, 0, Deed::Poison),
        Action { factor: 30.0, ..act(10_000, 2, Deed::Far) },
    ];
    let until_ms = 15_000;
    let (lesson, twin) = (lesson(spec, &actions, until_ms).digest(), twin(spec, &actions, until_ms).digest());
    let found = Golden { spec, actions, until_ms, lesson, twin };
    if env::var_os("ARCHIPELAGO_TEST_BLESS").is_some() {
        fs::write(FILE, serde_json::to_string_pretty(&found).unwrap() + "\n").unwrap();
    }
    let expected: Golden = serde_json::from_str(&fs::read_to_string(FILE).unwrap()).unwrap();
    assert_eq!(found, expected);
}

const LIES_MS: u32 = 8_000;

/// Returns the loss when the last `liars` of five islands begin to lie, and the frame 12 s later.
fn losses(bounds: Bounds, liars: u32) -> (f32, Frame) {
    let spec = LessonSpec { merge: MergeRule::Mean, bounds, ..LessonSpec::default() };
    let lies: Vec<Action> = (0..liars).map(|i| act(LIES_MS, 4 - i, Deed::Lie)).collect();
    let mut run = lesson(spec, &lies, LIES_MS.into());
    let before = run.frame().run.held_out.unwrap();
    run.advance(u64::from(LIES_MS) + 12_000);
    (before, run.frame())
}

#[test]
fn a_bounded_liar_is_outvoted_and_one_without_bounds_is_not() {
    let (before, bounded) = losses(Bounds::On, 1);
    assert!(bounded.run.held_out.unwrap() < before - 0.05, "{before} {:?}", bounded.run);
    assert!(bounded.islands[4].lies && !bounded.islands[4].poisoned);
    assert_eq!((bounded.run.refused, bounded.run.live), (0, 5), "nothing about a lie is refused");
    let (before, free) = losses(Bounds::Off, 1);
    assert!(free.run.held_out.unwrap() > before + 0.02, "{before} {:?}", free.run);
}

#[test]
fn in_spite_of_the_bounds_two_of_five_keep_a_run_where_it_is_and_three_spoil_it() {
    let (before, two) = losses(Bounds::On, 2);
    assert!((two.run.held_out.unwrap() - before).abs() < 0.2, "{before} {:?}", two.run);
    let (before, three) = losses(Bounds::On, 3);
    assert!(three.run.held_out.unwrap() > before + 0.5, "{before} {:?}", three.run);
}

#[test]
fn a_lie_is_added_up_in_lock_step_until_it_ends() {
    let spec = LessonSpec::default();
    let lies = [act(4_000, 4, Deed::Lie)];
    let (honest, mut lied) = (twin(spec, &[], 8_000).frame(), twin(spec, &lies, 4_000));
    let before = lied.frame().held_out.unwrap();
    lied.advance(8_000);
    let found = lied.frame();
    assert!(found.held_out.unwrap() > before, "{before} {:?}", found.held_out);
    assert_eq!(found.steps, honest.steps, "a lie takes as long as the truth");
    lied.act(act(8_000, 4, Deed::Cure)).unwrap();
    lied.advance(10_000);
    let (worst, cured) = (found.held_out.unwrap(), lied.frame().held_out.unwrap());
    assert!(cured < worst, "{worst} {cured}");
}
