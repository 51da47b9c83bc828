//! Messages ⇄ WebSocket frames of bounded size, so that a short message never waits for a long one.

use std::collections::BTreeMap;

use super::codec::decode;
use super::header::{Header, split};
use super::{BODY_BYTES_MAX, CHUNK_BYTES, DecodeError, HEADER_BYTES, Message, PARTIALS_MAX, Tag};

/// Bytes in front of a chunk's share of the message: header, message number, index, total bytes.
const CHUNK_HEAD_BYTES: usize = HEADER_BYTES + 12;

/// Bytes of the message in every chunk but the last.
const SHARE_BYTES: usize = CHUNK_BYTES as usize - CHUNK_HEAD_BYTES;

/// Splits an encoded message into frames of at most [`CHUNK_BYTES`].
///
/// A message that fits is one frame as it is. A larger one becomes a run of chunks, to be sent in
/// order; other messages' frames may go between them. `number` tells such messages apart: it must
/// differ between messages in flight on one connection.
pub fn frames(encoded: Vec<u8>, number: u32) -> impl Iterator<Item = Vec<u8>> + Send {
    Frames { encoded, number, index: 0 }
}

struct Frames {
    /// Empty once all is sent.
    encoded: Vec<u8>,
    number: u32,
    index: u32,
}

impl Iterator for Frames {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        if self.encoded.is_empty() {
            return None;
        }
        if self.encoded.len() <= CHUNK_BYTES as usize {
            return Some(std::mem::take(&mut self.encoded));
        }
        let start = self.index as usize * SHARE_BYTES;
        let share = &self.encoded[start..self.encoded.len().min(start + SHARE_BYTES)];
        let body_bytes = (share.len() + CHUNK_HEAD_BYTES - HEADER_BYTES) as u32;
        let total = u32::try_from(self.encoded.len()).expect("a fragment is far below 4 GiB");

        let mut frame = Vec::with_capacity(CHUNK_HEAD_BYTES + share.len());
        frame.extend(Header { tag: Tag::Chunk, body_bytes }.encode());
        for field in [self.number, self.index, total] {
            frame.extend(field.to_le_bytes());
        }
        frame.extend(share);

        self.index += 1;
        if start + share.len() == self.encoded.len() {
            self.encoded = Vec::new();
        }
        Some(frame)
    }
}

/// Puts one connection's frames together to messages again.
///
/// Holds no more than it received, and never more than its limit, whatever the peer announces.
/// After an error the connection is of no further use: close it with the error's code.
#[derive(Debug)]
pub struct Assembler {
    body_bytes_max: u32,
    /// Messages begun and not ended, by number.
    partials: BTreeMap<u32, Partial>,
}

#[derive(Debug)]
struct Partial {
    total: u32,
    next: u32,
    bytes: Vec<u8>,
}

impl Assembler {
    /// Takes bodies of at most `body_bytes_max`, and [`BODY_BYTES_MAX`] at most.
    #[must_use]
    pub fn new(body_bytes_max: u32) -> Self {
        Self { body_bytes_max: body_bytes_max.min(BODY_BYTES_MAX), partials: BTreeMap::new() }
    }

    /// Changes the limit for what begins from now on: a syncer takes little before `Hello`.
    pub fn set_body_bytes_max(&mut self, body_bytes_max: u32) {
        self.body_bytes_max = body_bytes_max.min(BODY_BYTES_MAX);
    }

    /// Takes in the next frame; gives the message that it completes, if any.
    ///
    /// # Errors
    /// Those of [`decode`], and:
    /// - `FrameTooLarge`: more than [`CHUNK_BYTES`].
    /// - `ChunkOrder`, `ChunkBytes`, `ChunkTotal`: a chunk does not fit its message.
    /// - `TooManyPartials`: more than [`PARTIALS_MAX`] messages are in flight.
    pub fn push(&mut self, frame: &[u8]) -> Result<Option<Message>, DecodeError> {
        if frame.len() > CHUNK_BYTES as usize {
            return Err(DecodeError::FrameTooLarge { bytes: frame.len() as u64 });
        }
        self.check_limit(Header::decode(frame)?, self.body_bytes_max)?;
        match split(frame)? {
            (Tag::Chunk, body) => self.push_chunk(body),
            _ => decode(frame).map(Some),
        }
    }

    /// Bytes of unfinished messages held.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.partials.values().map(|partial| partial.bytes.len() as u64).sum()
    }

    fn check_limit(&self, header: Header, bytes_max: u32) -> Result<(), DecodeError> {
        let Header { tag, body_bytes: bytes } = header;
        if tag != Tag::Chunk && bytes > bytes_max {
            return Err(DecodeError::BodyTooLarge { tag, bytes, bytes_max });
        }
        Ok(())
    }

    fn push_chunk(&mut self, body: &[u8]) -> Result<Option<Message>, DecodeError> {
        let Some((head, share)) = body.split_first_chunk::<12>() else {
            let expected = CHUNK_HEAD_BYTES as u64;
            return Err(DecodeError::Truncated { bytes: (HEADER_BYTES + body.len()) as u64, expected });
        };
        let field = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (number, index, total) = (field(0), field(4), field(8));

        if !self.partials.contains_key(&number) {
            self.begin(number, index, total, share)?;
        }
        let partial = self.partials.get_mut(&number).expect("begun above");
        partial.push(number, index, total, share)?;
        if partial.bytes.len() < total as usize {
            return Ok(None);
        }
        let whole = self.partials.remove(&number).expect("looked up above");
        decode(&whole.bytes).map(Some)
    }

    /// Opens a message by its first chunk, which holds its header: the limits are checked here.
    fn begin(&mut self, number: u32, index: u32, total: u32, share: &[u8]) -> Result<(), DecodeError> {
        if index != 0 {
            return Err(DecodeError::ChunkOrder { number, found: index, expected: 0 });
        }
        if self.partials.len() >= PARTIALS_MAX as usize {
            return Err(DecodeError::TooManyPartials { partials_max: PARTIALS_MAX });
        }
        if total <= CHUNK_BYTES {
            let expected = u64::from(CHUNK_BYTES) + 1;
            return Err(DecodeError::ChunkTotal { number, found: total, expected });
        }
        let header = Header::decode(share)?;
        if header.tag == Tag::Chunk {
            return Err(DecodeError::StrayChunk);
        }
        // All messages in flight share the limit, so that many begun ones hold no more than one.
        let begun: u64 = self.partials.values().map(|partial| u64::from(partial.total)).sum();
        let left = u64::from(self.body_bytes_max).saturating_sub(begun);
        self.check_limit(header, left as u32)?;
        let expected = HEADER_BYTES as u64 + u64::from(header.body_bytes);
        if u64::from(total) != expected {
            return Err(DecodeError::ChunkTotal { number, found: total, expected });
        }
        self.partials.insert(number, Partial { total, next: 0, bytes: Vec::new() });
        Ok(())
    }
}

impl Partial {
    fn push(&mut self, number: u32, index: u32, total: u32, share: &[u8]) -> Result<(), DecodeError> {
        if total != self.total {
            return Err(DecodeError::ChunkTotal { number, found: total, expected: u64::from(self.total) });
        }
        if index != self.next {
            return Err(DecodeError::ChunkOrder { number, found: index, expected: self.next });
        }
        let expected = (self.total as usize - self.bytes.len()).min(SHARE_BYTES);
        if share.len() != expected {
            let (bytes, expected) = (share.len() as u64, expected as u64);
            return Err(DecodeError::ChunkBytes { number, index, bytes, expected });
        }
        self.bytes.extend_from_slice(share);
        self.next += 1;
        Ok(())
    }
}
