//! Tests of the metrics for Prometheus, and of the files for Prometheus and Grafana, which use only existing metrics.

use std::collections::BTreeSet;

use syncer_server::ServeConfig;

use crate::support::{Learner, PATIENCE, Server, config, header};

/// Prefix of the name of every metric.
const PREFIX: &str = "archipelago_";

/// Returns the metrics of a run that has measured a loss and merged an update.
async fn scrape() -> String {
    let dir = tempfile::tempdir().unwrap();
    let config = ServeConfig { no_eval: false, ..config(dir.path()) };
    let server = Server::start(ServeConfig { snapshot_every: "100ms".parse().unwrap(), ..config }).await;
    let mut learner = Learner::join(&server, 1).await;
    learner.merge().await;
    let scraped = async {
        loop {
            let (code, head, body) = server.http("GET /metrics").await;
            assert_eq!(code, 200);
            assert!(header(&head, "content-type").starts_with("text/plain; version=0.0.4"), "{head}");
            let text = String::from_utf8(body).unwrap();
            if ["held_out_loss_nats", "train_loss_nats", "snapshot_timestamp_seconds"]
                .iter()
                .all(|name| text.contains(name))
            {
                return text;
            }
        }
    };
    let text = tokio::time::timeout(PATIENCE, scraped).await.expect("all is measured in time");
    server.stop().await;
    text
}

#[tokio::test]
async fn metrics_keep_the_conventions_and_their_users_know_them() {
    let text = scrape().await;
    let mut names = BTreeSet::new();
    let lines: Vec<&str> = text.lines().collect();
    for metric in lines.chunks(3) {
        let [help, kind, value] = metric else { panic!("three lines each: {metric:?}") };
        let (name, kind) = kind.strip_prefix("# TYPE ").unwrap().split_once(' ').unwrap();
        assert!(help.starts_with(&format!("# HELP {name} ")), "{help}");
        assert!(name.starts_with(PREFIX) && names.insert(name.to_owned()), "{name}");
        assert_eq!(name.ends_with("_total"), kind == "counter", "{name} is a {kind}");
        let (left, number) = value.rsplit_once(' ').unwrap();
        assert!(number.parse::<f64>().unwrap().is_finite(), "{value}");
        // The number of learners is unbounded, so only constant values may be labels.
        let labels = left.strip_prefix(name).unwrap();
        assert_eq!(labels.is_empty(), name != "archipelago_build_info", "{value}");
        for abbreviated in ["_ms", "_secs", "_kib", "_mib", "_pct", "_percent"] {
            assert!(!name.ends_with(abbreviated), "{name}");
        }
    }
    assert!(text.contains("archipelago_rounds_merged_total 1\n"), "{text}");

    for (file, text) in [
        ("grafana.json", include_str!("../../deploy/grafana.json")),
        ("archipelago.rules.yml", include_str!("../../deploy/archipelago.rules.yml")),
    ] {
        let mut used = 0;
        for rest in text.split(PREFIX).skip(1) {
            let name = rest.split(|c: char| !c.is_ascii_lowercase() && c != '_').next().unwrap_or_default();
            assert!(names.contains(&format!("{PREFIX}{name}")), "{file}: {PREFIX}{name} is not there");
            used += 1;
        }
        assert!(used > 3, "{file}");
    }
    let board: serde_json::Value = serde_json::from_str(include_str!("../../deploy/grafana.json")).unwrap();
    assert!(board["panels"].as_array().unwrap().iter().all(|panel| panel["targets"][0]["expr"].is_string()));
}
