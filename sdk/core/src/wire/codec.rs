//! Conversion between one whole message and bytes.

use super::header::{Header, split};
use super::scan::scan;
use super::{
    ARCHITECTURE_BYTES_MAX, ARCHITECTURE_NAME_BYTES_MAX, DecodeError, HEADER_BYTES, INVITE_BYTES_MAX, Invite,
    Message, Model, NAME_BYTES_MAX, REASON_BYTES_MAX, TENSOR_NAME_BYTES_MAX, Tag,
};

/// Capacity for the fields of a message without its parameters. Only `Welcome` and reports with many leases need more.
const FIELDS_BYTES: usize = 64;

/// Encodes one whole message, header and body.
///
/// The caller must keep the limits of `WIRE.md` ([`crate::wire::clip`] does so for texts): a message above them is
/// encoded here and refused by the peer.
#[must_use]
pub fn encode(message: &Message) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_BYTES];
    bytes.reserve(parameters(message).len() + FIELDS_BYTES);
    message.write_body(&mut bytes);
    let body_bytes = u32::try_from(bytes.len() - HEADER_BYTES).expect("a fragment is far below 4 GiB");
    bytes[..HEADER_BYTES].copy_from_slice(&Header { tag: message.tag(), body_bytes }.encode());
    bytes
}

/// Decodes all of `bytes` as one message.
///
/// # Errors
/// - `Magic`, `Version`, `Tag`, `Reserved`: the header is invalid.
/// - `BodyTooLarge`, `Truncated`, `Trailing`: the length is wrong.
/// - `Body`, `Shape`, `TextTooLong`: the body is wrong.
/// - `StrayChunk`: the bytes are one chunk of a message; [`crate::wire::Assembler`] takes those.
pub fn decode(bytes: &[u8]) -> Result<Message, DecodeError> {
    let (tag, body) = split(bytes)?;
    if tag == Tag::Chunk {
        return Err(DecodeError::StrayChunk);
    }
    scan(body).map_err(|(at, fault)| DecodeError::Body { tag, at: at as u64, fault })?;
    let message = Message::read_body(tag, body)?;
    check_texts(&message)?;
    Ok(message)
}

/// Returns the coded parameters in `message`, or an empty slice.
fn parameters(message: &Message) -> &[u8] {
    match message {
        Message::Update(update) => &update.body,
        Message::Merged(merged) => &merged.body,
        _ => &[],
    }
}

/// Checks the length limits of the texts in `message`.
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
        Message::Welcome(welcome) => {
            let Model { tensors, architecture, .. } = &welcome.spec.model;
            check("architecture", &architecture.name, ARCHITECTURE_NAME_BYTES_MAX)?;
            let settings = architecture.settings.len() as u64;
            if settings > u64::from(ARCHITECTURE_BYTES_MAX) {
                let (field, bytes_max) = ("settings", ARCHITECTURE_BYTES_MAX);
                return Err(DecodeError::TextTooLong { field, bytes: settings, bytes_max });
            }
            tensors.iter().try_for_each(|tensor| check("tensor", &tensor.name, TENSOR_NAME_BYTES_MAX))
        }
        Message::Bye(bye) => check("reason", &bye.reason, REASON_BYTES_MAX),
        _ => Ok(()),
    }
}
