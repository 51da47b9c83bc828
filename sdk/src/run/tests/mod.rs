//! Tests of the learner's loop with a syncer in this process, over real sockets.

mod device;
mod frozen;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use archipelago_core::diloco::{Layout, syncer};
use archipelago_core::driver::{Doubling, Input, Waits};
use archipelago_core::wire::{
    Bye, Challenge, CloseCode, Fate, Hello, Identity, Invite, LearnerId, Message, RunId, RunSpec, Share,
    Signature,
};
use archipelago_runtime::engine::{EngineError, HostEngine};
use futures::future::LocalBoxFuture;

use super::fake::{Device, DeviceEngine, EngineBehaviour, FakeSyncer, FaultScript, QuadraticTrainer};
use super::link::SyncerLink;
use super::session::LearnerSession;
use super::{
    Address, BatchChoice, Control, EngineInputs, Event, Folder, FrozenSource, Key, Remedy, Report, RunConfig,
    RunError, SignError, Signer, WeightCache, run,
};

/// Time limit in milliseconds that only a hanging test reaches, even on a busy machine.
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
        weight_cache: None,
        frozen: FrozenSource::Syncer,
    }
}

/// Runs a learner until `enough` returns true for the events so far.
fn learn(config: RunConfig, enough: impl Fn(&[Event]) -> bool) -> (Result<Report, RunError>, Vec<Event>) {
    steer(config, |events, control| {
        if enough(events) {
            control.stop();
        }
    })
}

/// Runs a learner, and calls `owner` after each event.
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
        async |spec, _| Ok(HostEngine::new(spec, QuadraticTrainer::new())?),
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
    let fake = FakeSyncer::start(FaultScript::default());
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
    let fake = FakeSyncer::start(FaultScript::default());
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
fn new_process_gets_the_account_of_earlier_ones() {
    let fake = FakeSyncer::start(FaultScript::default());
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
    let fake = FakeSyncer::start(FaultScript { cut_after_receipts: Some(3), ..FaultScript::default() });
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
        let fake = FakeSyncer::start(FaultScript { goodbyes: vec![bye(code)], ..FaultScript::default() });
        let (result, _) = learn(config(&fake.address), |_| false);
        let refused = matches!(&result, Err(RunError::Refused { code: found, .. }) if *found == code);
        assert!(refused, "{code:?}: {result:?}");
    }
}

/// Goal: the learner signs the challenge of each connection.
#[test]
fn signs_the_challenge_of_each_connection() {
    let fake = FakeSyncer::start(FaultScript { cut_after_receipts: Some(2), ..FaultScript::default() });
    // Only the first admission is an event; reconnections are visible in the `Hello`s.
    let (result, _) = learn(config(&fake.address), |_| fake.script(|script| script.hellos.len()) >= 3);
    assert!(result.is_ok(), "{result:?}");
    let challenge = Challenge { run: RunId(7), nonce: [3; 32] };
    let key = Key::from_secret(&[5; 32]);
    let hellos = fake.script(|script| script.hellos.clone());
    assert!(hellos.len() >= 3, "{hellos:?}");
    assert!(hellos.iter().all(|hello| hello.signature == key.signature(&challenge.text())));
    assert!(hellos[1..].iter().all(|hello| hello.run.is_some()));
}

/// Goal: a key that fails to sign causes retries and a message to the owner, and no panic.
#[test]
fn failure_to_sign_is_reported() {
    #[derive(Debug)]
    struct SilentEngine;
    impl Signer for SilentEngine {
        fn identity(&self) -> Identity {
            Identity([1; 32])
        }
        fn sign<'a>(&'a self, _: &'a [u8]) -> LocalBoxFuture<'a, Result<Signature, SignError>> {
            Box::pin(std::future::ready(Err(SignError { reason: "it is locked".into() })))
        }
    }
    let fake = FakeSyncer::start(FaultScript::default());
    let config = RunConfig { contact_ms_max: 1_500, ..RunConfig::new(fake.address.clone(), SilentEngine) };
    let (result, _) = learn(config, |_| false);
    assert!(
        matches!(&result, Err(RunError::Unreachable { reason, .. }) if reason.contains("it is locked")),
        "{result:?}"
    );
    assert_eq!(fake.script(|script| script.hellos.len()), 0);
}

