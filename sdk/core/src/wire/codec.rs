//! Conversion between one whole message and bytes.
//!
//! A MessagePack body is checked before any value is built from it. A valid body is one value, nested at most
//! `DEPTH_MAX` deep, and every count in it is at most the number of bytes that follow. Any value built from it is
//! therefore bounded by its size.

use super::{
    ARCHITECTURE_BYTES_MAX, ARCHITECTURE_NAME_BYTES_MAX, CHUNK_BYTES, CloseCode, HEADER_BYTES,
    INVITE_BYTES_MAX, Invite, Message, Model, NAME_BYTES_MAX, REASON_BYTES_MAX, TENSOR_NAME_BYTES_MAX, Tag,
    VERSION,
};
use serde::{Deserialize, Serialize};

/// Capacity for the fields of a message other than its coded parameters. Only `Welcome` and reports with many leases
/// need more.
const FIELDS_BYTES: usize = 64;

/// Encodes one whole message, header and body.
///
/// The caller must respect the limits of `WIRE.md` ([`crate::wire::clip`] shortens texts): a message above them is
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

/// Returns the coded parameters of `message`, or an empty slice.
fn parameters(message: &Message) -> &[u8] {
    match message {
        Message::Update(update) => &update.body,
        Message::Merged(merged) => &merged.body,
        _ => &[],
    }
}

/// Checks the length limits of the texts and of the architecture's settings in `message`.
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

/// Reason why bytes are not a message. Its display text names the invalid value, so that it can serve as the reason
/// of a `Bye`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The first four bytes are not the magic.
    #[error("starts with {found:02x?}, not with \"ARCH\": this is not an Archipelago peer")]
    Magic {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// The peer uses another version of the protocol.
    #[error("speaks version {found}, here it is {VERSION}: update the older side")]
    Version {
        /// The peer's version.
        found: u16,
    },
    /// The tag is not defined in this version.
    #[error("message tag {found} is unknown")]
    Tag {
        /// The tag.
        found: u8,
    },
    /// The reserved byte is not zero.
    #[error("reserved byte is {found}, must be 0")]
    Reserved {
        /// The byte.
        found: u8,
    },
    /// The message is shorter than its header announces.
    #[error("ends after {bytes} bytes of {expected}")]
    Truncated {
        /// Bytes received.
        bytes: u64,
        /// Bytes announced, header included.
        expected: u64,
    },
    /// The message is longer than its header announces.
    #[error("is {bytes} bytes long, its header says {expected}")]
    Trailing {
        /// Bytes received.
        bytes: u64,
        /// Bytes announced, header included.
        expected: u64,
    },
    /// The announced body is above the limit of its kind or of the connection.
    #[error("{tag:?} announces a body of {bytes} bytes, at most {bytes_max} are taken")]
    BodyTooLarge {
        /// The kind of message.
        tag: Tag,
        /// Bytes announced.
        bytes: u32,
        /// Limit that applies on this connection at this time.
        bytes_max: u32,
    },
    /// A frame is above [`CHUNK_BYTES`].
    #[error("frame of {bytes} bytes, at most {CHUNK_BYTES} are taken")]
    FrameTooLarge {
        /// Bytes of the frame.
        bytes: u64,
    },
    /// The body is not MessagePack, or uses a type that is never used here.
    #[error("{tag:?} body is malformed at byte {at}: {fault}")]
    Body {
        /// Tag of the message.
        tag: Tag,
        /// Offset of the fault in the body.
        at: u64,
        /// Kind of fault.
        fault: BodyFault,
    },
    /// The body is MessagePack, but has not the fields of this message.
    #[error("body is not a {tag:?}: {detail}")]
    Shape {
        /// The kind of message.
        tag: Tag,
        /// Message of the decoder.
        detail: String,
    },
    /// A text, or the architecture's settings, is above its limit.
    #[error("{field} is {bytes} bytes long, at most {bytes_max} are taken")]
    TextTooLong {
        /// Name of the field.
        field: &'static str,
        /// Its length in bytes.
        bytes: u64,
        /// Its limit in bytes.
        bytes_max: u32,
    },
    /// The bytes are a chunk instead of a whole message.
    #[error("a chunk is not a message")]
    StrayChunk,
    /// A chunk is not the next one of its message.
    #[error("chunk {found} of message {number} where {expected} comes next")]
    ChunkOrder {
        /// The message's number.
        number: u32,
        /// Index of the chunk.
        found: u32,
        /// Expected index.
        expected: u32,
    },
    /// The size of a chunk does not match its position.
    #[error("chunk {index} of message {number} holds {bytes} bytes, must hold {expected}")]
    ChunkBytes {
        /// The message's number.
        number: u32,
        /// The chunk's index.
        index: u32,
        /// Bytes of the message in the chunk.
        bytes: u64,
        /// Expected bytes.
        expected: u64,
    },
    /// The total size in a chunk contradicts the other sizes, or the message would fit into one frame.
    #[error("chunk of message {number} gives a total of {found} bytes, must be {expected}")]
    ChunkTotal {
        /// The message's number.
        number: u32,
        /// The total in this chunk.
        found: u32,
        /// The total in the message's header or the first chunk.
        expected: u64,
    },
    /// More messages are incomplete than are allowed on one connection.
    #[error("more than {partials_max} unfinished messages")]
    TooManyPartials {
        /// The limit.
        partials_max: u32,
    },
}

