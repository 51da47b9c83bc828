//! Tests of a run on several servers: gateways for learners, and owners of fragments.

use archipelago_cli::Span;
use archipelago_cluster::{Local, Services};
use archipelago_core::diloco::checksum;
use archipelago_core::wire::{CloseCode, Fate, Hello, Message, Refusal, Update};
use serde_json::Value;
use syncer_server::{ClusterArgs, InProcessServices, Role, ServeConfig};

use crate::support::{Client, PATIENCE, ScriptedLearner, Server, config, hello};

pub fn part(dir: &std::path::Path, services: &Services, role: Role) -> ServeConfig {
    let plain = config(dir);
    let within = Some(InProcessServices(services.clone()));
    let cluster = ClusterArgs { role: Some(role), within, ..plain.server.cluster.clone() };
    plain.with(|it| {
        it.identity.exchange.fragments = 2;
        it.server.cluster = cluster;
        it.snapshot_every = Span(std::time::Duration::from_millis(100));
    })
}

pub async fn until(server: &Server, what: &str, done: impl Fn(&Value) -> bool) -> Value {
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

/// Returns the number of snapshots below `dir`, over all processes that were started there.
fn snapshots(dir: &std::path::Path) -> usize {
    let processes = std::fs::read_dir(dir.join("processes")).unwrap();
    let folders = processes.map(|process| process.unwrap().path().join("snapshots"));
    folders.map(|folder| std::fs::read_dir(folder).unwrap().count()).sum()
}

/// Goal: learners of two servers train one model, and each server reports all merges. A learner whose server ends
/// continues at the other one under the same number.
#[tokio::test(flavor = "multi_thread")]
async fn two_servers_serve_one_run() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let services = Local::services();
    let one = Server::start(part(dirs[0].path(), &services, Role::All)).await;
    // Remains of a killed process.
    let left = dirs[1].path().join("processes/left");
    std::fs::create_dir_all(&left).unwrap();
    std::fs::write(left.join("lock"), "").unwrap();
    let other = Server::start(part(dirs[1].path(), &services, Role::Gateway)).await;
    let mut anne = ScriptedLearner::join(&one, 1).await;
    let mut bert = ScriptedLearner::join(&other, 2).await;
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

    for dir in &dirs {
        assert_eq!(
            snapshots(dir.path()),
            0,
            "what is merged is between the processes and in no folder of one"
        );
    }

    // Bert's server ends, and he connects to the other one.
    let (run, learner) = (bert.welcome.run, bert.welcome.learner);
    other.stop().await;
    let (client, welcome) =
        Client::connect(&one).await.introduced_as(Hello { run: Some(run), ..hello(2) }).await;
    assert_eq!(welcome.learner, learner, "he has the same number everywhere");
    let before = bert.welcome.merged.clone();
    assert!(welcome.merged.iter().any(Option::is_some), "{before:?} → {:?}", welcome.merged);
    let mut bert = ScriptedLearner::of(client, welcome).await;
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

/// Starts two servers of one run, connected by in-process services.
async fn pair(dirs: &[tempfile::TempDir; 2]) -> (Services, [Server; 2]) {
    let services = Local::services();
    let one = Server::start(part(dirs[0].path(), &services, Role::All)).await;
    let other = Server::start(part(dirs[1].path(), &services, Role::Gateway)).await;
    (services, [one, other])
}

fn dirs() -> [tempfile::TempDir; 2] {
    [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()]
}

/// Answers every round as `learner`, until the task is cancelled.
async fn train(mut learner: ScriptedLearner) {
    loop {
        learner.answer(|_| {}).await;
        // More reported windows lead to more leases.
        learner.windows += learner.welcome.spec.inner.batch;
        learner.steps += 1;
        learner.report().await;
    }
}

/// Returns the status code of the answer to an owner's order.
async fn order(server: &Server, path: &str, body: &str) -> u16 {
    let head = format!(
        "POST {path}\nAuthorization: Bearer secret-of-the-owner\nContent-Type: application/json\n\
         Content-Length: {}",
        body.len()
    );
    server.exchange(&head, body).await.0
}

/// Returns the close code with which learner `number` is rejected, or `None` if it is admitted.
async fn turned_away(server: &Server, number: u8) -> Option<u16> {
    let mut client = Client::connect(server).await;
    client.send(&Message::Hello(hello(number))).await;
    match client.next().await {
        Message::Bye(bye) => Some(bye.code.into()),
        _ => None,
    }
}

/// Waits until `server` reports `value` for the setting `key`.
async fn is_set(server: &Server, key: &str, value: &str) {
    let look = async {
        loop {
            let (_, _, body) = server.http("GET /v1/settings").await;
            let settings: Value = serde_json::from_slice(&body).unwrap();
            let all = settings["settings"].as_array().unwrap();
            if all.iter().any(|one| one["key"] == key && one["value"] == value) {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, look).await.unwrap_or_else(|_| panic!("{key} is not {value}"));
}

/// Goal: an owner's order at one server applies to learners, limits and bans at the other one, and at a server that
/// starts later.
#[tokio::test(flavor = "multi_thread")]
async fn orders_at_one_server_apply_at_all_servers() {
    let dirs = dirs();
    let (services, [one, other]) = pair(&dirs).await;
    let mut bert = ScriptedLearner::join(&other, 2).await;
    // The first server has to know the learner.
    while !matches!(bert.answer(|_| {}).await, Fate::Merged { .. }) {}
    until(&one, "it knows him", |status| status["learnersTotal"] == 1).await;

    assert_eq!(order(&one, "/v1/admin/pause", "").await, 202);
    until(&other, "it is held there", |status| status["paused"] == true).await;
    assert_eq!(order(&one, "/v1/admin/resume", "").await, 202);
    until(&other, "it goes on there", |status| status["paused"] == false).await;
    let log = String::from_utf8(other.http("GET /v1/log").await.2).unwrap();
    for line in ["joined", "The owner paused the run.", "The owner resumed the run."] {
        assert!(log.contains(line), "{line}: {log}");
    }
    let settings = "{\"min-quorum\": 2, \"learners-max\": 9}";
    assert_eq!(order(&one, "/v1/admin/settings", settings).await, 202);
    is_set(&other, "learners-max", "9").await;
    assert_eq!(order(&one, "/v1/admin/settings", "{\"preset\": \"small\"}").await, 400);

    let away = format!("/v1/admin/learners/{}/drop", bert.welcome.learner);
    assert_eq!(order(&one, &away, "{\"seconds\": 600}").await, 202);
    let dropped = u16::from(CloseCode::Dropped);
    assert_eq!(bert.client.end().await.bye, dropped);
    let banned = hello(3).identity.fingerprint();
    let ban = format!("{{\"fingerprint\": \"{banned}\", \"note\": \"why\"}}");
    assert_eq!(order(&one, "/v1/bans", &ban).await, 200);
    assert_eq!(order(&one, "/v1/bans", "{\"fingerprint\": \"x\"}").await, 400);

    // A third server applies all orders.
    let dir = tempfile::tempdir().unwrap();
    let third = Server::start(part(dir.path(), &services, Role::Gateway)).await;
    is_set(&third, "min-quorum", "2").await;
    let is_banned = async { while turned_away(&third, 3).await != Some(CloseCode::Banned.into()) {} };
    tokio::time::timeout(PATIENCE, is_banned).await.expect("the banned one is turned away");
    assert_eq!(turned_away(&third, 2).await, Some(dropped));
    assert_eq!(order(&third, &away, "{\"seconds\": 0}").await, 202);
    let is_in = async { while turned_away(&other, 2).await.is_some() {} };
    tokio::time::timeout(PATIENCE, is_in).await.expect("he may come back, anywhere");
    assert_eq!(order(&third, &format!("/v1/bans/{banned}/lift"), "").await, 200);
    assert_eq!(order(&third, &format!("/v1/bans/{banned}/lift"), "").await, 404);
    let is_in = async { while turned_away(&one, 3).await.is_some() {} };
    tokio::time::timeout(PATIENCE, is_in).await.expect("so may the other one");
    for server in [one, other, third] {
        server.stop().await;
    }
}

/// Goal: a run on several machines ends as on one machine. All last updates are merged, all learners are released, and
/// all servers report the same complete run.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_of_two_servers_ends_at_its_tokens() {
    let dirs = dirs();
    let services = Local::services();
    // Well within the first leases.
    let limited =
        |dir: &std::path::Path, role| part(dir, &services, role).with(|it| it.live.stop_at_tokens = 6_000);
    let one = Server::start(limited(dirs[0].path(), Role::All)).await;
    let other = Server::start(limited(dirs[1].path(), Role::Gateway)).await;
    let mut going = Vec::new();
    for (server, number) in [(&one, 1), (&other, 2)] {
        let mut learner = ScriptedLearner::join(server, number).await;
        going.push(tokio::spawn(async move {
            loop {
                match learner.client.next().await {
                    Message::Collect { fragment, base, .. } => {
                        let update = learner.update((fragment, base), 0.01);
                        learner.client.send(&Message::Update(update)).await;
                        learner.steps += 1;
                        learner.report().await;
                    }
                    Message::Merged(merged) => {
                        let holds = Message::VersionAck {
                            run: learner.welcome.run,
                            fragment: merged.fragment,
                            version: merged.version,
                        };
                        learner.client.send(&holds).await;
                    }
                    Message::Bye(bye) => return bye.code,
                    _ => {}
                }
            }
        }));
    }
    for learner in going {
        let code = tokio::time::timeout(PATIENCE, learner).await.expect("it is sent home").unwrap();
        assert_eq!(code, CloseCode::Done);
    }
    let mut tokens = Vec::new();
    for server in [&one, &other] {
        let status = until(server, "it is complete", |status| status["finished"] == true).await;
        tokens.push(status["tokensMerged"].as_u64().unwrap());
    }
    assert!(tokens[0] >= 6_000 && tokens[0] == tokens[1], "{tokens:?}");
    assert_eq!(turned_away(&other, 3).await, Some(CloseCode::Done.into()));
    one.stop().await;
    other.stop().await;
}

/// Goal: a process that starts after the run has passed the stop in its settings applies the owner's later orders, and
/// does not end the run.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_process_applies_earlier_orders() {
    let dirs = dirs();
    let services = Local::services();
    let limited =
        |dir: &std::path::Path, role| part(dir, &services, role).with(|it| it.live.stop_at_tokens = 6_000);
    let one = Server::start(limited(dirs[0].path(), Role::All)).await;
    for tokens in [5_000, 1_000_000] {
        let order_of = format!("{{\"stop-at-tokens\": {tokens}}}");
        assert_eq!(order(&one, "/v1/admin/settings", &order_of).await, 202);
    }
    let trains = tokio::spawn(train(ScriptedLearner::join(&one, 1).await));
    let tokens = |status: &Value| status["tokensMerged"].as_f64().unwrap_or(0.0);
    until(&one, "it has more than that", |status| tokens(status) > 8_000.0).await;
    let other = Server::start(limited(dirs[1].path(), Role::Gateway)).await;
    let status = until(&other, "it knows of that", |status| tokens(status) > 8_000.0).await;
    until(&one, "and trains on", |now| tokens(now) > tokens(&status) + 4_000.0).await;
    for server in [&one, &other] {
        let status = server.status().await;
        assert_eq!((&status["finishing"], &status["finished"]), (&false.into(), &false.into()));
    }
    is_set(&other, "stop-at-tokens", "1000000").await;
    trains.abort();
    one.stop().await;
    other.stop().await;
}

/// Goal: the sender of an update that cannot be merged gets the reason in its receipt, as on one machine.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_update_gets_its_reason() {
    let dirs = dirs();
    let (_, [one, other]) = pair(&dirs).await;
    let trains = tokio::spawn(train(ScriptedLearner::join(&one, 1).await));
    let mut bert = ScriptedLearner::join(&other, 2).await;
    let spoilt = |update: &mut Update| {
        // The first scale becomes a bfloat16 NaN.
        update.body[..2].copy_from_slice(&[0xff, 0x7f]);
        update.checksum = checksum(&update.body);
    };
    let mut fates = Vec::new();
    // Occasionally a round ends before an answer arrives.
    while fates.len() < 8 && fates.last() != Some(&Fate::Refused(Refusal::NotFinite)) {
        fates.push(bert.answer(spoilt).await);
    }
    assert_eq!(fates.last(), Some(&Fate::Refused(Refusal::NotFinite)), "{fates:?}");
    trains.abort();
    one.stop().await;
    other.stop().await;
}

