//! Tests of a complete run, which is still shown but no longer trained.

use std::time::Duration;

use archipelago_core::wire::{CloseCode, Message};
use serde_json::Value;
use syncer_server::{ServeConfig, Store};

use crate::support::{Client, Learner, PATIENCE, Server, config, hello};

const FINISH: &str = "POST /v1/admin/finish\nAuthorization: Bearer secret-of-the-owner";

/// Returns the first status that `pick` accepts.
async fn until(server: &Server, pick: impl Fn(&Value) -> bool) -> Value {
    let found = async {
        loop {
            let status = server.status().await;
            if pick(&status) {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, found).await.expect("the status that is waited for")
}

/// Returns a server whose run has merged an update and is finished.
async fn finished(config: ServeConfig) -> Server {
    let server = Server::start(config).await;
    let mut learner = Learner::join(&server, 1).await;
    learner.merge().await;
    // An absent learner is not asked for a last update.
    drop(learner);
    until(&server, |status| status["connected"] == 0).await;
    assert_eq!(server.http(FINISH).await.0, 202);
    until(&server, |status| status["finished"] == true).await;
    server
}

/// Checks that `server` shows a complete run, and admits no learners and accepts no orders.
async fn is_complete(server: &Server) {
    let status = server.status().await;
    let run = format!("/v1/runs/{}", status["run"].as_str().unwrap());
    let [fragment, version] = [0, 1].map(|at| status["fragments"][0][at].to_string().replace('"', ""));
    let (model, parameters) = (format!("{run}/model"), format!("{run}/fragments/{fragment}/{version}"));
    let shown =
        ["/v1/status", "/v1/learners", "/v1/series", "/v1/rounds", "/v1/export.zip", "/metrics", "/readyz"];
    for path in shown.into_iter().chain([&*model, &*parameters]) {
        let (code, _, body) = server.http(&format!("GET {path}")).await;
        assert!(code == 200 && !body.is_empty(), "{path}: {code}");
    }
    assert_eq!((&status["finished"], &status["finishing"]), (&true.into(), &true.into()));
    assert!(status["tokensMerged"].as_u64() > Some(0), "{status}");
    assert_eq!(status["learners"][0]["name"], "learner 1");

    let mut client = Client::connect(server).await;
    client.send(&Message::Hello(hello(2))).await;
    let end = client.end().await;
    assert_eq!((end.bye, end.close), (CloseCode::Done.into(), CloseCode::Done.into()), "{end:?}");
    assert_eq!(server.status().await["learnersTotal"], 1);

    for (path, body) in [
        ("finish", ""),
        ("pause", ""),
        ("resume", ""),
        ("learners/1/pace", r#"{"share":0.5}"#),
        ("learners/1/drop", r#"{"seconds":5}"#),
    ] {
        let request = format!("POST /v1/admin/{path}\nContent-Length: {}", body.len());
        assert_eq!(server.exchange(&request, body).await.0, 401, "{path}");
        let (code, _, said) =
            server.exchange(&format!("{request}\nAuthorization: Bearer secret-of-the-owner"), body).await;
        let said = String::from_utf8(said).unwrap();
        assert!(code == 409 && said.starts_with("the run is complete"), "{path}: {code} {said}");
    }
    assert_eq!(server.status().await["paused"], false);
}

#[tokio::test]
async fn a_complete_run_is_shown_and_trained_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let server = finished(config(dir.path())).await;
    is_complete(&server).await;

    // The end is on disk before the server stops, so that a crash would not reopen the run.
    let run = Store::look(dir.path()).manifest().unwrap().unwrap().run;
    let saved = || Store::look(dir.path()).latest(run).unwrap().unwrap().record.finished;
    let on_disk = async {
        while !saved() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, on_disk).await.unwrap();

    // The run's clock has stopped, and its curves have ended.
    let before = server.status().await;
    let points = server.http("GET /v1/series").await.2;
    let later =
        until(&server, |now| now["uptimeS"].as_f64() > before["uptimeS"].as_f64().map(|s| s + 2.0)).await;
    assert_eq!(later["runS"], before["runS"]);
    assert!(server.http("GET /v1/series").await.2 == points, "nothing is added to the course");

    let last = server.stop().await;
    assert!(last.core.finished);
}

#[tokio::test]
async fn a_complete_run_is_complete_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let last = finished(config(dir.path())).await.stop().await;
    let server = Server::start(config(dir.path())).await;
    is_complete(&server).await;
    let status = server.status().await;
    assert_eq!(status["tokensMerged"], last.core.tokens_merged);
    let run_s = status["runS"].as_f64().unwrap();
    assert!((run_s - last.run_s).abs() < 1e-6, "{run_s} s, before {} s", last.run_s);
    server.stop().await;
}

/// Goal: the last sample and the last loss belong to the final parameters, however soon the server stops. A complete
/// run that is served again is not measured again.
#[tokio::test]
async fn a_complete_run_is_measured_once() {
    let dir = tempfile::tempdir().unwrap();
    // After the first measurement, only the end of the run is measured.
    let measured = ServeConfig { no_eval: false, eval_every: "1h".parse().unwrap(), ..config(dir.path()) };
    let server = Server::start(measured.clone()).await;
    let begun = until(&server, |status| !status["valLossFirst"].is_null()).await;
    let mut learner = Learner::join(&server, 1).await;
    learner.merge().await;
    drop(learner);
    until(&server, |status| status["connected"] == 0).await;
    assert_eq!(server.http(FINISH).await.0, 202);
    let last = server.stop().await;
    assert!(last.core.finished && last.val_loss_last != last.val_loss_first, "{last:?}");
    assert!(!last.sample.is_empty() && begun["sample"] != last.sample, "{last:?}");

    let evaluations = |dir: &std::path::Path| {
        let run = Store::look(dir).manifest().unwrap().unwrap().run;
        Store::look(dir).latest(run).unwrap().unwrap().carried.history.evaluations
    };
    let before = evaluations(dir.path());
    let server = Server::start(measured).await;
    assert_eq!(server.stop().await.sample, last.sample);
    assert_eq!((evaluations(dir.path()), before.len()), (before, 2));
}

#[tokio::test]
async fn a_server_may_exit_with_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let leaving = ServeConfig { exit_when_finished: true, ..config(dir.path()) };
    let server = Server::start(leaving.clone()).await;
    assert_eq!(server.http(FINISH).await.0, 202);
    assert!(server.ended().await.core.finished);
    // A server whose run was already complete exits, too.
    assert!(Server::start(leaving).await.ended().await.core.finished);
}
