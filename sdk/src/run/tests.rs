//! The loop against a syncer in this process, over real sockets.

mod batch;
mod device;
mod frozen;
mod rein;
mod silence;

use std::cell::RefCell;
use std::rc::Rc;

use futures::future::LocalBoxFuture;

use super::fake::{FakeSyncer, Script};
use super::fake_run::Toy;
use super::link::Link;
use super::{
    Address, Basis, BatchChoice, Control, Event, Folder, Key, Report, RunConfig, RunError, SignError, Signer,
    WeightCache, run,
};
use archipelago_core::diloco::Layout;
use archipelago_core::driver::Input;
use archipelago_core::wire::{
    Bye, Challenge, CloseCode, Fate, Hello, Identity, Invite, Message, RunId, RunSpec, Signature,
};
use archipelago_runtime::engine::HostEngine;

/// Longer than any test needs on a busy machine; reached only if a test hangs.
const HANG_MS: u64 = 60_000;

fn config(address: &Address) -> RunConfig {
    RunConfig {
        address: address.clone(),
        signer: Rc::new(Key::from_secret(&[5; 32])),
        name: "test".to_owned(),
        device: "toy".to_owned(),
        contact_ms_max: HANG_MS,
        reconnect_ms_max: None,
        run_ms_max: Some(HANG_MS),
        batch: BatchChoice::AUTO,
        shelf: None,
        takes_adapters: true,
    }
}

/// Runs until `enough` returns true for the events so far.
fn learn(config: RunConfig, enough: impl Fn(&[Event]) -> bool) -> (Result<Report, RunError>, Vec<Event>) {
    steer(config, |events, control| {
        if enough(events) {
            control.stop();
        }
    })
}

