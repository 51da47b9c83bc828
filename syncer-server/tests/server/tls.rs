//! Tests of the listener: TLS handshakes and certificate renewal, limits for strangers, proxies and crowds.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use archipelago_core::diloco::{FragmentId, Version, binary16};
use archipelago_core::wire::{CloseCode, Hello, Invite, Message};
use futures::StreamExt;
use futures::future::join_all;
use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};
use syncer_server::{CertificateError, ServeConfig, ServerError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::handshake::client::Request;
use tokio_tungstenite::{Connector, connect_async, tungstenite};

use crate::support::{Client, PATIENCE, ScriptedLearner, Server, config, header, hello};

/// Creates a certificate for this machine.
fn new_certificate() -> CertifiedKey<KeyPair> {
    generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap()
}

/// Writes certificate and key into `dir`.
fn write_certificate(dir: &Path, made: &CertifiedKey<KeyPair>) -> (PathBuf, PathBuf) {
    let files = (dir.join("cert.pem"), dir.join("key.pem"));
    fs::write(&files.0, made.cert.pem()).unwrap();
    fs::write(&files.1, made.signing_key.serialize_pem()).unwrap();
    files
}

/// Writes the certificate `made` to `dir`. Returns the settings of a server that uses it.
fn secure(dir: &Path, made: &CertifiedKey<KeyPair>) -> ServeConfig {
    let (cert, key) = write_certificate(dir, made);
    config(&dir.join("run")).with(|it| {
        it.server.tls_cert = Some(cert);
        it.server.tls_key = Some(key);
    })
}

/// Returns a client configuration that trusts only `made`.
fn trusting(made: &[&CertifiedKey<KeyPair>]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    made.iter().for_each(|made| roots.add(made.cert.der().clone()).unwrap());
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap();
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    // A resumed session would show the previous certificate.
    config.resumption = Resumption::disabled();
    Arc::new(config)
}

async fn connected(server: &Server, config: &Arc<ClientConfig>) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(server.address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    timeout(PATIENCE, TlsConnector::from(Arc::clone(config)).connect(name, stream)).await.unwrap()
}

/// Returns the response to `GET path`, and the server's certificate.
async fn get(server: &Server, path: &str, config: &Arc<ClientConfig>) -> (String, CertificateDer<'static>) {
    let mut stream = connected(server, config).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
    let shown = stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned();
    (answer, shown)
}

#[tokio::test]
async fn tls_serves_clients_and_plain_http_gets_an_explanation() {
    let dir = tempfile::tempdir().unwrap();
    let made = new_certificate();
    let server = Server::start(secure(dir.path(), &made)).await;
    let config = trusting(&[&made]);
    let (answer, shown) = get(&server, "/healthz", &config).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(shown, *made.cert.der());
    assert!(
        connected(&server, &trusting(&[&new_certificate()])).await.is_err(),
        "another one is not believed"
    );

    let request = format!("wss://localhost:{}/v1/ws", server.address.port()).into_client_request().unwrap();
    let client = Client::connect_by(request, Some(Connector::Rustls(config))).await;
    let (client, welcome) = client.introduced(1).await;
    ScriptedLearner::of(client, welcome).await.merge().await;

    let (code, _, body) = server.http("GET /healthz").await;
    let said = String::from_utf8(body).unwrap();
    assert_eq!(code, 400);
    assert!(said.contains("accepts only https"), "{said}");
    let status = server.stop().await;
    assert!(status.core.rounds > 0);
}

#[tokio::test]
async fn connections_without_a_handshake_are_closed() {
    let dir = tempfile::tempdir().unwrap();
    let made = new_certificate();
    let server = Server::start(secure(dir.path(), &made).with(|it| it.server.connections_max = 2)).await;
    let config = trusting(&[&made]);
    let [silent, slow] = [(); 2].map(|()| TcpStream::connect(server.address));
    let (mut silent, mut slow) = (silent.await.unwrap(), slow.await.unwrap());
    // Send the header of a TLS record byte by byte. The record never follows.
    slow.write_all(&[22, 3, 1]).await.unwrap();
    let full = async {
        while connected(&server, &config).await.is_ok() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, full).await.expect("both are counted");
    let drip = async {
        for byte in [2, 0].iter().chain([1_u8].iter().cycle()) {
            sleep(Duration::from_millis(200)).await;
            // Writing fails once the server has closed the connection.
            if slow.write_all(&[*byte]).await.is_err() {
                break;
            }
        }
    };
    timeout(PATIENCE / 2, drip).await.expect("the server hangs up");
    let mut nothing = Vec::new();
    drop(timeout(PATIENCE, silent.read_to_end(&mut nothing)).await.expect("nothing comes"));
    assert!(nothing.is_empty());
    assert!(get(&server, "/healthz", &config).await.0.starts_with("HTTP/1.1 200 "));
    server.stop().await;
}

/// Returns the newest line of the run's log once it contains `part`.
async fn logged(server: &Server, config: &Arc<ClientConfig>, part: &str) -> String {
    let told = async {
        loop {
            let (answer, _) = get(server, "/v1/log?limit=1", config).await;
            if answer.contains(part) {
                return answer;
            }
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, told).await.expect(part)
}

#[tokio::test]
async fn certificates_are_renewed_without_a_restart_if_valid() {
    let dir = tempfile::tempdir().unwrap();
    let [old, new] = [new_certificate(), new_certificate()];
    let server = Server::start(secure(dir.path(), &old)).await;
    let config = trusting(&[&old, &new]);
    let mut standing = connected(&server, &config).await.unwrap();

    // The new key does not match the old certificate, so the server keeps the old pair.
    fs::write(dir.path().join("key.pem"), new.signing_key.serialize_pem()).unwrap();
    let said = logged(&server, &config, "cannot be used").await;
    assert!(said.contains("\"trouble\"") && !said.contains("key.pem"), "{said}");
    assert_eq!(get(&server, "/healthz", &config).await.1, *old.cert.der());

    write_certificate(dir.path(), &new);
    logged(&server, &config, "A new certificate is in use").await;
    assert_eq!(get(&server, "/healthz", &config).await.1, *new.cert.der());
    // Connections with the old certificate stay open.
    let request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    if standing.write_all(request).await.is_ok() {
        let mut answer = String::new();
        // No response is correct, too: the connection may have exceeded the limit of silence.
        drop(timeout(PATIENCE, standing.read_to_string(&mut answer)).await.unwrap());
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    server.stop().await;
}

#[tokio::test]
async fn invalid_certificate_settings_are_refused_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let [one, two] = [new_certificate(), new_certificate()];
    let good = secure(dir.path(), &one);
    let other = dir.path().join("other.pem");
    fs::write(&other, two.signing_key.serialize_pem()).unwrap();
    let error = Server::refused(good.clone().with(|it| it.server.tls_key = Some(other))).await;
    assert!(matches!(error, ServerError::Certificate(CertificateError::Mismatch { .. })), "{error:?}");
    assert_eq!(error.exit_code(), 21);
    for (config, part) in [
        (good.clone().with(|it| it.server.tls_key = None), "give --tls-key too"),
        (good.clone().with(|it| it.server.tls_cert = None), "give --tls-cert too"),
        (good.with(|it| it.server.public_url = Some("http://a.example".into())), "only https"),
    ] {
        let error = Server::refused(config).await;
        assert!(matches!(&error, ServerError::Config { why } if why.contains(part)), "{error}");
    }
}

/// Number of simultaneous joiners, unless `cargo xtask test --only joiners --count N` gives another one. Each takes two
/// file handles of this process, and some systems grant only 1,024.
const JOINERS: usize = 400;
/// Largest growth of this process during the downloads, in bytes. A copy for each joiner would take seven times that.
const GROWTH_MAX: u64 = 96 << 20;

/// Returns settings with all parameters in one fragment: 1.7 MB for each download.
fn one_fragment(dir: &Path) -> ServeConfig {
    config(dir).with(|it| {
        it.identity.preset = "small".into();
        it.identity.exchange.fragments = 1;
    })
}

/// Returns the resident memory of this process in bytes.
fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

/// Fetches `path`, with retries as the server requests. Returns the sum of the body's bytes, their number, and the
/// number of rejected requests.
async fn fetch(server: &Server, path: &str) -> (u64, u64, u32) {
    let mut sent_away = 0;
    loop {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let (mut head, mut chunk) = (Vec::new(), [0; 4_096]);
        let at = loop {
            let count = stream.read(&mut chunk).await.unwrap();
            head.extend_from_slice(&chunk[..count]);
            if let Some(at) = head.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                break at + 4;
            }
            assert!(count > 0, "the answer ends in its head");
        };
        let sum = |bytes: &[u8]| bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>();
        let (mut total, mut len) = (sum(&head[at..]), (head.len() - at) as u64);
        let text = String::from_utf8(head[..at].to_vec()).unwrap().to_lowercase();
        if text.starts_with("http/1.1 503") {
            assert_eq!(header(&text, "retry-after"), "2");
            sent_away += 1;
            sleep(Duration::from_millis(200)).await;
            continue;
        }
        assert!(text.starts_with("http/1.1 200"), "{text}");
        loop {
            match stream.read(&mut chunk).await.unwrap() {
                0 => return (total, len, sent_away),
                count => {
                    total += sum(&chunk[..count]);
                    len += count as u64;
                }
            }
        }
    }
}

/// Runs in a separate process, so that no other test affects memory and file handles.
#[test]
fn a_crowd_shares_one_copy() {
    let mut test = Command::new(std::env::current_exe().unwrap());
    test.args(["tls::a_crowd_shares_one_copy_here", "--exact", "--ignored", "--nocapture"]);
    let output = test.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[ignore = "the test before this one starts it in a process of its own"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_shares_one_copy_here() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(one_fragment(dir.path())).await;
    let (_client, welcome) = Client::greet(&server, 1).await;
    let path = format!("/v1/runs/{}/fragments/0/0", welcome.run);
    let first = fetch(&server, &path).await;
    let params = archipelago_core::diloco::Layout::of(&welcome.spec.model).unwrap().len();
    assert_eq!(first.1, (binary16::BYTES * params) as u64);

    let before = resident_bytes();
    let done = Arc::new(AtomicBool::new(false));
    let watched = tokio::spawn({
        let done = Arc::clone(&done);
        async move {
            let mut peak = resident_bytes();
            while !done.load(Ordering::Relaxed) {
                peak = peak.max(resident_bytes());
                sleep(Duration::from_millis(5)).await;
            }
            peak
        }
    });
    let joiners = std::env::var("ARCHIPELAGO_TEST_COUNT").map_or(JOINERS, |count| count.parse().unwrap());
    let answers = join_all((0..joiners).map(|_| fetch(&server, &path))).await;
    done.store(true, Ordering::Relaxed);
    assert!(answers.iter().all(|answer| (answer.0, answer.1) == (first.0, first.1)), "all get all of it");
    // Skip the comparison if the system does not report memory.
    if let (Some(before), Some(peak)) = (before, watched.await.unwrap()) {
        let growth = peak.saturating_sub(before);
        assert!(growth < GROWTH_MAX, "{growth} bytes more for {joiners} times {}", first.1);
        eprintln!("{growth} bytes more for {joiners} times {}", first.1);
    }
    server.stop().await;
}

#[tokio::test]
async fn a_transfer_that_broke_off_is_resumed_after_merges() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path()).with(|it| it.identity.exchange.fragments = 1)).await;
    let mut learner = ScriptedLearner::join(&server, 1).await;
    let run = learner.welcome.run;
    let fetched = |version: String, range: &str| {
        let request = format!("GET /v1/runs/{run}/fragments/0/{version}{range}");
        let server = &server;
        async move { server.http(&request).await }
    };
    learner.merge().await;
    let (_, head, old) = fetched("0".into(), "").await;
    let version = header(&head, "x-archipelago-version").to_owned();
    let tag =
        archipelago_core::wire::http::fragment_tag(run, FragmentId(0), Version(version.parse().unwrap()));
    learner.merge().await;
    learner.merge().await;

    let rest = format!("\nRange: bytes=1000-\nIf-Range: {tag}");
    let (code, head, part) = fetched(version.clone(), &rest).await;
    assert_eq!((code, &*part), (206, &old[1_000..]), "of the version that was begun");
    assert_eq!(header(&head, "x-archipelago-version"), version);
    let (code, head, new) = fetched(version.clone(), "").await;
    assert_eq!((code, new.len()), (200, old.len()));
    assert!(new != old && header(&head, "x-archipelago-version") != version, "who begins gets the newest");
    // A range of a version that was never served gives the current one.
    let (code, head, whole) = fetched("0".into(), "\nRange: bytes=1000-").await;
    assert_eq!((code, whole.len(), header(&head, "cache-control")), (200, old.len(), "no-store"));
    server.stop().await;
}

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
async fn requests_with_a_foreign_host_name_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let allow_host = vec!["lab.example.org".to_owned()];
    let server = Server::start(config(dir.path()).with(|it| it.server.allow_host = allow_host)).await;
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
    let error = Server::refused(config(dir.path()).with(|it| it.server.allow_host = allow_host)).await;
    assert!(matches!(&error, ServerError::Config { why } if why.contains("--allow-host")), "{error}");
}

