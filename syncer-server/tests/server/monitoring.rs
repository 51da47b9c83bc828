//! Tests of the metrics for Prometheus, and of the files for Prometheus and Grafana, which use only existing metrics.
//! Also tests of logs, of alerts, and of the tables for a terminal.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use archipelago_core::data::{HELD_OUT_BYTES_MAX, parse_held_out};
use archipelago_core::wire::{Architecture, Bye, CloseCode, Fate, Hello, LearnerId, Message, Version};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::Value;
use syncer_server::{AlertArgs, EventsArgs, PlaceArgs, ServeConfig, ServerError, TableArgs, inspect};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode as SocketCode;

use crate::dashboard::{Watch, json};
use crate::support::{Client, PATIENCE, ScriptedLearner, Server, config, header, hello};

/// Prefix of the name of every metric.
const PREFIX: &str = "archipelago_";

/// Returns the metrics of a run that has measured a loss and merged an update.
async fn scrape() -> String {
    let dir = tempfile::tempdir().unwrap();
    let config = ServeConfig { no_eval: false, ..config(dir.path()) };
    let server = Server::start(ServeConfig { snapshot_every: "100ms".parse().unwrap(), ..config }).await;
    let mut learner = ScriptedLearner::join(&server, 1).await;
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
    let board: Value = serde_json::from_str(include_str!("../../deploy/grafana.json")).unwrap();
    assert!(board["panels"].as_array().unwrap().iter().all(|panel| panel["targets"][0]["expr"].is_string()));
}

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
async fn the_owner_is_notified_of_missing_and_returning_learners() {
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

    let _learner = ScriptedLearner::join(&server, 1).await;
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

type CommandOutput = Result<String, ServerError>;

fn by_url(server: &Server) -> PlaceArgs {
    // A link as learners receive it.
    PlaceArgs { url: format!("http://{}/#invite=x", server.address), ca: None, dir: None }
}

fn folder(dir: &Path) -> PlaceArgs {
    PlaceArgs { url: String::new(), ca: None, dir: Some(dir.to_owned()) }
}

async fn run_blocking(command: impl FnOnce() -> CommandOutput + Send + 'static) -> CommandOutput {
    tokio::task::spawn_blocking(command).await.unwrap()
}

async fn status(place: &PlaceArgs, json: bool) -> CommandOutput {
    let args = TableArgs { place: place.clone(), json, csv: false };
    run_blocking(move || inspect::status(&args)).await
}

async fn table(
    command: fn(&TableArgs) -> CommandOutput,
    place: &PlaceArgs,
    (json, csv): (bool, bool),
) -> Vec<String> {
    let args = TableArgs { place: place.clone(), json, csv };
    let text = run_blocking(move || command(&args)).await.unwrap();
    text.lines().map(str::to_owned).collect()
}

async fn events(place: &PlaceArgs, name: &str, json: bool) -> String {
    let args = EventsArgs { place: place.clone(), name: name.into(), limit: 50, json, csv: false };
    run_blocking(move || inspect::events(&args)).await.unwrap()
}

/// Returns the values of `names` in the JSON status of `place`.
async fn figures<const N: usize>(place: &PlaceArgs, names: [&str; N]) -> [Value; N] {
    let json: Value = serde_json::from_str(&status(place, true).await.unwrap()).unwrap();
    names.map(|name| json[name].clone())
}

#[tokio::test]
async fn a_syncer_and_its_folder_show_the_same_figures() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    let mut learner = ScriptedLearner::join(&server, 1).await;
    learner.merge().await;
    let (asked, found) = (by_url(&server), folder(dir.path()));

    let shown = status(&asked, false).await.unwrap();
    for part in ["1 in rounds, 1 connected, 1 ever seen", "in 1 rounds", "fine; ", "finished       no"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(shown.contains("last merge     ") && !shown.contains("last merge     –"), "{shown}");
    // While the syncer works, the folder shows the run up to the last decision, long before a snapshot.
    let names = ["run", "tokensMerged", "rounds", "learnersTotal", "finished"];
    let now = figures(&asked, names).await;
    assert!(now[1].as_u64().unwrap() > 0);
    assert_eq!(figures(&found, names).await, now);
    let shown = status(&found, false).await.unwrap();
    assert!(shown.contains("1 ever seen") && !shown.contains("disk"), "{shown}");

    for place in [&asked, &found] {
        let credits = table(inspect::learners, place, (false, false)).await;
        assert!(credits[0].contains("tokens merged") && credits[1].contains("learner 1"), "{credits:?}");
        let json: Value =
            serde_json::from_str(&table(inspect::learners, place, (true, false)).await[0]).unwrap();
        assert_eq!(json["tokensMerged"], now[1]);
        let csv = table(inspect::learners, place, (false, true)).await;
        assert!(csv[1].starts_with("1,learner 1,other,test,"), "{csv:?}");
        let csv = table(inspect::status, place, (false, true)).await;
        assert_eq!(csv.len(), 2, "{csv:?}");
        assert!(csv[1].starts_with(&format!("{},", now[0].as_str().unwrap())), "{csv:?}");
        let merged = csv[0].split(',').position(|head| head == "tokens merged").unwrap();
        assert_eq!(csv[1].split(',').nth(merged), Some(&*now[1].to_string()), "{csv:?}");
        let args =
            EventsArgs { place: place.clone(), name: String::new(), limit: 50, json: false, csv: true };
        let csv = run_blocking(move || inspect::events(&args)).await.unwrap();
        assert!(csv.starts_with("time (ms since 1970),kind,") && csv.contains("learner 1 joined"), "{csv}");
        assert!(events(place, "", false).await.contains("learner 1 joined (test)."));
        assert!(events(place, "LEARNER 1", false).await.contains("learner 1 joined (test)."));
        let first: Value =
            serde_json::from_str(events(place, "", true).await.lines().last().unwrap()).unwrap();
        assert_eq!(first["text"], "The run began.");
        assert_eq!(events(place, "nobody & none", false).await, "No such events.");
    }
    // The column heads are those of the dashboard, which reads such files.
    let dashboard = include_str!("../../../web-demo/pages/dashboard/table.ts");
    let csv = table(inspect::history, &asked, (false, true)).await;
    for head in csv[0].split(',') {
        assert!(dashboard.contains(&format!("\"{head}\"")), "{head}");
    }
    assert!(csv.len() > 1 && csv[1..].iter().all(|line| line.split(',').count() == 10), "{csv:?}");
    assert!(table(inspect::history, &asked, (false, false)).await[0].contains("held-out loss"));

    server.stop().await;
    let (json, shown) = (table(inspect::history, &found, (true, false)).await, status(&found, false).await);
    let series: Value = serde_json::from_str(&json[0]).unwrap();
    assert!(!series["timeS"].as_array().unwrap().is_empty(), "{series}");
    assert!(shown.unwrap().contains("as of the newest decision in its folder"));
}

#[tokio::test]
async fn a_missing_run_or_syncer_is_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let error = status(&folder(dir.path()), false).await.unwrap_err();
    assert_eq!(error.exit_code(), 16, "{error}");
    // The port is free again at once.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let server = Server::start(config(dir.path())).await;
    let at = |url: String| PlaceArgs { url, ca: None, dir: None };
    for url in [format!("http://{free}"), free.to_string(), format!("http://{}/no-page", server.address)] {
        let error = status(&at(url.clone()), false).await.unwrap_err();
        assert_eq!(error.exit_code(), 20, "{error}");
        let text = error.to_string();
        let shown = if url.starts_with("http") { url } else { format!("http://{url}") };
        assert!(text.starts_with(&format!("no syncer answers at {shown} (")), "{text}");
        assert!(!text.contains('\n') && text.contains("--dir"), "{text}");
    }
    assert_eq!(status(&at("ftp://host".into()), false).await.unwrap_err().exit_code(), 3);
    // A link to a page leads to its server.
    status(&at(format!("http://{}/teach", server.address)), false).await.unwrap();
    server.stop().await;
}

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

