//! The few lines of HTTP that a status on this machine needs.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use serde_json::Value;

/// Longest wait for one answer.
const WAIT: Duration = Duration::from_secs(5);

/// `GET path` as JSON.
///
/// # Errors
/// A sentence: nobody answered, or not with 200 and JSON.
pub fn get(address: SocketAddr, path: &str) -> Result<Value, String> {
    let body = request(address, "GET", path, None)?;
    serde_json::from_str(&body).map_err(|error| format!("{path} of {address} is no JSON: {error}"))
}

/// `POST path` with nothing but the admin's `token`.
///
/// # Errors
/// A sentence: nobody answered, or not with a success.
pub fn post(address: SocketAddr, path: &str, token: &str) -> Result<(), String> {
    request(address, "POST", path, Some(token)).map(drop)
}

fn request(address: SocketAddr, method: &str, path: &str, token: Option<&str>) -> Result<String, String> {
    let failed = |error| format!("{method} {path} of {address}: {error}");
    let authorization = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    // HTTP/1.0, so that the answer is never cut into chunks and ends with the connection.
    let head =
        format!("{method} {path} HTTP/1.0\r\nHost: {address}\r\nContent-Length: 0\r\n{authorization}\r\n");
    let mut stream = TcpStream::connect_timeout(&address, WAIT).map_err(failed)?;
    stream.set_read_timeout(Some(WAIT)).map_err(failed)?;
    stream.write_all(head.as_bytes()).map_err(failed)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(failed)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| format!("{method} {path}: no answer"))?;
    let code = head.split(' ').nth(1).unwrap_or_default();
    if code.starts_with('2') {
        Ok(body.to_owned())
    } else {
        Err(format!("{method} {path}: {code} {}", body.trim()))
    }
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, thread};

    use super::*;

    /// What `get` makes of `answer`.
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
    fn refuses_what_is_no_success() {
        assert!(check("HTTP/1.0 503 Busy\r\n\r\n{}").unwrap_err().contains("503"));
        assert!(check("HTTP/1.0 200 OK\r\n\r\n<html>").is_err());
        assert!(check("").is_err());
    }
}
