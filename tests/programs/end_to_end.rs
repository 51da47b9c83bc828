//! End-to-end tests with real processes and sockets, on the built-in corpus. No assertion depends on time; every wait
//! is for a change in `/v1/status`, and is bounded.
#![cfg(unix)]

use std::num::NonZeroU16;
use std::path::Path;
use std::time::Duration;

use archipelago_core::diloco::{Codec, Fragments, Layout, checksum};
use archipelago_core::wire::{
    CHUNK_BYTES, CloseCode, Fate, Hello, LayoutHash, LearnerState, Message, Progress, Refusal, RunId, Serial,
    Update, VERSION, encode,
};
use archipelago_tests::processes::{SyncerProcess, number, of_learner, whole_machine};
use archipelago_tests::socket::{RawSocket, SocketData, hello};
use serde_json::Value;

/// Flags of a run that takes a few seconds; its evaluations show a falling loss.
const SMALL: [&str; 14] = [
    "--preset",
    "tiny",
    "--corpus-bytes",
    "512KiB",
    "--total-tokens",
    "400000",
    "--sync-every",
    "8",
    "--fragments",
    "4",
    "--snapshot-every",
    "1s",
    "--eval-every",
    "1s",
];

/// Checks that every update gets a fate: each learner has at most one pending update on each of the four fragments of
/// [`SMALL`].
fn no_update_is_forgotten(status: &Value) {
    let (pending, learners) = (number(status, "updatesPending"), number(status, "learnersTotal"));
    assert!(number(status, "updates") > 4.0 * learners && pending <= 4.0 * learners, "{status:#}");
}

/// Goal: two learners train one model. The held-out loss falls, nearly all of their training is merged, and all
/// processes end cleanly on request.
#[test]
fn two_learners_train_one_model() {
    let _machine = whole_machine();
    let mut syncer = SyncerProcess::start(&SMALL);
    let mut learners = [syncer.learner("anne"), syncer.learner("bert")];
    // With this many tokens, the few steps that are not merged at the end are a negligible share.
    let status = syncer.wait_until("both are merged and the loss has fallen by 1 nat", |status| {
        let fallen = number(status, "valLossFirst") - number(status, "valLossLast");
        let both = ["anne", "bert"].iter().all(|name| of_learner(status, name, "tokensMerged") > 0.0);
        fallen > 1.0 && both && number(status, "tokensMerged") >= 200_000.0
    });
    no_update_is_forgotten(&status);
    for learner in &mut learners {
        let (ended, took) = learner.interrupt();
        assert!(ended.success(), "a learner ended with {ended}");
        assert!(took < Duration::from_secs(60), "it took {took:?} to leave");
    }
    let last = syncer.interrupt();
    assert!(number(&last, "participation") >= 0.9, "{last:#}");
    no_update_is_forgotten(&last);
}

/// Goal: a GPU and a CPU train one model; both are merged, and the held-out loss falls.
#[test]
fn a_gpu_and_a_cpu_train_one_model() {
    if std::env::var("ARCHIPELAGO_TEST_GPU").is_ok_and(|value| value == "no") {
        return eprintln!("skipped: ARCHIPELAGO_TEST_GPU=no");
    }
    let _machine = whole_machine();
    let mut syncer = SyncerProcess::start(&SMALL);
    let mut learners = [syncer.learner_on("gpu", "gina"), syncer.learner("carl")];
    let status = syncer.wait_until("both are merged and the loss has fallen by 1 nat", |status| {
        let fallen = number(status, "valLossFirst") - number(status, "valLossLast");
        fallen > 1.0 && ["gina", "carl"].iter().all(|name| of_learner(status, name, "tokensMerged") > 0.0)
    });
    no_update_is_forgotten(&status);
    for learner in &mut learners {
        let (ended, _) = learner.interrupt();
        assert!(ended.success(), "a learner ended with {ended}");
    }
    let last = syncer.interrupt();
    no_update_is_forgotten(&last);
}