/// Copies the folder of a running syncer, in the state in which a crash would leave it.
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
async fn the_log_has_joins_departures_and_owner_orders() {
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
    let mut learner = ScriptedLearner::join(&server, 1).await;
    let fate = learner.answer(|update| update.checksum ^= 1).await;
    assert!(matches!(fate, Fate::Refused(_)), "{fate:?}");
    texts(&server, "", "An update of learner 1 was refused: it was damaged on its way.").await;
    let _other = ScriptedLearner::join(&server, 2).await;
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
        let mut learner = ScriptedLearner::join(&server, number).await;
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
async fn a_crash_loses_no_logged_event() {
    let (dir, copied) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = Server::start(config(dir.path())).await;
    let _learner = ScriptedLearner::join(&server, 1).await;
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
    let server = Server::start(config(dir.path()).with(|it| it.agreed.hide_names = true)).await;
    let _learner = ScriptedLearner::join(&server, 7).await;
    assert_eq!(texts(&server, "?limit=1", "joined").await, ["islet 1 joined."]);
    assert_eq!(json(&server, "/v1/log?name=learner").await["entries"], Value::Array(vec![]));
    server.stop().await;
}

/// Returns the settings of a run of two tensors, which are in `dir`. Its evaluator is the learner called `learner 2`.
fn own(dir: &Path) -> ServeConfig {
    let file = dir.join("own.safetensors");
    if !file.exists() {
        let bytes = vec![0; 4 * 96];
        let tensor = |shape: &[usize]| {
            let len = 4 * shape.iter().product::<usize>();
            TensorView::new(Dtype::F32, shape.to_vec(), &bytes[..len]).unwrap()
        };
        let tensors = [("a", tensor(&[12, 8])), ("b", tensor(&[8]))];
        safetensors::serialize_to_file(tensors, None, &file).unwrap();
    }
    config(&dir.join("run")).with(|it| {
        it.initial.params = Some(file);
        it.identity.architecture = Some("bigrams".into());
        it.identity.architecture_settings = Some("width 8".into());
        it.evaluator = Some("learner 2".into());
        it.eval_every = "10ms".parse().unwrap();
        it.no_eval = false;
    })
}

/// Returns the number of the next request to measure the loss, and the versions to measure. It may arrive before the
/// fate of an update.
async fn question(learner: &mut ScriptedLearner) -> (u32, Vec<Version>) {
    loop {
        if let Some(question) = learner.questions.pop_front() {
            return question;
        }
        learner.until(|message| matches!(message, Message::Measure { .. }).then_some(())).await;
    }
}

async fn answer(learner: &mut ScriptedLearner, number: u32, loss: Option<f32>) {
    let run = learner.welcome.run;
    learner.client.send(&Message::Measured { run, number, loss }).await;
}

/// Returns the losses of the run, each with its evaluator, once there are `count` of them.
async fn losses(server: &Server, count: usize) -> Vec<(f64, Option<u64>)> {
    let looking = async {
        loop {
            let (_, _, body) = server.http("GET /v1/series").await;
            let series: Value = serde_json::from_slice(&body).unwrap();
            let found = series["evaluations"].as_array().unwrap().iter();
            let found: Vec<_> =
                found.map(|one| (one["loss"].as_f64().unwrap(), one["measuredBy"].as_u64())).collect();
            if found.len() >= count {
                return found;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, looking).await.unwrap()
}

#[tokio::test]
async fn the_evaluator_is_asked_and_invalid_losses_are_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(own(dir.path())).await;
    let _other = ScriptedLearner::join(&server, 1).await;
    let mut judge = ScriptedLearner::join(&server, 2).await;
    let LearnerId(id) = judge.welcome.learner;
    let (first, versions) = question(&mut judge).await;
    assert_eq!(versions.len(), usize::from(judge.welcome.spec.exchange.fragments));
    answer(&mut judge, first, Some(5.5)).await;
    assert_eq!(losses(&server, 1).await, [(5.5, Some(id.into()))]);

    // Invalid losses are ignored, and the next request is about the newest versions.
    let mut before = versions;
    for (at, loss) in [f32::NAN, -0.5, 1_001.0, 2.0].into_iter().enumerate() {
        judge.merge().await;
        let (number, versions) = question(&mut judge).await;
        assert_eq!(number as usize, first as usize + at + 1);
        assert!(versions > before, "{versions:?}");
        before = versions;
        answer(&mut judge, number, Some(loss)).await;
    }
    assert_eq!(losses(&server, 2).await, [(5.5, Some(id.into())), (2.0, Some(id.into()))]);
    let status = server.status().await;
    assert_eq!((&status["valLossLast"], &status["valMeasuredBy"]), (&2.0.into(), &id.into()));

    // An evaluator that cannot measure is not asked again until it reconnects.
    judge.merge().await;
    let (number, _) = question(&mut judge).await;
    answer(&mut judge, number, None).await;
    judge.merge().await;
    answer(&mut judge, number, Some(1.0)).await;
    let end = judge.client.end().await;
    assert_eq!(end.bye, 4_007, "{end:?}");
    let mut judge = ScriptedLearner::join(&server, 2).await;
    let (number, _) = question(&mut judge).await;
    answer(&mut judge, number, Some(1.0)).await;
    assert_eq!(losses(&server, 3).await.last(), Some(&(1.0, Some(id.into()))));
    server.stop().await;
}

#[tokio::test]
async fn losses_of_other_learners_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(own(dir.path())).await;
    let mut judge = ScriptedLearner::join(&server, 2).await;
    let (number, _) = question(&mut judge).await;
    let mut liar = ScriptedLearner::join(&server, 1).await;
    answer(&mut liar, number, Some(0.0)).await;
    assert_eq!(liar.client.end().await.bye, 4_007);
    answer(&mut judge, number, Some(5.0)).await;
    assert_eq!(losses(&server, 1).await.len(), 1);
    server.stop().await;
}

/// Joins a learner with the evaluator's name and another key. Checks that the syncer, which asks its evaluator for a
/// loss each second, does not ask this learner, although it merges its update.
async fn unasked(server: &Server) -> ScriptedLearner {
    let namesake = Hello { name: "learner 2".into(), ..hello(1) };
    let (client, welcome) = Client::connect(server).await.introduced_as(namesake).await;
    let mut liar = ScriptedLearner::of(client, welcome).await;
    liar.merge().await;
    let asked = tokio::time::timeout(std::time::Duration::from_millis(1_300), question(&mut liar)).await;
    assert!(asked.is_err(), "{asked:?}");
    liar
}

/// Goal: only the first key that was asked for a loss under the evaluator's name measures, also after a restart.
#[tokio::test]
async fn a_second_key_under_the_name_does_not_measure() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(own(dir.path())).await;
    let mut judge = ScriptedLearner::join(&server, 2).await;
    let (number, _) = question(&mut judge).await;
    answer(&mut judge, number, Some(5.0)).await;
    losses(&server, 1).await;
    judge.merge().await;
    drop(judge);
    let _liar = unasked(&server).await;
    server.stop().await;

    let server = Server::start(own(dir.path())).await;
    let _liar = unasked(&server).await;
    let mut judge = ScriptedLearner::join(&server, 2).await;
    let (number, _) = question(&mut judge).await;
    answer(&mut judge, number, Some(4.0)).await;
    assert_eq!(losses(&server, 2).await.last().unwrap().0, 4.0);
    server.stop().await;
}

