//! An open connection that falls silent.

use std::cell::Cell;

use super::*;
use crate::run::session::Session;
use archipelago_core::driver::{Doubling, Waits};

/// Runs a learner with a patience of `first_ms` whose syncer falls silent once, and returns its events.
fn with_patience(first_ms: u64, hurries: bool) -> Vec<Event> {
    let fake = FakeSyncer::start(Script { mute_after_receipts: Some(3), ..Script::default() });
    let (control, events) = (Control::new(), RefCell::new(Vec::new()));
    let merged_then = Cell::new(None);
    let observe = |event: &Event| {
        events.borrow_mut().push(event.clone());
        match (event, merged_then.get()) {
            (Event::Disconnected { .. }, None) => merged_then.set(Some(merged(&events.borrow()))),
            (Event::Progress(_), None) if hurries => control.reconnect(),
            (Event::Receipt { .. }, Some(then)) if merged(&events.borrow()) > then + 3 => control.stop(),
            _ => {}
        }
    };
    let config = RunConfig { run_ms_max: Some(20_000), ..config(&fake.address) };
    let build = async |spec: &_, _| Ok(HostEngine::new(spec, Toy::new())?);
    let patience = Doubling { first_ms, longest_ms: 60_000 };
    let waits = Waits { patience, ..Waits::default() };
    let session = Session::with(config, waits, &control, build, observe).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(session.run()).unwrap();
    assert!(
        merged_then.get().is_some_and(|then| merged(&events.borrow()) > then + 3),
        "it is taken in again"
    );
    events.into_inner()
}

fn why_disconnected(events: &[Event]) -> Vec<&str> {
    let reasons = events.iter().filter_map(|event| match event {
        Event::Disconnected { reason, .. } => Some(reason.as_str()),
        _ => None,
    });
    reasons.collect()
}

#[test]
fn comes_back_after_a_silence() {
    let events = with_patience(2_000, false);
    assert_eq!(why_disconnected(&events), ["nothing was heard for 2 s"]);
}

#[test]
fn comes_back_sooner_in_a_hurry() {
    let events = with_patience(9_000, true);
    assert_eq!(why_disconnected(&events), ["nothing was heard for a while"]);
}