/// Fault inside a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyFault {
    /// A length or value extends beyond the end of the body.
    #[error("runs past the end")]
    Overrun,
    /// Bytes follow the value.
    #[error("extra bytes follow the value")]
    Trailing,
    /// The body is nested deeper than any valid message.
    #[error("nested too deep")]
    Depth,
    /// The body has a MessagePack type that is never used here.
    #[error("type byte {0:#04x} is never used")]
    Marker(u8),
}

impl DecodeError {
    /// Returns the code to close the connection with.
    #[must_use]
    pub fn close_code(&self) -> CloseCode {
        match self {
            Self::Version { .. } => CloseCode::Version,
            Self::BodyTooLarge { .. }
            | Self::FrameTooLarge { .. }
            | Self::TextTooLong { .. }
            | Self::TooManyPartials { .. } => CloseCode::TooLarge,
            Self::Magic { .. }
            | Self::Tag { .. }
            | Self::Reserved { .. }
            | Self::Truncated { .. }
            | Self::Trailing { .. }
            | Self::Body { .. }
            | Self::Shape { .. }
            | Self::StrayChunk
            | Self::ChunkOrder { .. }
            | Self::ChunkBytes { .. }
            | Self::ChunkTotal { .. } => CloseCode::Malformed,
        }
    }
}

/// First bytes of every frame.
pub const MAGIC: [u8; 4] = *b"ARCH";

/// Header before a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub tag: Tag,
    pub body_bytes: u32,
}

impl Header {
    pub(crate) fn encode(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6] = self.tag as u8;
        bytes[8..].copy_from_slice(&self.body_bytes.to_le_bytes());
        bytes
    }

    /// Reads the header at the start of `bytes`. The body is neither read nor required.
    ///
    /// # Errors
    /// `Truncated`, `Magic`, `Version`, `Tag`, `Reserved`, `BodyTooLarge`: see [`DecodeError`].
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let Some((header, _)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return Err(DecodeError::Truncated { bytes: bytes.len() as u64, expected: HEADER_BYTES as u64 });
        };
        let [m0, m1, m2, m3, v0, v1, tag, reserved, l0, l1, l2, l3] = *header;
        if [m0, m1, m2, m3] != MAGIC {
            return Err(DecodeError::Magic { found: [m0, m1, m2, m3] });
        }
        let version = u16::from_le_bytes([v0, v1]);
        if version != VERSION {
            return Err(DecodeError::Version { found: version });
        }
        let known = Tag::ALL.iter().copied().find(|&known| known as u8 == tag);
        let tag = known.ok_or(DecodeError::Tag { found: tag })?;
        if reserved != 0 {
            return Err(DecodeError::Reserved { found: reserved });
        }
        let body_bytes = u32::from_le_bytes([l0, l1, l2, l3]);
        let bytes_max = tag.body_bytes_max();
        if body_bytes > bytes_max {
            return Err(DecodeError::BodyTooLarge { tag, bytes: body_bytes, bytes_max });
        }
        Ok(Self { tag, body_bytes })
    }
}

