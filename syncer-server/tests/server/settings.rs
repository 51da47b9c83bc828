//! Tests of the run's settings: display, and changes by the owner during the run.

use std::fs;

use serde_json::Value;
use syncer_server::{ForkArgs, ServeConfig, fork, replayed, serve};

use crate::replay::args;
use crate::support::{Learner, Server, config};

async fn change(server: &Server, token: &str, body: &str) -> (u16, String) {
    let request =
        format!("POST /v1/admin/settings\nAuthorization: Bearer {token}\nContent-Length: {}", body.len());
    let (code, _, said) = server.exchange(&request, body).await;
    (code, String::from_utf8(said).unwrap())
}

async fn value(server: &Server, key: &str) -> Value {
    let (code, _, body) = server.http("GET /v1/settings").await;
    assert_eq!(code, 200);
    let view: Value = serde_json::from_slice(&body).unwrap();
    let found = view["settings"].as_array().unwrap().iter().find(|one| one["key"] == key);
    found.unwrap()["value"].clone()
}

#[tokio::test]
async fn what_the_owner_changes_holds_is_kept_and_every_merge_is_derived_again() {
    const OWNER: &str = "secret-of-the-owner";
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    let mut learner = Learner::join(&server, 1).await;
    learner.merge().await;

    let (code, _) = change(&server, "wrong", r#"{"merge": "mean"}"#).await;
    assert_eq!((code, value(&server, "merge").await), (401, "radial".into()));
    for (body, part) in [
        (r#"{"sync-every": 2}"#, "sync-every is fixed for this run"),
        (r#"{"grace-ratio": 3}"#, "grace-ratio 3 is out of range"),
        ("merge = mean", "send JSON such as"),
    ] {
        let (code, said) = change(&server, OWNER, body).await;
        assert!(code == 400 && said.contains(part), "{code} {said}");
    }
    assert!(!dir.path().join("settings.toml").exists(), "nothing was changed");

    let wanted = r#"{"merge": "mean", "grace-ratio": 0.25, "learners-max": 1}"#;
    assert_eq!(change(&server, OWNER, wanted).await.0, 202);
    assert_eq!(value(&server, "merge").await, "mean");
    let kept = fs::read_to_string(dir.path().join("settings.toml")).unwrap();
    for line in ["merge = \"mean\"", "grace-ratio = 0.25", "learners-max = 1"] {
        assert!(kept.lines().any(|found| found == line), "{line}: {kept}");
    }
    let (_, said) = change(&server, OWNER, wanted).await;
    assert!(said.contains("nothing changed"), "{said}");
    learner.merge().await;
    // The limit applies at once: another learner finds the run full.
    let mut second = crate::support::Client::connect(&server).await;
    second.send(&archipelago_core::wire::Message::Hello(crate::support::hello(2))).await;
    let end = second.end().await;
    assert!(end.reason.contains("1 learners are connected, which is the limit"), "{}", end.reason);
    let (_, _, log) = server.http("GET /v1/log").await;
    let log = String::from_utf8(log).unwrap();
    assert!(log.contains("The owner changed merge from radial to mean."), "{log}");

    // A stop that has passed would end the run at once. `finish` is the order for that.
    let merged = server.status().await["tokensMerged"].as_u64().unwrap();
    for stop in ["1".to_owned(), merged.to_string(), "\"1e0\"".to_owned()] {
        let (code, said) = change(&server, OWNER, &format!(r#"{{"stop-at-tokens": {stop}}}"#)).await;
        assert!(code == 400 && said.contains("would end the run now: use finish"), "{code} {said}");
    }
    assert_eq!(value(&server, "stop-at-tokens").await, "0");
    assert_eq!(server.status().await["finishing"], false);
    // The run ends with the next merged tokens.
    let stop = format!(r#"{{"stop-at-tokens": {}}}"#, merged + 1);
    assert_eq!(change(&server, OWNER, &stop).await.0, 202);
    learner.merge().await;
    for _ in 0..600 {
        if server.status().await["finishing"] == true {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(server.status().await["finishing"], true);
    server.stop().await;

    let mut merges = 0;
    replayed(&args(dir.path(), None), |_| merges += 1).unwrap();
    assert!(merges >= 2, "{merges}");
}

#[tokio::test]
async fn a_disk_that_takes_no_settings_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(ServeConfig { min_quorum: 1.try_into().unwrap(), ..config(dir.path()) }).await;
    // A folder in place of the file cannot be replaced.
    fs::create_dir(dir.path().join("settings.toml")).unwrap();
    let (code, said) = change(&server, "secret-of-the-owner", r#"{"min-quorum": 2}"#).await;
    assert!(code == 500 && said.contains("settings.toml"), "{code} {said}");
    assert_eq!(value(&server, "min-quorum").await, "1");
    server.stop().await;
}

/// Goal: a stop that has passed ends no run by accident, neither at a start nor in a fork.
#[tokio::test]
async fn a_stop_that_is_passed_is_refused_at_a_start_and_left_out_of_a_fork() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let server = Server::start(config(&run)).await;
    let mut learner = Learner::join(&server, 1).await;
    learner.merge().await;
    server.stop().await;

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let stopped = ServeConfig { stop_at_tokens: 1, ..config(&run) };
    let error = serve(listener, stopped, std::future::pending()).await.unwrap_err();
    let said = error.to_string();
    assert_eq!(error.exit_code(), 3, "{said}");
    assert!(said.contains("--stop-at-tokens 1 ") && said.contains("`syncer-server finish`"), "{said}");

    let forked = |name: &str, stop: &str| {
        fs::write(run.join("settings.toml"), format!("seed = 1\nstop-at-tokens = {stop}\n")).unwrap();
        let to = dir.path().join(name);
        let args = ForkArgs { folder: run.clone().into(), at: u64::MAX, to: to.clone(), json: false };
        let forked = fork(&args).unwrap();
        (forked.dropped_stop, fs::read_to_string(to.join("settings.toml")).unwrap())
    };
    assert_eq!(forked("passed", "1"), (Some(1), "seed = 1\nstop-at-tokens = 0\n".to_owned()));
    assert_eq!(forked("ahead", "\"10M\""), (None, "seed = 1\nstop-at-tokens = \"10M\"\n".to_owned()));
}
