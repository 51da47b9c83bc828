//! Tests of the socket: accepted and refused messages.

use std::cell::Cell;

use archipelago_core::diloco::checksum;
use archipelago_core::wire::{
    CHUNK_BYTES, CloseCode, Code, Fate, FragmentId, Hello, LayoutHash, Message, Refusal, RunId, Update,
    encode, frames,
};
use futures::SinkExt;
use tokio::io::AsyncWriteExt;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::Message as Frame;
use tokio_tungstenite::{MaybeTlsStream, connect_async, tungstenite};

use crate::support::{Client, ScriptedLearner, Server, config, header, hello};

#[tokio::test]
async fn every_bad_peer_gets_its_typed_close() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    let good = encode(&Message::Hello(hello(1)));
    let altered = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        bytes
    };
    let run = Message::Hello(Hello { run: Some(RunId(1)), ..hello(1) });
    let layout = Message::Hello(Hello { layout: Some(LayoutHash(1)), ..hello(1) });
    let early = Message::Ready { run: RunId(1), layout: LayoutHash(1), batch: 1 };
    let long_name = Hello { name: "x".repeat(100), ..hello(1) };
    let large = Update {
        run: RunId(1),
        fragment: FragmentId(0),
        serial: archipelago_core::wire::Serial(1),
        base: archipelago_core::wire::Version(0),
        steps: 1,
        tokens: 1,
        body: vec![0; 5_000],
        checksum: 0,
        seen: Vec::new(),
    };
    let chunk = frames(encode(&Message::Update(Update { body: vec![0; 100_000], ..large.clone() })), 1)
        .next()
        .unwrap();
    let cases = [
        ("no magic", altered(0, 0), CloseCode::Malformed),
        ("noise", vec![0xc1; 40], CloseCode::Malformed),
        ("empty", vec![], CloseCode::Malformed),
        ("truncated", good[..good.len() - 1].to_vec(), CloseCode::Malformed),
        ("another version", altered(4, 9), CloseCode::Version),
        ("another run", encode(&run), CloseCode::WrongRun),
        ("another layout", encode(&layout), CloseCode::Layout),
        ("a long name", encode(&Message::Hello(long_name)), CloseCode::TooLarge),
        ("too much before Hello", encode(&Message::Update(large)), CloseCode::TooLarge),
        ("too much in parts before Hello", chunk, CloseCode::TooLarge),
        ("a frame above the limit", vec![0; CHUNK_BYTES as usize + 1], CloseCode::TooLarge),
        ("Ready before Hello", encode(&early), CloseCode::Protocol),
    ];
    for (name, bytes, code) in cases {
        let mut client = Client::connect(&server).await;
        client.raw(bytes).await;
        let end = client.end().await;
        assert_eq!((end.bye, end.close), (code.into(), code.into()), "{name}: {}", end.reason);
        assert!(!end.reason.is_empty(), "{name}");
    }

    // The message is refused because of its announced length, before its content arrives.
    let mut client = Client::connect(&server).await;
    let MaybeTlsStream::Plain(stream) = client.socket.get_mut() else { panic!("no TLS here") };
    let masked_binary_of_2_to_the_40 = [0x82, 0xff, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    stream.write_all(&masked_binary_of_2_to_the_40).await.unwrap();
    assert_eq!(client.end().await.close, u16::from(CloseCode::TooLarge));

    let mut client = Client::connect(&server).await;
    client.socket.send(Frame::Text("hello".into())).await.unwrap();
    assert_eq!(client.end().await.close, u16::from(CloseCode::Malformed));

    // A well-behaved learner is admitted afterwards.
    let (_client, welcome) = Client::greet(&server, 1).await;
    assert_eq!(server.status().await["run"], welcome.run.to_string());
    server.stop().await;
}

#[tokio::test]
async fn bad_updates_get_receipts_and_good_ones_are_merged() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    let mut learner = ScriptedLearner::join(&server, 1).await;
    for wanted in [Refusal::NotFinite, Refusal::Shape, Refusal::Checksum, Refusal::Empty] {
        let spoilt = |update: &mut Update| {
            match wanted {
                // The first scale becomes a bfloat16 NaN.
                Refusal::NotFinite => update.body[..2].copy_from_slice(&[0xff, 0x7f]),
                Refusal::Shape => update.body.truncate(update.body.len() - 4),
                Refusal::Checksum => update.body[0] ^= 1,
                _ => update.steps = 0,
            }
            if wanted != Refusal::Checksum {
                update.checksum = checksum(&update.body);
            }
        };
        assert_eq!(learner.answer(spoilt).await, Fate::Refused(wanted));
    }
    let answered = Cell::new(FragmentId(0));
    let run = learner.welcome.run;
    for (fragment, version) in (0..).map(FragmentId).zip(learner.welcome.versions.clone()) {
        learner.client.send(&Message::VersionAck { run, fragment, version }).await;
    }
    let good = learner.answer(|update| answered.set(update.fragment)).await;
    let Fate::Merged { version, .. } = good else { panic!("{good:?}") };
    let merged = learner.until(|message| match message {
        Message::Merged(merged) => Some(merged),
        _ => None,
    });
    let merged = merged.await;
    assert_eq!((merged.fragment, merged.version), (answered.get(), version));

    let status = server.status().await;
    assert_eq!(status["fates"]["merged"], 1);
    assert_eq!(status["fates"]["refused"]["not_finite"], 1);
    assert!(status["bitsPerParamUp"].as_f64().unwrap() > 4.0);
    assert!(status["joinBytes"].as_u64().unwrap() > 0);
    server.stop().await;
}

