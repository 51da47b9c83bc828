//! Tests of the owner's decisions: admission, and control of the run.

use archipelago_core::wire::{CloseCode, Hello, Invite, Message, Share};
use syncer_server::{ServeConfig, Store};
use tokio_tungstenite::{connect_async, tungstenite::client::IntoClientRequest};

use crate::support::{Client, Learner, PATIENCE, Server, config, header, hello};

#[tokio::test]
async fn a_paused_run_waits_over_a_restart_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    // No snapshot is taken in the meantime.
    let rarely = ServeConfig { snapshot_every: "1h".parse().unwrap(), ..config(dir.path()) };
    let server = Server::start(rarely).await;
    let mut learner = Learner::join(&server, 1).await;
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
    let mut learner = Learner::join(&server, 1).await;
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
    let made = Store::look(dir.path()).invite(Some("auto")).unwrap().unwrap();
    assert_eq!(made.expose().len(), 32);
    server.stop().await;
    let server = Server::start(auto()).await;
    let mut client = Client::connect(&server).await;
    client.send(&Message::Hello(Hello { invite: Some(made), ..hello(1) })).await;
    assert!(matches!(client.next().await, Message::Welcome(_)));
    server.stop().await;
    // A short invite has no characters that people confuse, such as 0 and O, or 1 and l.
    let other = tempfile::tempdir().unwrap();
    let short = || Store::look(other.path()).invite(Some("short")).unwrap().unwrap();
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
async fn order(server: &Server, path: &str, token: &str, body: &str) -> (u16, String) {
    let bytes = body.len();
    let request =
        format!("POST /v1/admin/learners/{path}\nAuthorization: Bearer {token}\nContent-Length: {bytes}");
    let (code, _, answer) = server.exchange(&request, body).await;
    (code, String::from_utf8(answer).unwrap())
}

/// Returns the public figures of learner 1.
async fn shown(server: &Server) -> (f64, Option<f64>) {
    let (_, _, body) = server.http("GET /v1/learners").await;
    let page: serde_json::Value = serde_json::from_slice(&body).unwrap();
    let learner = &page["learners"][0];
    let status = server.status().await;
    assert_eq!(status["learners"][0]["share"], learner["share"]);
    assert_eq!(status["learners"][0]["returnsS"].is_null(), learner["returnsS"].is_null());
    (learner["share"].as_f64().unwrap(), learner["returnsS"].as_f64())
}

#[tokio::test]
async fn the_owner_slows_a_learner_down_and_everybody_sees_it() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    let mut learner = Learner::join(&server, 1).await;
    assert_eq!((learner.welcome.share, shown(&server).await), (Share::FULL, (1.0, None)));
    assert_eq!(order(&server, "1/pace", "no", r#"{"share":0.5}"#).await.0, 401);
    assert_eq!(order(&server, "1/pace", "secret-of-the-owner", r#"{"share":0.25}"#).await.0, 202);
    let pace = |message| match message {
        Message::SetDutyCycle { share, .. } => Some(share),
        _ => None,
    };
    assert_eq!(learner.until(pace).await, Share::new(0.25).unwrap());
    assert_eq!(shown(&server).await, (0.25, None));
    // The learner is still merged, and a new connection is told its share.
    learner.merge().await;
    let again = Learner::join(&server, 1).await;
    assert_eq!(again.welcome.share, Share::new(0.25).unwrap());
    server.stop().await;
}

#[tokio::test]
async fn the_owner_sends_a_learner_away_and_lets_it_back() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    let learner = Learner::join(&server, 1).await;
    let mut other = Learner::join(&server, 2).await;
    assert_eq!(order(&server, "1/drop", "no", r#"{"seconds":60}"#).await.0, 401);
    assert_eq!(order(&server, "1/drop", "secret-of-the-owner", r#"{"seconds":60}"#).await.0, 202);
    let end = learner.client.end().await;
    let dropped = u16::from(CloseCode::Dropped);
    assert_eq!((end.bye, end.close, end.wait_ms), (dropped, dropped, 60_000));
    let (_, returns_s) = shown(&server).await;
    assert!(returns_s.is_some_and(|returns_s| returns_s > 0.0 && returns_s <= 60.0), "{returns_s:?}");

    // If it returns early, it gets the same refusal with the remaining time. The others are merged.
    let mut early = Client::connect(&server).await;
    early.send(&Message::Hello(hello(1))).await;
    let end = early.end().await;
    assert_eq!((end.bye, end.close), (dropped, dropped));
    assert!(end.wait_ms > 0 && end.wait_ms <= 60_000, "{end:?}");
    other.merge().await;

    assert_eq!(order(&server, "1/drop", "secret-of-the-owner", r#"{"seconds":0}"#).await.0, 202);
    assert_eq!(shown(&server).await, (1.0, None));
    Learner::join(&server, 1).await.merge().await;
    server.stop().await;
}

#[tokio::test]
async fn orders_about_learners_are_checked() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    Learner::join(&server, 1).await;
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
        let (found, said) = order(&server, path, "secret-of-the-owner", body).await;
        assert_eq!(found, code, "{path} {body}: {said}");
        assert!(said.contains(words), "{path} {body}: {said}");
    }
    let large = format!("{{\"share\":0.5{}}}", " ".repeat(5_000));
    assert_eq!(order(&server, "1/pace", "secret-of-the-owner", &large).await.0, 413);
    assert_eq!(shown(&server).await, (1.0, None));
    server.stop().await;
}

#[tokio::test]
async fn a_class_finds_the_way_and_the_invite_stays_out_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let class = ServeConfig {
        classroom: true,
        public_url: Some("https://class.example/".into()),
        invite: Some("open-sesame".into()),
        ..config(dir.path())
    };
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
