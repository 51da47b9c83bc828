//! Minimal HTTP client for a syncer.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Longest wait for one response.
const ANSWER: Duration = Duration::from_secs(20);

/// Returns the body of the response to `GET path` as text. The response must have status 200.
///
/// # Errors
/// The I/O error, or the first line of another response.
pub fn get(address: SocketAddr, path: &str) -> std::io::Result<String> {
    String::from_utf8(get_bytes(address, path)?).map_err(std::io::Error::other)
}

/// Returns the body of the response to `GET path`. The response must have status 200.
///
/// # Errors
/// The I/O error, or the first line of another response.
pub fn get_bytes(address: SocketAddr, path: &str) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&address, ANSWER)?;
    stream.set_read_timeout(Some(ANSWER))?;
    // HTTP/1.0: the response ends with the connection and is not chunked.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap_or(answer.len());
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    if head.split(' ').nth(1) == Some("200") {
        Ok(answer.split_off((end + 4).min(answer.len())))
    } else {
        Err(std::io::Error::other(head.lines().next().unwrap_or("no answer").to_owned()))
    }
}

/// Sends `POST path` with the owner's `token`. Returns the status of the response.
///
/// # Errors
/// The I/O error.
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

/// Event stream of a syncer, collected in the background.
pub struct News {
    text: Arc<Mutex<String>>,
}

impl News {
    /// Opens `GET path`, a response without an end.
    ///
    /// # Panics
    /// If the server does not answer.
    #[must_use]
    pub fn listen(address: SocketAddr, path: &str) -> Self {
        let mut stream = TcpStream::connect_timeout(&address, ANSWER).expect("the server listens");
        stream.set_read_timeout(Some(ANSWER)).expect("a timeout can be set");
        write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").expect("the server reads");
        let text = Arc::new(Mutex::new(String::new()));
        let heard = Arc::clone(&text);
        std::thread::spawn(move || {
            let mut bytes = [0; 4_096];
            // The stream ends with the syncer, or after a silence that does not occur in a healthy one.
            while let Ok(len @ 1..) = stream.read(&mut bytes) {
                let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
                heard.push_str(&String::from_utf8_lossy(&bytes[..len]));
            }
        });
        Self { text }
    }

    /// Returns how often `what` has occurred so far.
    #[must_use]
    pub fn count(&self, what: &str) -> usize {
        self.text.lock().unwrap_or_else(PoisonError::into_inner).matches(what).count()
    }
}