/// Splits `bytes` into the header's tag and the body, whose length must be the announced one.
///
/// # Errors
/// Those of [`Header::decode`], `Truncated`, `Trailing`: see [`DecodeError`].
pub(super) fn split(bytes: &[u8]) -> Result<(Tag, &[u8]), DecodeError> {
    let Header { tag, body_bytes } = Header::decode(bytes)?;
    let body = &bytes[HEADER_BYTES..];
    let expected = HEADER_BYTES as u64 + u64::from(body_bytes);
    match (body.len() as u64).cmp(&u64::from(body_bytes)) {
        std::cmp::Ordering::Less => Err(DecodeError::Truncated { bytes: bytes.len() as u64, expected }),
        std::cmp::Ordering::Greater => Err(DecodeError::Trailing { bytes: bytes.len() as u64, expected }),
        std::cmp::Ordering::Equal => Ok((tag, body)),
    }
}

/// Appends `body` as MessagePack.
pub(super) fn write(bytes: &mut Vec<u8>, body: &impl Serialize) {
    rmp_serde::encode::write(bytes, body).expect("memory takes every byte and our types have lengths");
}

/// Decodes all of `body` as a `T`.
///
/// # Errors
/// `Shape`: the body is MessagePack of another shape.
pub(super) fn read<'a, T: Deserialize<'a>>(tag: Tag, body: &'a [u8]) -> Result<T, DecodeError> {
    rmp_serde::from_slice(body).map_err(|error| DecodeError::Shape { tag, detail: error.to_string() })
}

/// Maximum nesting of arrays and maps. The deepest message, `Welcome`, has 5 levels.
const DEPTH_MAX: usize = 8;

/// Checks that `body` is exactly one MessagePack value. The error has the offset of the first invalid or surplus
/// byte.
pub(super) fn scan(body: &[u8]) -> Result<(), (usize, BodyFault)> {
    // Number of values still expected at each level; the outermost level is the body itself.
    let mut open = [0_u64; DEPTH_MAX + 1];
    open[0] = 1;
    let mut depth = 0;
    let mut at = 0;
    loop {
        while open[depth] == 0 {
            if depth == 0 {
                return if at == body.len() { Ok(()) } else { Err((at, BodyFault::Trailing)) };
            }
            depth -= 1;
        }
        open[depth] -= 1;
        let head = head(&body[at..]).map_err(|fault| (at, fault))?;
        let left = (body.len() - at - 1) as u64;
        if head.skip.saturating_add(head.values) > left {
            return Err((at, BodyFault::Overrun));
        }
        if head.values > 0 {
            depth += 1;
            *open.get_mut(depth).ok_or((at, BodyFault::Depth))? = head.values;
        }
        at += 1 + head.skip as usize;
    }
}

/// Content after a type byte: `skip` plain bytes, then `values` values.
struct Head {
    skip: u64,
    values: u64,
}

