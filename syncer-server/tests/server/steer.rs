//! Tests of the commands that steer one run.

use std::ffi::OsString;
use std::path::Path;

use syncer_server::{Verb, order, parse, steer};

use crate::support::{Learner, Server, config};

/// Runs a command line and returns its answer or its error message.
async fn say(line: Vec<String>) -> Result<String, String> {
    let words = ["syncer-server".to_owned()].into_iter().chain(line.clone()).map(OsString::from);
    let given = move |verb| match verb {
        Verb::Pause(args) => steer::pause(&args),
        Verb::Resume(args) => steer::resume(&args),
        Verb::Finish(args) => steer::finish(&args),
        Verb::Set(args) => steer::set(&args),
        Verb::Pace(args) => steer::pace(&args),
        Verb::Drop(args) => steer::send_away(&args),
        Verb::Run(args) => order(&args),
        other => panic!("{other:?}"),
    };
    let verb = parse(words).unwrap_or_else(|error| panic!("{line:?}: {error:?}")).verb;
    tokio::task::spawn_blocking(move || given(verb).map_err(|error| error.to_string())).await.unwrap()
}

fn words(line: &str, dir: &Path) -> Vec<String> {
    let more = ["--token", "secret-of-the-owner", "--dir", dir.to_str().unwrap()];
    line.split(' ').chain(more).map(str::to_owned).collect()
}

#[tokio::test]
async fn a_run_is_steered_by_what_is_in_its_folder() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    let mut learner = Learner::join(&server, 1).await;
    learner.merge().await;
    let order = async |line: &str| say(words(line, dir.path())).await;
    let is = async |key: &str| server.status().await[key].clone();

    assert_eq!(order("pause").await.as_deref(), Ok("the run is paused"));
    assert_eq!(is("paused").await, true);
    assert_eq!(order("resume").await.as_deref(), Ok("the run continues"));
    assert_eq!(is("paused").await, false);
    assert_eq!(order("pace 1 0.5").await.as_deref(), Ok("the learner is told"));
    assert!(order("pace 1 -2").await.unwrap_err().contains("0.001"), "out of range");
    assert!(order("drop 99 5s").await.unwrap_err().contains("no learner 99"));
    let set = "set min-quorum=2 stop-at-tokens=10M";
    assert_eq!(order(set).await.as_deref(), Ok("the settings now apply"));
    assert!(order("set sync-every=3").await.unwrap_err().contains("sync-every is fixed"));
    assert!(order("set stop-at-tokens=1").await.unwrap_err().contains("use finish"));
    let url = format!("http://{}", server.address);
    // A verb for servers of several runs fails here, and the error explains how to name the run.
    let line = ["run", "finish", "default", "--url", &url, "--token", "secret-of-the-owner"];
    let several = say(line.map(str::to_owned).to_vec()).await.unwrap_err();
    assert!(several.contains("serves one run, which has no name there"), "{several}");

    assert_eq!(order("drop 1 20s").await.as_deref(), Ok("the learner is told"));
    assert_eq!(order("finish").await.as_deref(), Ok("the run is finishing"));
    assert!(dir.path().join("address").exists());
    server.stop().await;
    assert!(!dir.path().join("address").exists(), "nobody answers there any more");
}

#[tokio::test]
async fn a_run_without_a_token_says_where_it_would_be() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().to_str().unwrap().to_owned();
    let line = ["pause", "--dir", &place].map(str::to_owned).to_vec();
    assert!(say(line).await.unwrap_err().contains("there is no admin.token in"));
    std::fs::create_dir_all(dir.path().join("default")).unwrap();
    std::fs::write(dir.path().join("default/run.json"), "{}").unwrap();
    let line = ["run", "finish", "default", "--runs", &place].map(str::to_owned).to_vec();
    assert!(say(line).await.unwrap_err().contains("is a run with a server of its own"));
}
