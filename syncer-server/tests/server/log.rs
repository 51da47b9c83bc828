//! Tests of the run's log: content, filters and durability.

use std::fs;
use std::path::Path;

use archipelago_core::wire::{Bye, CloseCode, Fate, Message};
use serde_json::Value;
use syncer_server::ServeConfig;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode as SocketCode;

use crate::dashboard::{Watch, json};
use crate::support::{Client, Learner, PATIENCE, Server, config, hello};

/// Returns the sentences of `/v1/log`, newest first, once the newest one contains `part`.
async fn texts(server: &Server, query: &str, part: &str) -> Vec<String> {
    let told = async {
        loop {
            let log = json(server, &format!("/v1/log{query}")).await;
            let texts: Vec<String> = log["entries"].as_array().unwrap().iter().map(text).collect();
            if texts.first().is_some_and(|newest| newest.contains(part)) {
                return texts;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, told).await.expect(part)
}

fn text(entry: &Value) -> String {
    entry["text"].as_str().unwrap().to_owned()
}

async fn owner(server: &Server, order: &str) {
    let request = format!("POST /v1/admin/{order}\nAuthorization: Bearer secret-of-the-owner");
    assert_eq!(server.http(&request).await.0, 202, "{order}");
}

/// Copies a folder while a syncer works there, as a crash would leave it.
pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let there = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &there);
        } else {
            fs::copy(&path, &there).unwrap();
        }
    }
}

#[tokio::test]
async fn tells_who_came_and_went_and_what_the_owner_did() {
    let dir = tempfile::tempdir().unwrap();
    let server =
        Server::start(ServeConfig { invite: Some("open-sesame".into()), ..config(dir.path()) }).await;
    let mut watch = Watch::open(&server, "/v1/events").await;
    watch.until("status", 1).await;

    // A peer without an invite is logged once, however often it tries.
    for _ in 0..3 {
        let mut stranger = Client::connect(&server).await;
        stranger.send(&Message::Hello(hello(9))).await;
        assert_eq!(stranger.end().await.bye, u16::from(CloseCode::Invite));
    }
    let turned_away = texts(&server, "", "A learner could not join").await;
    assert_eq!(turned_away.len(), 2, "{turned_away:?}");
    assert_eq!(turned_away[1], "The run began.");
    server.stop().await;

    let server = Server::start(config(dir.path())).await;
    let mut learner = Learner::join(&server, 1).await;
    let fate = learner.answer(|update| update.checksum ^= 1).await;
    assert!(matches!(fate, Fate::Refused(_)), "{fate:?}");
    texts(&server, "", "An update of learner 1 was refused: it was damaged on its way.").await;
    let _other = Learner::join(&server, 2).await;
    texts(&server, "", "learner 2 joined (test).").await;
    learner.client.send(&Message::Bye(Bye::new(CloseCode::Done, "enough"))).await;
    texts(&server, "", "learner 1 left.").await;
    owner(&server, "pause").await;
    owner(&server, "resume").await;
    let all = texts(&server, "", "The owner resumed the run.").await;
    let expected = [
        "The owner resumed the run.",
        "The owner paused the run.",
        "learner 1 left.",
        "learner 2 joined (test).",
        "An update of learner 1 was refused: it was damaged on its way.",
        "learner 1 joined (test).",
        "The syncer was started again, and the run continues.",
        "The syncer was told to stop, and saved the run.",
    ];
    assert_eq!(all[..expected.len()], expected);
    assert_eq!(texts(&server, "?name=NER+2", "learner 2").await, ["learner 2 joined (test)."]);
    assert_eq!(texts(&server, "?limit=1", "resumed the run").await.len(), 1);
    for query in ["limit=0", "limit=1001", "named=x"] {
        assert_eq!(server.http(&format!("GET /v1/log?{query}")).await.0, 400, "{query}");
    }
    server.stop().await;
    watch.until("log", 1).await;
    assert!(watch.text.contains("A learner could not join"), "{}", watch.text);
}

/// Goal: a closed tab is not logged as a fault. Browsers close its socket with a close code of their own.
#[tokio::test]
async fn a_page_that_is_closed_has_left() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    for (number, code, said) in [
        (1, Some(SocketCode::Away), "learner 1 left."),
        (2, Some(SocketCode::Abnormal), "The connection to learner 2 broke."),
        (3, None, "The connection to learner 3 broke."),
    ] {
        let mut learner = Learner::join(&server, number).await;
        texts(&server, "", "joined").await;
        if let Some(code) = code {
            let frame = CloseFrame { code, reason: "".into() };
            learner.client.socket.close(Some(frame)).await.unwrap();
        }
        drop(learner);
        assert_eq!(texts(&server, "?limit=1", &format!("learner {number} ")).await.len(), 1);
        texts(&server, "?limit=1", said).await;
    }
    server.stop().await;
}

/// Goal: logged events are on disk, so that a crash right after them loses none.
#[tokio::test]
async fn a_crash_loses_nothing_that_was_told() {
    let (dir, copied) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = Server::start(config(dir.path())).await;
    let _learner = Learner::join(&server, 1).await;
    texts(&server, "", "learner 1 joined").await;
    let crashed = copied.path().join("run");
    copy(dir.path(), &crashed);
    server.stop().await;

    let server = Server::start(config(&crashed)).await;
    let all = texts(&server, "", "started again").await;
    assert_eq!(all[1..], ["learner 1 joined (test).", "The run began."]);
    owner(&server, "finish").await;
    let all = texts(&server, "", "The run is complete").await;
    assert!(all[1].starts_with("The run is ending"), "{all:?}");
    server.stop().await;
}

#[tokio::test]
async fn hidden_names_stay_hidden_in_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(ServeConfig { hide_names: true, ..config(dir.path()) }).await;
    let _learner = Learner::join(&server, 7).await;
    assert_eq!(texts(&server, "?limit=1", "joined").await, ["islet 1 joined."]);
    assert_eq!(json(&server, "/v1/log?name=learner").await["entries"], Value::Array(vec![]));
    server.stop().await;
}
