//! Traffic between owners and gateways on the bus, counted by a passive listener.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// Length of the header of each piece of a split message, in bytes…
const PIECE_HEAD_BYTES: usize = 24;
/// …and the offset of the piece's four-byte index in it.
const PIECE_NUMBER_AT: usize = 12;
/// Length of a message's header, before its value: see `sdk/core/src/cluster/bytes.rs`.
const MESSAGE_HEAD_BYTES: usize = 6;
/// Maximum length of a received message in bytes; the servers reject larger ones.
const MESSAGE_BYTES_MAX: usize = 8 << 20;
/// Kind under which the later pieces of a message count; only sums are as long.
const LONG: &str = "Sum";

/// Number of messages and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub messages: u64,
    pub bytes: u64,
}

/// Counts so far, by kind of message.
pub type Counts = BTreeMap<String, Count>;

/// Listener on a bus, until the bus is gone.
pub struct Tap(Arc<Mutex<Counts>>);

impl Tap {
    /// Listens at `url`, `nats://USER:PASSWORD@HOST:PORT`, to all further messages between owners and gateways of the
    /// cluster with this prefix.
    ///
    /// # Errors
    /// A message if the server does not answer.
    pub fn open(url: &str, prefix: &str) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("nothing is heard of the bus: {error}");
        let (user, password, address) = parts(url).ok_or_else(|| format!("{url} is no address of a bus"))?;
        let mut stream = TcpStream::connect(address).map_err(failed)?;
        let reader = BufReader::new(stream.try_clone().map_err(failed)?);
        let hello = format!("CONNECT {{\"verbose\":false,\"user\":\"{user}\",\"pass\":\"{password}\"}}\r\n");
        let wishes = format!("SUB {prefix}.reply.* 1\r\nSUB {prefix}.notice.* 2\r\n");
        stream.write_all((hello + &wishes).as_bytes()).map_err(failed)?;
        let counts = Arc::new(Mutex::new(Counts::new()));
        let tap = Self(Arc::clone(&counts));
        // The thread ends with the server, whose process ends with this one.
        thread::spawn(move || listen(reader, stream, &counts));
        Ok(tap)
    }

    /// Returns the counts so far.
    pub fn counts(&self) -> Counts {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Splits the address of a bus into user, password and address.
fn parts(url: &str) -> Option<(&str, &str, SocketAddr)> {
    let (who, address) = url.strip_prefix("nats://")?.split_once('@')?;
    let (user, password) = who.split_once(':')?;
    Some((user, password, address.parse().ok()?))
}

/// Counts messages and answers the server's pings.
fn listen(mut reader: impl BufRead, mut answers: impl Write, counts: &Mutex<Counts>) -> Option<()> {
    let mut line = String::new();
    loop {
        line.clear();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if line.starts_with("PING") {
            answers.write_all(b"PONG\r\n").ok()?;
        }
        let Some(rest) = line.strip_prefix("MSG ") else { continue };
        let bytes: usize = rest.split_whitespace().last()?.parse().ok()?;
        if bytes > MESSAGE_BYTES_MAX {
            return None;
        }
        let mut message = vec![0; bytes + 2];
        reader.read_exact(&mut message).ok()?;
        let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(kind(&message[..bytes]).to_owned()).or_default();
        count.messages += 1;
        count.bytes += bytes as u64;
    }
}

/// Returns the kind of a message: the name before its value.
fn kind(message: &[u8]) -> &str {
    let number = message.get(PIECE_NUMBER_AT..PIECE_NUMBER_AT + 4);
    if number.is_some_and(|number| number != [0; 4]) {
        return LONG;
    }
    let value = message.get(PIECE_HEAD_BYTES + MESSAGE_HEAD_BYTES..).unwrap_or_default();
    // A map with one key, a short string whose length is in the lower five bits.
    let name = match value {
        [0x81, short, rest @ ..] if short & 0xe0 == 0xa0 => rest.get(..usize::from(short & 0x1f)),
        _ => None,
    };
    name.and_then(|name| std::str::from_utf8(name).ok()).unwrap_or("other")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(number: u8, name: &str) -> Vec<u8> {
        let mut message = vec![0; PIECE_HEAD_BYTES + MESSAGE_HEAD_BYTES];
        message[PIECE_NUMBER_AT] = number;
        message.extend([0x81, 0xa0 | name.len() as u8]);
        message.extend(name.bytes());
        message
    }

    #[test]
    fn messages_are_counted_by_what_they_say() {
        let mut text = b"INFO {}\r\nPING\r\n".to_vec();
        let said = [message(0, "Offer"), message(0, "Offer"), message(3, "x"), vec![7; 5]];
        for message in &said {
            text.extend(format!("MSG p.reply.0 1 {}\r\n", message.len()).bytes());
            text.extend(message);
            text.extend(b"\r\n");
        }
        let (counts, mut answers) = (Mutex::default(), Vec::new());
        listen(&text[..], &mut answers, &counts);
        let counts: Counts = counts.into_inner().unwrap();
        let bytes = |messages: &[Vec<u8>]| messages.iter().map(|message| message.len() as u64).sum();
        assert_eq!(counts["Offer"], Count { messages: 2, bytes: bytes(&said[..2]) });
        assert_eq!(counts[LONG], Count { messages: 1, bytes: bytes(&said[2..3]) });
        assert_eq!(counts["other"], Count { messages: 1, bytes: 5 });
        assert_eq!(answers, b"PONG\r\n");
    }

    #[test]
    fn an_address_has_a_user() {
        let (user, password, address) = parts("nats://owner:secret@127.0.0.1:9").unwrap();
        assert_eq!((user, password, address.port()), ("owner", "secret", 9));
        assert!(parts("nats://127.0.0.1:9").is_none());
    }
}
