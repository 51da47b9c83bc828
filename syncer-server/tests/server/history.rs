//! Tests of a run's figures after a crash.

use serde_json::Value;
use syncer_server::ServeConfig;

use crate::dashboard::json;
use crate::log::copy;
use crate::support::{Learner, PATIENCE, Server, config};

/// Number of copies of the run's folder to start, until one contains the figures.
const TRIES: u32 = 40;

async fn measurements(server: &Server) -> Vec<Value> {
    json(server, "/v1/series").await["evaluations"].as_array().unwrap().clone()
}

/// Goal: a run that crashes before its first snapshot keeps its history. The first loss is the one measured before
/// training, at its time, and the clock, the curve and the traffic continue.
#[tokio::test]
async fn a_crash_before_the_first_snapshot_keeps_the_history() {
    let dir = tempfile::tempdir().unwrap();
    let measured = |dir: &std::path::Path| ServeConfig {
        no_eval: false,
        eval_every: "10ms".parse().unwrap(),
        ..config(dir)
    };
    let server = Server::start(measured(dir.path())).await;
    let first = async {
        loop {
            if let Some(first) = measurements(&server).await.first() {
                return first.clone();
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    let first = tokio::time::timeout(PATIENCE, first).await.unwrap();
    assert_eq!(first["tokensMerged"], 0);
    let mut learner = Learner::join(&server, 1).await;
    learner.merge().await;
    let mut again = None;
    for _ in 0..TRIES {
        let crashed = tempfile::tempdir().unwrap();
        copy(dir.path(), crashed.path());
        let server = Server::start(measured(crashed.path())).await;
        let (status, losses) = (server.status().await, measurements(&server).await);
        server.stop().await;
        if status["bytesUp"] != 0 && losses.first() == Some(&first) {
            again = Some((status, losses));
            break;
        }
    }
    let (status, losses) = again.expect("the history is in the copy");
    assert!((status["valLossFirst"].as_f64().unwrap() - first["loss"].as_f64().unwrap()).abs() < 1e-6);
    let times: Vec<f64> = losses.iter().map(|loss| loss["timeS"].as_f64().unwrap()).collect();
    assert!(times.is_sorted(), "the run's clock goes back: {times:?}");
    assert!(status["runS"].as_f64().unwrap() >= times[0]);
    server.stop().await;
}
