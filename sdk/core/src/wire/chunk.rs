//! Conversion between messages and WebSocket frames of bounded size, so that a short message never waits for a long
//! one.

use std::collections::BTreeMap;

use super::codec::{Header, decode, split};
use super::{BODY_BYTES_MAX, CHUNK_BYTES, DecodeError, HEADER_BYTES, Message, PARTIALS_MAX, Tag};

/// Bytes in front of the payload of a chunk: header, message number, index, total bytes.
const CHUNK_HEAD_BYTES: usize = HEADER_BYTES + 12;

/// Payload bytes of every chunk except the last.
const PART_BYTES: usize = CHUNK_BYTES as usize - CHUNK_HEAD_BYTES;

/// Splits an encoded message into frames of at most [`CHUNK_BYTES`].
///
/// A message that fits into one frame is sent as it is. A larger one becomes a series of chunks, which must be sent
/// in order; frames of other messages may be sent between them. `number` must differ between messages in flight on
/// one connection.
pub fn frames(encoded: Vec<u8>, number: u32) -> impl Iterator<Item = Vec<u8>> + Send {
    Frames { encoded, number, index: 0 }
}

struct Frames {
    /// Remaining bytes; empty at the end.
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
        let start = self.index as usize * PART_BYTES;
        let part = &self.encoded[start..self.encoded.len().min(start + PART_BYTES)];
        let body_bytes = (part.len() + CHUNK_HEAD_BYTES - HEADER_BYTES) as u32;
        let total = u32::try_from(self.encoded.len()).expect("a fragment is far below 4 GiB");

        let mut frame = Vec::with_capacity(CHUNK_HEAD_BYTES + part.len());
        frame.extend(Header { tag: Tag::Chunk, body_bytes }.encode());
        for field in [self.number, self.index, total] {
            frame.extend(field.to_le_bytes());
        }
        frame.extend(part);

        self.index += 1;
        if start + part.len() == self.encoded.len() {
            self.encoded = Vec::new();
        }
        Some(frame)
    }
}

/// Reassembles the frames of one connection into messages.
///
/// Memory is bounded by the bytes received and by the body limit, regardless of the sizes that the peer announces.
/// After an error the connection is unusable: close it with the error's code.
#[derive(Debug)]
pub struct Assembler {
    body_bytes_max: u32,
    /// Incomplete messages by number.
    partials: BTreeMap<u32, Partial>,
}

#[derive(Debug)]
struct Partial {
    total: u32,
    next: u32,
    bytes: Vec<u8>,
}

impl Assembler {
    /// Returns an assembler for bodies of at most `body_bytes_max` bytes, limited to [`BODY_BYTES_MAX`].
    #[must_use]
    pub fn new(body_bytes_max: u32) -> Self {
        Self { body_bytes_max: body_bytes_max.min(BODY_BYTES_MAX), partials: BTreeMap::new() }
    }

    /// Changes the body limit for later messages. A syncer sets a small one before `Hello`.
    pub fn set_body_bytes_max(&mut self, body_bytes_max: u32) {
        self.body_bytes_max = body_bytes_max.min(BODY_BYTES_MAX);
    }

    /// Accepts the next frame and returns the message that it completes, if any.
    ///
    /// # Errors
    /// Those of [`decode`], and:
    /// - `FrameTooLarge`: the frame has more than [`CHUNK_BYTES`].
    /// - `ChunkOrder`, `ChunkBytes`, `ChunkTotal`: the chunk is not the next one of its message.
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

    /// Returns the bytes of incomplete messages held in memory.
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
        let Some((head, part)) = body.split_first_chunk::<12>() else {
            let expected = CHUNK_HEAD_BYTES as u64;
            return Err(DecodeError::Truncated { bytes: (HEADER_BYTES + body.len()) as u64, expected });
        };
        let field = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (number, index, total) = (field(0), field(4), field(8));