/// Runs with an owner that calls `owner` after each event.
fn steer(config: RunConfig, owner: impl Fn(&[Event], &Control)) -> (Result<Report, RunError>, Vec<Event>) {
    let control = Control::new();
    let events = RefCell::new(Vec::new());
    let observe = |event: &Event| {
        events.borrow_mut().push(event.clone());
        owner(&events.borrow(), &control);
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let result = runtime.block_on(run(
        config,
        &control,
        async |spec, _| Ok(HostEngine::new(spec, Toy::new())?),
        observe,
    ));
    (result, events.into_inner())
}

fn bye(code: CloseCode) -> Bye {
    Bye::new(code, "the test says so")
}

fn merged(events: &[Event]) -> usize {
    events.iter().filter(|event| matches!(event, Event::Receipt { fate: Fate::Merged { .. }, .. })).count()
}

fn count(events: &[Event], wanted: fn(&Event) -> bool) -> usize {
    events.iter().filter(|event| wanted(event)).count()
}

#[test]
fn trains_merges_and_leaves_politely() {
    let fake = FakeSyncer::start(Script::default());
    let (result, _) = learn(config(&fake.address), |events| merged(events) >= 6);
    let report = result.unwrap();
    assert!(report.updates_merged >= 6 && report.updates_refused == 0, "{report:?}");
    assert!(report.tokens_merged > 0 && report.tokens_merged <= report.tokens_trained, "{report:?}");
    assert!(report.loss.is_some_and(|loss| loss < 1.0), "the parameters served have a loss of 1: {report:?}");
    let byes = fake.script(|script| script.byes.clone());
    assert_eq!(byes.iter().map(|bye| bye.code).collect::<Vec<_>>(), [CloseCode::Done]);
}

#[test]
fn an_invite_is_shown_to_the_syncer_and_nowhere_else() {
    let fake = FakeSyncer::start(Script::default());
    let address = fake.address.clone().with_invite("open-sesame").unwrap();
    let (result, events) = learn(config(&address), |events| merged(events) >= 1);
    assert!(result.is_ok(), "{result:?}");
    let hellos = fake.script(|script| script.hellos.clone());
    assert!(hellos.iter().all(|hello| hello.invite.as_ref().map(Invite::expose) == Some("open-sesame")));
    let requests = fake.script(|script| script.requests.clone());
    assert!(!requests.is_empty());
    for request in requests {
        let shown: Vec<_> = request.lines().filter(|line| line.contains("sesame")).collect();
        assert_eq!(shown, ["x-archipelago-invite: open-sesame"], "{request}");
    }
    assert!(!format!("{events:?}").contains("sesame"));
}

#[test]
fn a_new_process_is_told_what_the_ones_before_did() {
    let fake = FakeSyncer::start(Script::default());
    let told = |events: &[Event]| {
        events.iter().find_map(|event| match event {
            Event::Welcomed { tokens_trained, tokens_merged, .. } => Some((*tokens_trained, *tokens_merged)),
            _ => None,
        })
    };
    let (_, events) = learn(config(&fake.address), |events| merged(events) >= 6);
    assert_eq!(told(&events), Some((0, 0)));
    let (_, events) = learn(config(&fake.address), |events| merged(events) >= 1);
    assert!(told(&events).is_some_and(|(trained, merged)| merged > 0 && trained >= merged), "{events:?}");
}

#[test]
fn comes_back_as_the_same_learner() {
    let fake = FakeSyncer::start(Script { cut_after_receipts: Some(3), ..Script::default() });
    let (result, events) = learn(config(&fake.address), |events| {
        merged(events) >= 8 && count(events, |event| matches!(event, Event::Disconnected { .. })) >= 2
    });
    assert!(result.unwrap().updates_merged >= 8);
    assert_eq!(count(&events, |event| matches!(event, Event::Afresh { .. })), 0);
    assert_eq!(count(&events, |event| matches!(event, Event::FirstStep { .. })), 1);
    let hellos = fake.script(|script| script.hellos.clone());
    assert!(hellos.len() >= 3);
    assert!(hellos.iter().all(|hello| hello.identity == Key::from_secret(&[5; 32]).identity()));
    assert_eq!(hellos[0].run, None);
    assert!(hellos[1..].iter().all(|hello| hello.run.is_some() && hello.layout.is_some()));
}

#[test]
fn final_goodbyes_end_the_run() {
    let codes =
        [CloseCode::Version, CloseCode::Layout, CloseCode::Banned, CloseCode::Replaced, CloseCode::Invite];
    for code in codes {
        let fake = FakeSyncer::start(Script { goodbyes: vec![bye(code)], ..Script::default() });
        let (result, _) = learn(config(&fake.address), |_| false);
        let refused = matches!(&result, Err(RunError::Refused { code: found, .. }) if *found == code);
        assert!(refused, "{code:?}: {result:?}");
    }
}

/// Goal: the learner signs the challenge of each connection.
#[test]
fn signs_the_challenge_of_each_connection() {
    let fake = FakeSyncer::start(Script { cut_after_receipts: Some(2), ..Script::default() });
    // A run is welcomed once; reconnections show in the greetings.
    let (result, _) = learn(config(&fake.address), |_| fake.script(|script| script.hellos.len()) >= 3);
    assert!(result.is_ok(), "{result:?}");
    let challenge = Challenge { run: RunId(7), nonce: [3; 32] };
    let key = Key::from_secret(&[5; 32]);
    let hellos = fake.script(|script| script.hellos.clone());
    assert!(hellos.len() >= 3, "{hellos:?}");
    assert!(hellos.iter().all(|hello| hello.signature == key.signature(&challenge.text())));
    assert!(hellos[1..].iter().all(|hello| hello.run.is_some()));
}

/// Goal: a key that fails to sign causes a retry and a message to the owner, not a panic.
#[test]
fn a_key_that_does_not_sign_is_told_of() {
    #[derive(Debug)]
    struct Dumb;
    impl Signer for Dumb {
        fn identity(&self) -> Identity {
            Identity([1; 32])
        }
        fn sign<'a>(&'a self, _: &'a [u8]) -> LocalBoxFuture<'a, Result<Signature, SignError>> {
            Box::pin(std::future::ready(Err(SignError { reason: "it is locked".into() })))
        }
    }
    let fake = FakeSyncer::start(Script::default());
    let config = RunConfig { contact_ms_max: 1_500, ..RunConfig::new(fake.address.clone(), Dumb) };
    let (result, _) = learn(config, |_| false);
    assert!(
        matches!(&result, Err(RunError::Unreachable { reason, .. }) if reason.contains("it is locked")),
        "{result:?}"
    );
    assert_eq!(fake.script(|script| script.hellos.len()), 0);
}

#[test]
fn the_end_of_the_run_is_no_error() {
    let fake = FakeSyncer::start(Script { goodbyes: vec![bye(CloseCode::Done)], ..Script::default() });
    let (result, _) = learn(config(&fake.address), |_| false);
    assert_eq!(result.unwrap().steps, 0);
}

#[test]
fn a_goodbye_is_read_though_the_connection_ended_before_something_was_sent() {
    let fake = FakeSyncer::start(Script { goodbyes: vec![bye(CloseCode::Done)], ..Script::default() });
    let mut link = Link::new(fake.address.clone());
    link.connect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert!(matches!(runtime.block_on(link.next()), Input::Opened));
    let challenge = runtime.block_on(link.next());
    assert!(matches!(challenge, Input::Message(Message::Challenge(_))), "{challenge:?}");
    let config = config(&fake.address);
    let hello = Hello {
        run: None,
        layout: None,
        identity: config.signer.identity(),
        signature: Signature::NONE,
        name: config.name,
        device: config.device,
        invite: None,
    };
    link.send(&Message::Hello(hello)).unwrap();
    // Nothing is read until the socket's thread has surely noticed the end, as with a learner in the middle of a long
    // step. On a busy machine it notices later.
    let mut heard = Vec::new();
    for sent in 1..=HANG_MS / 5 {
        link.send(&Message::Bye(bye(CloseCode::Done))).expect("what cannot be sent is dropped");
        std::thread::sleep(std::time::Duration::from_millis(5));
        if sent >= 100 {
            heard.extend(std::iter::from_fn(|| link.try_next()));
        }
        if matches!(heard.last(), Some(Input::Closed { .. })) {
            break;
        }
    }
    let [Input::Message(Message::Bye(bye)), Input::Closed { code, .. }] = &heard[..] else {
        panic!("{heard:?}");
    };
    assert_eq!((bye.code, *code), (CloseCode::Done, Some(CloseCode::Done.into())));
}

#[test]
fn other_goodbyes_bring_it_back_and_another_run_makes_it_new() {
    let goodbyes = [CloseCode::Full, CloseCode::Restart, CloseCode::WrongRun].map(bye).to_vec();
    let fake = FakeSyncer::start(Script { goodbyes, ..Script::default() });
    let (result, events) = learn(config(&fake.address), |events| merged(events) >= 1);
    assert!(result.is_ok(), "{result:?}");
    assert_eq!(count(&events, |event| matches!(event, Event::Afresh { .. })), 1);
    assert_eq!(fake.script(|script| script.hellos.len()), 4);
}

#[test]
fn a_shard_that_broke_off_is_resumed() {
    let fake = FakeSyncer::start(Script { broken_shards: 2, ..Script::default() });
    let (result, events) = learn(config(&fake.address), |events| merged(events) >= 1);
    assert!(result.is_ok(), "{result:?}");
    assert_eq!(count(&events, |event| matches!(event, Event::Trouble { .. })), 2);
    let requests = fake.script(|script| script.requests.clone());
    let shards: Vec<_> = requests.iter().filter(|head| head.contains("/shards/")).collect();
    let starts: Vec<_> = shards
        .iter()
        .map(|head| head.to_ascii_lowercase().split("bytes=").nth(1).map(|rest| rest[..4].to_owned()))
        .collect();
    assert_eq!(starts, [None, Some("4000".to_owned()), Some("6000".to_owned())]);
}

#[test]
fn fragments_that_broke_off_are_resumed() {
    let fake = FakeSyncer::start(Script { broken_fragments: 2, busy: 1, ..Script::default() });
    let (result, events) = learn(config(&fake.address), |events| merged(events) >= 1);
    assert!(result.is_ok(), "{result:?}");
    assert_eq!(count(&events, |event| matches!(event, Event::Trouble { .. })), 3);
    let requests = fake.script(|script| script.requests.clone());
    let fragments = requests.iter().filter(|head| head.contains("/fragments/"));
    let resumed: Vec<String> = fragments
        .map(|head| head.to_ascii_lowercase())
        .filter(|head| head.contains("range: bytes="))
        .collect();
    // Two resumed fragments, or one resumed twice.
    assert_eq!(resumed.len(), 2, "{requests:?}");
    assert!(resumed.iter().all(|head| head.contains("if-range: \"0000000000000007-")), "{resumed:?}");
}

#[test]
fn a_peer_that_speaks_otherwise_is_left() {
    let mut other_version = archipelago_core::wire::encode(&Message::Bye(bye(CloseCode::Done)));
    other_version[4] = 9;
    let fake = FakeSyncer::start(Script { garbage: Some(other_version), ..Script::default() });
    let (result, _) = learn(config(&fake.address), |_| false);
    assert!(matches!(&result, Err(RunError::Refused { code: CloseCode::Version, .. })), "{result:?}");

    let fake = FakeSyncer::start(Script { garbage: Some(b"hello".to_vec()), ..Script::default() });
    let (result, events) = learn(config(&fake.address), |events| merged(events) >= 1);
    assert!(result.is_ok(), "{result:?}");
    assert_eq!(count(&events, |event| matches!(event, Event::Disconnected { .. })), 1);
}

#[test]
fn an_address_without_a_run_is_an_error_at_once() {
    use std::io::{BufRead, BufReader, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address: Address = format!("http://{}/runs", listener.local_addr().unwrap()).parse().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let head = BufReader::new(&stream).lines().map_while(Result::ok);
            head.take_while(|line| !line.is_empty()).for_each(drop);
            let said = "add the path of one to its address, such as /runs/a\n";
            let answer = format!("HTTP/1.1 404 Not Found\r\ncontent-length: {}\r\n\r\n{said}", said.len());
            (&stream).write_all(answer.as_bytes()).unwrap();
        }
    });
    let (result, events) = learn(config(&address), |_| false);
    let error = result.expect_err("there is no run").to_string();
    assert!(error.contains("as /runs/a; open that address in a browser"), "{error}");
    assert_eq!(count(&events, |event| matches!(event, Event::Connecting { .. })), 1);
}

#[test]
fn nobody_at_the_address_is_an_error_after_a_while() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address: Address = listener.local_addr().unwrap().to_string().parse().unwrap();
    drop(listener);
    let (result, events) = learn(RunConfig { contact_ms_max: 3_000, ..config(&address) }, |_| false);
    assert!(matches!(&result, Err(RunError::Unreachable { .. })), "{result:?}");
    // After at most 0.25, 0.5, 1 and 2 s, and at least half of each.
    let attempts = count(&events, |event| matches!(event, Event::Connecting { .. }));
    assert!((2..=6).contains(&attempts), "{attempts} attempts in 3 s");
}
