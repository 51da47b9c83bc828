//! Minimal WebSocket client that can send invalid data.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use archipelago_core::wire::{
    Assembler, BODY_BYTES_MAX, Challenge, Hello, Identity, Message, SUBPROTOCOL, Signature, Welcome, decode,
    encode, frames,
};
use ed25519_dalek::{Signer, SigningKey};

/// Longest wait for the peer.
const WAIT: Duration = Duration::from_secs(60);
/// Opcodes of RFC 6455.
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;

/// Open WebSocket with access to raw bytes.
pub struct RawSocket {
    stream: TcpStream,
    assembler: Assembler,
    challenge: Option<Challenge>,
}

/// Received data.
#[derive(Debug, PartialEq)]
pub enum SocketData {
    /// Decoded message.
    Message(Box<Message>),
    /// Close frame with its code.
    Close(u16),
    /// End of the connection.
    End,
}

impl RawSocket {
    /// Connects and upgrades.
    ///
    /// # Panics
    /// If the server refuses.
    #[must_use]
    pub fn open(address: SocketAddr) -> Self {
        let mut stream = TcpStream::connect(address).expect("the server listens");
        stream.set_read_timeout(Some(WAIT)).expect("a timeout can be set");
        let head = format!(
            "GET /v1/ws HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
             Sec-WebSocket-Protocol: {SUBPROTOCOL}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).expect("the server reads");
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("the server answers");
            answer.push(byte[0]);
        }
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with("HTTP/1.1 101"), "{answer}");
        // RFC 6455, section 1.3, gives the answer to this key.
        assert!(answer.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{answer}");
        let mut socket = Self { stream, assembler: Assembler::new(BODY_BYTES_MAX), challenge: None };
        match socket.receive() {
            SocketData::Message(message) => match *message {
                Message::Challenge(challenge) => socket.challenge = Some(challenge),
                other => panic!("{other:?} in place of Challenge"),
            },
            other => panic!("{other:?} in place of Challenge"),
        }
        socket
    }

    /// Opens a socket, sends `Hello` as `identity`, and receives the `Welcome`.
    ///
    /// # Panics
    /// If there is no `Welcome`.
    #[must_use]
    pub fn greet(address: SocketAddr, identity: u8) -> (Self, Box<Welcome>) {
        let mut socket = Self::open(address);
        socket.send(&Message::Hello(hello(identity)));
        match socket.receive() {
            SocketData::Message(message) => match *message {
                Message::Welcome(welcome) => (socket, welcome),
                other => panic!("{other:?} in place of Welcome"),
            },
            other => panic!("{other:?} in place of Welcome"),
        }
    }

    /// Sends a valid message.
    pub fn send(&mut self, message: &Message) {
        for frame in frames(encode(message), 0) {
            self.send_frame(&frame);
        }
    }

    /// Sends `payload` as one binary frame. A `Hello` with an identity of [`hello`] is signed first.
    pub fn send_frame(&mut self, payload: &[u8]) {
        let signed = match (decode(payload), self.challenge) {
            (Ok(Message::Hello(hello)), Some(challenge)) => {
                encode(&Message::Hello(signed(hello, &challenge)))
            }
            _ => payload.to_vec(),
        };
        let payload = &signed[..];
        let mut frame = vec![0x80 | BINARY];
        match payload.len() {
            len @ 0..126 => frame.push(0x80 | len as u8),
            len @ 126..65_536 => {
                frame.push(0x80 | 126);
                frame.extend((len as u16).to_be_bytes());
            }
            len => {
                frame.push(0x80 | 127);
                frame.extend((len as u64).to_be_bytes());
            }
        }
        // A mask of zeros changes nothing and is allowed.
        frame.extend([0; 4]);
        frame.extend(payload);
        self.send_bytes(&frame);
    }

    /// Sends raw bytes without framing. If the peer has already closed, the next read shows it.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Returns the next message or the end. Skips pings and parts of messages.
    ///
    /// # Panics
    /// If the peer sends an invalid message.
    pub fn receive(&mut self) -> SocketData {
        loop {
            let Some((opcode, payload)) = self.frame() else { return SocketData::End };
            match opcode {
                BINARY => {
                    if let Some(message) = self.assembler.push(&payload).expect("a message of ours") {
                        return SocketData::Message(Box::new(message));
                    }
                }
                CLOSE => {
                    let code = payload.first_chunk::<2>().map_or(0, |code| u16::from_be_bytes(*code));
                    return SocketData::Close(code);
                }
                PING => {}
                other => panic!("a frame with opcode {other}"),
            }
        }
    }

    /// Reads until the connection ends. Returns the codes of `Bye` and of the close frame.
    pub fn end(&mut self) -> (Option<u16>, Option<u16>) {
        let (mut bye, mut close) = (None, None);
        loop {
            match self.receive() {
                SocketData::Message(message) => {
                    if let Message::Bye(last) = *message {
                        bye = Some(last.code.into());
                    }
                }
                SocketData::Close(code) => close = Some(code),
                SocketData::End => return (bye, close),
            }
            if close.is_some() {
                return (bye, close);
            }
        }
    }

    fn frame(&mut self) -> Option<(u8, Vec<u8>)> {
        let mut head = [0; 2];
        self.stream.read_exact(&mut head).ok()?;
        let len = match head[1] & 0x7f {
            126 => {
                let mut len = [0; 2];
                self.stream.read_exact(&mut len).ok()?;
                u64::from(u16::from_be_bytes(len))
            }
            127 => {
                let mut len = [0; 8];
                self.stream.read_exact(&mut len).ok()?;
                u64::from_be_bytes(len)
            }
            len => u64::from(len),
        };
        let mut payload = vec![0; usize::try_from(len).ok()?];
        self.stream.read_exact(&mut payload).ok()?;
        Some((head[0] & 0x0f, payload))
    }
}

fn key(number: u8) -> SigningKey {
    SigningKey::from_bytes(&[number; 32])
}

/// Returns `hello`, whose identity is a test key, with its signature for `challenge`.
fn signed(hello: Hello, challenge: &Challenge) -> Hello {
    let mut keys = (0..=u8::MAX).map(key);
    let key = keys.find(|key| key.verifying_key().to_bytes() == hello.identity.0).expect("a key of ours");
    Hello { signature: Signature(key.sign(&challenge.text()).to_bytes()), ..hello }
}

/// Returns a valid `Hello` without its signature, which depends on the connection.
#[must_use]
pub fn hello(identity: u8) -> Hello {
    Hello {
        run: None,
        layout: None,
        identity: Identity(key(identity).verifying_key().to_bytes()),
        signature: Signature::NONE,
        name: format!("raw {identity}"),
        device: "by hand".into(),
        invite: None,
    }
}

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
pub struct EventStream {
    text: Arc<Mutex<String>>,
}

impl EventStream {
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
