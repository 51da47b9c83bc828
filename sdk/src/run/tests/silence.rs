//! A connection that stands and brings nothing.

use std::cell::Cell;
use std::net::TcpListener;
use std::ops::RangeInclusive;

use super::*;
use crate::run::session::Session;

const SECOND_US: u64 = 1_000_000;

/// After how many seconds from `from_s` on the link is given up, if looked at every second; none within an hour.
fn given_up_after(link: &mut Link, from_s: u64, awaited: bool) -> Option<u64> {
    (0..3_600).find(|after_s| link.given_up((from_s + after_s) * SECOND_US, awaited).is_some())
}

#[test]
fn a_connection_that_does_not_open_is_given_up() {
    // Its queue takes the connection, and nobody answers.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut link = Link::new(listener.local_addr().unwrap().to_string().parse().unwrap(), 1);
    assert!(link.connect(0));
    assert_eq!(given_up_after(&mut link, 0, false), Some(10));
}

#[test]
fn silence_is_given_up_where_a_word_is_awaited_and_each_time_later() {
    let fake = FakeSyncer::start(Script::default());
    let mut link = Link::new(fake.address.clone(), 1);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let hear = |link: &mut Link, at_s: u64| loop {
        let event = runtime.block_on(link.recv());
        if let Some(event) = link.take(at_s * SECOND_US, event) {
            return event;
        }
    };
    assert!(link.connect(0));
    assert!(matches!(hear(&mut link, 0), LinkEvent::Opened));
    // The answer to the greeting.
    assert_eq!(given_up_after(&mut link, 0, false), Some(60));
    link.drop_connection(60 * SECOND_US, &End::default());
    assert!(link.connect(100 * SECOND_US));
    assert!(matches!(hear(&mut link, 100), LinkEvent::Opened));
    assert_eq!(given_up_after(&mut link, 100, false), Some(120));

    let RunConfig { identity, name, device, .. } = config(&fake.address);
    let hello = Hello { run: None, layout: None, identity, name, device, invite: None };
    link.send(&Message::Hello(hello)).unwrap();
    assert!(matches!(hear(&mut link, 300), LinkEvent::Message(Message::Welcome(_))));
    // It fetches the parameters for an hour, and then takes part.
    assert_eq!(given_up_after(&mut link, 300, false), None);
    assert!(!link.is_doubtful(310 * SECOND_US) && link.is_doubtful(311 * SECOND_US));
    assert_eq!(given_up_after(&mut link, 3_899, true), Some(240));
    // A step of an hour is no silence of the peer.
    assert_eq!(link.given_up(4_200 * SECOND_US, false), None);
    assert_eq!(link.given_up(7_800 * SECOND_US, true), None);
}

/// What becomes of a learner with so much patience whose syncer says nothing any more, but only once.
fn with_patience(patience_us: RangeInclusive<u64>, hurries: bool) -> Vec<Event> {
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
    let mut session = Session::new(config, &control, build, observe).unwrap();
    session.link = Link::within(patience_us, fake.address.clone(), 1);
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
    let events = with_patience(2 * SECOND_US..=SECOND_US * 60, false);
    assert_eq!(why_disconnected(&events), ["nothing was heard for 2 s"]);
}

#[test]
fn comes_back_sooner_in_a_hurry() {
    let events = with_patience(9 * SECOND_US..=SECOND_US * 60, true);
    assert_eq!(why_disconnected(&events), ["nothing was heard for a while"]);
}
