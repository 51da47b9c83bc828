//! Tests of connection limits, slow peers and host names.

use std::net::SocketAddr;
use std::time::Duration;

use syncer_server::{ServeConfig, ServerError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::support::{Client, PATIENCE, Server, config};

/// Sends the request of a browser that reached the server by the name `host`.
async fn by_name(address: SocketAddr, host: &str, more: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET /v1/status HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{more}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
    answer
}

#[tokio::test]
async fn a_page_that_has_its_name_lead_here_gets_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let allow_host = vec!["lab.example.org".to_owned()];
    let server = Server::start(ServeConfig { allow_host, ..config(dir.path()) }).await;
    let port = server.address.port();
    for host in [format!("evil.example:{port}"), "127.0.0.1.evil.example".into()] {
        let answer = by_name(server.address, &host, &format!("Origin: http://{host}\r\n")).await;
        assert!(answer.starts_with("HTTP/1.1 421 "), "{answer}");
        assert!(answer.contains("--allow-host"), "{answer}");
    }
    for host in [format!("127.0.0.1:{port}"), format!("localhost:{port}"), "lab.example.org".into()] {
        let answer = by_name(server.address, &host, "").await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{host}: {answer}");
    }
    server.stop().await;
    let allow_host = vec!["https://lab.example.org".to_owned()];
    let error = Server::refused(ServeConfig { allow_host, ..config(dir.path()) }).await;
    assert!(matches!(&error, ServerError::Config { why } if why.contains("--allow-host")), "{error}");
}

#[tokio::test]
async fn a_header_a_byte_a_second_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path())).await;
    let mut slow = TcpStream::connect(server.address).await.unwrap();
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    // A connection that was served and sends nothing more.
    let mut idle = TcpStream::connect(server.address).await.unwrap();
    idle.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let (mut answer, mut nothing, mut one) = (Vec::new(), Vec::new(), Vec::new());
    let drip = async {
        for byte in b"GET /v1/status HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ".iter().cycle() {
            sleep(Duration::from_millis(200)).await;
            // Writing fails once the server has closed the connection.
            if slow.write_all(&[*byte]).await.is_err() {
                break;
            }
        }
    };
    timeout(PATIENCE / 2, drip).await.expect("the server hangs up");
    // The close may be clean or a reset, depending on data in flight.
    drop(timeout(PATIENCE, slow.read_to_end(&mut answer)).await.expect("nothing more comes"));
    drop(timeout(PATIENCE, silent.read_to_end(&mut nothing)).await.expect("nothing comes"));
    drop(timeout(PATIENCE, idle.read_to_end(&mut one)).await.expect("it is closed"));
    assert!(nothing.is_empty() && one.starts_with(b"HTTP/1.1 200 "));
    assert_eq!(server.http("GET /healthz").await.0, 200);
    server.stop().await;
}

#[tokio::test]
async fn connections_have_a_number_and_give_it_back() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(ServeConfig { connections_max: 4, ..config(dir.path()) }).await;
    // A learner's socket counts while it is open, even after the upgrade from HTTP.
    let mut client = Client::connect(&server).await;
    let mut idle = Vec::new();
    for _ in 0..3 {
        idle.push(TcpStream::connect(server.address).await.unwrap());
    }
    let mut refused = String::new();
    for _ in 0..200 {
        // The others may not have been accepted yet.
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream
            .write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .await
            .unwrap();
        refused.clear();
        // A reset may overtake the response.
        drop(timeout(PATIENCE, stream.read_to_string(&mut refused)).await.unwrap());
        if refused.starts_with("HTTP/1.1 503 ") {
            break;
        }
        sleep(Duration::from_millis(10)).await;
    }
    assert!(refused.starts_with("HTTP/1.1 503 "), "{refused:?}");
    assert!(refused.contains("retry-after: 10"), "{refused}");
    drop(idle);
    client.socket.close(None).await.unwrap();
    let back = async {
        while !is_answered(server.address).await {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, back).await.expect("there is room again");
    server.stop().await;
}

async fn is_answered(address: SocketAddr) -> bool {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    let came = timeout(PATIENCE, stream.read_to_string(&mut answer)).await.unwrap();
    came.is_ok() && answer.starts_with("HTTP/1.1 200 ")
}
