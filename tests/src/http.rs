//! What a syncer answers to a plain request.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Longest wait for one answer.
const ANSWER: Duration = Duration::from_secs(20);

/// `GET path`, the body of an answer with 200.
///
/// # Errors
/// What went wrong on the way, or the first line of another answer.
pub fn get(address: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, ANSWER)?;
    stream.set_read_timeout(Some(ANSWER))?;
    // HTTP/1.0: the answer ends with the connection, uncut.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    if head.split(' ').nth(1) == Some("200") {
        Ok(body.to_owned())
    } else {
        Err(std::io::Error::other(head.lines().next().unwrap_or("no answer").to_owned()))
    }
}

/// `POST path` with the owner's `token`: the status of the answer.
///
/// # Errors
/// What went wrong on the way.
pub fn order(address: SocketAddr, path: &str, token: &str) -> std::io::Result<u16> {
    let mut stream = TcpStream::connect_timeout(&address, ANSWER)?;
    stream.set_read_timeout(Some(ANSWER))?;
    let head = format!("Host: {address}\r\nAuthorization: Bearer {token}\r\nContent-Length: 0");
    write!(stream, "POST {path} HTTP/1.0\r\n{head}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    status.ok_or_else(|| std::io::Error::other("no answer"))
}
