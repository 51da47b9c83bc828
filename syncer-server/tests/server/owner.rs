//! Tests of the owner's decisions: admission, settings, control of the run and its end.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use archipelago_cluster::{Local, ServiceError, ServiceFuture, Services, Tape};
use archipelago_core::cluster::Record;
use archipelago_core::wire::{CloseCode, FragmentId, Hello, Invite, Message, Share};
use serde_json::Value;
use syncer_server::{ForkArgs, Role, ServeConfig, Store, Verb, fork, order, parse, replayed, serve, steer};
use tokio_tungstenite::connect_async;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use crate::cluster::{part, until};
use crate::durability::args;
use crate::support::{Client, PATIENCE, ScriptedLearner, Server, config, header, hello};

#[tokio::test]
async fn a_paused_run_waits_over_a_restart_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    // No snapshot is taken in the meantime.
    let rarely = ServeConfig { snapshot_every: "1h".parse().unwrap(), ..config(dir.path()) };
    let server = Server::start(rarely).await;
    let mut learner = ScriptedLearner::join(&server, 1).await;
    learner.merge().await;
    for verb in ["pause", "resume"] {
        assert_eq!(server.http(&format!("POST /v1/admin/{verb}")).await.0, 401);
        assert_eq!(server.http(&format!("POST /v1/admin/{verb}\nAuthorization: Bearer no")).await.0, 401);
    }
    assert_eq!(server.status().await["paused"], false);
    assert_eq!(server.http("POST /v1/admin/pause\nAuthorization: Bearer secret-of-the-owner").await.0, 202);
    let held = |message| match message {
        Message::SetPaused { held, .. } => Some(held),
        _ => None,
    };
    assert!(learner.until(held).await);
    assert_eq!(server.status().await["paused"], true);

    server.stop().await;

    let server = Server::start(config(dir.path())).await;
    let mut learner = ScriptedLearner::join(&server, 1).await;
    assert!(learner.welcome.held);
    assert!(learner.welcome.tokens_trained > 0, "the account so far");
    assert_eq!(server.http("POST /v1/admin/resume\nAuthorization: Bearer secret-of-the-owner").await.0, 202);
    let first = learner.until(|message| match message {
        Message::SetPaused { held, .. } => Some(held),
        Message::Collect { .. } | Message::Lease { .. } => Some(true),
        _ => None,
    });
    assert!(!first.await, "nothing came while the run was held");
    learner.collect().await;
    assert_eq!(server.status().await["paused"], false);
    server.stop().await;
}

#[tokio::test]
async fn only_the_invited_may_join() {
    let dir = tempfile::tempdir().unwrap();
    let server =
        Server::start(ServeConfig { invite: Some("open-sesame".into()), ..config(dir.path()) }).await;
    for shown in [None, Some("open-sesamE"), Some("open-sesame-"), Some("")] {
        let mut client = Client::connect(&server).await;
        client.send(&Message::Hello(Hello { invite: shown.map(Invite::new), ..hello(1) })).await;
        let end = tokio::time::timeout(PATIENCE, client.end()).await.expect("it is sent away");
        assert_eq!((end.bye, end.close), (CloseCode::Invite.into(), CloseCode::Invite.into()), "{shown:?}");
        let why = if shown.is_none() { "open the whole link" } else { "is not valid for this run" };
        assert!(end.reason.contains(why), "{}", end.reason);
    }
    let mut client = Client::connect(&server).await;
    client.send(&Message::Hello(Hello { invite: Some(Invite::new("open-sesame")), ..hello(1) })).await;
    let Message::Welcome(welcome) = client.next().await else { panic!("it is invited") };
    for path in [format!("fragments/0/{}", welcome.versions[0]), "shards/0".to_owned()] {
        let get = format!("GET /v1/runs/{}/{path}", welcome.run);
        for shown in ["", "x-archipelago-invite: open-sesamE", "x-archipelago-invite:"] {
            assert_eq!(server.http(&format!("{get}\n{shown}")).await.0, 403, "{path}, {shown:?}");
        }
        let (code, head, _) = server.http(&format!("{get}\nx-archipelago-invite: open-sesame")).await;
        assert_eq!(
            (code, header(&head, "cache-control").split(',').next()),
            (200, Some("private")),
            "{path}"
        );
    }
    let status = server.status().await;
    assert_eq!((&status["inviteRequired"], &status["learnersTotal"]), (&true.into(), &1.into()));
    assert!(!status.to_string().contains("sesame"));
    server.stop().await;
}