#[test]
fn the_end_of_the_run_is_no_error() {
    let fake =
        FakeSyncer::start(FaultScript { goodbyes: vec![bye(CloseCode::Done)], ..FaultScript::default() });
    let (result, _) = learn(config(&fake.address), |_| false);
    assert_eq!(result.unwrap().steps, 0);
}

#[test]
fn goodbye_is_delivered_after_sending_on_a_closed_connection() {
    let fake =
        FakeSyncer::start(FaultScript { goodbyes: vec![bye(CloseCode::Done)], ..FaultScript::default() });
    let mut link = SyncerLink::new(fake.address.clone());
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
    // Nothing is read until the socket's thread has certainly noticed the end, as if the learner were in a long step.
    // On a busy machine that takes longer.
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
fn close_codes_reconnect_or_restart_the_learner() {
    let goodbyes = [CloseCode::Full, CloseCode::Restart, CloseCode::WrongRun].map(bye).to_vec();
    let fake = FakeSyncer::start(FaultScript { goodbyes, ..FaultScript::default() });
    let (result, events) = learn(config(&fake.address), |events| merged(events) >= 1);
    assert!(result.is_ok(), "{result:?}");
    assert_eq!(count(&events, |event| matches!(event, Event::Afresh { .. })), 1);
    assert_eq!(fake.script(|script| script.hellos.len()), 4);
}

#[test]
fn a_shard_that_broke_off_is_resumed() {
    let fake = FakeSyncer::start(FaultScript { broken_shards: 2, ..FaultScript::default() });
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
    let fake = FakeSyncer::start(FaultScript { broken_fragments: 2, busy: 1, ..FaultScript::default() });
    let (result, events) = learn(config(&fake.address), |events| merged(events) >= 1);
    assert!(result.is_ok(), "{result:?}");
    assert_eq!(count(&events, |event| matches!(event, Event::Trouble { .. })), 3);
    let requests = fake.script(|script| script.requests.clone());
    let fragments = requests.iter().filter(|head| head.contains("/fragments/"));
    let resumed: Vec<String> = fragments
        .map(|head| head.to_ascii_lowercase())
        .filter(|head| head.contains("range: bytes="))
        .collect();
    // Either two fragments were resumed, or one twice.
    assert_eq!(resumed.len(), 2, "{requests:?}");
    assert!(resumed.iter().all(|head| head.contains("if-range: \"0000000000000007-")), "{resumed:?}");
}

#[test]
fn peer_with_invalid_bytes_is_left() {
    let mut other_version = archipelago_core::wire::encode(&Message::Bye(bye(CloseCode::Done)));
    other_version[4] = 9;
    let fake = FakeSyncer::start(FaultScript { garbage: Some(other_version), ..FaultScript::default() });
    let (result, _) = learn(config(&fake.address), |_| false);
    assert!(matches!(&result, Err(RunError::Refused { code: CloseCode::Version, .. })), "{result:?}");

    let fake = FakeSyncer::start(FaultScript { garbage: Some(b"hello".to_vec()), ..FaultScript::default() });
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
    assert!(matches!(&result, Err(RunError::Unreachable { remedy: Remedy::CheckAddress, .. })), "{result:?}");
    // The waits are at most 0.25, 0.5, 1 and 2 s, and at least half of that.
    let attempts = count(&events, |event| matches!(event, Event::Connecting { .. }));
    assert!((2..=6).contains(&attempts), "{attempts} attempts in 3 s");
}

/// Maximum step time for the choice of a batch, in microseconds.
const STEP_US_MAX: u64 = 45_000;
/// Time of a slow device for one window, in milliseconds. Two windows exceed [`STEP_US_MAX`].
const WINDOW_MS: u64 = 30;

const ALIVE: EngineBehaviour = EngineBehaviour::Alive { late_steps: Some(0), life_steps: None };

/// Outcome of a run on a device.
struct BatchOutcome {
    result: Result<Report, RunError>,
    events: Vec<Event>,
    device: Device,
    /// Batches that the learner reported to the syncer.
    told: Vec<u32>,
}

/// Runs a learner until some updates are merged and `enough` returns true.
fn learn_in_batches(
    batch: BatchChoice,
    plans: &[EngineBehaviour],
    window_ms: u64,
    enough: impl Fn(&[Event]) -> bool,
) -> BatchOutcome {
    let (fake, control) = (FakeSyncer::start(FaultScript::default()), Control::new());
    let device: Rc<RefCell<Device>> = Device::new(plans);
    device.borrow_mut().window_ms = window_ms;
    let mut events = Vec::new();
    let observe = |event: &Event| {
        events.push(event.clone());
        if merged(&events) >= 4 && enough(&events) {
            control.stop();
        }
    };
    let build =
        async |spec: &_, inputs: EngineInputs| DeviceEngine::open(&device, spec, inputs.moments).await;
    let waits = Waits { losses: Doubling { first_ms: 1, longest_ms: 2 }, ..Waits::default() };
    let config = RunConfig { batch, ..config(&fake.address) };
    let mut session = LearnerSession::with(config, waits, &control, build, observe).unwrap();
    session.step_us_max = STEP_US_MAX;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let result = runtime.block_on(session.run());
    let told = fake.script(|script| script.batches.clone());
    BatchOutcome { result, events, device: device.take(), told }
}

/// Returns the batches reported to the observer.
fn shown(events: &[Event]) -> Vec<u32> {
    let batch =
        |event: &Event| if let Event::Welcomed { batch, .. } = event { Some(batch.get()) } else { None };
    events.iter().filter_map(batch).collect()
}

/// Returns the merged tokens by receipt, for the fragment with the most.
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
    let outcome = learn_in_batches(BatchChoice::AUTO, &[ALIVE], WINDOW_MS, |_| true);
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
    let outcome = learn_in_batches(BatchChoice::AUTO, &[ALIVE], 0, |_| true);
    let report = outcome.result.unwrap();
    assert_eq!((&outcome.device.batches[..], &outcome.told[..]), (&[2][..], &[2][..]));
    assert_eq!((shown(&outcome.events), report.tokens_trained), (vec![2], 8 * report.steps));
}