/// Goal: updates of a learner whose answers take longer than a round, as over a slow link, are still merged.
#[tokio::test(flavor = "multi_thread")]
async fn a_learner_that_is_always_late_is_merged() {
    let dirs = dirs();
    let (_, [one, other]) = pair(&dirs).await;
    let trains = tokio::spawn(train(ScriptedLearner::join(&one, 1).await));
    let mut bert = ScriptedLearner::join(&other, 2).await;
    let mut merged = 0;
    // Rounds are so short that some end while his update is on its way to the owner of the fragment.
    for _ in 0..12 {
        let asked = bert.collect().await;
        let before = until(&other, "rounds", |status| status["rounds"].as_u64() > Some(0)).await;
        let update = bert.update(asked, 0.01);
        // Wait until later rounds have merged updates of the other learner.
        let rounds = before["rounds"].as_u64().unwrap() + 12;
        until(&other, "more rounds", |status| status["rounds"].as_u64() > Some(rounds)).await;
        bert.client.send(&Message::Update(update)).await;
        let fate = bert.until(|message| match message {
            Message::Receipt { fate, .. } => Some(fate),
            _ => None,
        });
        merged += u32::from(matches!(fate.await, Fate::Merged { .. }));
        if merged == 3 {
            break;
        }
    }
    assert_eq!(merged, 3);
    trains.abort();
    one.stop().await;
    other.stop().await;
}

/// Goal: a process whose settings differ from those of the others ends with an error, and does not join.
#[tokio::test]
async fn processes_with_other_settings_do_not_join() {
    let dirs = dirs();
    let services = Local::services();
    let one = Server::start(part(dirs[0].path(), &services, Role::All)).await;
    // A server that answers has joined.
    one.status().await;
    let other = part(dirs[1].path(), &services, Role::Gateway);
    let error = Server::refused(other.with(|it| it.live.cohort_max = 3)).await.to_string();
    assert!(error.contains("--cohort-max is 3 here") && error.contains("256"), "{error}");
    one.stop().await;
}