#[tokio::test]
async fn an_invite_that_was_made_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let auto = || ServeConfig { invite: Some("auto".into()), ..config(dir.path()) };
    let server = Server::start(auto()).await;
    server.status().await;
    let made = Store::open_read_only(dir.path()).invite(Some("auto")).unwrap().unwrap();
    assert_eq!(made.expose().len(), 32);
    server.stop().await;
    let server = Server::start(auto()).await;
    let mut client = Client::connect(&server).await;
    client.send(&Message::Hello(Hello { invite: Some(made), ..hello(1) })).await;
    assert!(matches!(client.next().await, Message::Welcome(_)));
    server.stop().await;
    // A short invite has no characters that people confuse, such as 0 and O, or 1 and l.
    let other = tempfile::tempdir().unwrap();
    let short = || Store::open_read_only(other.path()).invite(Some("short")).unwrap().unwrap();
    let typed = short();
    assert_eq!((typed.expose().len(), short()), (8, typed.clone()));
    assert!(
        typed.expose().chars().all(|c| c.is_ascii_alphanumeric() && !"01ilo".contains(c)),
        "{}",
        typed.expose()
    );
    let error = Server::refused(ServeConfig { invite: Some("no".into()), ..config(dir.path()) }).await;
    assert_eq!(error.exit_code(), 3, "{error}");
}

/// Sends an order about a learner. Returns the status code and the text of the response.
async fn send_order(server: &Server, path: &str, token: &str, body: &str) -> (u16, String) {
    let bytes = body.len();
    let request =
        format!("POST /v1/admin/learners/{path}\nAuthorization: Bearer {token}\nContent-Length: {bytes}");
    let (code, _, answer) = server.exchange(&request, body).await;
    (code, String::from_utf8(answer).unwrap())
}

/// Returns the public share of learner 1, and the seconds until it may return if it was sent away.
async fn public_share(server: &Server) -> (f64, Option<f64>) {
    let (_, _, body) = server.http("GET /v1/learners").await;
    let page: Value = serde_json::from_slice(&body).unwrap();
    let learner = &page["learners"][0];
    let status = server.status().await;
    assert_eq!(status["learners"][0]["share"], learner["share"]);
    assert_eq!(status["learners"][0]["returnsS"].is_null(), learner["returnsS"].is_null());
    (learner["share"].as_f64().unwrap(), learner["returnsS"].as_f64())
}