#[tokio::test]
async fn only_known_origins_and_versions_may_join() {
    let dir = tempfile::tempdir().unwrap();
    let allow_origin = vec!["https://page.example".to_owned()];
    let server = Server::start(config(dir.path()).with(|it| it.server.allow_origin = allow_origin)).await;
    let check = async |name: &'static str, value: &str, expected: u16| {
        let mut request = format!("ws://{}/v1/ws", server.address).into_client_request().unwrap();
        request.headers_mut().insert(name, value.parse().unwrap());
        let code = match connect_async(request).await {
            Ok((_, answer)) => answer.status().as_u16(),
            Err(tungstenite::Error::Http(answer)) => answer.status().as_u16(),
            Err(error) => panic!("{error}"),
        };
        assert_eq!(code, expected, "{name}: {value}");
    };
    check("origin", "https://evil.example", 403).await;
    check("origin", "null", 403).await;
    check("origin", "https://page.example", 101).await;
    check("origin", &format!("http://{}", server.address), 101).await;
    check("sec-websocket-protocol", "another.9", 400).await;
    let asks =
        "OPTIONS /v1/runs/0/shards/0\nAccess-Control-Request-Headers: x-archipelago-invite\nOrigin: https:";
    let (code, head, _) = server.http(&format!("{asks}//page.example")).await;
    assert_eq!(
        (code, header(&head, "access-control-allow-headers")),
        (204, "if-range, range, x-archipelago-invite, x-archipelago-pass")
    );
    let (_, head, _) = server.http(&format!("{asks}//evil.example")).await;
    assert!(!head.contains("access-control-allow"), "{head}");
    server.stop().await;
}

#[tokio::test]
async fn stopping_and_finishing_send_a_goodbye() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    let (client, _) = Client::greet(&server, 1).await;
    server.stop().await;
    assert_eq!(client.end().await.close, u16::from(CloseCode::Restart));

    let server = Server::start(config(dir.path())).await;
    let (client, _) = Client::greet(&server, 1).await;
    assert_eq!(server.http("POST /v1/admin/finish").await.0, 401);
    assert_eq!(server.http("POST /v1/admin/finish\nAuthorization: Bearer secreT").await.0, 401);
    assert_eq!(server.http("POST /v1/admin/finish\nAuthorization: Bearer secret-of-the-owner").await.0, 202);
    assert_eq!(client.end().await.close, u16::from(CloseCode::Done));
    let status = server.stop().await;
    assert_eq!((status.core.updates_pending, status.core.finished), (0, true));
}

#[tokio::test]
async fn the_goodbye_does_not_overtake_the_last_receipts() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    let mut learner = ScriptedLearner::join(&server, 1).await;
    assert_eq!(server.http("POST /v1/admin/finish\nAuthorization: Bearer secret-of-the-owner").await.0, 202);
    let (mut sent, mut told) = (vec![], vec![]);
    let bye = loop {
        match learner.client.next().await {
            Message::Collect { fragment, base, .. } => {
                learner.steps += 1;
                learner.report().await;
                let update = learner.update((fragment, base), 0.01);
                sent.push(update.serial);
                learner.client.send(&Message::Update(update)).await;
            }
            Message::Receipt { serial, .. } => told.push(serial),
            Message::Bye(bye) => break bye,
            _ => {}
        }
    };
    told.sort();
    assert!(!sent.is_empty());
    assert_eq!((bye.code, told), (CloseCode::Done, sent));
    server.stop().await;
}

#[tokio::test]
async fn a_learner_that_never_reads_does_not_block_others() {
    let dir = tempfile::tempdir().unwrap();
    // Uncoded updates fill the socket's buffers sooner.
    let mut config = config(dir.path());
    config.identity.exchange.code = Code::F32;
    // A round that has the answering learner's update waits for no other.
    config.live.rounds.grace_ratio = 0.0;
    // Enough text to lease one learner everything that it trains on here.
    config.identity.corpus_bytes = "8MB".parse().unwrap();
    let server = Server::start(config).await;
    let mut deaf = ScriptedLearner::join(&server, 2).await;
    // Only learners that train receive changes.
    deaf.steps += 1;
    deaf.report().await;
    let mut learner = ScriptedLearner::join(&server, 1).await;
    let run = deaf.welcome.run;
    for (fragment, version) in (0..).map(FragmentId).zip(deaf.welcome.versions.clone()) {
        deaf.client.send(&Message::VersionAck { run, fragment, version }).await;
    }
    for _ in 0..600 {
        let invitation = learner.collect().await;
        learner.steps += 1;
        learner.report().await;
        let update = learner.update(invitation, 0.001);
        learner.client.send(&Message::Update(update)).await;
        // The learner still reports, so that it is not dropped for silence.
        deaf.report().await;
    }
    let status = server.stop().await;
    assert!(status.core.fates.merged > 500, "{:?}", status.core.fates);
}
