//! One whole message ⇄ bytes.

use serde::{Deserialize, Serialize};

use super::header::{Header, split};
use super::scan::scan;
use super::{
    DecodeError, HEADER_BYTES, INVITE_BYTES_MAX, Invite, Message, NAME_BYTES_MAX, REASON_BYTES_MAX, Tag,
};

impl Message {
    /// The number that names this kind of message on the wire.
    #[must_use]
    pub fn tag(&self) -> Tag {
        match self {
            Self::Hello(_) => Tag::Hello,
            Self::Welcome(_) => Tag::Welcome,
            Self::Ready { .. } => Tag::Ready,
            Self::Collect { .. } => Tag::Collect,
            Self::Update(_) => Tag::Update,
            Self::Pass { .. } => Tag::Pass,
            Self::Receipt { .. } => Tag::Receipt,
            Self::Merged(_) => Tag::Merged,
            Self::Lease { .. } => Tag::Lease,
            Self::Progress(_) => Tag::Progress,
            Self::Bye(_) => Tag::Bye,
            Self::Hold { .. } => Tag::Hold,
            Self::Pace { .. } => Tag::Pace,
        }
    }

    /// Whether it carries parameters: such messages give way to all others in a queue.
    #[must_use]
    pub fn is_bulk(&self) -> bool {
        matches!(self, Self::Update(_) | Self::Merged(_))
    }
}

/// Room for the other fields of a message with parameters.
const FIELDS_BYTES: usize = 64;

/// One whole message, header and body.
///
/// The limits of `WIRE.md` are the caller's to keep ([`crate::wire::clip`] does it for texts): a
/// message above them is encoded, and refused by the peer.
#[must_use]
pub fn encode(message: &Message) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_BYTES];
    // Compact form: a struct is an array of its fields, so a tuple has the same bytes.
    match message {
        Message::Hello(hello) => write(&mut bytes, hello),
        Message::Welcome(welcome) => write(&mut bytes, welcome),
        Message::Ready { run, layout } => write(&mut bytes, &(run, layout)),
        Message::Collect { run, round, fragment, base } => write(&mut bytes, &(run, round, fragment, base)),
        Message::Update(update) => {
            bytes.reserve(update.body.len() + FIELDS_BYTES);
            write(&mut bytes, update);
        }
        Message::Pass { run, round, fragment } => write(&mut bytes, &(run, round, fragment)),
        Message::Receipt { run, round, fragment, fate } => write(&mut bytes, &(run, round, fragment, fate)),
        Message::Merged(merged) => {
            bytes.reserve(merged.body.len() + FIELDS_BYTES);
            write(&mut bytes, merged);
        }
        Message::Lease { run, grant } => write(&mut bytes, &(run, grant)),
        Message::Progress(progress) => write(&mut bytes, progress),
        Message::Bye(bye) => write(&mut bytes, bye),
        Message::Hold { run, held } => write(&mut bytes, &(run, held)),
        Message::Pace { run, share } => write(&mut bytes, &(run, share)),
    }
    let body_bytes = u32::try_from(bytes.len() - HEADER_BYTES).expect("a fragment is far below 4 GiB");
    bytes[..HEADER_BYTES].copy_from_slice(&Header { tag: message.tag(), body_bytes }.encode());
    bytes
}

/// The message that `bytes` are, all of them.
///
/// # Errors
/// - `Magic`, `Version`, `Tag`, `Reserved`: the header is not one of ours.
/// - `BodyTooLarge`, `Truncated`, `Trailing`: the length is wrong.
/// - `Body`, `Shape`, `TextTooLong`: the body is wrong.
/// - `StrayChunk`: a part of a message; [`crate::wire::Assembler`] takes those.
pub fn decode(bytes: &[u8]) -> Result<Message, DecodeError> {
    let (tag, body) = split(bytes)?;
    if tag == Tag::Chunk {
        return Err(DecodeError::StrayChunk);
    }
    scan(body).map_err(|(at, fault)| DecodeError::Body { tag, at: at as u64, fault })?;
    let message = match tag {
        Tag::Hello => Message::Hello(read(tag, body)?),
        Tag::Welcome => Message::Welcome(read(tag, body)?),
        Tag::Ready => {
            let (run, layout) = read(tag, body)?;
            Message::Ready { run, layout }
        }
        Tag::Collect => {
            let (run, round, fragment, base) = read(tag, body)?;
            Message::Collect { run, round, fragment, base }
        }
        Tag::Update => Message::Update(read(tag, body)?),
        Tag::Pass => {
            let (run, round, fragment) = read(tag, body)?;
            Message::Pass { run, round, fragment }
        }
        Tag::Receipt => {
            let (run, round, fragment, fate) = read(tag, body)?;
            Message::Receipt { run, round, fragment, fate }
        }
        Tag::Merged => Message::Merged(read(tag, body)?),
        Tag::Lease => {
            let (run, grant) = read(tag, body)?;
            Message::Lease { run, grant }
        }
        Tag::Progress => Message::Progress(read(tag, body)?),
        Tag::Bye => Message::Bye(read(tag, body)?),
        Tag::Hold => {
            let (run, held) = read(tag, body)?;
            Message::Hold { run, held }
        }
        Tag::Pace => {
            let (run, share) = read(tag, body)?;
            Message::Pace { run, share }
        }
        Tag::Chunk => unreachable!("refused above"),
    };
    check_texts(&message)?;
    Ok(message)
}

fn write(bytes: &mut Vec<u8>, body: &impl Serialize) {
    rmp_serde::encode::write(bytes, body).expect("memory takes every byte and our types have lengths");
}

fn read<'a, T: Deserialize<'a>>(tag: Tag, body: &'a [u8]) -> Result<T, DecodeError> {
    rmp_serde::from_slice(body).map_err(|error| DecodeError::Shape { tag, detail: error.to_string() })
}

fn check_texts(message: &Message) -> Result<(), DecodeError> {
    let check = |field, text: &str, bytes_max: u32| {
        let bytes = text.len() as u64;
        if bytes > u64::from(bytes_max) {
            return Err(DecodeError::TextTooLong { field, bytes, bytes_max });
        }
        Ok(())
    };
    match message {
        Message::Hello(hello) => {
            check("name", &hello.name, NAME_BYTES_MAX)?;
            check("device", &hello.device, NAME_BYTES_MAX)?;
            check("invite", hello.invite.as_ref().map_or("", Invite::expose), INVITE_BYTES_MAX)
        }
        Message::Bye(bye) => check("reason", &bye.reason, REASON_BYTES_MAX),
        _ => Ok(()),
    }
}