        if !self.partials.contains_key(&number) {
            self.begin(number, index, total, part)?;
        }
        let partial = self.partials.get_mut(&number).expect("begun above");
        partial.push(number, index, total, part)?;
        if partial.bytes.len() < total as usize {
            return Ok(None);
        }
        let whole = self.partials.remove(&number).expect("looked up above");
        decode(&whole.bytes).map(Some)
    }

    /// Opens a message with its first chunk. That chunk contains the message's own header, so the limits are checked
    /// here.
    fn begin(&mut self, number: u32, index: u32, total: u32, part: &[u8]) -> Result<(), DecodeError> {
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
        let header = Header::decode(part)?;
        if header.tag == Tag::Chunk {
            return Err(DecodeError::StrayChunk);
        }
        // All incomplete messages share one limit, so that together they hold no more than one message could.
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
    fn push(&mut self, number: u32, index: u32, total: u32, part: &[u8]) -> Result<(), DecodeError> {
        if total != self.total {
            return Err(DecodeError::ChunkTotal { number, found: total, expected: u64::from(self.total) });
        }
        if index != self.next {
            return Err(DecodeError::ChunkOrder { number, found: index, expected: self.next });
        }
        let expected = (self.total as usize - self.bytes.len()).min(PART_BYTES);
        if part.len() != expected {
            let (bytes, expected) = (part.len() as u64, expected as u64);
            return Err(DecodeError::ChunkBytes { number, index, bytes, expected });
        }
        self.bytes.extend_from_slice(part);
        self.next += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::{samples, update};
    use super::super::{CloseCode, GREETING_BYTES_MAX, encode};
    use super::*;

    fn bulk(body_bytes: usize) -> Message {
        Message::Update(update((0..body_bytes).map(|i| (i / 7) as u8).collect()))
    }

    /// Returns the frames of a message that needs several.
    fn chunks(number: u32) -> Vec<Vec<u8>> {
        frames(encode(&bulk(150_000)), number).collect()
    }

    fn assembler() -> Assembler {
        Assembler::new(BODY_BYTES_MAX)
    }

    fn with(mut frame: Vec<u8>, at: usize, value: u32) -> Vec<u8> {
        frame[at..at + 4].copy_from_slice(&value.to_le_bytes());
        frame
    }

    #[test]
    fn messages_of_every_size_come_back() {
        let part = PART_BYTES;
        let mut sizes = vec![0, 1, 200_000];
        // The framing of these messages takes 45 bytes.
        sizes.extend([CHUNK_BYTES as usize, part, 2 * part, 3 * part].map(|border| border - 45));
        for size in sizes.into_iter().flat_map(|size| [size.saturating_sub(1), size, size + 1]) {
            let message = bulk(size);
            let encoded = encode(&message);
            let whole = encoded.len();
            let frames: Vec<Vec<u8>> = frames(encoded, 5).collect();
            assert!(frames.iter().all(|frame| frame.len() <= CHUNK_BYTES as usize), "{size}");
            let expected = if whole <= CHUNK_BYTES as usize { 1 } else { whole.div_ceil(part) };
            assert_eq!(frames.len(), expected, "{size}");

            let mut assembler = assembler();
            let (last, first) = frames.split_last().unwrap();
            for frame in first {
                assert_eq!(assembler.push(frame), Ok(None), "{size}");
            }
            assert_eq!(assembler.push(last), Ok(Some(message)), "{size}");
            assert_eq!(assembler.held_bytes(), 0);
        }
    }

    #[test]
    fn chunks_of_several_messages_interleave() {
        let mut assembler = assembler();
        let (first, second) = (chunks(1), chunks(2));
        let mut whole = 0;
        for (a, b) in first.iter().zip(&second) {
            whole += u32::from(assembler.push(a).unwrap().is_some());
            for (name, message) in samples() {
                assert!(assembler.push(&encode(&message)).unwrap().is_some(), "{name}");
            }
            whole += u32::from(assembler.push(b).unwrap().is_some());
        }
        assert_eq!(whole, 2);
    }

    #[test]
    fn takes_little_before_the_greeting() {
        let mut assembler = Assembler::new(GREETING_BYTES_MAX);
        let refused = |bytes| {
            let tag = Tag::Update;
            Err(DecodeError::BodyTooLarge { tag, bytes, bytes_max: GREETING_BYTES_MAX })
        };
        assert_eq!(assembler.push(&encode(&bulk(5_000))), refused(5_031));
        assert_eq!(assembler.push(&chunks(1)[0]), refused(150_033));
        assert_eq!(assembler.held_bytes(), 0);
        assembler.set_body_bytes_max(BODY_BYTES_MAX);
        assert_eq!(assembler.push(&chunks(1)[0]), Ok(None));
    }

    #[test]
    fn refuses_chunks_that_do_not_fit() {
        let chunks = chunks(1);
        let total = 12 + 150_033;
        let check = |before: &[&[u8]], frame: &[u8], expected: DecodeError| {
            let mut assembler = assembler();
            for frame in before {
                assembler.push(frame).unwrap();
            }
            assert_eq!(assembler.push(frame), Err(expected));
        };
        let order = |found, expected| DecodeError::ChunkOrder { number: 1, found, expected };
        check(&[], &chunks[1], order(1, 0));
        check(&[&chunks[0]], &chunks[0], order(0, 1));
        check(&[&chunks[0]], &chunks[2], order(2, 1));

        let wrong = |found, expected| DecodeError::ChunkTotal { number: 1, found, expected };
        check(&[], &with(chunks[0].clone(), 20, total + 1), wrong(total + 1, u64::from(total)));
        check(&[], &with(chunks[0].clone(), 20, 9), wrong(9, u64::from(CHUNK_BYTES) + 1));
        check(&[&chunks[0]], &with(chunks[1].clone(), 20, total - 1), wrong(total - 1, u64::from(total)));

        let short = |frame: &[u8], bytes: usize| with(frame[..bytes].to_vec(), 8, bytes as u32 - 12);
        let (bytes, expected) = (65_511, PART_BYTES as u64);
        let error = DecodeError::ChunkBytes { number: 1, index: 1, bytes, expected };
        check(&[&chunks[0]], &short(&chunks[1], CHUNK_BYTES as usize - 1), error);
        check(&[], &short(&chunks[0], 20), DecodeError::Truncated { bytes: 20, expected: 24 });
        check(&[], &short(&chunks[0], 30), DecodeError::Truncated { bytes: 6, expected: 12 });

        let mut nested = chunks[0].clone();
        nested.splice(24.., chunks[1][..64].to_vec());
        check(&[], &short(&nested, 80), DecodeError::StrayChunk);
        assert_eq!(decode(&chunks[0]), Err(DecodeError::StrayChunk));
        let bytes = u64::from(CHUNK_BYTES) + 1;
        check(&[], &vec![0; bytes as usize], DecodeError::FrameTooLarge { bytes });
    }

    #[test]
    fn incomplete_messages_are_bounded() {
        let mut assembler = assembler();
        for number in 0..PARTIALS_MAX {
            assembler.push(&chunks(number)[0]).unwrap();
        }
        let error = DecodeError::TooManyPartials { partials_max: PARTIALS_MAX };
        assert_eq!(assembler.push(&chunks(9)[0]), Err(error));

        // Two messages that exceed the limit together, although each one is below it.
        let mut assembler = Assembler::new(200_000);
        assembler.push(&chunks(0)[0]).unwrap();
        let refused = assembler.push(&chunks(1)[0]).unwrap_err();
        let bytes_max = 200_000 - (12 + 150_033);
        assert_eq!(refused, DecodeError::BodyTooLarge { tag: Tag::Update, bytes: 150_033, bytes_max });
        assert_eq!(refused.close_code(), CloseCode::TooLarge);
    }

    proptest! {
        #[test]
        fn no_frames_panic_or_hold_more_than_came(
            frames in prop::collection::vec((0_usize..3, any::<[u16; 2]>(), any::<u8>(), any::<bool>()), 1..12),
        ) {
            let good = chunks(1);
            let mut assembler = Assembler::new(200_000);
            let mut came = 0;
            for (index, [place, length], value, whole) in frames {
                let mut frame = good[index].clone();
                if !whole {
                    frame.truncate(usize::from(length));
                    let place = usize::from(place) % 40;
                    if place < frame.len() {
                        frame[place] = value;
                    }
                }
                came += frame.len() as u64;
                let _ = assembler.push(&frame);
                prop_assert!(assembler.held_bytes() <= came.min(200_012));
            }
        }
    }
}