#[tokio::test]
async fn the_welcome_has_the_layout_and_architecture_of_a_custom_model() {
    let dir = tempfile::tempdir().unwrap();
    for given in [true, false] {
        // The second start has only the folder.
        let config = own(dir.path());
        let server =
            Server::start(if given { config } else { config.with(|it| it.initial.params = None) }).await;
        let learner = ScriptedLearner::join(&server, 1).await;
        let model = &learner.welcome.spec.model;
        let expected = Architecture { name: "bigrams".into(), settings: b"width 8".to_vec() };
        assert_eq!(model.architecture, expected);
        let tensors: Vec<_> =
            model.tensors.iter().map(|tensor| (&*tensor.name, tensor.rows, tensor.cols)).collect();
        assert_eq!(tensors, [("a", 12, 8), ("b", 1, 8)]);

        let run = learner.welcome.run;
        let (code, _, body) = server.http(&format!("GET /v1/runs/{run}/held-out")).await;
        assert!(code == 200 && body.len() as u64 <= HELD_OUT_BYTES_MAX, "{code}, {} bytes", body.len());
        let windows = parse_held_out(&body, model.context, model.vocab).unwrap();
        assert!(windows.len() > model.context as usize);
        assert_eq!(server.http("GET /v1/runs/0000000000000001/held-out").await.0, 404);
        assert_eq!(server.http(&format!("GET /v1/runs/{run}/model")).await.0, 404);
        server.stop().await;
    }
}

#[tokio::test]
async fn invalid_settings_of_a_custom_model_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let check = async |change: &dyn Fn(&mut ServeConfig), part: &str| {
        let mut config = own(dir.path());
        change(&mut config);
        let error = Server::refused(config).await;
        assert!(error.exit_code() == 3 && error.to_string().contains(part), "{error}");
    };
    check(&|config| config.identity.architecture = Some("llama".into()), "give another name").await;
    check(&|config| config.identity.architecture = Some("x".repeat(65)), "give at most 64").await;
    check(&|config| config.identity.architecture_settings = Some("x".repeat(4_097)), "give at most 4096")
        .await;
    check(&|config| config.initial.params = None, "give its tensors with --params").await;
    let decoder =
        |config: &mut ServeConfig| (config.initial.params, config.identity.architecture) = (None, None);
    check(&decoder, "--evaluator is for a model of your own").await;
}
