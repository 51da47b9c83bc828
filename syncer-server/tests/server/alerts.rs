//! Tests of alerts: shown, logged, and posted to the owner's webhook.

use serde_json::Value;
use syncer_server::{AlertArgs, PlaceArgs, ServeConfig, TableArgs, inspect};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::dashboard::json;
use crate::support::{Learner, PATIENCE, Server, config};

/// Returns the next notice that is posted to `listener`.
async fn posted(listener: &TcpListener) -> Value {
    let read = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut text = String::new();
        loop {
            let mut bytes = [0; 4_096];
            let count = stream.read(&mut bytes).await.unwrap();
            assert!(count > 0, "it ended early: {text}");
            text.push_str(&String::from_utf8_lossy(&bytes[..count]));
            // The body is one flat JSON object.
            if let Some((_, body)) = text.split_once("\r\n\r\n").filter(|(_, body)| body.ends_with('}')) {
                let answer = "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n";
                stream.write_all(answer.as_bytes()).await.unwrap();
                return serde_json::from_str(body).unwrap();
            }
        }
    };
    tokio::time::timeout(PATIENCE, read).await.expect("a notice")
}

#[tokio::test]
async fn an_owner_is_told_that_nobody_is_there_and_that_somebody_came() {
    let dir = tempfile::tempdir().unwrap();
    let hook = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", hook.local_addr().unwrap());
    let defaults = config(dir.path());
    let alerts =
        AlertArgs { alert_no_learner: "1ms".parse().unwrap(), webhook: Some(url), ..defaults.alerts.clone() };
    let server = Server::start(ServeConfig { alerts, ..defaults }).await;

    let notice = posted(&hook).await;
    let text = "No learner has taken part for ";
    let notice_of_trouble = notice["text"].clone();
    assert_eq!((&notice["alert"], &notice["raised"]), (&"noLearner".into(), &true.into()));
    assert!(notice["text"].as_str().unwrap().starts_with(text), "{notice}");
    let status = server.status().await;
    assert_eq!((&status["alerts"][0]["kind"], &status["run"]), (&"noLearner".into(), &notice["run"]));
    assert!(status["alerts"][0]["text"].as_str().unwrap().starts_with(text), "{}", status["alerts"]);
    let place = PlaceArgs { url: format!("http://{}", server.address), ca: None, dir: None };
    let looked =
        tokio::task::spawn_blocking(|| inspect::status(&TableArgs { place, json: false, csv: false }));
    let looked = looked.await.unwrap().unwrap();
    assert!(looked.contains(&format!("ALERT          {text}")), "{looked}");

    let _learner = Learner::join(&server, 1).await;
    let notice = posted(&hook).await;
    let relief = "A learner takes part again.";
    assert_eq!((&notice["text"], &notice["raised"]), (&relief.into(), &false.into()));
    assert_eq!(server.status().await["alerts"], Value::Array(vec![]));
    server.stop().await;

    // Both lines are kept.
    let server = Server::start(config(dir.path())).await;
    let log = json(&server, "/v1/log").await;
    let of_kind = |kind: &str| {
        let entries = log["entries"].as_array().unwrap().iter();
        entries.filter(|entry| entry["kind"] == kind).map(|entry| entry["text"].clone()).collect::<Vec<_>>()
    };
    assert_eq!((of_kind("trouble"), of_kind("mended")), (vec![notice_of_trouble], vec![relief.into()]));
    server.stop().await;
}