fn head(bytes: &[u8]) -> Result<Head, BodyFault> {
    let marker = *bytes.first().ok_or(BodyFault::Overrun)?;
    let length = |width: usize| {
        let bytes = bytes.get(1..=width).ok_or(BodyFault::Overrun)?;
        Ok(bytes.iter().fold(0_u64, |value, byte| value << 8 | u64::from(*byte)))
    };
    let plain = |skip: u64| Ok(Head { skip, values: 0 });
    let blob = |width: usize| Ok(Head { skip: width as u64 + length(width)?, values: 0 });
    let nest = |width: usize, each: u64| Ok(Head { skip: width as u64, values: each * length(width)? });
    match marker {
        0x00..=0x7f | 0xc0 | 0xc2 | 0xc3 | 0xe0..=0xff => plain(0),
        0x80..=0x8f => Ok(Head { skip: 0, values: 2 * u64::from(marker & 0x0f) }),
        0x90..=0x9f => Ok(Head { skip: 0, values: u64::from(marker & 0x0f) }),
        0xa0..=0xbf => plain(u64::from(marker & 0x1f)),
        0xc4 | 0xd9 => blob(1),
        0xc5 | 0xda => blob(2),
        0xc6 | 0xdb => blob(4),
        0xcc | 0xd0 => plain(1),
        0xcd | 0xd1 => plain(2),
        0xca | 0xce | 0xd2 => plain(4),
        0xcb | 0xcf | 0xd3 => plain(8),
        0xdc => nest(2, 1),
        0xdd => nest(4, 1),
        0xde => nest(2, 2),
        0xdf => nest(4, 2),
        // The reserved type and the extension types.
        0xc1 | 0xc7..=0xc9 | 0xd4..=0xd8 => Err(BodyFault::Marker(marker)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If this test fails, either undo the change or raise `VERSION`.
    #[test]
    fn bytes_are_frozen() {
        let header = Header { tag: Tag::Update, body_bytes: 0x0102_0304 };
        let [v0, v1] = VERSION.to_le_bytes();
        assert_eq!(header.encode(), [0x41, 0x52, 0x43, 0x48, v0, v1, 5, 0, 4, 3, 2, 1]);
        let mut numbers: Vec<u8> = Tag::ALL.iter().map(|tag| *tag as u8).collect();
        numbers.sort_unstable();
        // Earlier versions used 19 to 22.
        assert_eq!(numbers, (1..=18).chain(23..=24).collect::<Vec<_>>());
    }

    #[test]
    fn any_byte_changed_is_refused_or_means_itself() {
        for &tag in Tag::ALL {
            let good = Header { tag, body_bytes: 60 }.encode();
            for (place, value) in
                (0..HEADER_BYTES).flat_map(|place| (0..=255).map(move |value| (place, value)))
            {
                let mut bytes = good;
                bytes[place] = value;
                if let Ok(header) = Header::decode(&bytes) {
                    assert_eq!(header.encode(), bytes, "byte {place} = {value}");
                }
            }
        }
    }

    #[test]
    fn says_what_is_wrong() {
        let good = Header { tag: Tag::Ready, body_bytes: 64 }.encode();
        let check = |place: usize, value: u8, expected: DecodeError| {
            let mut bytes = good;
            bytes[place] = value;
            assert_eq!(Header::decode(&bytes), Err(expected));
        };
        check(0, b'a', DecodeError::Magic { found: *b"aRCH" });
        check(4, 1, DecodeError::Version { found: 1 });
        check(5, 1, DecodeError::Version { found: VERSION + 256 });
        check(6, 0, DecodeError::Tag { found: 0 });
        check(6, 25, DecodeError::Tag { found: 25 });
        check(7, 1, DecodeError::Reserved { found: 1 });
        check(8, 65, DecodeError::BodyTooLarge { tag: Tag::Ready, bytes: 65, bytes_max: 64 });
        assert_eq!(Header::decode(&good[..11]), Err(DecodeError::Truncated { bytes: 11, expected: 12 }));
    }

    fn check(body: &[u8], expected: Result<(), (usize, BodyFault)>) {
        assert_eq!(scan(body), expected, "{body:02x?}");
    }

    #[test]
    fn takes_one_whole_value() {
        check(&[0xc0], Ok(()));
        check(&[0x92, 1, 0xa2, b'h', b'i'], Ok(()));
        check(&[0x81, 0xa1, b'k', 0x90], Ok(()));
        check(&[0xc4, 2, 0xc1, 0xc1], Ok(()));
        check(&[0xdc, 0, 2, 0xca, 0, 0, 0, 0, 0xcf, 0, 0, 0, 0, 0, 0, 0, 0], Ok(()));
    }

    #[test]
    fn refuses_wrong_lengths() {
        check(&[], Err((0, BodyFault::Overrun)));
        check(&[0xc0, 0xc0], Err((1, BodyFault::Trailing)));
        check(&[0x92, 1], Err((0, BodyFault::Overrun)));
        check(&[0x91, 0x92, 1], Err((1, BodyFault::Overrun)));
        check(&[0xdd, 0xff, 0xff, 0xff, 0xff], Err((0, BodyFault::Overrun)));
        check(&[0xdf, 0xff, 0xff, 0xff, 0xff, 0], Err((0, BodyFault::Overrun)));
        check(&[0xc6, 0xff, 0xff, 0xff, 0xff, 1], Err((0, BodyFault::Overrun)));
        check(&[0xcb, 0, 0], Err((0, BodyFault::Overrun)));
        check(&[0xda, 1], Err((0, BodyFault::Overrun)));
    }

    #[test]
    fn refuses_types_and_depths_that_we_never_write() {
        check(&[0xc1], Err((0, BodyFault::Marker(0xc1))));
        check(&[0x91, 0xd4, 0, 0], Err((1, BodyFault::Marker(0xd4))));
        let nested = |depth: usize| [vec![0x91; depth], vec![0xc0]].concat();
        check(&nested(DEPTH_MAX), Ok(()));
        check(&nested(DEPTH_MAX + 1), Err((DEPTH_MAX, BodyFault::Depth)));
    }
}
