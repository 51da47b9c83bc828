//! Tests of TLS: handshakes, time limits, and certificate renewal.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

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
use tokio_tungstenite::Connector;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use crate::support::{Client, Learner, PATIENCE, Server, config};

/// Creates a certificate for this machine.
fn made() -> CertifiedKey<KeyPair> {
    generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap()
}

/// Writes certificate and key into `dir`.
fn put(dir: &Path, made: &CertifiedKey<KeyPair>) -> (PathBuf, PathBuf) {
    let files = (dir.join("cert.pem"), dir.join("key.pem"));
    fs::write(&files.0, made.cert.pem()).unwrap();
    fs::write(&files.1, made.signing_key.serialize_pem()).unwrap();
    files
}

/// Returns the settings of a server with `made`, in a folder next to its run.
fn secure(dir: &Path, made: &CertifiedKey<KeyPair>) -> ServeConfig {
    let (cert, key) = put(dir, made);
    ServeConfig { tls_cert: Some(cert), tls_key: Some(key), ..config(&dir.join("run")) }
}

/// Returns a client configuration that trusts only `made`.
fn believing(made: &[&CertifiedKey<KeyPair>]) -> Arc<ClientConfig> {
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
async fn learners_and_browsers_are_served_and_who_speaks_plainly_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let made = made();
    let server = Server::start(secure(dir.path(), &made)).await;
    let config = believing(&[&made]);
    let (answer, shown) = get(&server, "/healthz", &config).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(shown, *made.cert.der());
    assert!(connected(&server, &believing(&[&self::made()])).await.is_err(), "another one is not believed");

    let request = format!("wss://localhost:{}/v1/ws", server.address.port()).into_client_request().unwrap();
    let client = Client::connect_by(request, Some(Connector::Rustls(config))).await;
    let (client, welcome) = client.introduced(1).await;
    Learner::of(client, welcome).await.merge().await;

    let (code, _, body) = server.http("GET /healthz").await;
    let said = String::from_utf8(body).unwrap();
    assert_eq!(code, 400);
    assert!(said.contains("accepts only https"), "{said}");
    let status = server.stop().await;
    assert!(status.core.rounds > 0);
}

#[tokio::test]
async fn who_does_not_shake_hands_takes_a_place_for_a_while_and_no_longer() {
    let dir = tempfile::tempdir().unwrap();
    let made = made();
    let server = Server::start(ServeConfig { connections_max: 2, ..secure(dir.path(), &made) }).await;
    let config = believing(&[&made]);
    let [silent, slow] = [(); 2].map(|()| TcpStream::connect(server.address));
    let (mut silent, mut slow) = (silent.await.unwrap(), slow.await.unwrap());
    // The length of a record that never comes, byte by byte.
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
async fn a_new_certificate_is_shown_without_a_start_and_a_bad_one_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let [old, new] = [made(), made()];
    let server = Server::start(secure(dir.path(), &old)).await;
    let config = believing(&[&old, &new]);
    let mut standing = connected(&server, &config).await.unwrap();

    // The key of another certificate: the old pair stays.
    fs::write(dir.path().join("key.pem"), new.signing_key.serialize_pem()).unwrap();
    let said = logged(&server, &config, "cannot be used").await;
    assert!(said.contains("\"trouble\"") && !said.contains("key.pem"), "{said}");
    assert_eq!(get(&server, "/healthz", &config).await.1, *old.cert.der());

    put(dir.path(), &new);
    logged(&server, &config, "A new certificate is in use").await;
    assert_eq!(get(&server, "/healthz", &config).await.1, *new.cert.der());
    // Connections with the old certificate stay open.
    let request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    if standing.write_all(request).await.is_ok() {
        let mut answer = String::new();
        // Unless the connection exceeded the limit of silence.
        drop(timeout(PATIENCE, standing.read_to_string(&mut answer)).await.unwrap());
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    server.stop().await;
}

#[tokio::test]
async fn what_is_wrong_with_the_files_is_said_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let [one, two] = [made(), made()];
    let good = secure(dir.path(), &one);
    let other = dir.path().join("other.pem");
    fs::write(&other, two.signing_key.serialize_pem()).unwrap();
    let error = Server::refused(ServeConfig { tls_key: Some(other), ..good.clone() }).await;
    assert!(matches!(error, ServerError::Certificate(CertificateError::Mismatch { .. })), "{error:?}");
    assert_eq!(error.exit_code(), 21);
    for (config, part) in [
        (ServeConfig { tls_key: None, ..good.clone() }, "give --tls-key too"),
        (ServeConfig { tls_cert: None, ..good.clone() }, "give --tls-cert too"),
        (ServeConfig { public_url: Some("http://a.example".into()), ..good }, "only https"),
    ] {
        let error = Server::refused(config).await;
        assert!(matches!(&error, ServerError::Config { why } if why.contains(part)), "{error}");
    }
}