#[test]
fn a_batch_that_is_given_is_taken_untried() {
    let outcome = learn_in_batches(BatchChoice::given(3).unwrap(), &[ALIVE], WINDOW_MS, |_| true);
    let report = outcome.result.unwrap();
    assert_eq!((&outcome.device.batches[..], &outcome.told[..]), (&[3][..], &[3][..]));
    assert_eq!((outcome.device.rehearsals, report.tokens_trained), (0, 12 * report.steps));
    let given = BatchChoice::given(3).unwrap();
    let outcome = learn_in_batches(given, &[EngineBehaviour::Oversized], 0, |_| true);
    let refused = matches!(&outcome.result, Err(RunError::Build(EngineError::HostMemory { .. })));
    assert!(refused && outcome.device.batches == [3], "{:?}", outcome.result);
}

#[test]
fn too_little_memory_halves_the_batch() {
    let outcome = learn_in_batches(BatchChoice::AUTO, &[EngineBehaviour::Oversized, ALIVE], 0, |_| true);
    assert!(outcome.result.is_ok(), "{:?}", outcome.result);
    assert_eq!((&outcome.device.batches[..], &outcome.told[..]), (&[2, 1][..], &[1][..]));
    let outcome = learn_in_batches(BatchChoice::AUTO, &[EngineBehaviour::Oversized], 0, |_| true);
    let refused = matches!(&outcome.result, Err(RunError::Build(EngineError::HostMemory { .. })));
    assert!(refused && outcome.device.batches == [2, 1], "{:?}", outcome.result);
}

/// Goal: the batch chosen for a device is kept after a loss of the device, and so is the optimiser state.
#[test]
fn the_next_engine_begins_with_the_batch_that_fitted() {
    let dies = EngineBehaviour::Alive { late_steps: Some(0), life_steps: Some(5) };
    let outcome = learn_in_batches(BatchChoice::AUTO, &[ALIVE, dies, ALIVE], WINDOW_MS, |events| {
        shown(events).len() == 2
    });
    assert!(outcome.result.is_ok(), "{:?}", outcome.result);
    assert_eq!((&outcome.device.batches[..], &outcome.told[..]), (&[2, 1, 1][..], &[1, 1][..]));
    let given: Vec<_> = outcome.device.given.iter().map(|given| given.as_ref().map(|m| m.steps)).collect();
    assert_eq!(given, [None, Some(0), Some(5)], "an engine that was given up leaves its moments, too");
}

const LEARNER: LearnerId = LearnerId(1);

