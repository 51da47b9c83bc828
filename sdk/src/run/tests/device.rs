//! Tests of the learner's loop with an engine on a device: late update bodies, and losses of the device.

use std::cell::RefCell;
use std::rc::Rc;

use archipelago_core::driver::{Doubling, Waits};
use archipelago_runtime::engine::EngineError;

use super::super::fake::{DEVICE_MS, Device, DeviceEngine, EngineBehaviour, STEP_MS};
use super::super::session::LearnerSession;
use super::*;

const TOKENS_PER_STEP: u64 = 8;

fn alive(late_steps: Option<u64>, life_steps: Option<u64>) -> EngineBehaviour {
    EngineBehaviour::Alive { late_steps, life_steps }
}

/// Outcome of a run on a device.
struct DeviceOutcome {
    result: Result<Report, RunError>,
    events: Vec<Event>,
    device: Device,
}

/// Runs a learner until `enough` returns true. After a loss of the device it reconnects at once.
fn learn_on(
    plans: &[EngineBehaviour],
    fake: &FakeSyncer,
    enough: impl Fn(&[Event]) -> bool,
) -> DeviceOutcome {
    steer(&Device::new(plans), &Control::new(), fake, enough)
}

fn steer(
    device: &Rc<RefCell<Device>>,
    control: &Control,
    fake: &FakeSyncer,
    enough: impl Fn(&[Event]) -> bool,
) -> DeviceOutcome {
    let mut events = Vec::new();
    let observe = |event: &Event| {
        events.push(event.clone());
        if enough(&events) {
            control.stop();
        }
    };
    let build = async |spec: &_, inputs: EngineInputs| DeviceEngine::open(device, spec, inputs.moments).await;
    let waits = Waits { losses: Doubling { first_ms: 1, longest_ms: 2 }, ..Waits::default() };
    let session = LearnerSession::with(config(&fake.address), waits, control, build, observe).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let result = runtime.block_on(session.run());
    DeviceOutcome { result, events, device: device.take() }
}

fn afresh(events: &[Event]) -> usize {
    count(events, |event| matches!(event, Event::Afresh { .. }))
}

#[test]
fn bodies_that_come_two_steps_late_are_merged() {
    let fake = FakeSyncer::start(FaultScript::default());
    let outcome = learn_on(&[alive(Some(2), None)], &fake, |events| merged(events) >= 6);
    let report = outcome.result.unwrap();
    assert!(report.updates_merged >= 6 && report.updates_refused == 0, "{report:?}");
    assert!(report.tokens_merged > 0 && report.tokens_merged <= report.tokens_trained, "{report:?}");
    assert_eq!(outcome.device.given, [None]);
}

#[test]
fn device_is_waited_for_during_rest() {
    let fake = FakeSyncer::start(FaultScript::default());
    let control = Control::new();
    control.set_duty_cycle(0.5).unwrap();
    let device = Device::new(&[alive(None, None)]);
    let outcome = steer(&device, &control, &fake, |events| merged(events) >= 6);
    let report = outcome.result.unwrap();
    assert!(report.updates_merged >= 6, "{report:?}");
    // The device's time is part of the training time, although the calls of the steps returned earlier. The time
    // after the last step belongs to no step.
    let steps_done = outcome.device.steps_done;
    let worked_ms = STEP_MS * report.steps + DEVICE_MS * (steps_done - 1);
    assert!(steps_done > 1 && report.train_ms >= worked_ms, "{worked_ms} ms: {report:?}");
}

#[test]
fn bodies_in_progress_are_sent_before_leaving() {
    let fake = FakeSyncer::start(FaultScript::default());
    let control = Control::new();
    let device = Device::new(&[alive(None, None)]);
    device.borrow_mut().leave_at_body = Some(control.clone());
    let outcome = steer(&device, &control, &fake, |_| false);
    assert!(outcome.result.is_ok(), "{:?}", outcome.result);
    let (updates, byes) = fake.script(|script| (script.updates, script.byes.len()));
    assert!(updates > 0 && byes == 1, "{updates} updates, {byes} goodbyes");
}

