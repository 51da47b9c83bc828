//! Messages in transit.

use std::sync::Arc;

use archipelago_core::wire::{Assembler, BODY_BYTES_MAX, DecodeError, Message, encode, frames};

/// Size of a message without its body when it is not encoded, in bytes.
const ENVELOPE_BYTES: u64 = 64;

/// A message in transit.
#[derive(Clone, Debug)]
pub(super) enum Payload {
    /// Encoded frames, as on the wire.
    Frames(Arc<Vec<Vec<u8>>>),
    /// The decoded message.
    Whole(Arc<Message>),
}

impl Payload {
    pub(super) fn new(message: Message, real: bool) -> Self {
        if real {
            Self::Frames(Arc::new(frames(encode(&message), 0).collect()))
        } else {
            Self::Whole(Arc::new(message))
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Frames(frames) => frames.iter().map(|frame| frame.len() as u64).sum(),
            Self::Whole(message) => ENVELOPE_BYTES + body_bytes(message),
        }
    }

    pub(super) fn open(self) -> Result<Message, DecodeError> {
        match self {
            Self::Whole(message) => Ok(Arc::unwrap_or_clone(message)),
            Self::Frames(frames) => {
                let mut assembler = Assembler::new(BODY_BYTES_MAX);
                let mut last = None;
                for frame in &*frames {
                    last = assembler.push(frame)?;
                }
                Ok(last.expect("the last frame completes the message"))
            }
        }
    }
}

/// Returns the bytes of parameters in `message`.
pub(super) fn body_bytes(message: &Message) -> u64 {
    match message {
        Message::Update(update) => update.body.len() as u64,
        Message::Merged(merged) => merged.body.len() as u64,
        _ => 0,
    }
}