#[tokio::test]
async fn a_learners_share_is_applied_and_public() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    let mut learner = ScriptedLearner::join(&server, 1).await;
    assert_eq!((learner.welcome.share, public_share(&server).await), (Share::FULL, (1.0, None)));
    assert_eq!(send_order(&server, "1/pace", "no", r#"{"share":0.5}"#).await.0, 401);
    assert_eq!(send_order(&server, "1/pace", "secret-of-the-owner", r#"{"share":0.25}"#).await.0, 202);
    let pace = |message| match message {
        Message::SetDutyCycle { share, .. } => Some(share),
        _ => None,
    };
    assert_eq!(learner.until(pace).await, Share::new(0.25).unwrap());
    assert_eq!(public_share(&server).await, (0.25, None));
    // The learner is still merged, and a new connection receives its share.
    learner.merge().await;
    let again = ScriptedLearner::join(&server, 1).await;
    assert_eq!(again.welcome.share, Share::new(0.25).unwrap());
    server.stop().await;
}

#[tokio::test]
async fn the_owner_sends_a_learner_away_and_lets_it_back() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    let learner = ScriptedLearner::join(&server, 1).await;
    let mut other = ScriptedLearner::join(&server, 2).await;
    assert_eq!(send_order(&server, "1/drop", "no", r#"{"seconds":60}"#).await.0, 401);
    assert_eq!(send_order(&server, "1/drop", "secret-of-the-owner", r#"{"seconds":60}"#).await.0, 202);
    let end = learner.client.end().await;
    let dropped = u16::from(CloseCode::Dropped);
    assert_eq!((end.bye, end.close, end.wait_ms), (dropped, dropped, 60_000));
    let (_, returns_s) = public_share(&server).await;
    assert!(returns_s.is_some_and(|returns_s| returns_s > 0.0 && returns_s <= 60.0), "{returns_s:?}");

    // If it returns early, it gets the same refusal with the remaining time. The others are merged.
    let mut early = Client::connect(&server).await;
    early.send(&Message::Hello(hello(1))).await;
    let end = early.end().await;
    assert_eq!((end.bye, end.close), (dropped, dropped));
    assert!(end.wait_ms > 0 && end.wait_ms <= 60_000, "{end:?}");
    other.merge().await;

    assert_eq!(send_order(&server, "1/drop", "secret-of-the-owner", r#"{"seconds":0}"#).await.0, 202);
    assert_eq!(public_share(&server).await, (1.0, None));
    ScriptedLearner::join(&server, 1).await.merge().await;
    server.stop().await;
}

#[tokio::test]
async fn orders_about_learners_are_checked() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    ScriptedLearner::join(&server, 1).await;
    for (path, body, code, words) in [
        ("2/pace", r#"{"share":0.5}"#, 404, "no learner 2"),
        ("2/drop", r#"{"seconds":5}"#, 404, "no learner 2"),
        ("one/pace", r#"{"share":0.5}"#, 400, "\"one\" is not a learner"),
        ("-1/drop", r#"{"seconds":5}"#, 400, "is not a learner"),
        ("1/pace", r#"{"share":0}"#, 400, "a share of 0 is out of range"),
        ("1/pace", r#"{"share":1.5}"#, 400, "a share of 1.5 is out of range"),
        ("1/pace", r#"{"share":"half"}"#, 400, "not a valid order"),
        ("1/pace", r#"{"share":0.5,"for":3}"#, 400, "unknown field"),
        ("1/pace", "", 400, "{\"share\": 0.25}"),
        ("1/drop", r#"{"seconds":-1}"#, 400, "-1 s is out of range: give 0 to 3600"),
        ("1/drop", r#"{"seconds":3601}"#, 400, "3601 s is out of range"),
        ("1/drop", r#"{"share":0.5}"#, 400, "{\"seconds\": 20}"),
    ] {
        let (found, said) = send_order(&server, path, "secret-of-the-owner", body).await;
        assert_eq!(found, code, "{path} {body}: {said}");
        assert!(said.contains(words), "{path} {body}: {said}");
    }
    let large = format!("{{\"share\":0.5{}}}", " ".repeat(5_000));
    assert_eq!(send_order(&server, "1/pace", "secret-of-the-owner", &large).await.0, 413);
    assert_eq!(public_share(&server).await, (1.0, None));
    server.stop().await;
}

#[tokio::test]
async fn a_classroom_status_has_the_link_without_the_invite() {
    let dir = tempfile::tempdir().unwrap();
    let class = config(dir.path()).with(|it| {
        it.server.classroom = true;
        it.server.public_url = Some("https://class.example/".into());
        it.invite = Some("open-sesame".into());
    });
    let server = Server::start(class).await;
    let status = server.status().await;
    let told = serde_json::json!(["https://class.example/"]);
    assert_eq!((&status["classroom"], &status["links"]), (&true.into(), &told));
    assert!(!status.to_string().contains("sesame"));
    // Behind a proxy, the host may differ from the one that browsers see.
    for (origin, allowed) in [("https://class.example", true), ("https://other.example", false)] {
        let mut request = format!("ws://{}/v1/ws", server.address).into_client_request().unwrap();
        request.headers_mut().insert("origin", origin.parse().unwrap());
        assert_eq!(connect_async(request).await.is_ok(), allowed, "{origin}");
    }
    server.stop().await;
}

const FINISH: &str = "POST /v1/admin/finish\nAuthorization: Bearer secret-of-the-owner";

/// Returns the first status that `pick` accepts.
async fn wait_until(server: &Server, pick: impl Fn(&Value) -> bool) -> Value {
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
    let mut learner = ScriptedLearner::join(&server, 1).await;
    learner.merge().await;
    // An absent learner is not asked for a last update.
    drop(learner);
    wait_until(&server, |status| status["connected"] == 0).await;
    assert_eq!(server.http(FINISH).await.0, 202);
    wait_until(&server, |status| status["finished"] == true).await;
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
    let run = Store::open_read_only(dir.path()).manifest().unwrap().unwrap().run;
    let saved = || Store::open_read_only(dir.path()).latest(run).unwrap().unwrap().record.finished;
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
        wait_until(&server, |now| now["uptimeS"].as_f64() > before["uptimeS"].as_f64().map(|s| s + 2.0))
            .await;
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
    let begun = wait_until(&server, |status| !status["valLossFirst"].is_null()).await;
    let mut learner = ScriptedLearner::join(&server, 1).await;
    learner.merge().await;
    drop(learner);
    wait_until(&server, |status| status["connected"] == 0).await;
    assert_eq!(server.http(FINISH).await.0, 202);
    let last = server.stop().await;
    assert!(last.core.finished && last.val_loss_last != last.val_loss_first, "{last:?}");
    assert!(!last.sample.is_empty() && begun["sample"] != last.sample, "{last:?}");

    let evaluations = |dir: &Path| {
        let run = Store::open_read_only(dir).manifest().unwrap().unwrap().run;
        Store::open_read_only(dir).latest(run).unwrap().unwrap().statistics.history.evaluations
    };
    let before = evaluations(dir.path());
    let server = Server::start(measured).await;
    assert_eq!(server.stop().await.sample, last.sample);
    assert_eq!((evaluations(dir.path()), before.len()), (before, 2));
}

#[tokio::test]
async fn a_server_may_exit_with_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let leaving = config(dir.path()).with(|it| it.server.exit_when_finished = true);
    let server = Server::start(leaving.clone()).await;
    assert_eq!(server.http(FINISH).await.0, 202);
    assert!(server.ended().await.core.finished);
    // A server whose run was already complete exits, too.
    assert!(Server::start(leaving).await.ended().await.core.finished);
}

/// Tape that can be made unavailable.
struct FaultyTape {
    tape: Arc<dyn Tape>,
    is_away: Arc<AtomicBool>,
}

impl FaultyTape {
    fn or<'a, T: Send + 'a>(&self, answer: ServiceFuture<'a, T>) -> ServiceFuture<'a, T> {
        if !self.is_away.load(Ordering::SeqCst) {
            return answer;
        }
        let error = ServiceError::Silent { place: "nats://inside".into(), detail: "nobody is there".into() };
        Box::pin(std::future::ready(Err(error)))
    }
}

impl Tape for FaultyTape {
    fn append<'a>(
        &'a self,
        fragment: FragmentId,
        expect: u64,
        record: &'a Record,
    ) -> ServiceFuture<'a, Option<u64>> {
        self.or(self.tape.append(fragment, expect, record))
    }

    fn read(&self, fragment: FragmentId, after: u64) -> ServiceFuture<'_, Vec<Record>> {
        self.or(self.tape.read(fragment, after))
    }

    fn newest(&self, fragment: FragmentId) -> ServiceFuture<'_, u64> {
        self.or(self.tape.newest(fragment))
    }
}

/// Goal: a server that cannot admit learners reports that it is not ready. Its owner can read the reason, which
/// contains no addresses of services.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_its_services_is_not_ready() {
    let (dir, is_away) = (tempfile::tempdir().unwrap(), Arc::new(AtomicBool::new(false)));
    let local = Local::services();
    let tape = FaultyTape { tape: Arc::clone(&local.tape), is_away: Arc::clone(&is_away) };
    let server =
        Server::start(part(dir.path(), &Services { tape: Arc::new(tape), ..local }, Role::All)).await;
    assert_eq!(server.http("GET /readyz").await.0, 200);
    is_away.store(true, Ordering::SeqCst);
    let fault = |status: &Value| status["disk"]["servicesFault"].as_str().map(str::to_owned);
    let status = until(&server, "it is away", |status| fault(status).is_some()).await;
    assert_eq!(fault(&status).unwrap(), "NATS does not answer");
    let (code, _, body) = server.http("GET /readyz").await;
    assert_eq!((code, &body[..]), (503, &b"NATS does not answer\n"[..]));
    is_away.store(false, Ordering::SeqCst);
    until(&server, "it is back", |status| fault(status).is_none()).await;
    assert_eq!(server.http("GET /readyz").await.0, 200);
    let (_, _, body) = server.http("GET /v1/log").await;
    let log = String::from_utf8_lossy(&body);
    for said in ["Nothing is merged, because NATS does not answer.", "answer again, and the run continues."] {
        assert!(log.contains(said), "{said}: {log}");
    }
    server.stop().await;
}

/// Runs a command line and returns its answer or its error message.
async fn run_command_line(line: Vec<String>) -> Result<String, String> {
    let words = ["syncer-server".to_owned()].into_iter().chain(line.clone()).map(OsString::from);
    let given = move |verb| match verb {
        Verb::Pause(args) => steer::pause(&args),
        Verb::Resume(args) => steer::resume(&args),
        Verb::Finish(args) => steer::finish(&args),
        Verb::Set(args) => steer::set(&args),
        Verb::Pace(args) => steer::pace(&args),
        Verb::Drop(args) => steer::drop_learner(&args),
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
async fn owner_commands_use_the_token_in_the_run_folder() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    let mut learner = ScriptedLearner::join(&server, 1).await;
    learner.merge().await;
    let order = async |line: &str| run_command_line(words(line, dir.path())).await;
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
    let several = run_command_line(line.map(str::to_owned).to_vec()).await.unwrap_err();
    assert!(several.contains("serves one run, which has no name there"), "{several}");

    assert_eq!(order("drop 1 20s").await.as_deref(), Ok("the learner is told"));
    assert_eq!(order("finish").await.as_deref(), Ok("the run is finishing"));
    assert!(dir.path().join("address").exists());
    server.stop().await;
    assert!(!dir.path().join("address").exists(), "nobody answers there any more");
}

#[tokio::test]
async fn a_missing_owner_token_is_reported_with_its_path() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().to_str().unwrap().to_owned();
    let line = ["pause", "--dir", &place].map(str::to_owned).to_vec();
    assert!(run_command_line(line).await.unwrap_err().contains("there is no admin.token in"));
    fs::create_dir_all(dir.path().join("default")).unwrap();
    fs::write(dir.path().join("default/run.json"), "{}").unwrap();
    let line = ["run", "finish", "default", "--runs", &place].map(str::to_owned).to_vec();
    assert!(run_command_line(line).await.unwrap_err().contains("is a run with a server of its own"));
}

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
async fn changed_settings_apply_persist_and_replay() {
    const OWNER: &str = "secret-of-the-owner";
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    let mut learner = ScriptedLearner::join(&server, 1).await;
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
    let mut second = Client::connect(&server).await;
    second.send(&Message::Hello(hello(2))).await;
    let end = second.end().await;
    assert!(end.reason.contains("1 learners are connected, which is the limit"), "{}", end.reason);
    let (_, _, log) = server.http("GET /v1/log").await;
    let log = String::from_utf8(log).unwrap();
    assert!(log.contains("The owner changed merge from radial to mean."), "{log}");

    // A stop below the merged tokens would end the run at once. `finish` is the order for that.
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
        tokio::time::sleep(Duration::from_millis(50)).await;
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
    let server =
        Server::start(config(dir.path()).with(|it| it.live.min_quorum = 1.try_into().unwrap())).await;
    // A folder in place of the file cannot be replaced.
    fs::create_dir(dir.path().join("settings.toml")).unwrap();
    let (code, said) = change(&server, "secret-of-the-owner", r#"{"min-quorum": 2}"#).await;
    assert!(code == 500 && said.contains("settings.toml"), "{code} {said}");
    assert_eq!(value(&server, "min-quorum").await, "1");
    server.stop().await;
}

/// Goal: a stop that the run has passed does not end it by accident, neither at a start nor in a fork.
#[tokio::test]
async fn a_stop_that_is_passed_is_refused_at_a_start_and_left_out_of_a_fork() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let server = Server::start(config(&run)).await;
    let mut learner = ScriptedLearner::join(&server, 1).await;
    learner.merge().await;
    server.stop().await;

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let stopped = config(&run).with(|it| it.live.stop_at_tokens = 1);
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
