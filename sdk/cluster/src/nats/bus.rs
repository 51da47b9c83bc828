//! Bus over core NATS messages. Large messages are split into pieces, which are reassembled within bounded memory.
//!
//! A piece begins with a header of 24 bytes, little endian: `ARCP`, the message's number (8 bytes), the piece's index
//! (4), the number of pieces (4), and the length of the message (4). A part of the message follows. The pieces of a
//! message must arrive in order. If a piece is missing, the message is lost, and the state machines send it again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

use archipelago_core::cluster::{AsBytes, Notice, Reply};
use archipelago_core::wire::FragmentId;
use async_nats::Subscriber;
use futures::StreamExt;
use tokio::sync::mpsc;

use super::Nats;
use crate::service::{Bus, INBOX_MAX, Inbox, ServiceError, ServiceFuture};

/// Counter for the numbers of a process's messages. It starts at random, so numbers of different processes differ
/// with high probability.
pub(super) struct Numbers(AtomicU64);

impl Numbers {
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(crate::random()))
    }

    fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

impl Nats {
    async fn publish(&self, subject: String, bytes: Vec<u8>) -> Result<(), ServiceError> {
        let pieces = split(self.numbers.next(), &bytes).ok_or_else(|| ServiceError::Setting {
            place: format!("a message of {} bytes", bytes.len()),
            detail: format!("at most {MESSAGE_BYTES_MAX}: cut the model into more fragments"),
        })?;
        for piece in pieces {
            let sent = self.client.publish(subject.clone(), piece.into()).await;
            sent.map_err(|error| self.silent(&error.to_string()))?;
        }
        Ok(())
    }

    async fn listen<T: AsBytes + Send + 'static>(&self, subject: String) -> Result<Inbox<T>, ServiceError> {
        let subscriber = self.client.subscribe(subject.clone()).await;
        let subscriber = subscriber.map_err(|error| self.silent(&error.to_string()))?;
        let (sender, inbox) = mpsc::channel(INBOX_MAX);
        tokio::spawn(receive_all(subscriber, subject, sender));
        Ok(inbox)
    }
}

/// Reassembles and decodes incoming messages until the receiver is dropped.
async fn receive_all<T: AsBytes>(mut subscriber: Subscriber, subject: String, to: mpsc::Sender<T>) {
    let mut pieces = Chunks::default();
    let mut has_warned = false;
    loop {
        let message = tokio::select! {
            () = to.closed() => return,
            message = subscriber.next() => message,
        };
        let Some(message) = message else { return };
        let Some(bytes) = pieces.take(&message.payload) else { continue };
        match T::of_bytes(&bytes) {
            // If the inbox is full, the message is lost, as the network may lose it.
            Ok(value) => drop(to.try_send(value)),
            Err(error) if !has_warned => {
                has_warned = true;
                tracing::warn!("ignored an invalid message on {subject}: {error}");
            }
            Err(_) => {}
        }
    }
}

impl Bus for Nats {
    fn notify<'a>(&'a self, fragment: FragmentId, notice: &'a Notice) -> ServiceFuture<'a, ()> {
        let subject = format!("{}.notice.{fragment}", self.prefix);
        Box::pin(self.in_time(self.publish(subject, notice.to_bytes())))
    }

    fn reply<'a>(&'a self, fragment: FragmentId, reply: &'a Reply) -> ServiceFuture<'a, ()> {
        let subject = format!("{}.reply.{fragment}", self.prefix);
        Box::pin(self.in_time(self.publish(subject, reply.to_bytes())))
    }

    fn notices(&self, fragment: FragmentId) -> ServiceFuture<'_, Inbox<Notice>> {
        Box::pin(self.in_time(self.listen(format!("{}.notice.{fragment}", self.prefix))))
    }

    fn replies(&self, fragment: FragmentId) -> ServiceFuture<'_, Inbox<Reply>> {
        Box::pin(self.in_time(self.listen(format!("{}.reply.{fragment}", self.prefix))))
    }
}

/// Maximum length of a piece with its header, in bytes.
pub(crate) const PIECE_BYTES_MAX: usize = 512_000;
/// Maximum length of a message, in bytes.
pub(crate) const MESSAGE_BYTES_MAX: usize = 128 << 20;
/// Maximum number of incomplete messages at a receiver.
const OPEN_MAX: usize = 64;
/// Maximum total size of incomplete messages at a receiver, in bytes.
const OPEN_BYTES_MAX: usize = 256 << 20;

const MAGIC: [u8; 4] = *b"ARCP";
const HEADER_BYTES: usize = 24;

/// Splits a message into pieces with the number `message`. Returns `None` if it is too large.
pub(crate) fn split(message: u64, bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    if bytes.len() > MESSAGE_BYTES_MAX {
        return None;
    }
    let part_bytes = PIECE_BYTES_MAX - HEADER_BYTES;
    let count = bytes.len().div_ceil(part_bytes).max(1);
    let piece = |index: usize| {
        let part = &bytes[index * part_bytes..bytes.len().min((index + 1) * part_bytes)];
        let mut piece = Vec::with_capacity(HEADER_BYTES + part.len());
        piece.extend(MAGIC);
        piece.extend(message.to_le_bytes());
        // A message of 128 MiB has about 260 pieces.
        [index, count, bytes.len()].iter().for_each(|number| piece.extend((*number as u32).to_le_bytes()));
        piece.extend(part);
        piece
    };
    Some((0..count).map(piece).collect())
}

