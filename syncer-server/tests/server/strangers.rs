//! Tests of peers without admission: they take no learner's seat, and their guesses slow down no other peer.

use archipelago_core::wire::{CloseCode, Hello, Invite, Message};
use futures::StreamExt;
use futures::future::join_all;
use syncer_server::ServeConfig;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use crate::support::{Client, Learner, PATIENCE, Server, config, hello};

/// Connects as a proxy on this machine does for a peer at `address`.
async fn connect_from(server: &Server, address: &str) -> Client {
    let mut request = format!("ws://{}/v1/ws", server.address).into_client_request().unwrap();
    request.headers_mut().insert("x-forwarded-for", address.parse().unwrap());
    Client::connect_by(request, None).await
}

fn behind_a_proxy(dir: &std::path::Path) -> ServeConfig {
    ServeConfig { trusted_proxy: vec!["127.0.0.1".into()], ..config(dir) }
}

/// Waits until the server has closed `client`.
async fn closed(mut client: Client) {
    let end = async { while let Some(Ok(_)) = client.socket.next().await {} };
    tokio::time::timeout(PATIENCE, end).await.expect("it is closed");
}

/// Goal: silent sockets keep out no learner, neither a newcomer nor one that returns.
#[tokio::test]
async fn silent_sockets_take_no_learners_seats() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(ServeConfig { learners_max: 2, ..config(dir.path()) }).await;
    let mut known = Learner::join(&server, 1).await;
    known.merge().await;
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(Client::connect(&server).await);
    }
    drop(known);
    let _newcomer = Client::greet(&server, 2).await;
    let (_client, welcome) = Client::greet(&server, 1).await;
    assert!(welcome.tokens_merged > 0, "it is known");
    // The oldest sockets were displaced.
    join_all(silent.drain(..300 - 256).map(closed)).await;
    server.stop().await;
}

/// Goal: sockets of one address displace only silent sockets of the same address.
#[tokio::test]
async fn silent_sockets_of_one_address_displace_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(behind_a_proxy(dir.path())).await;
    let patient = connect_from(&server, "192.0.2.2").await;
    let mut flood = Vec::new();
    for _ in 0..60 {
        flood.push(connect_from(&server, "192.0.2.1").await);
    }
    join_all(flood.drain(..60 - 32).map(closed)).await;
    let _patient = patient.introduced(1).await;
    let _neighbour = connect_from(&server, "192.0.2.1").await.introduced(2).await;
    server.stop().await;
}

/// Goal: guesses over sockets and over HTTP are counted together, even if many sockets are opened first. A correct
/// secret passes from the same address.
#[tokio::test]
async fn wrong_invites_over_sockets_are_counted_and_right_ones_pass() {
    let dir = tempfile::tempdir().unwrap();
    let invite = Some("open-sesame".to_owned());
    let server = Server::start(ServeConfig { invite, ..behind_a_proxy(dir.path()) }).await;
    let shows = |number: u8, invite: &str| Hello { invite: Some(Invite::new(invite)), ..hello(number) };
    let mut sockets = Vec::new();
    for _ in 0..24 {
        sockets.push(connect_from(&server, "192.0.2.1").await);
    }
    let guess = |(mut client, number): (Client, u8)| async move {
        client.send(&Message::Hello(shows(number, "open-sesamE"))).await;
        client.end().await.close
    };
    let codes = join_all(sockets.into_iter().zip(10..).map(guess)).await;
    let told = codes.iter().filter(|&&code| code == u16::from(CloseCode::Invite)).count();
    let slowed = codes.iter().filter(|&&code| code == u16::from(CloseCode::Full)).count();
    assert!((10..=11).contains(&told) && told + slowed == codes.len(), "{codes:?}");

    let wrong = "POST /v1/admin/pause\nX-Forwarded-For: 192.0.2.1\nAuthorization: Bearer wrong";
    assert_eq!(server.http(wrong).await.0, 429, "they are counted together");
    let right = "POST /v1/admin/pause\nX-Forwarded-For: 192.0.2.1\nAuthorization: Bearer secret-of-the-owner";
    assert_eq!(server.http(right).await.0, 202);
    let client = connect_from(&server, "192.0.2.1").await;
    let (_client, welcome) = client.introduced_as(shows(1, "open-sesame")).await;
    let shard = format!("GET /v1/runs/{}/shards/0\nX-Forwarded-For: 192.0.2.1", welcome.run);
    assert_eq!(server.http(&format!("{shard}\nx-archipelago-invite: open-sesame")).await.0, 200);
    assert_eq!(server.http(&format!("{shard}\nx-archipelago-invite: open-sesamE")).await.0, 429);
    // A socket without an invite does not count as a guess.
    let mut client = connect_from(&server, "192.0.2.1").await;
    client.send(&Message::Hello(hello(2))).await;
    assert_eq!(client.end().await.close, u16::from(CloseCode::Invite));
    server.stop().await;
}