/// Goal: a learner killed mid-run does not hold up the others, and is merged again after its return, as the same
/// learner.
#[test]
fn a_killed_learner_comes_back_and_is_merged_again() {
    let _machine = whole_machine();
    let mut syncer = SyncerProcess::start(&SMALL);
    let (_anne, mut bert) = (syncer.learner("anne"), syncer.learner("bert"));
    let both =
        |status: &Value| ["anne", "bert"].iter().all(|name| of_learner(status, name, "tokensMerged") > 0.0);
    syncer.wait_until("both are merged", both);
    bert.kill();
    let gone = syncer.wait_until("the syncer has noticed", |status| number(status, "live") < 1.5);
    let rounds = number(&gone, "rounds");
    let alone = syncer.wait_until("the other goes on", |status| {
        number(status, "rounds") >= rounds + 8.0 && number(status, "live") < 1.5
    });
    let merged_before = of_learner(&alone, "bert", "tokensMerged");

    let _bert = syncer.learner("bert");
    let back = syncer.wait_until("it is merged again", |status| {
        of_learner(status, "bert", "tokensMerged") > merged_before && number(status, "live") > 1.5
    });
    assert!((number(&back, "learnersTotal") - 2.0).abs() < 0.5, "it is the same learner: {back:#}");
    no_update_is_forgotten(&back);
}

/// Goal: a syncer that is killed and restarted resumes the run. Its learners reconnect by themselves under their old
/// ids, having trained on.
#[test]
fn a_killed_syncer_resumes_the_run() {
    let _machine = whole_machine();
    let mut syncer = SyncerProcess::start(&SMALL);
    let mut learners = [syncer.learner("anne"), syncer.learner("bert")];
    let before = syncer.wait_until("a good deal is merged", |status| {
        number(status, "rounds") >= 24.0 && number(status, "live") > 1.5
    });
    // Figures may be ahead of the disk; they are covered after two more batches of decisions.
    let decisions = |status: &Value| number(&status["disk"], "decisions");
    let mut safe = decisions(&before);
    for batch in ["a batch of decisions", "and the one after it"] {
        safe = decisions(&syncer.wait_until(batch, |status| decisions(status) > safe));
    }
    syncer.kill();
    assert!(learners.iter_mut().all(|learner| learner.is_running()), "a learner gave up");
    syncer.restart();
    let restarted = syncer.try_status().unwrap_or_default();
    assert!(number(&restarted, "rounds") >= number(&before, "rounds"), "{before:#} → {restarted:#}");
    assert!(number(&restarted, "tokensMerged") >= number(&before, "tokensMerged"), "{restarted:#}");

    let rounds = number(&restarted, "rounds");
    let merged: Vec<f64> = ["anne", "bert"].map(|name| of_learner(&restarted, name, "tokensMerged")).to_vec();
    let back = syncer.wait_until("both are merged again", |status| {
        let now = ["anne", "bert"].map(|name| of_learner(status, name, "tokensMerged"));
        number(status, "rounds") > rounds && now.iter().zip(&merged).all(|(now, before)| now > before)
    });
    assert!((number(&back, "learnersTotal") - 2.0).abs() < 0.5, "they are the same learners: {back:#}");
    no_update_is_forgotten(&back);
    assert!(learners.iter_mut().all(|learner| learner.is_running()), "a learner gave up");
}

/// Goal: a run with a stop reaches it: the learners are released, and every process that should end does so by itself.
#[test]
fn a_run_ends_by_itself() {
    let _machine = whole_machine();
    let mut flags = SMALL.to_vec();
    // Nothing is merged before both have joined; otherwise one could finish first on a busy machine.
    flags.extend(["--stop-at-tokens", "60000", "--learners-start", "2", "--exit-when-finished"]);
    let mut syncer = SyncerProcess::start(&flags);
    let mut learners = [syncer.learner("anne"), syncer.learner("bert")];
    for learner in &mut learners {
        let ended = learner.wait();
        assert!(ended.success(), "a learner ended with {ended}");
    }
    let ended = syncer.wait();
    assert!(ended.success(), "the syncer ended with {ended}");
}