/// Incomplete messages of one subscription.
#[derive(Debug, Default)]
pub(crate) struct Chunks {
    open: BTreeMap<u64, Open>,
    /// Numbers of the messages in the order of arrival, oldest first.
    order: VecDeque<u64>,
    bytes: usize,
}

#[derive(Debug)]
struct Open {
    count: u32,
    whole: usize,
    /// Index of the next piece.
    next: u32,
    bytes: Vec<u8>,
}

impl Chunks {
    /// Adds a piece. Returns the message if this piece completes it. If a limit is exceeded, the oldest incomplete
    /// messages are dropped.
    pub(crate) fn take(&mut self, piece: &[u8]) -> Option<Vec<u8>> {
        let (header, part) = piece.split_first_chunk::<HEADER_BYTES>()?;
        let number =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let message = u64::from(number(4)) | u64::from(number(8)) << 32;
        let (index, count, whole) = (number(12), number(16), number(20) as usize);
        if header[..4] != MAGIC || index >= count || whole > MESSAGE_BYTES_MAX {
            return None;
        }
        if index == 0 {
            self.forget(message);
            if count == 1 {
                return (part.len() == whole).then(|| part.to_vec());
            }
            self.order.push_back(message);
            self.open.insert(message, Open { count, whole, next: 0, bytes: Vec::new() });
        }
        let open = self.open.get_mut(&message)?;
        if index < open.next {
            return None;
        }
        if index > open.next || open.count != count || open.bytes.len() + part.len() > open.whole {
            self.forget(message);
            return None;
        }
        open.next += 1;
        open.bytes.extend_from_slice(part);
        self.bytes += part.len();
        if open.next == count {
            let is_whole = open.bytes.len() == open.whole;
            return self.forget(message).filter(|_| is_whole);
        }
        while self.open.len() > OPEN_MAX || self.bytes > OPEN_BYTES_MAX {
            let oldest = *self.order.front()?;
            self.forget(oldest);
        }
        None
    }

    fn forget(&mut self, message: u64) -> Option<Vec<u8>> {
        let open = self.open.remove(&message)?;
        self.order.retain(|other| *other != message);
        self.bytes -= open.bytes.len();
        Some(open.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at * 31 % 251) as u8).collect()
    }

    #[test]
    fn split_messages_are_reassembled() {
        let part = PIECE_BYTES_MAX - HEADER_BYTES;
        for len in [0, 1, part - 1, part, part + 1, 5 * part, 5 * part + 7] {
            let bytes = message(len);
            let split = split(9, &bytes).unwrap();
            assert_eq!(split.len(), len.div_ceil(part).max(1));
            assert!(split.iter().all(|piece| piece.len() <= PIECE_BYTES_MAX));
            let mut pieces = Chunks::default();
            let (last, before) = split.split_last().unwrap();
            assert!(before.iter().all(|piece| pieces.take(piece).is_none()));
            assert_eq!(pieces.take(last).as_ref(), Some(&bytes), "{len}");
            assert_eq!((pieces.bytes, pieces.open.len(), pieces.order.len()), (0, 0, 0));
        }
        assert_eq!(split(9, &vec![0; MESSAGE_BYTES_MAX + 1]), None);
    }

    #[test]
    fn a_lost_piece_loses_the_whole_and_nothing_else() {
        let bytes = message(4 * PIECE_BYTES_MAX);
        let (one, two) = (split(1, &bytes).unwrap(), split(2, &bytes).unwrap());
        for lost in 0..one.len() {
            let mut pieces = Chunks::default();
            let mut whole = Vec::new();
            for (index, (one, two)) in one.iter().zip(&two).enumerate() {
                whole.extend((index != lost).then(|| pieces.take(one)).flatten());
                // A repeated piece is ignored.
                whole.extend(pieces.take(two));
                whole.extend(pieces.take(two).filter(|_| index + 1 < one.len().min(5)));
            }
            assert!(whole.len() == 1 && whole[0] == bytes, "{lost}");
            // Only the loss of a message's last piece stays unnoticed.
            assert_eq!(pieces.open.len(), usize::from(lost + 1 == one.len()), "{lost}");
        }
    }

    #[test]
    fn memory_is_bounded() {
        let large = split(0, &vec![7; 100 << 20]).unwrap();
        let mut pieces = Chunks::default();
        for message in 0..4_u64 {
            for piece in &large[..large.len() - 1] {
                let mut piece = piece.clone();
                piece[4..12].copy_from_slice(&message.to_le_bytes());
                assert_eq!(pieces.take(&piece), None);
                assert!(pieces.bytes <= OPEN_BYTES_MAX, "{}", pieces.bytes);
            }
        }
        let mut pieces = Chunks::default();
        let small = split(0, &message(PIECE_BYTES_MAX)).unwrap();
        for message in 0..1_000_u64 {
            let mut piece = small[0].clone();
            piece[4..12].copy_from_slice(&message.to_le_bytes());
            pieces.take(&piece);
        }
        assert_eq!((pieces.open.len(), pieces.order.len()), (OPEN_MAX, OPEN_MAX));
        // A header that announces a large message reserves no memory, and an invalid header is rejected.
        let mut piece = small[0].clone();
        piece[20..24].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(Chunks::default().take(&piece), None);
        assert_eq!(Chunks::default().take(&small[0][..20]), None);
        assert_eq!(Chunks::default().take(b""), None);
    }
}