fn reports(events: &[Event]) -> impl Iterator<Item = &Report> {
    events.iter().filter_map(|event| match event {
        Event::Progress(report) => Some(&**report),
        _ => None,
    })
}

#[test]
fn share_set_by_the_runs_owner_is_reported() {
    let fake = FakeSyncer::start(FaultScript::default());
    let share = Share::new(0.25).unwrap();
    let asked = Cell::new(false);
    let (result, events) = learn(config(&fake.address), |events| {
        if merged(events) >= 1 && !asked.replace(true) {
            fake.command(syncer::Input::Pace { learner: LEARNER, share });
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
    let fake = FakeSyncer::start(FaultScript::default());
    let asked = Cell::new(false);
    let slowed = |events: &[Event]| -> Vec<(u64, u64)> {
        let slowed = reports(events).filter(|report| report.share < 1.0);
        slowed.map(|report| (report.elapsed_ms, report.train_ms)).collect()
    };
    let (result, events) = learn(config(&fake.address), |events| {
        if merged(events) >= 1 && !asked.replace(true) {
            fake.command(syncer::Input::Pace { learner: LEARNER, share: Share::new(0.25).unwrap() });
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
    let fake = FakeSyncer::start(FaultScript::default());
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
            0 => fake.command(syncer::Input::Pace { learner: LEARNER, share: Share::new(0.01).unwrap() }),
            // From here on, minutes of rest follow each step.
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
        fake.command(syncer::Input::Drop { learner: LEARNER, wait_ms: 300 });
        fake.command(syncer::Input::Pace { learner: LEARNER, share: Share::FULL });
    }));
}

#[test]
fn dropped_learner_stays_away_as_long_as_requested() {
    let fake = FakeSyncer::start(FaultScript::default());
    let (asked, before) = (Cell::new(false), Cell::new(0));
    let (result, events) = learn(config(&fake.address), |events| {
        if merged(events) >= 1 && !asked.replace(true) {
            fake.command(syncer::Input::Drop { learner: LEARNER, wait_ms: 1_500 });
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
    // The learner reconnects once, at the permitted time.
    assert_eq!(fake.script(|script| script.hellos.len()), 2);
}

/// Goal: a page that is reloaded while its learner must wait does not end as unreachable.
#[test]
fn requested_wait_before_admission_is_not_unreachable() {
    let goodbye = Bye { wait_ms: 1_000, ..bye(CloseCode::Dropped) };
    let fake = FakeSyncer::start(FaultScript { goodbyes: vec![goodbye], ..FaultScript::default() });
    let patience = RunConfig { contact_ms_max: 300, ..config(&fake.address) };
    let (result, _) = learn(patience, |events| merged(events) >= 1);
    assert!(result.is_ok(), "{result:?}");
    assert_eq!(fake.script(|script| script.hellos.len()), 2);
}

/// Goal: a learner that was turned away hears for how long, and not that the syncer may be missing.
#[test]
fn an_answer_is_no_missing_syncer() {
    let goodbye = Bye { wait_ms: 600_000, ..Bye::new(CloseCode::Dropped, "it was rolled back") };
    let fake = FakeSyncer::start(FaultScript { goodbyes: vec![goodbye], ..FaultScript::default() });
    let (result, _) = learn(RunConfig { run_ms_max: Some(1_000), ..config(&fake.address) }, |_| false);
    let error = result.unwrap_err().to_string();
    assert!(error.ends_with(": it was rolled back; try again in 10 min"), "{error}");
}

/// Runs a learner with a silence limit of `first_ms` whose syncer falls silent once, and returns the events.
fn with_patience(first_ms: u64, hurries: bool) -> Vec<Event> {
    let fake = FakeSyncer::start(FaultScript { mute_after_receipts: Some(3), ..FaultScript::default() });
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
    let build = async |spec: &_, _| Ok(HostEngine::new(spec, QuadraticTrainer::new())?);
    let patience = Doubling { first_ms, longest_ms: 60_000 };
    let waits = Waits { patience, ..Waits::default() };
    let session = LearnerSession::with(config, waits, &control, build, observe).unwrap();
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
fn reconnect_request_shortens_the_silence_limit() {
    let events = with_patience(9_000, true);
    assert_eq!(why_disconnected(&events), ["nothing was heard for a while"]);
}
