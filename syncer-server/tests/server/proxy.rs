//! Tests of forwarded addresses: only listed proxies are trusted.

use std::time::Duration;

use syncer_server::{ServeConfig, ServerError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::handshake::client::Request;
use tokio_tungstenite::{connect_async, tungstenite};

use crate::support::{Client, PATIENCE, Server, config};

const WRONG: &str = "POST /v1/admin/pause\nAuthorization: Bearer wrong-token-of-somebody";
const RIGHT: &str = "POST /v1/admin/pause\nAuthorization: Bearer secret-of-the-owner";

async fn asked(server: &Server, request: &str, header: &str) -> u16 {
    server.http(&format!("{request}\n{header}")).await.0
}

/// Opens a stream of events, and returns it once the response has begun.
async fn watch(server: &Server, header: &str) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let request = format!("GET /v1/events HTTP/1.1\r\nHost: localhost\r\n{header}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = [0; 12];
    timeout(PATIENCE, stream.read_exact(&mut head)).await.unwrap().unwrap();
    (stream, String::from_utf8(head.to_vec()).unwrap())
}

fn join(server: &Server, from: &str) -> Request {
    let mut request = format!("ws://{}/v1/ws", server.address).into_client_request().unwrap();
    request.headers_mut().insert("x-forwarded-for", from.parse().unwrap());
    request
}

fn behind(dir: &std::path::Path, proxy: &str) -> ServeConfig {
    ServeConfig { trusted_proxy: vec![proxy.to_owned()], connections_per_address: 1, ..config(dir) }
}

#[tokio::test]
async fn whom_a_proxy_brings_is_counted_and_slowed_alone() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(behind(dir.path(), "127.0.0.1")).await;
    // The header begins with text that the stranger wrote.
    let (anne, bert) = ("X-Forwarded-For: 127.0.0.1, 192.0.2.1", "Forwarded: for=192.0.2.2;proto=https");
    for _ in 0..10 {
        assert_eq!(asked(&server, WRONG, anne).await, 401);
    }
    assert_eq!(asked(&server, WRONG, anne).await, 429, "anne guessed too often");
    assert_eq!(asked(&server, RIGHT, anne).await, 202, "the owner may be at her address");
    assert_eq!(asked(&server, WRONG, bert).await, 401, "bert did not guess");

    // An open stream and an upgraded socket keep their places.
    let (stream, head) = watch(&server, anne).await;
    assert_eq!(head, "HTTP/1.1 200");
    assert_eq!(watch(&server, anne).await.1, "HTTP/1.1 503");
    assert_eq!(asked(&server, "GET /healthz", bert).await, 200);
    let mut client = Client::connect_by(join(&server, "192.0.2.3"), None).await;
    let refused = connect_async(join(&server, "192.0.2.3")).await.unwrap_err();
    assert!(matches!(&refused, tungstenite::Error::Http(said) if said.status() == 503), "{refused}");
    drop(stream);
    client.socket.close(None).await.unwrap();
    let back = async {
        while asked(&server, "GET /healthz", anne).await != 200
            || asked(&server, "GET /healthz", "X-Forwarded-For: 192.0.2.3").await != 200
        {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, back).await.expect("they have room again");

    let two = format!("{anne}\n{bert}");
    let (code, _, said) = server.http(&format!("GET /healthz\n{two}")).await;
    assert_eq!(code, 400);
    assert!(String::from_utf8(said).unwrap().contains("different addresses"));
    server.stop().await;
}

#[tokio::test]
async fn what_a_stranger_says_of_itself_is_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(behind(dir.path(), "192.0.2.9")).await;
    let header = "X-Forwarded-For: 192.0.2.1";
    let streams = [watch(&server, header).await, watch(&server, header).await];
    assert!(streams.iter().all(|(_, head)| head == "HTTP/1.1 200"), "they are of this machine");
    for _ in 0..11 {
        assert_eq!(asked(&server, WRONG, header).await, 401, "nobody has others locked out by their address");
    }
    assert_eq!(asked(&server, RIGHT, &format!("{header}\nForwarded: for=192.0.2.8")).await, 202);
    drop(streams);
    server.stop().await;
    let error = Server::refused(behind(dir.path(), "caddy")).await;
    assert!(matches!(&error, ServerError::Config { why } if why.contains("--trusted-proxy")), "{error}");
}
