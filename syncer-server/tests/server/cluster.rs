//! Two servers of one run, each a gateway before its learners and an owner of fragments.

use archipelago_cli::MethodArgs;
use archipelago_cluster::{Local, Services};
use archipelago_core::wire::{Fate, Hello};
use serde_json::Value;
use syncer_server::{ClusterArgs, Role, ServeConfig, Within};

use crate::support::{Client, Learner, PATIENCE, Server, config, hello};

fn part(dir: &std::path::Path, services: &Services, role: Role) -> ServeConfig {
    let plain = config(dir);
    let method = MethodArgs { fragments: 2, ..plain.method };
    let within = Some(Within(services.clone()));
    let cluster = ClusterArgs { role: Some(role), within, ..plain.cluster };
    ServeConfig { method, cluster, ..plain }
}

async fn until(server: &Server, what: &str, done: impl Fn(&Value) -> bool) -> Value {
    let look = async {
        loop {
            let status = server.status().await;
            if done(&status) {
                return status;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, look).await.unwrap_or_else(|_| panic!("{what}: not in {PATIENCE:?}"))
}

/// Goal: learners of two servers train one model, each server tells of all that is merged, and a learner whose server
/// ends goes on at the other one as the same learner.
#[tokio::test(flavor = "multi_thread")]
async fn two_servers_serve_one_run() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let services = Local::services();
    let one = Server::start(part(dirs[0].path(), &services, Role::All)).await;
    // A process that was killed left this behind.
    let left = dirs[1].path().join("processes/left");
    std::fs::create_dir_all(&left).unwrap();
    std::fs::write(left.join("lock"), "").unwrap();
    let other = Server::start(part(dirs[1].path(), &services, Role::Gateway)).await;
    let mut anne = Learner::join(&one, 1).await;
    let mut bert = Learner::join(&other, 2).await;
    assert_eq!(anne.welcome.run, bert.welcome.run, "it is one run");
    assert_ne!(anne.welcome.learner, bert.welcome.learner);
    let mut merged = 0;
    for _ in 0..6 {
        let (fate, others) = tokio::join!(anne.answer(|_| {}), bert.answer(|_| {}));
        for fate in [fate, others] {
            merged += u32::from(matches!(fate, Fate::Merged { .. }));
        }
    }
    assert!(merged >= 6, "{merged} of 12 updates were merged");
    let tokens = |status: &Value| status["tokensMerged"].as_f64().unwrap_or(0.0);
    let seen = until(&one, "it counts", |status| tokens(status) > 0.0).await;
    let told = until(&other, "so does the other", |status| tokens(status) >= tokens(&seen)).await;
    assert_eq!(told["run"], seen["run"]);
    assert_eq!(told["learnersTotal"], 2, "each knows of the learners of the other: {told:#}");

    // Bert's server ends, and he comes to the other one.
    let (run, learner) = (bert.welcome.run, bert.welcome.learner);
    other.stop().await;
    let (client, welcome) =
        Client::connect(&one).await.introduced_as(Hello { run: Some(run), ..hello(2) }).await;
    assert_eq!(welcome.learner, learner, "he has the same number everywhere");
    let before = bert.welcome.merged.clone();
    assert!(welcome.merged.iter().any(Option::is_some), "{before:?} → {:?}", welcome.merged);
    let mut bert = Learner::of(client, welcome).await;
    let mut merged = 0;
    for _ in 0..4 {
        let (_, fate) = tokio::join!(anne.answer(|_| {}), bert.answer(|_| {}));
        merged += u32::from(matches!(fate, Fate::Merged { .. }));
    }
    assert!(merged > 0, "he is merged there");
    one.stop().await;
    let left = std::fs::read_dir(dirs[1].path().join("processes")).unwrap().count();
    assert_eq!(left, 0, "what a process worked in goes with it, or with the next one");
}

/// Goal: what makes no sense for one process of several is refused in a sentence.
#[tokio::test]
async fn settings_of_one_machine_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let audited = ServeConfig { audit: 0.5, ..part(dir.path(), &Local::services(), Role::All) };
    let error = Server::refused(audited).await.to_string();
    assert!(error.contains("--audit") && error.contains("--role"), "{error}");
}
