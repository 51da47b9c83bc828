//! Clients that use a syncer without contributing: silent sockets, reconnecting sockets, slow readers, slow senders and
//! watchers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

/// Maximum wait for an answer.
const ANSWER_WAIT: Duration = Duration::from_secs(20);
/// Time between two bytes of a slow client.
pub const BYTE_EVERY: Duration = Duration::from_millis(500);
/// Number of threads that open sockets.
const OPENERS: usize = 4;

/// Open sockets of silent learners.
pub struct Crowd(Vec<TcpStream>);

impl Crowd {
    /// Opens up to `count` sockets, as many as the system and the syncer allow.
    pub fn open(address: SocketAddr, count: usize) -> Self {
        let open = |count: usize| -> Vec<TcpStream> { (0..count).map_while(|_| socket(address)).collect() };
        let parts = thread::scope(|scope| {
            let openers: Vec<_> = (0..OPENERS).map(|_| scope.spawn(|| open(count / OPENERS))).collect();
            openers.into_iter().filter_map(|opener| opener.join().ok()).collect::<Vec<_>>()
        });
        Self(parts.into_iter().flatten().collect())
    }

    /// Returns the number of open sockets.
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// Opens and closes `count` sockets, one after the other.
pub fn churn(address: SocketAddr, count: usize) {
    (0..count).for_each(|_| drop(socket(address)));
}

/// Opens a learner's socket; `None` if it is refused.
fn socket(address: SocketAddr) -> Option<TcpStream> {
    let head = "GET /v1/ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    asked(address, head, "HTTP/1.1 101")
}

/// Sends `head` on a new connection. Returns the connection if the answer begins with `answer`.
pub fn asked(address: SocketAddr, head: &str, answer: &str) -> Option<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_WAIT).ok()?;
    stream.set_read_timeout(Some(ANSWER_WAIT)).ok()?;
    stream.write_all(head.as_bytes()).ok()?;
    let mut begin = vec![0; answer.len()];
    stream.read_exact(&mut begin).ok()?;
    (begin == answer.as_bytes()).then_some(stream)
}

/// Requests the model and reads it slowly, byte by byte.
pub fn nibble(address: SocketAddr, over: &AtomicBool) {
    while !over.load(Relaxed) {
        let head = "GET /v1/export.zip HTTP/1.1\r\nHost: localhost\r\n\r\n";
        let mut taken = asked(address, head, "HTTP/1.1 200");
        while let Some(stream) = taken.as_mut().filter(|_| !over.load(Relaxed)) {
            thread::sleep(BYTE_EVERY);
            if !stream.read(&mut [0]).is_ok_and(|count| count > 0) {
                break;
            }
        }
        thread::sleep(BYTE_EVERY);
    }
}

/// Starts a request and sends it slowly, byte by byte.
pub fn drip(address: SocketAddr, over: &AtomicBool) {
    while !over.load(Relaxed) {
        let Ok(mut stream) = TcpStream::connect_timeout(&address, ANSWER_WAIT) else { continue };
        for byte in b"GET /v1/status HTTP/1.1\r\nHost: localhost\r\nX-Slow: ".iter().cycle() {
            if over.load(Relaxed) || stream.write_all(&[*byte]).is_err() {
                break;
            }
            thread::sleep(BYTE_EVERY);
        }
    }
}

/// Requests `count` event streams, and reads none of them until it is `over`. Returns the number of accepted streams.
pub fn listen(address: SocketAddr, count: usize, over: &AtomicBool) -> usize {
    let head = "GET /v1/events HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: 192.0.2.1\r\n\r\n";
    let streams: Vec<TcpStream> = (0..count).filter_map(|_| asked(address, head, "HTTP/1.1 200")).collect();
    while !over.load(Relaxed) {
        thread::sleep(BYTE_EVERY);
    }
    streams.len()
}
