//! What the owner decides: who may come, and whether the run goes on.

use archipelago::wire::{CloseCode, Hello, Invite, Message};
use syncer_server::config::ServeConfig;
use syncer_server::store::Store;

use crate::support::{Client, Learner, PATIENCE, Server, config, hello};

#[tokio::test]
async fn a_paused_run_waits_over_a_restart_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    // None but the owner's word is a reason to save.
    let rarely = ServeConfig { snapshot_every: "1h".parse().unwrap(), ..config(dir.path()) };
    let server = Server::start(rarely).await;
    let mut learner = Learner::join(&server, 1).await;
    learner.collect().await;
    for verb in ["pause", "resume"] {
        assert_eq!(server.http(&format!("POST /v1/admin/{verb}")).await.0, 401);
        assert_eq!(server.http(&format!("POST /v1/admin/{verb}\nAuthorization: Bearer no")).await.0, 401);
    }
    assert_eq!(server.status().await["paused"], false);
    assert_eq!(server.http("POST /v1/admin/pause\nAuthorization: Bearer secret").await.0, 202);
    let held = |message| match message {
        Message::Hold { held, .. } => Some(held),
        _ => None,
    };
    assert!(learner.until(held).await);
    assert_eq!(server.status().await["paused"], true);

    // It is on the disk before the server stops: a crash would not undo it.
    let run = learner.welcome.run;
    let saved = || Store::look(dir.path()).latest(run).unwrap().unwrap().record.held;
    let on_disk = async {
        while !saved() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, on_disk).await.unwrap();
    server.stop().await;

    let server = Server::start(config(dir.path())).await;
    let mut learner = Learner::join(&server, 1).await;
    assert!(learner.welcome.held);
    assert!(learner.welcome.tokens_trained > 0, "the account so far");
    assert_eq!(server.http("POST /v1/admin/resume\nAuthorization: Bearer secret").await.0, 202);
    let first = learner.until(|message| match message {
        Message::Hold { held, .. } => Some(held),
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
        assert!(end.reason.contains("open the whole link"), "{}", end.reason);
    }
    let mut client = Client::connect(&server).await;
    client.send(&Message::Hello(Hello { invite: Some(Invite::new("open-sesame")), ..hello(1) })).await;
    assert!(matches!(client.next().await, Message::Welcome(_)));
    let status = server.status().await;
    assert_eq!((&status["invite_required"], &status["learners_total"]), (&true.into(), &1.into()));
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
    let error = Server::refused(ServeConfig { invite: Some("no".into()), ..config(dir.path()) }).await;
    assert_eq!(error.exit_code(), 3, "{error}");
}
