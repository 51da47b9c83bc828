//! Tests of a liar: the effect of influence bounds, their limits, and the effect of a lie in lockstep.

use super::super::*;
use super::{act, lesson, twin};
use archipelago_core::diloco::MergeRule;

const LIES_MS: u32 = 8_000;

/// Returns the loss when the last `liars` of five islands begin to lie, and the frame 12 s later.
fn losses(bounds: Bounds, liars: u32) -> (f32, Frame) {
    let spec = LessonSpec { merge: MergeRule::Mean, bounds, ..LessonSpec::default() };
    let lies: Vec<Action> = (0..liars).map(|i| act(LIES_MS, 4 - i, Deed::Lie)).collect();
    let mut told = lesson(spec, &lies, LIES_MS.into());
    let before = told.frame().run.held_out.unwrap();
    told.advance(u64::from(LIES_MS) + 12_000);
    (before, told.frame())
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
