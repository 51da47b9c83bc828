//! The TCP connection below a WebSocket: directly to the server, or through an HTTP proxy.

use std::io;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_tungstenite::MaybeTlsStream;
use tokio_tungstenite::tungstenite::http::Uri;

use super::trust;
use crate::platform::Proxy;
use crate::platform::fault::tls_fault;

/// Maximum size of the head of a proxy's answer, in bytes.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Connects to the server of `uri`, through `proxy` if there is one. The caller adds TLS with the server itself.
///
/// # Errors
/// A message for users about the failed connection.
pub(super) async fn connect(uri: &Uri, proxy: Option<&Proxy>) -> Result<MaybeTlsStream<TcpStream>, String> {
    let Some(proxy) = proxy else {
        let port = uri.port_u16().unwrap_or(if uri.scheme_str() == Some("wss") { 443 } else { 80 });
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
        return dial(host, port).await.map(MaybeTlsStream::Plain).map_err(|error| error.to_string());
    };
    through(proxy).await.map_err(|why| proxy.explain(&why))
}

async fn dial(host: &str, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Connects to the server through `proxy`.
async fn through(proxy: &Proxy) -> Result<MaybeTlsStream<TcpStream>, String> {
    let (host, port) = proxy.place();
    let unreachable = |error: io::Error| {
        let fault = error.get_ref().and_then(|error| tls_fault(error));
        format!("the proxy cannot be reached: {}", fault.unwrap_or_else(|| error.to_string()))
    };
    let stream = dial(host, port).await.map_err(unreachable)?;
    let mut stream = if proxy.is_secure() {
        let name = ServerName::try_from(host.to_owned()).map_err(|error| error.to_string())?;
        let connector = TlsConnector::from(trust::sockets());
        MaybeTlsStream::Rustls(connector.connect(name, stream).await.map_err(unreachable)?)
    } else {
        MaybeTlsStream::Plain(stream)
    };
    ask(&mut stream, &proxy.target(), proxy.credentials()).await?;
    Ok(stream)
}

/// Asks the proxy at the other end of `stream` to connect to `target`.
async fn ask<S>(stream: &mut S, target: &str, credentials: Option<String>) -> Result<(), String>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let authorization = credentials
        .map(|credentials| format!("Proxy-Authorization: Basic {}\r\n", BASE64_STANDARD.encode(credentials)))
        .unwrap_or_default();
    let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{authorization}\r\n");
    let broke = |error: io::Error| format!("the proxy closed the connection: {error}");
    stream.write_all(request.as_bytes()).await.map_err(broke)?;
    stream.flush().await.map_err(broke)?;
    let mut head = Vec::new();
    // One byte at a time, because the bytes after the head belong to the server.
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() == HEAD_BYTES_MAX {
            return Err("the proxy does not answer in HTTP".to_owned());
        }
        head.push(stream.read_u8().await.map_err(broke)?);
    }
    match status(&head) {
        Some(200..300) => Ok(()),
        Some(407) => {
            Err("it requires a name and a password (HTTP status 407): put them into the variable, as \
                 http://NAME:PASSWORD@HOST:PORT"
                .to_owned())
        }
        Some(status) => Err(format!("it answered CONNECT with HTTP status {status}")),
        None => Err("the proxy does not answer in HTTP".to_owned()),
    }
}

/// Returns the status in the head of an answer.
fn status(head: &[u8]) -> Option<u16> {
    let line = std::str::from_utf8(head.split(|byte| *byte == b'\r').next()?).ok()?;
    line.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs [`ask`] against a proxy that sends `answer`. Returns the result, the request, and the bytes left unread.
    fn asked(answer: &'static [u8], credentials: Option<&str>) -> (Result<(), String>, String, Vec<u8>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (mut ours, mut theirs) = tokio::io::duplex(64 * 1024);
            theirs.write_all(answer).await.unwrap();
            let credentials = credentials.map(str::to_owned);
            let (mut request, mut rest) = (vec![0; 1_024], Vec::new());
            let done = ask(&mut ours, "a.lab:443", credentials).await;
            let len = theirs.read(&mut request).await.unwrap();
            drop(theirs);
            ours.read_to_end(&mut rest).await.unwrap();
            request.truncate(len);
            (done, String::from_utf8(request).unwrap(), rest)
        })
    }

    #[test]
    fn a_proxy_is_asked_once_and_what_follows_is_the_servers() {
        let (done, request, rest) =
            asked(b"HTTP/1.1 200 Connection established\r\nVia: p\r\n\r\nhello", None);
        assert_eq!((done, &rest[..]), (Ok(()), &b"hello"[..]));
        assert_eq!(request, "CONNECT a.lab:443 HTTP/1.1\r\nHost: a.lab:443\r\n\r\n");
        let (done, request, _) = asked(b"HTTP/1.0 200\r\n\r\n", Some("Aladdin:open sesame"));
        assert_eq!(done, Ok(()));
        assert!(
            request.contains("\r\nProxy-Authorization: Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==\r\n"),
            "{request}"
        );
    }

    #[test]
    fn a_refusal_says_why() {
        let why = |answer| asked(answer, None).0.unwrap_err();
        assert_eq!(why(b"HTTP/1.1 403 Forbidden\r\n\r\n"), "it answered CONNECT with HTTP status 403");
        assert!(why(b"HTTP/1.1 407 No\r\n\r\n").contains("http://NAME:PASSWORD@HOST:PORT"));
        assert!(why(b"SSH-2.0-x\r\n\r\n").contains("not answer in HTTP"));
        assert!(why(Box::leak(vec![b'x'; HEAD_BYTES_MAX].into())).contains("not answer in HTTP"));
    }
}
