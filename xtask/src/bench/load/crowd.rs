//! Those who take something of a syncer and give nothing: sockets that say nothing, come and go, read a byte a second,
//! send one, or watch.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

/// Longest wait for one of them to be answered.
const ANSWER_WAIT: Duration = Duration::from_secs(20);
/// Time between two bytes of those who are slow.
pub const BYTE_EVERY: Duration = Duration::from_millis(500);
/// Threads that open sockets.
const OPENERS: usize = 4;

/// Open sockets of learners that say nothing.
pub struct Crowd(Vec<TcpStream>);

impl Crowd {
    /// Opens so many, or as many as the system and the syncer let one open.
    pub fn open(address: SocketAddr, count: usize) -> Self {
        let open = |count: usize| -> Vec<TcpStream> { (0..count).map_while(|_| socket(address)).collect() };
        let parts = thread::scope(|scope| {
            let openers: Vec<_> = (0..OPENERS).map(|_| scope.spawn(|| open(count / OPENERS))).collect();
            openers.into_iter().filter_map(|opener| opener.join().ok()).collect::<Vec<_>>()
        });
        Self(parts.into_iter().flatten().collect())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// Has so many sockets come and go, one after the other.
pub fn churn(address: SocketAddr, count: usize) {
    (0..count).for_each(|_| drop(socket(address)));
}

/// A learner's socket that is open; `None` if it is not taken.
fn socket(address: SocketAddr) -> Option<TcpStream> {
    let head = "GET /v1/ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    asked(address, head, "HTTP/1.1 101")
}

/// A connection on which this was sent and the answer begins like that.
pub fn asked(address: SocketAddr, head: &str, answer: &str) -> Option<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_WAIT).ok()?;
    stream.set_read_timeout(Some(ANSWER_WAIT)).ok()?;
    stream.write_all(head.as_bytes()).ok()?;
    let mut begin = vec![0; answer.len()];
    stream.read_exact(&mut begin).ok()?;
    (begin == answer.as_bytes()).then_some(stream)
}

/// Asks for the model and takes a byte of it now and then.
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

/// Begins a request and sends a byte of it now and then.
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

/// Asks for so many streams of events, and reads none of them until it is `over`; how many it got.
pub fn listen(address: SocketAddr, count: usize, over: &AtomicBool) -> usize {
    let head = "GET /v1/events HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: 192.0.2.1\r\n\r\n";
    let streams: Vec<TcpStream> = (0..count).filter_map(|_| asked(address, head, "HTTP/1.1 200")).collect();
    while !over.load(Relaxed) {
        thread::sleep(BYTE_EVERY);
    }
    streams.len()
}
