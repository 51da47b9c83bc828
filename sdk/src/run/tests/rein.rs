//! A learner that its run's owner slows down or disconnects.

use std::cell::Cell;

use super::*;
use archipelago_core::diloco::syncer::Input;
use archipelago_core::wire::{LearnerId, Share};

const LEARNER: LearnerId = LearnerId(1);

fn reports(events: &[Event]) -> impl Iterator<Item = &Report> {
    events.iter().filter_map(|event| match event {
        Event::Progress(report) => Some(&**report),
        _ => None,
    })
}

#[test]
fn rests_as_the_owner_of_the_run_has_it() {
    let fake = FakeSyncer::start(Script::default());
    let share = Share::new(0.25).unwrap();
    let asked = Cell::new(false);
    let (result, events) = learn(config(&fake.address), |events| {
        if merged(events) >= 1 && !asked.replace(true) {
            fake.order(Input::Pace { learner: LEARNER, share });
        }
        reports(events).any(|report| report.share < 1.0) && merged(events) >= 6
    });
    assert_eq!(result.unwrap().share, 0.25);
    assert_eq!(reports(&events).next().map(|report| report.share), Some(1.0));
    let slowed = reports(&events).find(|report| report.share < 1.0).unwrap().to_string();
    assert!(slowed.contains("slowed down by the run's owner to 25 % of its pace"), "{slowed}");
}

#[test]
fn computes_for_a_quarter_of_the_time_if_that_is_its_share() {
    let fake = FakeSyncer::start(Script::default());
    let asked = Cell::new(false);
    let slowed = |events: &[Event]| -> Vec<(u64, u64)> {
        let slowed = reports(events).filter(|report| report.share < 1.0);
        slowed.map(|report| (report.elapsed_ms, report.train_ms)).collect()
    };
    let (result, events) = learn(config(&fake.address), |events| {
        if merged(events) >= 1 && !asked.replace(true) {
            fake.order(Input::Pace { learner: LEARNER, share: Share::new(0.25).unwrap() });
        }
        slowed(events).len() > 7
    });
    assert!(result.is_ok(), "{result:?}");
    let slowed = slowed(&events);
    let (first, last) = (slowed[0], slowed[slowed.len() - 1]);
    let share = (last.1 - first.1) as f64 / (last.0 - first.0) as f64;
    assert!((0.05..0.4).contains(&share), "{share} of the time: {slowed:?}");
}

/// Makes a learner owe more rest than the test lasts, then calls `relieve`. Returns true if it trained again.
fn trains_again_after(relieve: impl Fn(&FakeSyncer, &Control)) -> bool {
    let fake = FakeSyncer::start(Script::default());
    let (stage, steps) = (Cell::new(0), Cell::new(0));
    let (result, _) = steer(config(&fake.address), |events, control| {
        let Some(Event::Progress(report)) = events.last() else { return };
        let reached = match stage.get() {
            0 => merged(events) > 0,
            1 => report.share < 1.0,
            _ => report.steps > steps.get(),
        };
        if !reached {
            return;
        }
        steps.set(report.steps);
        match stage.replace(stage.get() + 1) {
            0 => fake.order(Input::Pace { learner: LEARNER, share: Share::new(0.01).unwrap() }),
            // From here on each step is followed by minutes of rest.
            1 => control.set_duty_cycle(0.001).unwrap(),
            2 => relieve(&fake, control),
            _ => control.stop(),
        }
    });
    result.unwrap();
    stage.get() > 3
}

#[test]
fn a_raised_duty_cycle_ends_the_rest_owed_before() {
    assert!(trains_again_after(|_, control| control.set_duty_cycle(1.0).unwrap()));
}

#[test]
fn a_pace_raised_while_it_was_away_ends_the_rest_owed_before() {
    assert!(trains_again_after(|fake, _| {
        fake.order(Input::Drop { learner: LEARNER, wait_ms: 300 });
        fake.order(Input::Pace { learner: LEARNER, share: Share::FULL });
    }));
}

#[test]
fn stays_away_for_as_long_as_it_is_told_and_no_longer() {
    let fake = FakeSyncer::start(Script::default());
    let (asked, before) = (Cell::new(false), Cell::new(0));
    let (result, events) = learn(config(&fake.address), |events| {
        if merged(events) >= 1 && !asked.replace(true) {
            fake.order(Input::Drop { learner: LEARNER, wait_ms: 1_500 });
            before.set(merged(events));
        }
        merged(events) > before.get() + 3
            && count(events, |event| matches!(event, Event::Disconnected { .. })) > 0
    });
    assert!(result.unwrap().updates_merged > 1);
    let gone: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::Disconnected { reason, retry_ms } => Some((reason.as_str(), *retry_ms)),
            _ => None,
        })
        .collect();
    assert_eq!(gone, [("the owner of the run dropped this learner for a while", 1_500)]);
    let away: Vec<_> = reports(&events).filter_map(|report| report.offline.as_ref()?.code).collect();
    assert!(!away.is_empty() && away.iter().all(|&code| code == 4014), "{away:?}");
    // It reconnects once, at the permitted time.
    assert_eq!(fake.script(|script| script.hellos.len()), 2);
}

/// Goal: a page that is opened again during the wait of its learner is not treated as unreachable.
#[test]
fn a_newcomer_that_is_told_to_wait_is_not_without_contact() {
    let goodbye = Bye { wait_ms: 1_000, ..bye(CloseCode::Dropped) };
    let fake = FakeSyncer::start(Script { goodbyes: vec![goodbye], ..Script::default() });
    let patience = RunConfig { contact_ms_max: 300, ..config(&fake.address) };
    let (result, _) = learn(patience, |events| merged(events) >= 1);
    assert!(result.is_ok(), "{result:?}");
    assert_eq!(fake.script(|script| script.hellos.len()), 2);
}