#[tokio::test]
async fn slow_request_headers_time_out() {
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
async fn connections_are_counted_and_released() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path()).with(|it| it.server.connections_max = 4)).await;
    // A learner's socket is counted while it is open, even after the upgrade from HTTP.
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

/// Connects as a proxy on this machine does for a peer at `address`.
async fn connect_from(server: &Server, address: &str) -> Client {
    let mut request = format!("ws://{}/v1/ws", server.address).into_client_request().unwrap();
    request.headers_mut().insert("x-forwarded-for", address.parse().unwrap());
    Client::connect_by(request, None).await
}

fn behind_a_proxy(dir: &Path) -> ServeConfig {
    config(dir).with(|it| it.server.trusted_proxy = vec!["127.0.0.1".into()])
}

/// Waits until the server has closed `client`.
async fn closed(mut client: Client) {
    let end = async { while let Some(Ok(_)) = client.socket.next().await {} };
    timeout(PATIENCE, end).await.expect("it is closed");
}

/// Goal: silent sockets keep out no learner, neither a newcomer nor one that returns.
#[tokio::test]
async fn silent_sockets_take_no_learners_seats() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(config(dir.path()).with(|it| it.live.learners_max = 2)).await;
    let mut known = ScriptedLearner::join(&server, 1).await;
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

/// Goal: wrong secrets over sockets and over HTTP are counted together, even if many sockets are opened first. A
/// correct secret passes from the same address.
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
    // A socket without an invite is not counted as a guess.
    let mut client = connect_from(&server, "192.0.2.1").await;
    client.send(&Message::Hello(hello(2))).await;
    assert_eq!(client.end().await.close, u16::from(CloseCode::Invite));
    server.stop().await;
}

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

fn behind(dir: &Path, proxy: &str) -> ServeConfig {
    config(dir).with(|it| {
        it.server.trusted_proxy = vec![proxy.to_owned()];
        it.server.connections_per_address = 1;
    })
}

#[tokio::test]
async fn forwarded_clients_are_counted_and_throttled_separately() {
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

    // An open stream and an upgraded socket still count as connections.
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
async fn forwarding_headers_of_strangers_are_ignored() {
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
