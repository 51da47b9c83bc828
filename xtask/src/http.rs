//! Minimal HTTP client for a syncer on this machine.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use serde_json::Value;

/// End of a response head.
const END: &[u8] = b"\r\n\r\n";

/// Longest wait for one response.
const WAIT: Duration = Duration::from_secs(5);

/// Response of a server.
pub struct HttpResponse {
    /// Status code, such as 200.
    pub code: u16,
    /// Everything after the head.
    pub body: Vec<u8>,
}

impl HttpResponse {
    /// Returns the body, with invalid UTF-8 replaced.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Sends `GET path` and returns any response.
///
/// # Errors
/// A sentence: no response, or not HTTP.
pub fn fetch(address: SocketAddr, path: &str) -> Result<HttpResponse, String> {
    let failed = |error| format!("GET {path} of {address}: {error}");
    // With HTTP/1.0 the response is never chunked, and ends with the connection.
    let head = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\nContent-Length: 0\r\n\r\n");
    let mut stream = TcpStream::connect_timeout(&address, WAIT).map_err(failed)?;
    stream.set_read_timeout(Some(WAIT)).map_err(failed)?;
    stream.write_all(head.as_bytes()).map_err(failed)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).map_err(failed)?;
    let none = || format!("GET {path} of {address}: no answer");
    let at = answer.windows(END.len()).position(|bytes| bytes == END).ok_or_else(none)?;
    let body = answer.split_off(at + END.len());
    let head = String::from_utf8_lossy(&answer);
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or_else(none)?;
    Ok(HttpResponse { code, body })
}

/// Sends `GET path` and returns the JSON in the response.
///
/// # Errors
/// A sentence: no response, no success or no JSON.
pub fn get(address: SocketAddr, path: &str) -> Result<Value, String> {
    let answer = fetch(address, path)?;
    if !(200..300).contains(&answer.code) {
        return Err(format!("{path}: {} {}", answer.code, answer.text().trim()));
    }
    serde_json::from_slice(&answer.body).map_err(|error| format!("{path} of {address} is no JSON: {error}"))
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, thread};

    use super::*;

    /// Returns the result of `get` for the response `answer`.
    fn check(answer: &'static str) -> Result<Value, String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = [0; 1024];
            let read = stream.read(&mut head).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
            String::from_utf8_lossy(&head[..read]).into_owned()
        });
        let value = get(address, "/v1/status");
        assert!(server.join().unwrap().starts_with("GET /v1/status HTTP/1.0\r\n"));
        value
    }

    #[test]
    fn reads_an_answer() {
        let value = check("HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{\"rounds\":3}");
        assert_eq!(value.unwrap()["rounds"], 3);
    }

    #[test]
    fn responses_without_success_are_refused() {
        assert!(check("HTTP/1.0 503 Busy\r\n\r\n{}").unwrap_err().contains("503"));
        assert!(check("HTTP/1.0 200 OK\r\n\r\n<html>").is_err());
        assert!(check("").is_err());
    }
}