#[test]
fn a_lost_device_is_replaced_and_the_moments_go_on() {
    let fake = FakeSyncer::start(FaultScript::default());
    let plans = [alive(Some(1), Some(40)), alive(Some(1), Some(30)), alive(Some(1), None)];
    let outcome = learn_on(&plans, &fake, |events| {
        afresh(events) == 2 && matches!(events.last(), Some(Event::Receipt { fate: Fate::Merged { .. }, .. }))
    });
    let report = outcome.result.unwrap();
    assert!(report.tokens_merged > 0 && report.tokens_merged <= report.tokens_trained, "{report:?}");
    let reasons = outcome.events.iter().filter_map(|event| match event {
        Event::Afresh { reason } => Some(reason.as_str()),
        _ => None,
    });
    assert_eq!(reasons.collect::<Vec<_>>(), ["the device was lost: the test says so"; 2]);
    let given: Vec<_> = outcome.device.given.iter().map(|given| given.as_ref().map(|m| m.steps)).collect();
    assert_eq!(given, [None, Some(40), Some(70)]);
    assert!(matches!(&outcome.device.given[1], Some(state) if state.vectors[0].iter().all(|m| *m == 40.0)));
    let hellos = fake.script(|script| script.hellos.clone());
    assert_eq!(hellos.len(), 3);
    assert!(
        hellos
            .iter()
            .all(|hello| hello.identity == Key::from_secret(&[5; 32]).identity() && hello.run.is_none())
    );
}

#[test]
fn progress_on_a_lost_device_is_not_claimed() {
    let fake = FakeSyncer::start(FaultScript::default());
    // The first engine delivers no body: it trains without interruption until its first leases end.
    let plans = [alive(None, Some(60)), alive(Some(0), None)];
    let outcome = learn_on(&plans, &fake, |events| merged(events) >= 4);
    assert!(outcome.result.is_ok(), "{:?}", outcome.result);
    let [60, steps] = outcome.device.steps[..] else { panic!("{:?}", outcome.device.steps) };
    for p in 0..2 {
        let tokens = outcome.events.iter().map(|event| match event {
            Event::Receipt { fragment, fate: Fate::Merged { tokens, .. }, .. } if fragment.0 == p => *tokens,
            _ => 0,
        });
        let claimed: u64 = tokens.sum();
        assert!(claimed > 0 && claimed <= TOKENS_PER_STEP * steps, "{claimed} tokens in {steps} steps");
    }
}

#[test]
fn losses_with_merges_in_between_do_not_end_the_run() {
    let fake = FakeSyncer::start(FaultScript::default());
    let device = Device::new(&[alive(Some(0), Some(30))]);
    // Steps that take time allow the syncer's thread to merge an update of each engine, even on a busy machine.
    device.borrow_mut().window_ms = 2;
    let outcome = steer(&device, &Control::new(), &fake, |events| afresh(events) > 8);
    assert!(outcome.result.is_ok(), "{:?}", outcome.result);
}

#[test]
fn losses_without_end_end_the_run() {
    let fake = FakeSyncer::start(FaultScript::default());
    let plans = [alive(None, Some(1)), EngineBehaviour::LostAtStart, alive(None, Some(0))];
    let outcome = learn_on(&plans, &fake, |_| false);
    let lost = matches!(&outcome.result, Err(RunError::Engine(EngineError::Lost { .. })));
    assert!(lost, "{:?}", outcome.result);
    assert_eq!((outcome.device.given.len(), afresh(&outcome.events)), (8, 7));
}

#[test]
fn an_engine_that_cannot_be_built_ends_the_run() {
    let fake = FakeSyncer::start(FaultScript::default());
    let outcome = learn_on(&[EngineBehaviour::Oversized], &fake, |_| false);
    let refused = matches!(&outcome.result, Err(RunError::Build(EngineError::HostMemory { .. })));
    assert!(refused, "{:?}", outcome.result);
}
