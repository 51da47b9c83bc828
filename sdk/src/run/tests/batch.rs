//! The loop on devices too small or slow for the run's batch of 2 windows.

use std::cell::RefCell;
use std::rc::Rc;

use super::super::fake_device::{Device, DeviceEngine, Plan};
use super::super::session::Session;
use super::*;
use archipelago_core::driver::{Doubling, Waits};
use archipelago_runtime::engine::EngineError;

/// Maximum step time that counts as fitting, in microseconds.
const STEP_US_MAX: u64 = 45_000;
/// Time of a slow device for one window, in milliseconds. Two windows exceed the maximum.
const WINDOW_MS: u64 = 30;

const ALIVE: Plan = Plan::Alive { late_steps: Some(0), life_steps: None };

/// Outcome of a run on a device.
struct Outcome {
    result: Result<Report, RunError>,
    events: Vec<Event>,
    device: Device,
    /// Batches reported to the syncer.
    told: Vec<u32>,
}

/// Runs until some updates are merged and `enough` returns true.
fn learn(batch: BatchChoice, plans: &[Plan], window_ms: u64, enough: impl Fn(&[Event]) -> bool) -> Outcome {
    let (fake, control) = (FakeSyncer::start(Script::default()), Control::new());
    let device: Rc<RefCell<Device>> = Device::new(plans);
    device.borrow_mut().window_ms = window_ms;
    let mut events = Vec::new();
    let observe = |event: &Event| {
        events.push(event.clone());
        if merged(&events) >= 4 && enough(&events) {
            control.stop();
        }
    };
    let build = async |spec: &_, basis: Basis| DeviceEngine::open(&device, spec, basis.moments).await;
    let waits = Waits { losses: Doubling { first_ms: 1, longest_ms: 2 }, ..Waits::default() };
    let config = RunConfig { batch, ..config(&fake.address) };
    let mut session = Session::with(config, waits, &control, build, observe).unwrap();
    session.step_us_max = STEP_US_MAX;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let result = runtime.block_on(session.run());
    let told = fake.script(|script| script.batches.clone());
    Outcome { result, events, device: device.take(), told }
}

/// Batches reported to the owner.
fn shown(events: &[Event]) -> Vec<u32> {
    let batch =
        |event: &Event| if let Event::Welcomed { batch, .. } = event { Some(batch.get()) } else { None };
    events.iter().filter_map(batch).collect()
}

/// Merged tokens by receipt, of the fragment with the most.
fn tokens_merged(events: &[Event]) -> u64 {
    let tokens = |p| {
        events.iter().map(move |event| match event {
            Event::Receipt { fragment, fate: Fate::Merged { tokens, .. } } if fragment.0 == p => *tokens,
            _ => 0,
        })
    };
    (0..2).map(|p| tokens(p).sum()).max().unwrap_or(0)
}

#[test]
fn a_slow_device_takes_half_of_the_batch_and_is_merged_with_it() {
    let outcome = learn(BatchChoice::AUTO, &[ALIVE], WINDOW_MS, |_| true);
    let report = outcome.result.unwrap();
    assert_eq!((&outcome.device.batches[..], &outcome.told[..]), (&[2, 1][..], &[1][..]));
    assert_eq!((shown(&outcome.events), outcome.device.steps[0]), (vec![1], 0));
    assert_eq!(report.tokens_trained, 4 * report.steps, "a window of 4 tokens in each step");
    let merged = tokens_merged(&outcome.events);
    assert!(merged > 0 && merged <= report.tokens_trained, "{merged} merged of {report:?}");
    assert_eq!(report.updates_refused, 0);
}

#[test]
fn a_fast_device_takes_the_batch_of_the_run() {
    let outcome = learn(BatchChoice::AUTO, &[ALIVE], 0, |_| true);
    let report = outcome.result.unwrap();
    assert_eq!((&outcome.device.batches[..], &outcome.told[..]), (&[2][..], &[2][..]));
    assert_eq!((shown(&outcome.events), report.tokens_trained), (vec![2], 8 * report.steps));
}

#[test]
fn a_batch_that_is_given_is_taken_untried() {
    let outcome = learn(BatchChoice::given(3).unwrap(), &[ALIVE], WINDOW_MS, |_| true);
    let report = outcome.result.unwrap();
    assert_eq!((&outcome.device.batches[..], &outcome.told[..]), (&[3][..], &[3][..]));
    assert_eq!((outcome.device.rehearsals, report.tokens_trained), (0, 12 * report.steps));
    let given = BatchChoice::given(3).unwrap();
    let outcome = learn(given, &[Plan::Oversized], 0, |_| true);
    let refused = matches!(&outcome.result, Err(RunError::Build(EngineError::HostMemory { .. })));
    assert!(refused && outcome.device.batches == [3], "{:?}", outcome.result);
}

#[test]
fn too_little_memory_halves_the_batch() {
    let outcome = learn(BatchChoice::AUTO, &[Plan::Oversized, ALIVE], 0, |_| true);
    assert!(outcome.result.is_ok(), "{:?}", outcome.result);
    assert_eq!((&outcome.device.batches[..], &outcome.told[..]), (&[2, 1][..], &[1][..]));
    let outcome = learn(BatchChoice::AUTO, &[Plan::Oversized], 0, |_| true);
    let refused = matches!(&outcome.result, Err(RunError::Build(EngineError::HostMemory { .. })));
    assert!(refused && outcome.device.batches == [2, 1], "{:?}", outcome.result);
}

/// Goal: the batch found for a device is not searched again after a loss, and the moments are kept.
#[test]
fn the_next_engine_begins_with_the_batch_that_fitted() {
    let dies = Plan::Alive { late_steps: Some(0), life_steps: Some(5) };
    let outcome =
        learn(BatchChoice::AUTO, &[ALIVE, dies, ALIVE], WINDOW_MS, |events| shown(events).len() == 2);
    assert!(outcome.result.is_ok(), "{:?}", outcome.result);
    assert_eq!((&outcome.device.batches[..], &outcome.told[..]), (&[2, 1, 1][..], &[1, 1][..]));
    let given: Vec<_> = outcome.device.given.iter().map(|given| given.as_ref().map(|m| m.steps)).collect();
    assert_eq!(given, [None, Some(0), Some(5)], "an engine that was given up leaves its moments, too");
}