/// Goal: any invalid message from a stranger leads to the close code with the reason, and the run goes on.
#[test]
fn bad_messages_get_their_typed_close() {
    let _machine = whole_machine();
    let mut syncer = SyncerProcess::start(&SMALL);
    let address = syncer.address;
    let good = encode(&Message::Hello(hello(1)));
    let with = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        bytes
    };
    let foreign = Message::Hello(Hello { run: Some(RunId(1)), ..hello(1) });
    let cases = [
        ("noise", vec![0xc1; 40], CloseCode::Malformed),
        ("truncated", good[..good.len() - 1].to_vec(), CloseCode::Malformed),
        ("an unknown tag", with(6, 99), CloseCode::Malformed),
        ("another version", with(4, VERSION as u8 + 1), CloseCode::Version),
        ("another run", encode(&foreign), CloseCode::WrongRun),
        ("a frame above the limit", vec![0; CHUNK_BYTES as usize + 1], CloseCode::TooLarge),
        (
            "Ready first",
            encode(&Message::Ready { run: RunId(1), layout: LayoutHash(1), batch: 1 }),
            CloseCode::Protocol,
        ),
    ];
    for (name, bytes, code) in cases {
        let mut socket = RawSocket::open(address);
        socket.send_frame(&bytes);
        let (bye, close) = socket.end();
        assert_eq!((bye, close), (Some(code.into()), Some(code.into())), "{name}");
    }
    // A frame that announces 2⁴⁰ bytes is refused because of its header.
    let mut socket = RawSocket::open(address);
    socket.send_bytes(&[0x82, 0xff, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(socket.end().1, Some(CloseCode::TooLarge.into()));

    // A message of another run after a valid greeting.
    let (mut socket, welcome) = RawSocket::greet(address, 2);
    socket.send(&Message::Ready { run: RunId(welcome.run.0 ^ 1), layout: welcome.layout, batch: 1 });
    assert_eq!(socket.end().1, Some(CloseCode::WrongRun.into()));

    let _learner = syncer.learner("anne");
    syncer.wait_until("the run goes on", |status| number(status, "rounds") > 4.0);
}

/// Goal: an update with a non-finite scale is refused with that reason, and the model does not change.
#[test]
fn an_update_that_is_no_number_is_refused() {
    let _machine = whole_machine();
    let mut syncer = SyncerProcess::start(&SMALL);
    let (mut socket, welcome) = RawSocket::greet(syncer.address, 3);
    let (run, spec) = (welcome.run, &welcome.spec);
    let count = NonZeroU16::new(spec.exchange.fragments).unwrap();
    let fragments = Fragments::plan(&Layout::of(&spec.model).unwrap(), count);
    assert_eq!(fragments.hash(), welcome.layout, "the layout follows from the spec");
    let codec = Codec::new(&spec.exchange).unwrap();
    socket.send(&Message::Ready { run, layout: welcome.layout, batch: spec.inner.batch });
    let progress = Progress {
        run,
        leases: vec![],
        steps: 1,
        tokens: 1_024,
        step_ms: 10.0,
        loss: 5.0,
        state: LearnerState::Training,
    };
    socket.send(&Message::Progress(progress));
    let fate = loop {
        let SocketData::Message(message) = socket.receive() else { panic!("closed before a round") };
        match *message {
            Message::Collect { fragment, base, .. } => {
                let segments = fragments.segments(fragment).unwrap();
                let mut body = vec![0; codec.body_bytes(segments)];
                // The first scale is infinite.
                body[..2].copy_from_slice(&[0x80, 0x7f]);
                let checksum = checksum(&body);
                let (steps, tokens, serial) = (1, 8, Serial(base.0));
                let update =
                    Update { run, fragment, serial, base, steps, tokens, body, checksum, seen: Vec::new() };
                socket.send(&Message::Update(update));
            }
            // On a busy machine the round may be over; try the next one.
            Message::Receipt { fate: Fate::Late(_), .. } => {}
            Message::Receipt { fate, .. } => break fate,
            _ => {}
        }
    };
    assert_eq!(fate, Fate::Refused(Refusal::NotFinite));
    drop(socket);
    let _learner = syncer.learner("anne");
    let status = syncer.wait_until("the run goes on", |status| number(status, "rounds") > 4.0);
    assert!(status["fates"]["refused"]["not_finite"].as_u64() >= Some(1), "{status:#}");
}

/// Goal: the held-out loss also falls on real text, if the text is available.
#[test]
fn real_text_trains_too() {
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/tinyshakespeare.txt");
    let Some(path) = text.to_str().filter(|_| text.exists()) else {
        eprintln!("skipped: there is no {}", text.display());
        return;
    };
    let _machine = whole_machine();
    let mut flags = SMALL.to_vec();
    flags.extend(["--data", path]);
    let mut syncer = SyncerProcess::start(&flags);
    let _learners = [syncer.learner("anne"), syncer.learner("bert")];
    let status = syncer.wait_until("the loss is below 3 nats per byte", |status| {
        (0.1..3.0).contains(&number(status, "valLossLast"))
    });
    no_update_is_forgotten(&status);
}
